"""From ranges of offsets to what the tasks read, and how much of what is there one micro-batch takes. Pure.

Sizes are counted in offsets: how many messages there are between two of them is known only to who reads them (compaction and
transaction markers leave gaps), so that a limit is never exceeded and may be undercut.
"""

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidelog.client.topic_partition import Partition


class Span(NamedTuple):
    """Offsets of a partition from ``start`` up to before ``end``: of a batch, or of one task."""

    topic: str
    topic_id: bytes
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def split(spans: Sequence[Span], min_partitions: int, max_records: int) -> list[Span]:
    """Without empty ones; at most ``max_records`` in each, and at least ``min_partitions`` of them while there are offsets.

    Those that are longest get the next cut, so that the parts are about equal.
    """
    spans = [span for span in spans if span.size > 0]
    parts = [-(-span.size // max_records) for span in spans]
    missing = min_partitions - sum(parts)
    longest = [(-span.size / count, index) for index, (span, count) in enumerate(zip(spans, parts, strict=True))]
    heapq.heapify(longest)
    while missing > 0 and longest:
        _, index = heapq.heappop(longest)
        if parts[index] < spans[index].size:
            parts[index] += 1
            missing -= 1
            heapq.heappush(longest, (-spans[index].size / parts[index], index))
    return [part for span, count in zip(spans, parts, strict=True) for part in _cut(span, count)]


def _cut(span: Span, count: int) -> list[Span]:
    cuts = [span.start + span.size * number // count for number in range(count + 1)]
    return [span._replace(start=start, end=end) for start, end in pairwise(cuts)]


def limited(start: Mapping[Partition, int], available: Mapping[Partition, int], offsets_max: int) -> dict[Partition, int]:
    """Where a batch of at most ``offsets_max`` ends: each partition has its share by what waits in it.

    What the shares leave when they are rounded down goes to those that were rounded most, one by one: a partition with little
    in it is not passed over for ever, and there is always progress.
    """
    waiting = {partition: max(0, end - start[partition]) for partition, end in available.items()}
    total = sum(waiting.values())
    if total <= offsets_max:
        return {partition: start[partition] + count for partition, count in waiting.items()}
    shares = {partition: count * offsets_max // total for partition, count in waiting.items()}
    left = offsets_max - sum(shares.values())
    by_remainder = sorted(waiting, key=lambda partition: (-(waiting[partition] * offsets_max % total), partition))
    for partition in by_remainder[:left]:
        shares[partition] += 1
    return {partition: start[partition] + share for partition, share in shares.items()}
