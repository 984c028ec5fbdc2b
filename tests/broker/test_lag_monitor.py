"""Lag as the broker follows it: a whole broker, groups that commit, time that passes."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from tests.broker.harness import FakeClient, Machine
from tests.log.harness import Store, batch
from tidelog.broker import lag_monitor
from tidelog.broker.lag_monitor import (
    REPEAT_MS_MAX,
    REPEAT_MS_MIN,
    REPORTS_MAX,
    WALK_MS,
    LagLookup,
    LagQuery,
    LagWarnings,
    batch_times,
    log_deletion_at_ms,
    segments_of,
)
from tidelog.groups.lag import BatchTimes, GroupPartitionLag
from tidelog.groups.records import OffsetCommitRecord
from tidelog.log.partition_log import PartitionLog
from tidelog.log.settings import LogSettings
from tidelog.records.batch import build_batch
from tidelog.records.header import read_header
from tidelog.records.record import Record
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

    def counting(self: LagLookup, wanted: Sequence[LagQuery], on_found: Any) -> None:
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


START_MS = 1_700_000_000_000


def three_records(number: int) -> bytes:
    """A tenth of a second apart, in the second of this number."""
    return build_batch([Record(record, START_MS + 1000 * number + 100 * record, b"k", b"v" * 300) for record in range(3)])


BATCH_BYTES = len(three_records(0))
SEGMENT_BYTES = 20 * BATCH_BYTES
SETTINGS = LogSettings(segment_bytes=SEGMENT_BYTES, index_interval_bytes=2_000)


class LookupWorld:
    """A log of 100 batches with three records each, in five segments, as it is after a start."""

    def __init__(self) -> None:
        self.store = Store(SETTINGS)
        log = self.store.create()
        for number in range(100):
            log.append_as_leader(three_records(number), 0)
        self.store.commit()
        self.store.restart()
        self.log.advance_high_watermark(self.log.log_end_offset)
        events = self.store.events
        self.lookup = LagLookup(self.store.disk, self.store.executor, lambda event, facts: events.append((event, facts)))

    @property
    def log(self) -> PartitionLog:
        return self.store.log()

    def find(self, *offsets: int) -> list[BatchTimes | None]:
        found: list[list[BatchTimes | None]] = []
        self.lookup.find([LagQuery(self.log, offset) for offset in offsets], found.append)
        assert not found, "not from within"
        self.store.scheduler.run_until(lambda: bool(found))
        return found[0]


@pytest.fixture
def lookup_world() -> LookupWorld:
    return LookupWorld()


def test_every_offset(lookup_world: LookupWorld) -> None:
    assert len(lookup_world.log.segments) == 5
    for offset, found in enumerate(lookup_world.find(*range(300))):
        first_ms = START_MS + offset // 3 * 1000
        assert found == BatchTimes(offset // 3 * 3, offset // 3 * 3 + 2, first_ms, first_ms + 200)


def test_nothing_is_read_on_the_loop_that_was_not_read_before(lookup_world: LookupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for the times of the segments, that follow."""
    in_work: list[bool] = [False]
    warm: set[str] = set()
    cold: list[str] = []
    submit = lookup_world.store.executor.submit

    def marking(work: Callable[[], Any], on_done: Any) -> None:
        def run() -> Any:
            in_work[0] = True
            try:
                return work()
            finally:
                in_work[0] = False

        submit(run, on_done)

    def note(path: str) -> bool:
        if in_work[0]:
            warm.add(path)
        elif path not in warm:
            cold.append(path)
        return False

    monkeypatch.setattr(type(lookup_world.store.executor), "submit", lambda self, work, on_done: marking(work, on_done))
    lookup_world.store.disk.faults.fail("read", note)
    lookup_world.find(70, 200)
    for offset in (70, 200):
        for segment in segments_of(lookup_world.log, offset):
            assert lookup_world.lookup.is_warm(segment)
            assert segment.max_timestamp > 0
    assert len(warm) > 4
    assert cold == []
    monkeypatch.undo()
    lookup_world.find(250)
    assert cold, "this test can fail"


def test_what_is_warm_is_forgotten_when_it_is_not_used(lookup_world: LookupWorld) -> None:
    (first,) = segments_of(lookup_world.log, 0)
    lookup_world.find(0)
    lookup_world.lookup.begin_round()
    assert lookup_world.lookup.is_warm(first)
    lookup_world.lookup.begin_round()
    assert lookup_world.lookup.is_warm(first)
    lookup_world.lookup.begin_round()
    lookup_world.lookup.begin_round()
    assert not lookup_world.lookup.is_warm(first)


def test_a_disk_that_fails_gives_no_times(lookup_world: LookupWorld) -> None:
    lookup_world.store.disk.faults.fail("read", lambda path: path.endswith(".log"))
    assert lookup_world.find(0, 100) == [None, None]
    assert not any(lookup_world.lookup.is_warm(segment) for segment in lookup_world.log.segments)


def test_an_offset_that_compaction_took(lookup_world: LookupWorld) -> None:
    """The end of a segment is gone: the next one goes on."""
    segments = lookup_world.log.segments
    last_of_first = segments[1].base_offset - 1
    segments[0].truncate_to(segments[0].size - BATCH_BYTES, last_of_first - 2)
    (found,) = lookup_world.find(last_of_first)
    assert found is not None
    assert found.first_offset == segments[1].base_offset


