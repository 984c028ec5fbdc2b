"""Lag as the broker follows it: a whole broker, groups that commit, time that passes."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.broker.harness import FakeClient, Machine
from tests.log.harness import batch
from tidelog.broker import lag_monitor
from tidelog.broker.lag_lookup import LagLookup, Wanted
from tidelog.broker.lag_monitor import WALK_MS
from tidelog.groups.lag import GroupPartitionLag
from tidelog.groups.records import OffsetCommitRecord
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

HOUR_MS = 3_600_000
SEGMENT = "1048576"


class World:
    def __init__(self, **settings: str) -> None:
        self.machine = Machine({name.replace("_", "."): value for name, value in settings.items()})
        self.client: FakeClient = self.machine.client()
        self.client.call(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["billing"])

    @property
    def monitor(self) -> lag_monitor.LagMonitor:
        return self.machine.broker.lag

    @property
    def now_ms(self) -> int:
        return self.machine.clock.now_ms()

    def produce(self, count: int = 1, *, ages_ms: list[int] | None = None, size: int | None = None, **where: Any) -> None:
        ages = ages_ms if ages_ms is not None else [0] * count
        records = batch(timestamps=[self.now_ms - age for age in ages], size=size)
        assert self.client.append(records=records, **where).error is ErrorCode.NONE

    def commit(self, offset: int, *, group: str = "billing", topic: str = "orders", partition: int = 0) -> None:
        partitions = [{"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}]
        answer = self.client.call(
            ApiKey.OFFSET_COMMIT,
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": topic, "partitions": partitions}],
        )
        assert answer.topics[0].partitions[0].error_code == 0

    def walk(self, count: int = 1) -> None:
        """So many whole walks from now on."""
        wanted = self.monitor.walks + count + 1
        self.machine.run_until(lambda: self.monitor.walks >= wanted)

    def lag(self, group: str = "billing") -> GroupPartitionLag:
        self.walk()
        (found,) = (figures for figures in self.monitor.figures() if figures.group_id == group)
        return found


@pytest.fixture
def world() -> World:
    world = World()
    world.client.create_topic("orders")
    return world


def test_messages_and_seconds(world: World) -> None:
    began_ms = world.now_ms
    world.produce(ages_ms=[60_000, 40_000, 20_000])
    world.produce(ages_ms=[10_000])
    for offset, age_ms in ((0, 60_000), (1, 40_000), (2, 20_000), (3, 10_000)):
        world.commit(offset)
        lag = world.lag()
        assert (lag.committed_offset, lag.lag_messages, lag.high_watermark) == (offset, 4 - offset, 4)
        waited_ms = world.now_ms - began_ms
        assert lag.lag_seconds is not None
        assert age_ms / 1000 <= lag.lag_seconds <= (age_ms + waited_ms) / 1000
        assert lag.lag_seconds > (age_ms + waited_ms - WALK_MS) / 1000, "not older than a walk"
    world.commit(4)
    assert (world.lag().lag_messages, world.lag().lag_seconds) == (0, 0.0)


def test_nobody_reads_anything(world: World) -> None:
    world.produce(5)
    world.walk()
    assert (world.monitor.figures(), world.monitor.groups()) == ([], [])


def test_rates_and_the_time_to_drain(world: World) -> None:
    world.produce(10_000)
    for second in range(70):
        world.commit(second * 100)
        world.produce(20)
        world.machine.run_for(1000)
    (lag,) = world.monitor.figures()
    assert lag.consumed_per_second == pytest.approx(100, rel=0.1)
    assert lag.produced_per_second == pytest.approx(20, rel=0.1)
    assert lag.drain_seconds == pytest.approx((lag.high_watermark - lag.committed_offset) / 80, rel=0.1)
    world.produce(1)
    world.walk(20)
    assert world.lag().drain_seconds == math.inf, "it stands still"


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches were looked up, each time."""
    counts: list[int] = []
    find = LagLookup.find

    def counting(self: LagLookup, wanted: Sequence[Wanted], on_found: Any) -> None:
        counts.append(len(wanted))
        find(self, wanted, on_found)

    monkeypatch.setattr(LagLookup, "find", counting)
    return counts


def test_what_is_in_the_same_batch_is_not_looked_up_again(world: World, lookups: list[int]) -> None:
    world.produce(100)
    world.produce(100)
    world.commit(5)
    world.walk()
    assert lookups == [1]
    world.commit(50)
    assert world.lag().lag_messages == 150
    assert lookups == [1]
    world.commit(150)
    assert world.lag().lag_seconds is not None
    assert lookups == [1, 1]


