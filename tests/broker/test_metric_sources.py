"""Reads what a broker shows: name and labels -> value."""

import pytest

from tests.broker.harness import Machine, fetch_request
from tests.broker.test_lag_monitor import HOUR_MS, SEGMENT, World
from tests.broker.transactional import TransactionalProducer, transactional_machine
from tests.log.harness import batch
from tidelog.broker import metric_sources
from tidelog.broker.metric_sources import add_broker_metrics
from tidelog.broker.request_metrics import TOPICS_MAX
from tidelog.controller.decision_queue import ControllerResult
from tidelog.coordinator.shard import ShardState
from tidelog.metadata.records import NoOpRecord
from tidelog.metrics import exposition
from tidelog.metrics.histogram import HistogramValue
from tidelog.metrics.labelled import OTHER
from tidelog.metrics.registry import Labels, Registry
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


class Shown:
    def __init__(self, machine: Machine) -> None:
        registry = Registry()
        add_broker_metrics(registry, machine.broker)
        *_, families = registry.snapshot()
        assert families is not None
        self.series = {(family.description.name, labels): value for family in families for labels, value in family.series}

    def value(self, name: str, *labels: str) -> float:
        value = self.series[name, labels]
        assert not isinstance(value, HistogramValue)
        return value

    def histogram(self, name: str, *labels: str) -> HistogramValue:
        value = self.series[name, labels]
        assert isinstance(value, HistogramValue)
        return value

    def labels(self, name: str) -> list[Labels]:
        return [labels for shown, labels in self.series if shown == name]


def test_requests_topics_and_errors() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    records = batch(3)
    client.append(records=records)
    client.append("nothing")
    client.fetch(fetch_request(session=(0, 0)))
    shown = Shown(machine)
    assert shown.value("tidelog_requests_total", "Produce") == 2
    assert shown.histogram("tidelog_request_seconds", "Produce").total == 2
    assert shown.histogram("tidelog_request_wait_seconds", "Produce").total == 1
    assert ("tidelog_request_wait_seconds", ("Fetch",)) not in shown.series
    # What only brokers send shares one series, and so do the stages of all but a few APIs.
    assert set(shown.labels("tidelog_request_seconds")) == {("CreateTopics",), (OTHER,), ("Produce",), ("Fetch",)}
    assert set(shown.labels("tidelog_request_handling_seconds")) == {(OTHER,), ("Produce",), ("Fetch",)}
    assert shown.value("tidelog_request_errors_total", "Produce", "UNKNOWN_TOPIC_OR_PARTITION") == 1
    assert shown.value("tidelog_topic_produced_bytes_total", "orders") == len(records)
    assert shown.value("tidelog_topic_fetched_bytes_total", "orders") == len(records)
    assert shown.value("tidelog_fetch_sessions") == 1
    waited = shown.histogram("tidelog_topic_produce_to_ack_seconds", "orders").sum
    assert waited > 0
    assert shown.value("tidelog_slowest_partition_produce_to_ack_seconds", "orders", "0") == pytest.approx(waited)


def test_a_topic_that_was_deleted_is_no_longer_shown() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    client.append()
    client.call(ApiKey.DELETE_TOPICS, 5, topic_names=["orders"])
    assert Shown(machine).labels("tidelog_topic_produced_bytes_total") == []


def test_more_topics_than_are_shown() -> None:
    machine = Machine()
    client = machine.client()
    for number in range(TOPICS_MAX + 2):
        client.create_topic(f"topic-{number}")
        client.append(f"topic-{number}", acks=1)
    shown = Shown(machine)
    labels = shown.labels("tidelog_topic_produced_bytes_total")
    assert len(labels) == TOPICS_MAX + 1
    assert shown.value("tidelog_topic_produced_bytes_total", OTHER) == 2 * len(batch(1))


EVERY_PARTITION = {"tidelog.metrics.partitions": "all"}


def test_sizes_and_offsets() -> None:
    machine = Machine(EVERY_PARTITION)
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


