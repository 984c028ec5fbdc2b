"""Queues: the memory of the engine, and the time that it takes to hand out a record and to settle it."""

import tracemalloc

from bench.measure import Figure, Row, Target, seconds_of
from bench.workspace import Workspace
from tidelog.queues.acknowledgements import AcknowledgementBatch, AcknowledgeType
from tidelog.queues.records import RECORD_CODEC, SharePartitionKey, ShareSnapshotRecord, ShareSnapshotValue
from tidelog.queues.share_partition import AcquireRequest, DeliveryLimits, LogBatch, SharePartition

IN_FLIGHT = 120_000
BATCH_RECORDS = 100
ROUNDS = 3
LIMITS = DeliveryLimits(width_max=None, acquired_max=2 * IN_FLIGHT, ranges_max=2 * IN_FLIGHT)


def engine(workspace: Workspace) -> list[Row]:
    megabytes = Figure.of([megabytes_of_locks(workspace.scaled(IN_FLIGHT))])
    records = workspace.scaled(IN_FLIGHT)
    rounds = workspace.rounds(ROUNDS)
    batched = [seconds_of(lambda: _deliver(records, BATCH_RECORDS)) / records * 1e6 for _ in range(rounds)]
    single = [seconds_of(lambda: _deliver(records, 1)) / records * 1e6 for _ in range(rounds)]
    return [
        Row("memory of 120,000 locks, no two alike", megabytes, "MB", target=Target("<=", 8.0), judges="ours"),
        Row("deliver and acknowledge, 100 at a time", Figure.of(batched), "us/record"),
        Row("deliver and acknowledge, one at a time", Figure.of(single), "us/record"),
    ]


def megabytes_of_locks(count: int) -> float:
    """Return the memory of ``count`` locks, no two of which can share a row of the table."""
    tracemalloc.start()
    partition = SharePartition(0)
    _acquire_all_split(partition, count)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert partition.range_count == count
    return held_bytes / 1e6


def megabytes_behind_a_stuck_record(count: int) -> float:
    """Return the size of the table and its snapshot after ``count`` records were acknowledged behind one that is locked.

    Each second batch is settled before the one in front of it, so that the table is not in one piece at any time.
    """
    tracemalloc.start()
    partition = SharePartition(0)
    partition.acquire(AcquireRequest("stuck", 1, is_limit_strict=True), (LogBatch(0, 0),), LIMITS, 0)
    request = AcquireRequest("member", BATCH_RECORDS)
    for first in range(1, count, 2 * BATCH_RECORDS):
        bounds = [(begin, begin + BATCH_RECORDS - 1) for begin in (first, first + BATCH_RECORDS)]
        for begin, end in bounds:
            partition.acquire(request, (LogBatch(begin, end),), LIMITS, 0)
        for begin, end in reversed(bounds):
            partition.acknowledge("member", (AcknowledgementBatch(begin, end, (AcknowledgeType.ACCEPT,)),), LIMITS, 0)
        partition.take_update()
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert partition.start_offset == 0
    key = SharePartitionKey("group", bytes(16), 0)
    value = ShareSnapshotValue(0, 0, 0, 0, 0, 0, tuple(partition.states()), partition.delivery_complete_count)
    return (held_bytes + sum(map(len, filter(None, RECORD_CODEC.encode(ShareSnapshotRecord(key, value)))))) / 1e6


def _acquire_all_split(partition: SharePartition, count: int) -> None:
    """Neighbours belong to different members, so that no two ranges merge."""
    for offset in range(count):
        request = AcquireRequest(f"member-{offset % 2}", 1, is_limit_strict=True)
        partition.acquire(request, (LogBatch(offset, offset),), LIMITS, offset // 100)


def _deliver(records: int, batch_records: int) -> None:
    partition = SharePartition(0)
    request = AcquireRequest("member", batch_records)
    for first in range(0, records, batch_records):
        last = first + batch_records - 1
        partition.acquire(request, (LogBatch(first, last),), LIMITS, first)
        partition.acknowledge("member", (AcknowledgementBatch(first, last, (AcknowledgeType.ACCEPT,)),), LIMITS, first)
        partition.take_update()
