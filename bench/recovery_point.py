"""What it costs to move recovery points: indexes and producers' snapshots become durable with the data, then the checkpoint."""

from time import perf_counter

from bench.batches import MEDIUM_BATCH_BYTES, batch_of
from bench.measure import Figure, Row
from bench.workspace import Broker, Workspace, running_broker
from tidelog.log.partition_log import PartitionLog
from tidelog.log.settings import LogSettings

ROUNDS = 9
PARTITIONS = 64
BATCH = batch_of(MEDIUM_BATCH_BYTES)


def run(workspace: Workspace) -> list[Row]:
    settings = LogSettings()
    rows = []
    with workspace.directory("recovery-point") as path, running_broker(path, settings) as broker:
        every_log = [broker.create("orders", number, settings) for number in range(PARTITIONS)]
        broker.commit()
        for logs in (every_log[:1], every_log):
            values = [_move(broker, logs) for _ in range(workspace.rounds(ROUNDS))]
            what = f"move the recovery point of {len(logs)} partition{'s' if len(logs) > 1 else ''} to the end"
            rows.append(Row(what, Figure.of(values), "ms"))
    return rows


def _move(broker: Broker, logs: list[PartitionLog]) -> float:
    """Milliseconds until the checkpoint on the disk says so for all of them."""
    for log in logs:
        log.append_as_leader(BATCH, 0)
    moved: list[BaseException | None] = []
    start = perf_counter()
    for log in logs:
        broker.data.checkpoint_recovery_point(log, moved.append)
    broker.wait_until(lambda: len(moved) == len(logs))
    milliseconds = (perf_counter() - start) * 1000
    assert not any(moved), moved
    return milliseconds
