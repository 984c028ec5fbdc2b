"""Which partitions are paused: those from which nothing should be read now. Pure.

A partition is paused while its blocked keys are not known yet, or its retry partitions are not there; while the first letter of a
retry partition is not due; while the circuit breaker of its handler is open; while too many letters of its keys wait; while too
much was finished above a message that is not, because its handler hangs; and while more of it was read than is being handled. The
last has some patience, because librdkafka drops what it has fetched of a partition that is paused: a fast handler catches up
within ``PATIENCE_MS``, meanwhile the worker just reads nothing (``should_wait``).
"""

from collections.abc import Iterable

from tidelog.worker.assigned import Assigned
from tidelog.worker.breaker import State

PATIENCE_MS = 100
# However many partitions share the total.
PARTITION_MESSAGES_MIN = 100
PARTITION_BYTES_MIN = 1 << 20
# Letters of one partition that wait in retry topics, with order="key": about 20 MB of table.
BLOCKED_LETTERS_MAX = 100_000
# Offsets of one partition that are finished above one that is not: about 50 MB of table, gone through at every commit.
OFFSETS_MAX = 500_000


class Pauses:
    __slots__ = (
        "_bytes_max",
        "_messages_max",
        "_partition_bytes_max",
        "_partition_messages_max",
        "room_bytes",
        "room_messages",
        "should_wait",
    )

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        """Of all partitions together."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._partition_messages_max = PARTITION_MESSAGES_MIN
        self._partition_bytes_max = PARTITION_BYTES_MIN
        self.room_messages = messages_max
        """How many more may be read before all partitions together have their share. Those with less than their own are read
        one by one then."""
        self.room_bytes = bytes_max
        self.should_wait = False
        """Read nothing for a moment: some partition has more than its share, and may soon have less."""

    def changes(self, partitions: Iterable[Assigned], now_ms: int) -> tuple[list[Assigned], list[Assigned]]:
        """Those to pause now and those to resume; they count as that from here on."""
        all_of_them = list(partitions)
        count = max(len(all_of_them), 1)
        messages_max = self._partition_messages_max = max(self._messages_max // count, PARTITION_MESSAGES_MIN)
        bytes_max = self._partition_bytes_max = max(self._bytes_max // count, PARTITION_BYTES_MIN)
        self.room_messages = self._messages_max - sum([assigned.backlog for assigned in all_of_them])
        self.room_bytes = self._bytes_max - sum([assigned.backlog_bytes for assigned in all_of_them])
        self.should_wait = False
        to_pause: list[Assigned] = []
        to_resume: list[Assigned] = []
        for assigned in all_of_them:
            is_full = self._is_full(assigned, messages_max, bytes_max, now_ms)
            wanted = is_full or _is_held_up(assigned)
            if wanted != assigned.is_paused:
                (to_pause if wanted else to_resume).append(assigned)
                assigned.is_paused = wanted
        return to_pause, to_resume

    def may_park(self, assigned: Assigned) -> bool:
        """Whether one more message of the partition may wait in memory for its key: half of its share, the rest is for others."""
        return assigned.parked < self._partition_messages_max // 2 and assigned.parked_bytes < self._partition_bytes_max // 2

    def _is_full(self, assigned: Assigned, messages_max: int, bytes_max: int, now_ms: int) -> bool:
        if assigned.is_paused and assigned.full_since_ms is not None:
            # Until half of it is gone, so that it does not go to and fro.
            messages_max //= 2
            bytes_max //= 2
        if assigned.backlog < messages_max and assigned.backlog_bytes < bytes_max:
            assigned.full_since_ms = None
            return False
        if assigned.full_since_ms is None:
            assigned.full_since_ms = now_ms
        if assigned.is_paused or now_ms - assigned.full_since_ms >= PATIENCE_MS:
            return True
        self.should_wait = True
        return False


def _is_held_up(assigned: Assigned) -> bool:
    home = assigned.home
    if not home.is_scanned or not home.is_whole or len(assigned.retries):
        return True
    breaker = assigned.route.breaker
    if breaker is not None and breaker.state is not State.CLOSED:
        return True
    return assigned.is_source and (len(home.blocked) >= BLOCKED_LETTERS_MAX or len(assigned.offsets) >= OFFSETS_MAX)
