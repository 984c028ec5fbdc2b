"""Compaction of one log: from the tick that picks it to the last swap, the child process and its start among it."""

import random
import time
from time import perf_counter

from bench.measure import Figure, Row
from bench.workspace import Workspace, running_broker
from tidelog.log.partition_log import PartitionLog
from tidelog.log.settings import DirectoryOptions, LogSettings
from tidelog.records.batch import build_batch
from tidelog.records.record import Record

RECORDS = 400_000
RECORDS_PER_BATCH = 100
VALUE_BYTES = 100
# Each key is written four times: three records of four go.
WRITES_PER_KEY = 4
SETTINGS = LogSettings(segment_bytes=16 << 20, compact=True, delete=False)


def run(workspace: Workspace) -> list[Row]:
    records = workspace.scaled(RECORDS, 2000)
    options = DirectoryOptions(cleaner_backoff_ms=0)
    with workspace.directory("compaction") as path, running_broker(path, SETTINGS, options) as broker:
        log = broker.create("orders", 0, SETTINGS)
        _fill(log, records)
        log.roll()
        broker.commit()
        log.advance_high_watermark(log.durable.offset)
        statistics = broker.data.cleaner.statistics
        size_before = log.size
        start = perf_counter()
        broker.data.cleaner.tick()
        broker.wait_until(lambda: broker.data.cleaner.log_being_cleaned is None)
        seconds = perf_counter() - start
        assert statistics.cleanings == 1, statistics
        assert statistics.records_removed, statistics
        return [
            Row("compaction, 100 B values, three records of four go", Figure(records / seconds, 0.0), "records/s"),
            Row("  the same by size", Figure(size_before / 1e6 / seconds, 0.0), "MB/s"),
        ]


def _fill(log: PartitionLog, records: int) -> None:
    source = random.Random(1)
    now_ms = time.time_ns() // 1_000_000
    keys = max(1, records // WRITES_PER_KEY)
    for _ in range(records // RECORDS_PER_BATCH):
        batch = [
            Record(number, now_ms, b"key-%08d" % source.randrange(keys), source.randbytes(VALUE_BYTES), ())
            for number in range(RECORDS_PER_BATCH)
        ]
        log.append_as_leader(build_batch(batch), 0)
