"""What the tests ask of a transactional producer, and of the reader whose offsets go into its transactions, of whichever client.

A producer has its transactional id, and whoever had it before is fenced, when it is made.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from tests.compatibility.clients.client import Codec
from tests.compatibility.clients.groups.member import Partition

TIMEOUT_MS = 60_000


class Fenced(Exception):
    """Somebody else has the transactional id now, or the broker gave the transaction up."""


class Read(NamedTuple):
    partition: Partition
    offset: int
    value: bytes


class GroupReader(Protocol):
    """A member of a group that never commits by itself, and reads what is committed only."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None: ...

    def poll(self) -> list[Read]:
        """A few records, or none for the moment."""

    def rewind(self) -> None:
        """To what the group has committed, or to the beginning."""

    def group_metadata(self) -> Any:
        """As the producer of the same client wants it."""

    def close(self) -> None: ...


class TransactionalProducer(Protocol):
    client: str

    def __init__(
        self, bootstrap_servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, codec: Codec = Codec.NONE
    ) -> None: ...

    def begin(self) -> None: ...

    def send(self, topic: str, value: bytes, partition: int = 0) -> None: ...

    def flush(self) -> None:
        """Returns when all that was sent is in the log, in the transaction that is open."""

    def send_offsets(self, reader: Any, offsets: Mapping[Partition, int]) -> None:
        """``reader`` is one of the same client."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """Gives up what it uses. A transaction that is open stays so."""
