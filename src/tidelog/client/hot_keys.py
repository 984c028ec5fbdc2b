"""Finds the keys with most of the messages, and each partition's share, from a sample, in bounded memory.

Space-saving (Metwally, Agrawal, El Abbadi 2005): there are at most ``KEYS_KEPT`` counters. A key without a counter takes over the
smallest one with its count, and remembers that count as its possible error. A count is never too low, and too high by at most its
error. Every key with more than 1/KEYS_KEPT of the messages has a counter.
"""

import heapq
from collections.abc import Iterable
from typing import NamedTuple

KEYS_KEPT = 1_000


class HotKey(NamedTuple):
    """``messages`` is too high by at most ``error``; ``share`` is the fraction of the sample, 0 to 1."""

    key: bytes
    messages: int
    error: int
    share: float


class PartitionShare(NamedTuple):
    """``share`` is the fraction of the sample's messages; ``skew`` is the ratio to the mean of all partitions."""

    partition: int
    messages: int
    bytes: int
    share: float
    skew: float


class SpaceSaving:
    """Counts the most frequent keys of a stream with ``keys_kept`` counters."""

    __slots__ = ("_counts", "_errors", "_heap", "_keys_kept", "total")

    def __init__(self, keys_kept: int = KEYS_KEPT) -> None:
        self._keys_kept = keys_kept
        self._counts: dict[bytes, int] = {}
        self._errors: dict[bytes, int] = {}
        # (count, key) pairs. A count may be outdated, and then too low; it is updated when it reaches the top.
        self._heap: list[tuple[int, bytes]] = []
        self.total = 0

    def add(self, key: bytes) -> None:
        self.total += 1
        counts = self._counts
        if key in counts:
            counts[key] += 1
        elif len(counts) < self._keys_kept:
            counts[key] = 1
            heapq.heappush(self._heap, (1, key))
        else:
            count, smallest = self._smallest()
            del counts[smallest]
            self._errors.pop(smallest, None)
            counts[key] = count + 1
            self._errors[key] = count
            heapq.heapreplace(self._heap, (count + 1, key))

    def top(self, count: int) -> list[tuple[bytes, int, int]]:
        """(key, messages, error), the largest first."""
        found = heapq.nsmallest(count, self._counts.items(), key=lambda item: (-item[1], item[0]))
        return [(key, messages, self._errors.get(key, 0)) for key, messages in found]

    def _smallest(self) -> tuple[int, bytes]:
        heap = self._heap
        while True:
            count, key = heap[0]
            current = self._counts[key]
            if current == count:
                return count, key
            heapq.heapreplace(heap, (current, key))


class HotKeys:
    """Collects a sample of one topic."""

    def __init__(self, partitions: Iterable[int], keys_kept: int = KEYS_KEPT) -> None:
        self._keys = SpaceSaving(keys_kept)
        self._messages = dict.fromkeys(partitions, 0)
        self._bytes = dict.fromkeys(self._messages, 0)
        self.without_key = 0

    def add(self, partition: int, key: bytes | None, size: int) -> None:
        """Count one message of ``size`` bytes."""
        self._messages[partition] = self._messages.get(partition, 0) + 1
        self._bytes[partition] = self._bytes.get(partition, 0) + size
        if key is None:
            self.without_key += 1
        else:
            self._keys.add(key)

    @property
    def messages(self) -> int:
        return self._keys.total + self.without_key

    def keys(self, count: int) -> list[HotKey]:
        """The ``count`` keys with most messages, largest first."""
        total = self.messages
        return [HotKey(key, messages, error, messages / total) for key, messages, error in self._keys.top(count)]

    def partitions(self) -> list[PartitionShare]:
        """Every partition, including those without a message in the sample."""
        total, mean = self.messages or 1, (self.messages / len(self._messages) if self._messages else 0) or 1
        return [
            PartitionShare(partition, messages, self._bytes[partition], messages / total, messages / mean)
            for partition, messages in sorted(self._messages.items())
        ]
