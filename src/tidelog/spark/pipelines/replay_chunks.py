"""A replay in chunks: which rows go together, and when the next may go. Pure.

A chunk has a part of every source partition, so that partitions advance together, and is one write of the sink: all of it is seen
at once, or nothing. Its ranges of offsets follow those of the chunk before. How rows are cut depends on how many there are at
which offsets and on nothing else.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog.spark.pipelines.offset_ranges import OffsetRange

ROWS_PER_CHUNK = 100_000
# Each leaves an entry in the sink's ledger, and some transactional ids, which brokers remember for days.
CHUNKS_MAX = 1_000
# With a rate, a chunk is what may be sent in this time: readers see the rows of a chunk all at once.
SECONDS_PER_CHUNK = 5.0
_BUCKETS_PER_CHUNK = 10
_BUCKET_OFFSETS_MAX = 10_000


class Bucket(NamedTuple):
    """Rows of one partition at offsets side by side."""

    partition: int
    first: int
    last: int
    rows: int


class Chunk(NamedTuple):
    number: int
    rows: int
    ranges: tuple[OffsetRange, ...]


def rows_wanted(chunk_rows: int, rate: float | None) -> int:
    return chunk_rows if rate is None else max(1, min(chunk_rows, int(rate * SECONDS_PER_CHUNK)))


def bucket_offsets(rows_per_chunk: int) -> int:
    return max(1, min(_BUCKET_OFFSETS_MAX, rows_per_chunk // _BUCKETS_PER_CHUNK))


def cut(buckets: Sequence[Bucket], rows_per_chunk: int) -> tuple[Chunk, ...]:
    """At most CHUNKS_MAX: where there are more rows than that, chunks are larger."""
    by_partition: dict[int, list[Bucket]] = {}
    for bucket in sorted(buckets):
        by_partition.setdefault(bucket.partition, []).append(bucket)
    total = sum(bucket.rows for bucket in buckets)
    count = min(CHUNKS_MAX, max(1, -(-total // rows_per_chunk)))
    parts: list[list[OffsetRange]] = [[] for _ in range(count)]
    rows = [0] * count
    for partition, filled in by_partition.items():
        of_partition = sum(bucket.rows for bucket in filled)
        before = 0
        for bucket in filled:
            number = before * count // of_partition
            before += bucket.rows
            rows[number] += bucket.rows
            end = bucket.last + 1
            last = parts[number][-1] if parts[number] else None
            if last is not None and last.partition == partition:
                parts[number][-1] = last._replace(end=end)
            else:
                parts[number].append(OffsetRange(partition, bucket.first, end))
    filled_chunks = [(size, tuple(ranges)) for size, ranges in zip(rows, parts, strict=True) if ranges]
    return tuple(Chunk(number, size, ranges) for number, (size, ranges) in enumerate(filled_chunks))


class Pacer:
    """No more than ``rate`` rows a second over any stretch longer than a chunk, whatever the chunks take. What was slow is not
    made up for later."""

    def __init__(self, rate: float | None, clock: Callable[[], float], wait: Callable[[float], bool]) -> None:
        """``wait`` waits for so many seconds, and says whether the run is to stop."""
        self._rate = rate
        self._clock = clock
        self._wait = wait
        self._due = clock()

    def admit(self, rows: int) -> bool:
        """When it is time for so many rows: whether they are to be sent."""
        now = self._clock()
        is_stopped = self._wait(max(0.0, self._due - now))
        if self._rate is not None:
            self._due = max(now, self._due) + rows / self._rate
        return not is_stopped
