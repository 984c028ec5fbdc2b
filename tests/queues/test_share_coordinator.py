"""One shard of the share coordinator: what it answers, what it writes, and what a reload makes of that."""

from typing import Any

import pytest

from simulation.clock import SimulatedClock
from simulation.scheduler import Scheduler
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.queues import share_coordinator
from tidelog.queues.records import RECORD_CODEC, SharePartitionKey, ShareSnapshotRecord, ShareUpdateRecord
from tidelog.queues.share_coordinator import RANGES_PER_SNAPSHOT, ShareCoordinator, ShareStateSummary, ShareStateWrite
from tidelog.queues.states import RecordState, StateBatch
from tidelog.wire.errors import ErrorCode

KEY = SharePartitionKey("jobs", bytes(range(16)), 0)
OTHER = KEY._replace(partition=1)


class Coordinator:
    """A machine whose decisions go through their bytes, as they would through a log."""

    def __init__(self, updates_max: int = 3) -> None:
        self.scheduler = Scheduler()
        self.clock = SimulatedClock(self.scheduler)
        self.updates_max = updates_max
        self.log: list[tuple[bytes, bytes | None]] = []
        self.machine = ShareCoordinator(self.clock, updates_max)

    def decide(self, result: CoordinatorResult) -> Any:
        for record in result.records:
            self.log.append(RECORD_CODEC.encode(record))
            self.machine.replay(record, len(self.log) - 1, -1, -1)
        return result.response

    def reload(self, start: int = 0) -> ShareCoordinator:
        """A machine that reads the log from an offset on."""
        machine = ShareCoordinator(self.clock, self.updates_max)
        for offset in range(start, len(self.log)):
            machine.replay(RECORD_CODEC.decode(*self.log[offset]), offset, -1, -1)
        return machine

    def write(self, key: SharePartitionKey, start: int, *batches: StateBatch, complete: int = 0, epoch: int = 0) -> None:
        self.decide(self.machine.write(key, ShareStateWrite(1, epoch, start, complete, batches)))

    def kinds(self) -> list[type]:
        return [type(RECORD_CODEC.decode(*pair)) for pair in self.log]


@pytest.fixture
def coordinator() -> Coordinator:
    found = Coordinator()
    found.decide(found.machine.initialize(KEY, 1, -1))
    return found


def state(machine: ShareCoordinator, key: SharePartitionKey = KEY) -> tuple[int, int, tuple[StateBatch, ...]]:
    response = machine.read(key, -1).response
    return response.state_epoch, response.start_offset, response.batches


def test_a_state_is_what_was_written_last_also_after_a_reload(coordinator: Coordinator) -> None:
    coordinator.write(KEY, 5)
    coordinator.write(KEY, 5, StateBatch(8, 9, RecordState.ACKNOWLEDGED, 1), StateBatch(6, 6, RecordState.AVAILABLE, 2))
    coordinator.write(KEY, 7, StateBatch(12, 12, RecordState.ARCHIVED, 5))
    expected = 1, 7, (StateBatch(8, 9, 2, 1), StateBatch(12, 12, 4, 5))
    assert state(coordinator.machine) == expected
    assert state(coordinator.reload()) == expected


def test_after_some_updates_a_snapshot_has_everything_and_what_is_before_it_is_redundant(coordinator: Coordinator) -> None:
    for start in range(5):
        coordinator.write(KEY, start, StateBatch(start + 1, start + 1, RecordState.ACKNOWLEDGED, 1))
    update, snapshot = ShareUpdateRecord, ShareSnapshotRecord
    assert coordinator.kinds() == [snapshot, update, update, update, snapshot, update]
    assert coordinator.machine.redundant_offset() == 4
    assert state(coordinator.reload(start=4)) == state(coordinator.machine)


def test_a_key_that_nobody_writes_to_gets_a_snapshot_so_that_the_prefix_can_go(coordinator: Coordinator) -> None:
    coordinator.decide(coordinator.machine.initialize(OTHER, 1, 0))
    coordinator.write(OTHER, 3)
    assert coordinator.machine.redundant_offset() == 0
    assert not coordinator.machine.snapshot_cold(1_000).records
    coordinator.scheduler.schedule(1_000_000, "a second later", lambda: None)
    coordinator.scheduler.step()
    coordinator.decide(coordinator.machine.snapshot_cold(1_000))
    redundant = coordinator.machine.redundant_offset()
    assert redundant == 3
    assert state(coordinator.reload(redundant), OTHER) == (1, 3, ())
    assert not coordinator.machine.snapshot_cold(0).records, "all of them are snapshots: nothing to gain"


