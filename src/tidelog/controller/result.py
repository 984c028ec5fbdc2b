"""What a decision gives: records for the metadata log, and the response that is true once they are committed."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from tidelog.metadata.records import MetadataRecord

Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[Response]):
    records: list[MetadataRecord]
    """One atomic batch. Empty: nothing changes, and the response holds at once."""
    response: Response