def test_an_error_nobody_expected_is_reported(lookup_world: LookupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tidelog.broker.lag_monitor._walk_headers", broken)
    assert lookup_world.find(5) == [None]
    assert lookup_world.store.facts("unexpected_error")[0]["where"] == "looking up lag"


def test_headers_that_do_not_tell_the_first_time() -> None:
    records = [Record(7, START_MS, b"k", b"v"), Record(8, START_MS + 50, b"k", None)]
    plain = batch_times(read_header(build_batch(records, base_offset=7)))
    assert plain == BatchTimes(7, 8, START_MS, START_MS + 50)
    cleaned = batch_times(read_header(build_batch(records, base_offset=7, delete_horizon_ms=START_MS + 999)))
    assert cleaned == BatchTimes(7, 8, -1, START_MS + 50, START_MS + 999)
    appended = batch_times(read_header(build_batch(records, base_offset=7, log_append_time_ms=START_MS + 5)))
    assert appended == BatchTimes(7, 8, -1, START_MS + 5)


def test_deletion_by_the_logs_own_settings(lookup_world: LookupWorld) -> None:
    log = lookup_world.log
    (found,) = lookup_world.find(100)
    assert found is not None
    newest_ms = segments_of(log, 100)[1].max_timestamp

    def at(rate: float | None = None, **settings: Any) -> int | None:
        log.change_settings(LogSettings(segment_bytes=SEGMENT_BYTES, **settings))
        return log_deletion_at_ms(log, 100, found, rate, START_MS)

    assert at(retention_ms=5_000) == newest_ms + 5_000
    assert at(retention_ms=-1) is None
    assert at(retention_ms=5_000, delete=False, compact=True) is None
    # The second segment ends with 40 of 100 batches.
    assert at(retention_ms=-1, retention_bytes=60 * BATCH_BYTES) == START_MS
    assert at(retention_ms=-1, retention_bytes=70 * BATCH_BYTES) is None
    # Ten batches more are thirty records.
    assert at(3.0, retention_ms=-1, retention_bytes=70 * BATCH_BYTES) == START_MS + 10_000


Events = list[tuple[str, dict[str, object]]]


def figures(group: str, partition: int = 0, *, deletion_seconds: float | None = None, lost: int = 0) -> GroupPartitionLag:
    return GroupPartitionLag(
        group, "orders", partition, 40, 40 + lost, 100, 60, 12.5, 5.0, 2.0, 20.0, deletion_seconds, lost, False, True
    )  # fmt: skip


@pytest.fixture
def events() -> Events:
    return []


@pytest.fixture
def warnings(events: Events) -> LagWarnings:
    return LagWarnings(lambda event, facts: events.append((event, facts)))


def test_the_worst_partition_is_named(warnings: LagWarnings, events: Events) -> None:
    losing = [figures("billing", index, deletion_seconds=seconds) for index, seconds in enumerate((300.0, 7.5, 30.0))]
    warnings.walked({"billing": losing}, {}, 0)
    ((event, facts),) = events
    assert event == "group_will_lose_records"
    assert facts == {
        "group": "billing",
        "partitions": 3,
        "worst": "orders-1",
        "committed_offset": 40,
        "log_start_offset": 40,
        "lag_messages": 60,
        "lag_seconds": 12.5,
        "deletion_seconds": 7.5,
    }
    assert warnings.reported == 1


def test_less_and_less_often(warnings: LagWarnings, events: Events) -> None:
    """In a week of danger, looked at every minute."""
    times = []
    for minute in range(7 * 24 * 60):
        before = len(events)
        warnings.walked({"billing": [figures("billing", deletion_seconds=1.0)]}, {}, minute * 60_000)
        if len(events) > before:
            times.append(minute * 60_000)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0
    assert gaps[:3] == [REPEAT_MS_MIN, 2 * REPEAT_MS_MIN, 4 * REPEAT_MS_MIN]
    assert gaps[-1] == REPEAT_MS_MAX
    assert len(times) < 16


def test_a_group_that_was_well_again_is_named_at_once(warnings: LagWarnings, events: Events) -> None:
    losing = {"billing": [figures("billing", deletion_seconds=1.0)]}
    warnings.walked(losing, {}, 0)
    warnings.walked({}, {}, 5_000)
    warnings.walked(losing, {}, 10_000)
    assert len(events) == 2


def test_a_loss_is_named_once(warnings: LagWarnings, events: Events) -> None:
    lost = {"billing": [figures("billing", 1, lost=3), figures("billing", 2, lost=9)]}
    for walk in range(100):
        warnings.walked({}, lost, walk * REPEAT_MS_MAX)
    ((event, facts),) = events
    assert (event, facts["worst"], facts["lost_messages"]) == ("group_has_lost_records", "orders-2", 9)
    warnings.walked({}, {}, 0)
    warnings.walked({}, lost, 0)
    assert len(events) == 2


def test_a_walk_says_only_so_much(warnings: LagWarnings, events: Events) -> None:
    names = [f"group-{number}" for number in range(REPORTS_MAX + 5)]
    losing = {name: [figures(name, deletion_seconds=1.0)] for name in names}
    lost = {name: [figures(name, lost=1)] for name in names[:3]}
    warnings.walked(losing, lost, 0)
    assert len(events) == REPORTS_MAX
    warnings.walked(losing, lost, 5_000)
    assert len(events) == len(names) + 3
    assert {facts["group"] for _, facts in events} == set(names)