def test_the_partitions_of_a_topic_share_one_series_unless_told_otherwise() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic(partitions=3)
    for partition in range(3):
        client.append(partition=partition, records=batch(partition + 1))
    shown = Shown(machine)
    assert shown.value("tidelog_log_end_offset", "orders", "") == 6
    assert len([labels for labels in shown.labels("tidelog_log_size_bytes") if labels[0] == "orders"]) == 1
    machine.settings["tidelog.metrics.partitions"] = "led"
    machine.restart()
    shown = Shown(machine)
    assert [shown.value("tidelog_log_end_offset", "orders", str(partition)) for partition in range(3)] == [1, 2, 3]


def test_the_page_does_not_grow_with_partitions() -> None:
    sizes = {}
    for chosen in ("none", "all"):
        for partitions in (1, 40):
            machine = Machine({"tidelog.metrics.partitions": chosen})
            client = machine.client()
            client.create_topic(partitions=partitions)
            for partition in range(partitions):
                client.append(partition=partition)
            registry = Registry()
            add_broker_metrics(registry, machine.broker)
            *_, families = registry.snapshot()
            assert families is not None
            sizes[chosen, partitions] = len(exposition.render(families, lambda: None))
    # The buckets of histograms fill up a bit; each partition has four lines of fifty characters or more.
    assert sizes["none", 40] < sizes["none", 1] + 4_000
    assert sizes["all", 40] > sizes["none", 40] + 39 * 4 * 50


def test_more_partitions_than_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(EVERY_PARTITION)
    client = machine.client()
    client.create_topic(partitions=5)
    for partition in range(5):
        client.append(partition=partition)
    for name in ("SIZE", "START", "HIGH_WATERMARK", "END"):
        monkeypatch.setattr(metric_sources, name, getattr(metric_sources, name)._replace(series_max=3))
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


def test_shards_by_their_state() -> None:
    machine = transactional_machine()
    shown = Shown(machine)
    for coordinator in ("groups", "transactions"):
        assert shown.value("tidelog_coordinator_shards", coordinator, "active") == 2
        assert shown.value("tidelog_coordinator_shards", coordinator, "failed") == 0
        assert shown.value("tidelog_coordinator_shards", coordinator, "unavailable") == 0
    shard = next(iter(machine.broker.coordinators.groups.runtime))
    shard.drop(RuntimeError("told to"))
    shown = Shown(machine)
    assert shown.value("tidelog_coordinator_shards", "groups", "failed") == 1
    assert shown.value("tidelog_coordinator_shard_drops_total", "groups") == 1
    assert shown.value("tidelog_coordinator_shard_drops_total", "transactions") == 0
    machine.run_until(lambda: shard.state is ShardState.ACTIVE)
    shard.load_ms = 1500
    assert Shown(machine).value("tidelog_coordinator_shard_load_seconds_max", "groups") == 1.5


def test_transactions_under_way() -> None:
    machine = transactional_machine()
    assert Shown(machine).value("tidelog_transaction_oldest_seconds") == 0
    # In both shards, and the older one is the one that counts.
    for transactional_id in ("first", "second", "third"):
        TransactionalProducer(machine, transactional_id).started().write(("orders", 0))
        machine.run_for(3_000)
    shown = Shown(machine)
    assert shown.value("tidelog_transactional_ids") == 3
    assert shown.value("tidelog_transactions_open") == 3
    assert shown.value("tidelog_transactions_ending") == 0
    assert shown.value("tidelog_transaction_oldest_seconds") == pytest.approx(9, abs=0.2)
    assert shown.value("tidelog_producer_ids_left") > 0


def test_one_that_goes_on_stays_the_oldest() -> None:
    machine = transactional_machine(partitions=2)
    oldest = TransactionalProducer(machine, "oldest").started()
    oldest.write(("orders", 0))
    machine.run_for(4_000)
    younger = TransactionalProducer(machine, "younger").started()
    younger.write(("orders", 0))
    oldest.write(("orders", 1))
    assert Shown(machine).value("tidelog_transaction_oldest_seconds") == pytest.approx(4, abs=0.2)
    assert oldest.end() is ErrorCode.NONE
    oldest.settle()
    assert Shown(machine).value("tidelog_transaction_oldest_seconds") < 1


def test_a_broker_without_coordinators_shows_none() -> None:
    shown = Shown(Machine())
    assert shown.value("tidelog_coordinator_shards", "groups", "active") == 0
    assert shown.value("tidelog_transactions_open") == 0
    assert shown.value("tidelog_ready") == 1
    assert shown.labels("tidelog_broker_info") == [("cluster", "1")]


