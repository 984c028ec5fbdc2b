"""When and what to commit: every ``commit_interval``, sooner when letters wait for it, and at the end of an assignment.

The position of a partition is the first offset that is not finished; what is finished above it goes into the metadata. Only what
changed since the last commit is sent.
"""

from collections.abc import Iterable

from tidelog.worker.assigned import Assigned
from tidelog.worker.outbox import Outbox, Position
from tidelog.worker.outbox_plain import MetadataLimit
from tidelog.worker.run_lengths import encode

# Letters of a transactional worker are seen after the next commit; this many milliseconds gather some.
URGENT_MS = 50


class Commits:
    def __init__(self, outbox: Outbox, limit: MetadataLimit, interval: float) -> None:
        self._outbox = outbox
        self._limit = limit
        self._interval_ms = interval * 1000
        self._last_ms = 0

    def tick(self, partitions: Iterable[Assigned], now_ms: int) -> None:
        passed_ms = now_ms - self._last_ms
        if passed_ms >= self._interval_ms or (passed_ms >= URGENT_MS and self._outbox.is_urgent):
            self.commit(partitions, now_ms)

    def commit(self, partitions: Iterable[Assigned], now_ms: int, *, is_last: bool = False) -> bool:
        """False when it is known to have failed: what it would have said is handled again."""
        self._last_ms = now_ms
        positions = []
        for assigned in partitions:
            offset = assigned.offsets.position
            if offset is None:
                continue
            metadata = encode(offset, assigned.offsets.finished_runs(), self._limit.bytes_max)
            if (offset, metadata) != assigned.committed:
                assigned.committed = (offset, metadata)
                positions.append(Position(assigned, offset, metadata))
        return self._outbox.commit(positions, is_last)
