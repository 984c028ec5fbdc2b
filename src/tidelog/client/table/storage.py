"""What a table keeps its rows in. ``memory.py`` and ``sqlite.py`` are the two that there are.

Rows and the positions that they were read up to change together or not at all. So whatever was read, a storage that is opened
again is what a load of the topic up to exactly those positions would have made.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidelog.client.errors import TidelogError


class TableStorageError(TidelogError):
    """The file of a table cannot be used; the message says why and what to do."""


class Identity(NamedTuple):
    """What the rows were made from. Rows of another topic id or isolation are of no use."""

    topic: str
    topic_id: str
    isolation: str


class Progress(NamedTuple):
    """How far the rows were made."""

    identity: Identity
    positions: Mapping[int, int]
    """By partition the offset of the next message to read."""
    caught_up_ms: int
    """When everything that was in the topic had been read. Tombstones since then must still be there, or the rows are stale."""


class Storage(Protocol):
    """One thread writes; any thread reads."""

    def progress(self) -> Progress | None:
        """None when nothing was kept."""

    def reset(self, identity: Identity, now_ms: int) -> None:
        """No rows and no positions: what a load of ``identity`` that begins now has made so far."""

    def apply(
        self, changes: Sequence[tuple[bytes, bytes | None]], positions: Mapping[int, int], caught_up_ms: int | None
    ) -> None:
        """In their order; None removes. All of it or nothing."""

    def get(self, key: bytes) -> bytes | None:
        """None when there is no such row: a row always has a value."""

    def count(self) -> int: ...

    def keys(self) -> Iterator[bytes]: ...

    def items(self) -> Iterator[tuple[bytes, bytes]]: ...

    def close(self) -> None: ...
