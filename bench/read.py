"""Reading at a random offset: from the offset to the slice that ``sendfile`` takes. Processor time, by this thread's clock."""

import random
from time import thread_time_ns

from bench.batches import MEDIUM_BATCH_BYTES, SMALL_BATCH_BYTES, different_batches, joined
from bench.measure import Figure, Row, Target
from bench.workspace import Workspace, running_broker
from tidelog.log.append_check import AppendOrigin
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, read
from tidelog.log.settings import LogSettings

READS = 20_000
READ_BYTES_MAX = 1 << 20
APPEND_BYTES = 1 << 20
CPU_US_MAX = 30.0


def _fill(log: PartitionLog, size_bytes: int, total_bytes: int) -> None:
    data = joined(different_batches(size_bytes), APPEND_BYTES)
    while log.size < total_bytes:
        log.append_as_leader(data, 0, AppendOrigin.COORDINATOR)


def _read_at_random(log: PartitionLog, count: int, seed: int) -> list[float]:
    """Microseconds of each read."""
    source = random.Random(seed)
    offsets = [source.randrange(log.log_end_offset) for _ in range(count)]
    isolation = Isolation.HIGH_WATERMARK
    values = []
    for offset in offsets:
        start = thread_time_ns()
        found = read(log, offset, READ_BYTES_MAX, isolation)
        values.append((thread_time_ns() - start) / 1000)
        assert found.records is not None
    return values


def run(workspace: Workspace) -> list[Row]:
    rows = []
    settings = LogSettings()
    for label, size_bytes, total_bytes in (("16 KB", MEDIUM_BATCH_BYTES, 2 << 30), ("1 KB", SMALL_BATCH_BYTES, 1 << 29)):
        with workspace.directory("read") as path, running_broker(path, settings) as broker:
            log = broker.create("orders", 0, settings)
            total_bytes = workspace.scaled(total_bytes)
            _fill(log, size_bytes, total_bytes)
            broker.commit()
            log.advance_high_watermark(log.durable.offset)
            values = _read_at_random(log, workspace.scaled(READS, 1000), seed=1)
        what = f"read at a random offset, {total_bytes / 2**30:.3g} GB log of {label} batches"
        target = Target("<=", CPU_US_MAX) if size_bytes == MEDIUM_BATCH_BYTES else None
        rows.append(Row(what, Figure.of(values), "us CPU", target=target))
        values.sort()
        rows.append(Row("  its 99th percentile", Figure(values[len(values) * 99 // 100], 0.0), "us CPU"))
    return rows