def test_a_log_that_was_cut_or_compacted_is_looked_at_again(world: World, lookups: list[int]) -> None:
    world.produce(100)
    world.produce()
    world.commit(5)
    world.walk()
    log = world.machine.broker.directory.logs["orders", 0]
    log.cut_to(100)
    world.walk(3)
    assert lookups == [1, 1]
    world.machine.broker.directory.cleaner.first_dirty_offsets["orders", 0] = 50
    assert not world.lag().is_behind_compaction, "it is not compacted any more"
    world.walk(3)
    assert lookups == [1, 1, 1]


def test_deletion_by_age_is_that_of_the_segment(world: World) -> None:
    world.client.create_topic("short", retention_ms=str(10 * HOUR_MS), segment_bytes=SEGMENT)
    world.produce(ages_ms=[9 * HOUR_MS], size=600_000, topic="short")
    world.produce(ages_ms=[5 * HOUR_MS], size=400_000, topic="short")
    world.produce(ages_ms=[1 * HOUR_MS], size=600_000, topic="short")
    world.commit(0, topic="short")
    assert world.lag().deletion_seconds == pytest.approx(5 * 3600, abs=60), "with the newest of its segment"
    world.commit(2, topic="short")
    assert world.lag().deletion_seconds == pytest.approx(9 * 3600, abs=60)
    world.commit(3, topic="short")
    assert world.lag().deletion_seconds is None


def test_deletion_by_size_at_the_measured_rate(world: World) -> None:
    world.client.create_topic("small", retention_ms="-1", retention_bytes="3000000", segment_bytes=SEGMENT)
    world.commit(0, topic="small")
    world.produce(size=600_000, topic="small")
    world.walk(2)
    assert world.lag().deletion_seconds is None, "nothing is written, so nothing is ever too much"
    for _ in range(5):
        world.produce(size=600_000, topic="small")
        world.machine.run_for(10_000)
    (lag,) = world.monitor.figures()
    assert lag.deletion_seconds == 0.0, "3,600,000 bytes are there, and without the first 600,000 what must be kept"
    world.commit(2, topic="small")
    world.produce(size=600_000, topic="small")
    world.machine.run_for(10_000)
    (lag,) = world.monitor.figures()
    # Up to the third batch there are 1,800,000 of 4,200,000 bytes; 600,000 more have to come, at 60,000 a second or so.
    assert lag.deletion_seconds == pytest.approx(10, rel=0.3)


def test_a_group_about_to_lose_records_is_named(world: World) -> None:
    world.client.create_topic("short", retention_ms=str(2 * HOUR_MS), segment_bytes=SEGMENT)
    world.produce(ages_ms=[HOUR_MS - 60_000], size=900_000, topic="short")
    world.produce(size=900_000, topic="short")
    world.commit(0, topic="short")
    world.commit(1, topic="short", group="quick")
    world.walk()
    assert (world.monitor.groups_losing, world.machine.facts("group_will_lose_records")) == ((), [])
    world.machine.run_for(120_000)
    assert world.monitor.groups_losing == ("billing",)
    (facts,) = world.machine.facts("group_will_lose_records")
    assert (facts["group"], facts["worst"], facts["partitions"]) == ("billing", "short-0", 1)
    assert isinstance(facts["deletion_seconds"], float)
    assert 3500 < facts["deletion_seconds"] <= 3600
    world.commit(2, topic="short")
    world.walk()
    assert not world.monitor.groups_losing


def test_the_warning_can_be_turned_off() -> None:
    world = World(tidelog_lag_deletion_warning_seconds="0")
    world.client.create_topic("orders", retention_ms="60000")
    world.produce()
    world.commit(0)
    assert world.lag().deletion_seconds is not None
    assert not world.lag().is_losing
    assert world.machine.facts("group_will_lose_records") == []


def test_a_group_behind_the_log_start_is_named(world: World) -> None:
    world.produce(10)
    world.commit(2)
    wanted = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 7}]}]
    world.client.call(ApiKey.DELETE_RECORDS, 2, topics=wanted, timeout_ms=1000)
    lag = world.lag()
    assert (lag.lost_messages, lag.is_behind_log_start, lag.lag_messages, lag.log_start_offset) == (5, True, 8, 7)
    world.walk(5)
    assert world.monitor.groups_behind_log_start == ("billing",)
    (facts,) = world.machine.facts("group_has_lost_records")
    assert (facts["group"], facts["lost_messages"]) == ("billing", 5)


