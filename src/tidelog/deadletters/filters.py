"""Which dead letters are meant: by error, key, time, partition and offset. All that are given must fit.

An error fits by the exception's class with its module (``app.errors.OutOfStock``) or by the last part alone (``OutOfStock``).
The time is that of the last failure. Offsets are those in the dead-letter topic, as ``list`` and ``show`` name them, both ends
included.
"""

from typing import NamedTuple

from tidelog.client.errors import InvalidArgument
from tidelog.deadletters.dead_letter import DeadLetter


class Filter(NamedTuple):
    """Without arguments everything fits."""

    errors: tuple[str, ...] = ()
    """One of these."""
    key: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    """Before this."""
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    @property
    def is_everything(self) -> bool:
        return self == Filter()

    def checked(self) -> "Filter":
        """Itself; InvalidArgument when nothing could ever fit."""
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise InvalidArgument("nothing fits: the time to begin with is not before the one to end with")
        first, last = self.first_offset, self.last_offset
        if (first is not None and first < 0) or (last is not None and last < 0):
            raise InvalidArgument("offsets begin at 0")
        if first is not None and last is not None and first > last:
            raise InvalidArgument(f"nothing fits: the offsets from {first} to {last} are none")
        if self.partition is not None and self.partition < 0:
            raise InvalidArgument("partitions begin at 0")
        return self

    def fits(self, dead: DeadLetter) -> bool:
        if self.partition is not None and dead.partition != self.partition:
            return False
        if self.first_offset is not None and dead.offset < self.first_offset:
            return False
        if self.last_offset is not None and dead.offset > self.last_offset:
            return False
        if self.key is not None and dead.key != self.key:
            return False
        if self.errors and not any(fits_error(dead.error, wanted) for wanted in self.errors):
            return False
        if self.since_ms is None and self.until_ms is None:
            return True
        failed_ms = dead.failed_ms
        if failed_ms is None:
            return False
        return (self.since_ms is None or failed_ms >= self.since_ms) and (self.until_ms is None or failed_ms < self.until_ms)

    def narrow(self, partition: int, start: int, end: int) -> tuple[int, int] | None:
        """The part of a partition's offsets (``end`` excluded) that need be read for it; None for nothing of it."""
        if self.partition is not None and partition != self.partition:
            return None
        if self.first_offset is not None:
            start = max(start, self.first_offset)
        if self.last_offset is not None:
            end = min(end, self.last_offset + 1)
        return (start, end) if start < end else None


def fits_error(error: str, wanted: str) -> bool:
    return error == wanted or error.endswith(f".{wanted}")
