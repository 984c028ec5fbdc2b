import pytest

from tests.broker.harness import Machine
from tests.broker.metric_sources.shown import Shown
from tests.broker.transactional import TransactionalProducer, transactional_machine
from tests.log.harness import batch
from tidelog.broker.metric_sources import logs
from tidelog.metrics.labelled import OTHER
from tidelog.wire.errors import ErrorCode


def test_sizes_and_offsets() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic(partitions=2)
    records = batch(3)
    for _ in range(2):
        client.append(records=records, partition=1)
    shown = Shown(machine)
    assert shown.value("tidelog_log_size_bytes", "orders", "1") == 2 * len(records)
    assert shown.value("tidelog_log_start_offset", "orders", "1") == 0
    assert shown.value("tidelog_log_high_watermark", "orders", "1") == 6
    assert shown.value("tidelog_log_end_offset", "orders", "1") == 6
    assert shown.value("tidelog_log_end_offset", "orders", "0") == 0
    # Two, and that of the metadata.
    assert shown.value("tidelog_partitions") == 3
    assert shown.value("tidelog_log_segments") == 3
    assert shown.value("tidelog_partitions_offline") == 0
    assert shown.value("tidelog_open_segment_files") > 0


def test_group_commit() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    before = Shown(machine)
    client.append()
    shown = Shown(machine)
    assert shown.value("tidelog_group_commit_passes_total") > before.value("tidelog_group_commit_passes_total")
    passes = shown.value("tidelog_group_commit_passes_total")
    for name in ("logs", "sync_seconds", "pass_seconds"):
        assert shown.histogram(f"tidelog_group_commit_{name}").total == passes
    assert shown.histogram("tidelog_group_commit_pass_seconds").sum > 0
    assert shown.histogram("tidelog_group_commit_logs").sum >= passes


def test_more_partitions_than_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic(partitions=5)
    for partition in range(5):
        client.append(partition=partition)
    for name in ("SIZE", "START", "HIGH_WATERMARK", "END"):
        monkeypatch.setattr(logs, name, getattr(logs, name)._replace(series_max=3))
    shown = Shown(machine)
    assert len(shown.labels("tidelog_log_end_offset")) == 4
    # The metadata's log and two of the topic's have their own.
    assert shown.value("tidelog_log_end_offset", OTHER, OTHER) == 3


def test_a_log_that_went_offline() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    client.append()
    machine.broker.directory.logs["orders", 0].go_offline("told to")
    assert Shown(machine).value("tidelog_partitions_offline") == 1


def test_transactions_that_hold_back_readers() -> None:
    machine = transactional_machine(partitions=2)
    producer = TransactionalProducer(machine).started()
    assert Shown(machine).value("tidelog_log_open_transactions") == 0
    producer.write(("orders", 0), ("orders", 1))
    before = Shown(machine).value("tidelog_log_open_transaction_idle_seconds_max")
    machine.run_for(5_000)
    shown = Shown(machine)
    assert shown.value("tidelog_producer_ids") == 2
    assert shown.value("tidelog_log_open_transactions") == 2
    assert shown.value("tidelog_log_open_transaction_idle_seconds_max") == pytest.approx(before + 5, abs=0.1)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    shown = Shown(machine)
    assert shown.value("tidelog_log_open_transactions") == 0
    assert shown.value("tidelog_log_open_transaction_idle_seconds_max") == 0