def test_a_group_behind_compaction_is_named(world: World) -> None:
    world.client.create_topic(
        "table", cleanup_policy="compact", segment_bytes=SEGMENT, min_cleanable_dirty_ratio="0.01", min_compaction_lag_ms="30000"
    )
    for _ in range(4):
        world.produce(size=600_000, topic="table")
    world.commit(0, topic="table")
    assert not world.lag().is_behind_compaction
    cleaner = world.machine.broker.directory.cleaner
    world.machine.run_until(lambda: cleaner.statistics.cleanings > 0)
    lag = world.lag()
    assert lag.is_behind_compaction
    assert lag.lag_seconds is not None
    assert world.monitor.groups_behind_compaction == ("billing",)


def test_offsets_of_a_topic_that_is_gone_are_not_followed(world: World) -> None:
    world.produce(3)
    world.commit(1)
    assert world.lag().lag_messages == 2
    world.client.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "orders", "topic_id": bytes(16)}], timeout_ms=1000)
    world.walk()
    assert world.monitor.figures() == []
    world.machine.run_for(1000)
    world.client.create_topic("orders")
    world.produce(30)
    world.walk()
    assert world.monitor.figures() == [], "the offset was of another topic"


def test_an_offset_of_an_earlier_topic_of_the_name_is_not_followed(world: World) -> None:
    world.produce(3)
    world.commit(1)
    shards = world.machine.broker.coordinators.groups.shards().values()
    (machine,) = (shard.machine for shard in shards if shard and shard.machine and shard.machine.groups.find("billing"))
    value = machine.offsets.of_group("billing")["orders"][0]
    machine.replay(OffsetCommitRecord("billing", "orders", 0, value._replace(topic_id=b"another topic id")), 0, -1, -1)
    world.walk()
    assert world.monitor.figures() == []


def test_a_group_that_is_deleted_is_forgotten(world: World) -> None:
    world.produce(3)
    world.commit(1)
    world.commit(1, group="other")
    world.walk()
    (result,) = world.client.call(ApiKey.DELETE_GROUPS, 2, groups_names=["billing"]).results
    assert result.error_code == 0
    world.walk()
    assert [figures.group_id for figures in world.monitor.groups()] == ["other"]
    assert [figures.group_id for figures in world.monitor.figures()] == ["other"]


def test_after_a_restart_the_figures_come_again(world: World) -> None:
    world.produce(3, ages_ms=[5000] * 3)
    world.commit(1)
    world.walk()
    assert world.machine.restart() is None
    world.client = world.machine.client()
    lag = world.lag()
    assert (lag.lag_messages, lag.lag_seconds is not None) == (2, True)


def test_rebalances_of_groups(world: World) -> None:
    protocols = [{"name": "range", "metadata": b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff"}]
    joined = world.client.call(
        ApiKey.JOIN_GROUP,
        3,
        group_id="billing",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=protocols,
    )
    assert joined.error_code == 0
    world.machine.run_for(200)
    synced = world.client.call(
        ApiKey.SYNC_GROUP,
        3,
        group_id="billing",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[{"member_id": joined.member_id, "assignment": b"\0\0\0\0\0\0\xff\xff\xff\xff"}],
    )
    assert synced.error_code == 0
    world.walk()
    (figures,) = world.monitor.groups()
    assert (figures.group_id, figures.type, figures.state, figures.members) == ("billing", "Classic", "Stable", 1)
    assert figures.rebalances == 1
    assert figures.rebalance_ms_last >= 200
    assert figures.rebalance_ms_total == figures.rebalance_ms_last


def test_many_groups_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_monitor, "SLICE_OFFSETS", 7)
    world.produce(100)
    for number in range(40):
        world.commit(number, group=f"group-{number}")
    world.walk()
    found = {figures.group_id: figures for figures in world.monitor.figures()}
    assert {group: figures.lag_messages for group, figures in found.items()} == {f"group-{n}": 100 - n for n in range(40)}
    assert all(figures.lag_seconds is not None for figures in found.values())


def test_no_more_than_a_bounded_number_is_followed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_monitor, "OFFSETS_MAX", 3)
    world.produce(10)
    for number in range(5):
        world.commit(number, group=f"group-{number}")
    world.walk()
    assert (len(world.monitor.figures()), world.monitor.not_followed) == (3, 2)


def test_a_broker_that_stops_walks_no_more(world: World) -> None:
    world.produce(10)
    world.commit(1)
    world.walk()
    monitor = world.monitor
    assert world.machine.stop() is None
    walks = monitor.walks
    world.machine.run_for(10 * WALK_MS)
    assert monitor.walks == walks