@pytest.fixture
def world() -> World:
    world = World()
    world.client.create_topic("orders", 2)
    return world


def test_lag_by_topic(world: World) -> None:
    world.produce(ages_ms=[60_000, 40_000])
    world.produce(partition=1)
    world.commit(0)
    world.commit(0, partition=1)
    world.walk()
    shown = Shown(world.machine)
    assert shown.value("tidelog_group_lag_messages", "billing", "orders", "") == 3
    # Messages add up; of ages the worst counts.
    assert 59 < shown.value("tidelog_group_lag_seconds", "billing", "orders", "") < 70


def test_lag_by_partition_and_groups_by_state() -> None:
    world = World(tidelog_metrics_partitions="all")
    world.client.create_topic("orders", 2)
    world.produce(ages_ms=[60_000, 40_000])
    world.produce(partition=1)
    world.commit(1)
    world.commit(1, partition=1)
    world.commit(0, group="audit")
    world.walk()
    shown = Shown(world.machine)
    assert shown.value("tidelog_groups", "Empty") == 2
    assert shown.value("tidelog_group_lag_messages", "billing", "orders", "0") == 1
    assert shown.value("tidelog_group_lag_messages", "billing", "orders", "1") == 0
    assert shown.value("tidelog_group_lag_messages", "audit", "orders", "0") == 2
    assert shown.value("tidelog_group_lag_seconds", "billing", "orders", "1") == 0
    assert shown.value("tidelog_group_lag_seconds", "audit", "orders", "0") > 59
    assert shown.value("tidelog_group_members", "billing") == 0
    assert shown.value("tidelog_group_rebalances_total", "billing") == 0
    assert shown.value("tidelog_group_rebalance_seconds_total", "billing") == 0
    assert shown.value("tidelog_lag_offsets_not_followed") == 0


def test_groups_that_lose_records_to_retention() -> None:
    world = World()
    world.client.create_topic("orders", retention_ms=str(2 * HOUR_MS), segment_bytes=SEGMENT)
    world.produce(ages_ms=[HOUR_MS + HOUR_MS // 2])
    world.commit(0)
    world.walk()
    shown = Shown(world.machine)
    assert shown.value("tidelog_group_deletion_seconds", "billing") < HOUR_MS / 1000
    assert shown.value("tidelog_group_lost_messages", "billing") == 0
    assert shown.value("tidelog_groups_losing") == len(world.monitor.groups_losing) == 1
    assert shown.value("tidelog_groups_behind_log_start") == 0
    assert shown.value("tidelog_groups_behind_compaction") == 0


def test_more_than_is_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.produce(count=5)
    for number in range(4):
        world.commit(number, group=f"group-{number}")
    world.walk()
    monkeypatch.setattr(metric_sources, "LAG_MESSAGES", metric_sources.LAG_MESSAGES._replace(series_max=1))
    monkeypatch.setattr(metric_sources, "MEMBERS", metric_sources.MEMBERS._replace(series_max=2))
    shown = Shown(world.machine)
    own = [labels for labels in shown.labels("tidelog_group_lag_messages") if labels[0] != OTHER]
    assert len(own) == 1
    total = sum(shown.value("tidelog_group_lag_messages", *labels) for labels in shown.labels("tidelog_group_lag_messages"))
    assert total == 5 + 4 + 3 + 2
    assert len(shown.labels("tidelog_group_members")) == 3


def test_decisions_that_wait_and_heartbeats_that_are_late() -> None:
    machine = Machine()
    controller, now_ms = machine.broker.controller, machine.clock.monotonic_ms()
    for _ in range(3):
        controller.submit(lambda _: ControllerResult([NoOpRecord()], None), lambda *_: None)
    for late_ms in (0, 2_500, 2_600):
        controller.sessions.touch(9, 1, now_ms + late_ms)
    shown = Shown(machine)
    assert shown.value("tidelog_decisions_waiting") == 2
    assert shown.value("tidelog_broker_heartbeat_gap_seconds") == 2.5
    # Only the active controller knows.
    machine.broker.quorum.resign()
    assert Shown(machine).labels("tidelog_decisions_waiting") == []
