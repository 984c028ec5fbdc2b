"""Group commit, against one ``fdatasync`` for each write: how many acknowledged writes a second each gives.

Ours: every writer waits for its write to be durable and then writes again. Raw: the same writes one after the other, each with
its own sync. Both write batches of 1 KB.
"""

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from bench.batches import SMALL_BATCH_BYTES, batch_of
from bench.measure import Figure, Row, Target, alternate, seconds_of
from bench.workspace import Broker, Workspace, running_broker
from tidelog.log.partition_log import PartitionLog
from tidelog.log.settings import LogSettings

WRITERS = 64
WRITES_PER_WRITER = 50
RAW_WRITES = 256
DIRTY_PARTITIONS = 512
PASS_MS_MAX = 15.0
ROUNDS = 9
BATCH = batch_of(SMALL_BATCH_BYTES)
SETTINGS = LogSettings()


class _Writer:
    """Writes, waits until that is durable, writes again."""

    __slots__ = ("_broker", "_log", "_on_finished", "_remaining")

    def __init__(self, broker: Broker, log: PartitionLog, writes: int, on_finished: Callable[[], None]) -> None:
        self._broker = broker
        self._log = log
        self._remaining = writes
        self._on_finished = on_finished

    def write(self, error: Exception | None = None) -> None:
        if error is not None:
            raise error
        if not self._remaining:
            self._on_finished()
            return
        self._remaining -= 1
        result = self._log.append_as_leader(BATCH, 0)
        self._broker.data.commit.wait(self._log, result.last_offset + 1, self.write)


def _ours(broker: Broker, logs: list[PartitionLog], writes: int) -> float:
    """Acknowledged writes per second."""
    finished = 0

    def on_finished() -> None:
        nonlocal finished
        finished += 1

    writers = [_Writer(broker, logs[number % len(logs)], writes, on_finished) for number in range(WRITERS)]

    def work() -> None:
        for writer in writers:
            writer.write()
        broker.data.kick()
        broker.wait_until(lambda: finished == WRITERS)

    return WRITERS * writes / seconds_of(work)


def _raw(path: Path, files: int, writes: int) -> float:
    descriptors = [os.open(path / f"raw-{number}", os.O_RDWR | os.O_CREAT | os.O_APPEND) for number in range(files)]
    for descriptor in descriptors:
        os.write(descriptor, BATCH)
        os.fsync(descriptor)

    def work() -> None:
        for number in range(writes):
            descriptor = descriptors[number % files]
            os.write(descriptor, BATCH)
            os.fdatasync(descriptor)

    try:
        return writes / seconds_of(work)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def run(workspace: Workspace) -> list[Row]:
    return [
        _against_one_sync_each(workspace, 1, "one partition", 30.0),
        _against_one_sync_each(workspace, WRITERS, f"{WRITERS} partitions", 10.0),
        _one_pass(workspace),
    ]


def _against_one_sync_each(workspace: Workspace, partitions: int, label: str, ratio_min: float) -> Row:
    writes = workspace.scaled(WRITES_PER_WRITER, 5)
    raw_writes = workspace.scaled(RAW_WRITES)
    with workspace.directory("commit") as path, running_broker(path, SETTINGS) as broker:
        logs = [broker.create("orders", number, SETTINGS) for number in range(partitions)]
        broker.commit()
        raw_path = path / "raw"
        raw_path.mkdir()
        compared = alternate(
            workspace.rounds(ROUNDS), lambda: _ours(broker, logs, writes), lambda: _raw(raw_path, partitions, raw_writes)
        )
    what = f"group commit, {WRITERS} writers on {label}"
    return Row.of_comparison(what, compared, "writes/s", Target(">=", ratio_min))


def _one_pass(workspace: Workspace) -> Row:
    partitions = workspace.scaled(DIRTY_PARTITIONS)
    with workspace.directory("commit") as path, running_broker(path, SETTINGS) as broker:
        logs = [broker.create("orders", number, SETTINGS) for number in range(partitions)]
        broker.commit()
        values = [_pass_ms(broker, logs) for _ in range(workspace.rounds(2 * ROUNDS))]
    what = f"group commit, {partitions} dirty partitions in one pass"
    return Row(what, Figure.of(values), "ms", target=Target("<=", PASS_MS_MAX))


def _pass_ms(broker: Broker, logs: list[PartitionLog]) -> float:
    """From the call that starts a pass to the last callback."""
    outcomes: list[Exception | None] = []
    for log in logs:
        result = log.append_as_leader(BATCH, 0)
        broker.data.commit.wait(log, result.last_offset + 1, outcomes.append)
    passes = broker.data.commit.statistics.passes
    start = perf_counter()
    broker.data.kick()
    broker.wait_until(lambda: len(outcomes) == len(logs))
    milliseconds = (perf_counter() - start) * 1000
    assert not any(outcomes), outcomes
    assert broker.data.commit.statistics.passes == passes + 1
    return milliseconds
