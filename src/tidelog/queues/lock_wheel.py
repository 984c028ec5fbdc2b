"""Which locks end when: the offsets of every acquisition, in buckets by the time at which it ends.

A bucket is an array of pairs (first offset, last offset), 16 bytes for an acquisition; one that follows on the last one of its
bucket extends it. Nothing is removed when a record is acknowledged: when a bucket is due, the owner of the wheel looks which of
its offsets are still locked, by the deadline that each range keeps for itself. A renewed lock is in two buckets, and the first
one finds a later deadline.

A lock ends at most a bucket's width late, never early.
"""

import heapq
from array import array
from collections.abc import Iterator

# Wide enough for a burst of acquisitions to share a bucket, and half of the 200 ms that an expiry may be late.
BUCKET_MS = 100


class LockWheel:
    __slots__ = ("_buckets", "_numbers")

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        # The numbers of the buckets, as a heap.
        self._numbers: list[int] = []

    def __len__(self) -> int:
        """The number of acquisitions that are kept."""
        return sum(len(bucket) for bucket in self._buckets.values()) // 2

    def add(self, deadline_ms: int, first: int, last: int) -> None:
        number = -(-deadline_ms // BUCKET_MS)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = array("q")
            heapq.heappush(self._numbers, number)
        if bucket and bucket[-1] == first - 1:
            bucket[-1] = last
        else:
            bucket.append(first)
            bucket.append(last)

    def next_deadline_ms(self) -> int | None:
        return self._numbers[0] * BUCKET_MS if self._numbers else None

    def take_due(self, now_ms: int) -> Iterator[tuple[int, int]]:
        """Remove the buckets that are due and return their offsets, which may be acknowledged by now or locked for longer."""
        while self._numbers and self._numbers[0] * BUCKET_MS <= now_ms:
            bucket = self._buckets.pop(heapq.heappop(self._numbers))
            yield from zip(bucket[::2], bucket[1::2], strict=True)

    def clear(self) -> None:
        """Called when nothing is locked any more."""
        self._buckets.clear()
        self._numbers.clear()
