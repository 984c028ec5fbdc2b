"""What a verification finds: where, what is wrong, and what it means for whoever runs the broker."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    DAMAGE = "damage"
    """Something that was once whole is not any more: bytes, or what finds them."""
    NOTE = "note"
    """What a crash leaves and the next start puts in order, or what merely looks odd."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    partition: str
    """The partition directory's name; "" for the data directory's own files."""
    path: str
    position: int | None
    """The byte in that file; None when it is about the file as a whole."""
    offset: int | None
    problem: str
    meaning: str


OnFinding = Callable[[Finding], None]
# Told how many more bytes of log have been read.
OnBytes = Callable[[int], None]