def test_late_leaders_and_late_states_are_fenced(coordinator: Coordinator) -> None:
    coordinator.decide(coordinator.machine.read(KEY, 4))
    for machine in (coordinator.machine, coordinator.reload()):
        with pytest.raises(ApiError) as raised:
            machine.write(KEY, ShareStateWrite(1, 3, 0, 0))
        assert raised.value.code is ErrorCode.FENCED_LEADER_EPOCH
        with pytest.raises(ApiError) as raised:
            machine.read(KEY, 3)
        assert raised.value.code is ErrorCode.FENCED_LEADER_EPOCH
    coordinator.decide(coordinator.machine.initialize(KEY, 6, 100))
    assert state(coordinator.machine) == (6, 100, ())
    with pytest.raises(ApiError) as raised:
        coordinator.machine.write(KEY, ShareStateWrite(5, 4, 0, 0))
    assert raised.value.code is ErrorCode.FENCED_STATE_EPOCH
    with pytest.raises(ApiError) as raised:
        coordinator.machine.initialize(KEY, 5, 0)
    assert raised.value.code is ErrorCode.FENCED_STATE_EPOCH


def test_an_initialization_that_comes_again_after_members_have_settled_takes_nothing_back(coordinator: Coordinator) -> None:
    coordinator.decide(coordinator.machine.initialize(KEY, 6, 100))
    coordinator.decide(coordinator.machine.initialize(KEY, 6, 100))
    coordinator.decide(coordinator.machine.read(KEY, 2))
    coordinator.decide(coordinator.machine.write(KEY, ShareStateWrite(6, 2, 103, 0)))
    for machine in (coordinator.machine, coordinator.reload()):
        assert not machine.initialize(KEY, 6, 100).records
    coordinator.decide(coordinator.machine.initialize(KEY, 7, 100))
    assert state(coordinator.machine) == (7, 100, ())


def test_an_initialization_with_the_epoch_of_a_leader_that_has_started_over_takes_effect(coordinator: Coordinator) -> None:
    coordinator.decide(coordinator.machine.write(KEY, ShareStateWrite(2, 0, 5, 0)))
    for start in range(6, 12):
        coordinator.decide(coordinator.machine.write(KEY, ShareStateWrite(2, 0, start, 0)))
    coordinator.decide(coordinator.machine.initialize(KEY, 2, 100))
    assert state(coordinator.machine) == (2, 100, ())


def test_a_late_write_does_not_set_back_how_much_is_settled(coordinator: Coordinator) -> None:
    first, second = StateBatch(2, 3, RecordState.ACKNOWLEDGED, 1), StateBatch(5, 7, RecordState.ARCHIVED, 1)
    coordinator.write(KEY, 0, first, complete=2)
    coordinator.write(KEY, 0, second, complete=5)
    coordinator.write(KEY, 0, first, complete=2)
    assert coordinator.machine.summary(KEY).delivery_complete_count == 5
    assert coordinator.reload().summary(KEY).delivery_complete_count == 5


def test_a_leader_whose_log_has_lost_records_starts_over_without_them(coordinator: Coordinator) -> None:
    coordinator.write(KEY, 5, StateBatch(7, 9, RecordState.ACKNOWLEDGED, 1), StateBatch(12, 12, RecordState.ACKNOWLEDGED, 1))
    whole = coordinator.machine.read(KEY, -1).response
    assert whole.within(13) is whole
    assert whole.within(12) == (2, 5, (StateBatch(7, 9, 2, 1),))
    assert whole.within(4) == (2, 4, ())
    cut = whole.within(8)
    for _ in range(2):  # A leader that was not answered writes it again.
        change = ShareStateWrite(cut.state_epoch, 3, cut.start_offset, 1, cut.batches)
        coordinator.decide(coordinator.machine.write(KEY, change))
        assert state(coordinator.machine) == state(coordinator.reload()) == (2, 5, (StateBatch(7, 7, 2, 1),))
    with pytest.raises(ApiError) as raised:
        coordinator.machine.write(KEY, ShareStateWrite(1, 3, 0, 0))
    assert raised.value.code is ErrorCode.FENCED_STATE_EPOCH


def test_a_summary_says_whether_all_of_a_state_is_from_earlier_leaders(coordinator: Coordinator) -> None:
    coordinator.decide(coordinator.machine.initialize(KEY, 2, 100))
    assert not coordinator.machine.summary(KEY).is_written_before(4), "an administrator has chosen where it begins"
    coordinator.decide(coordinator.machine.read(KEY, 3))
    coordinator.decide(coordinator.machine.write(KEY, ShareStateWrite(2, 3, 101, 0)))
    assert coordinator.machine.summary(KEY).is_written_before(4)
    assert not coordinator.machine.summary(KEY).is_written_before(3)


