import pytest

from tests.broker.metric_sources.shown import Shown
from tests.broker.test_lag_monitor import HOUR_MS, SEGMENT, World
from tidelog.broker.metric_sources import groups
from tidelog.metrics.labelled import OTHER


@pytest.fixture
def world() -> World:
    world = World()
    world.client.create_topic("orders", 2)
    return world


def test_lag_by_partition_and_groups_by_state(world: World) -> None:
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
    monkeypatch.setattr(groups, "LAG_MESSAGES", groups.LAG_MESSAGES._replace(series_max=1))
    monkeypatch.setattr(groups, "MEMBERS", groups.MEMBERS._replace(series_max=2))
    shown = Shown(world.machine)
    own = [labels for labels in shown.labels("tidelog_group_lag_messages") if labels[0] != OTHER]
    assert len(own) == 1
    total = sum(shown.value("tidelog_group_lag_messages", *labels) for labels in shown.labels("tidelog_group_lag_messages"))
    assert total == 5 + 4 + 3 + 2
    assert len(shown.labels("tidelog_group_members")) == 3