def test_what_was_initialized_before_is_not_reset_by_a_repetition(coordinator: Coordinator) -> None:
    coordinator.write(KEY, 7)
    assert not coordinator.machine.initialize(KEY, 1, -1).records


def test_nothing_is_read_or_written_before_it_is_initialized_or_after_it_is_deleted(coordinator: Coordinator) -> None:
    coordinator.write(KEY, 7, StateBatch(8, 9, RecordState.ACKNOWLEDGED, 1), complete=2)
    assert coordinator.machine.summary(KEY) == ShareStateSummary(1, 0, 7, 2, 0)
    coordinator.decide(coordinator.machine.delete(KEY))
    assert coordinator.machine.summary(KEY) == ShareStateSummary()
    for key in (KEY, OTHER):
        with pytest.raises(ApiError) as raised:
            coordinator.machine.write(key, ShareStateWrite(1, 0, 0, 0))
        assert raised.value.code is ErrorCode.INVALID_REQUEST
        with pytest.raises(ApiError) as raised:
            coordinator.machine.read(key, 0)
        assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert not coordinator.machine.delete(KEY).records
    assert coordinator.machine.redundant_offset() == len(coordinator.log)


def test_states_of_deleted_topics_go(coordinator: Coordinator) -> None:
    coordinator.decide(coordinator.machine.initialize(KEY._replace(topic_id=b"x" * 16), 1, 0))
    coordinator.decide(coordinator.machine.delete_topics({KEY.topic_id}))
    assert len(coordinator.machine) == len(coordinator.reload()) == 1


def test_a_write_that_comes_late_takes_nothing_back(coordinator: Coordinator) -> None:
    coordinator.write(KEY, 5, StateBatch(6, 7, RecordState.ACKNOWLEDGED, 1), StateBatch(9, 9, RecordState.AVAILABLE, 3))
    coordinator.write(KEY, 2, StateBatch(5, 10, RecordState.AVAILABLE, 2))
    expected = (
        StateBatch(5, 5, RecordState.AVAILABLE, 2),
        StateBatch(6, 7, RecordState.ACKNOWLEDGED, 1),
        StateBatch(8, 8, RecordState.AVAILABLE, 2),
        StateBatch(9, 9, RecordState.AVAILABLE, 3),
        StateBatch(10, 10, RecordState.AVAILABLE, 2),
    )
    assert state(coordinator.machine) == state(coordinator.reload()) == (1, 5, expected)
    last = RECORD_CODEC.decode(*coordinator.log[-1])
    assert last is not None
    assert last.value.start_offset == 5, "another reader of the log takes every record at its word"
    assert [batch[:2] for batch in last.value.state_batches] == [(5, 5), (8, 8), (10, 10)]


def test_a_state_that_is_too_large_for_a_snapshot_can_still_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_coordinator, "SNAPSHOT_RANGES_MAX", RANGES_PER_SNAPSHOT + 2)
    coordinator = Coordinator(updates_max=2)
    for key in (KEY, OTHER):
        coordinator.decide(coordinator.machine.initialize(key, 1, 0))
    for offset in range(1, 14, 2):
        coordinator.write(KEY, 0, StateBatch(offset, offset, RecordState.ACKNOWLEDGED, 1))
    coordinator.write(OTHER, 3)
    assert set(coordinator.kinds()[2:]) == {ShareUpdateRecord}
    _, _, batches = state(coordinator.reload())
    assert [batch.first_offset for batch in batches] == list(range(1, 14, 2))
    coordinator.scheduler.schedule(1_000_000, "a second later", lambda: None)
    coordinator.scheduler.step()
    records = coordinator.machine.snapshot_cold(1_000).records
    assert [record.key for record in records] == [OTHER], "one that is too large does not keep the others from theirs"
    coordinator.write(KEY, 14)
    while ShareSnapshotRecord not in coordinator.kinds()[2:]:
        coordinator.write(KEY, 14)
    assert len(coordinator.log) <= 14, "it fits again"


def test_cold_snapshots_are_written_in_batches_that_the_log_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_coordinator, "SNAPSHOT_RANGES_MAX", 2 * RANGES_PER_SNAPSHOT)
    coordinator = Coordinator()
    for partition in range(5):
        coordinator.decide(coordinator.machine.initialize(KEY._replace(partition=partition), 1, 0))
    coordinator.write(KEY, 1)
    coordinator.scheduler.schedule(1_000_000, "a second later", lambda: None)
    coordinator.scheduler.step()
    sizes = []
    while records := coordinator.machine.snapshot_cold(1_000).records:
        sizes.append(len(records))
        coordinator.decide(CoordinatorResult(records))
        if sum(sizes) < 5:
            coordinator.write(KEY._replace(partition=4), 1)
    assert sizes[:2] == [2, 2]
