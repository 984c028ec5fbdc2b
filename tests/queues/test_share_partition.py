"""The engine, against a model that keeps every record by itself, and in small scenes."""

from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.controller.errors import ApiError
from tidelog.queues.acknowledgements import AcknowledgementBatch, AcknowledgeType, check_acknowledgements
from tidelog.queues.key_order import LOOK_AHEAD_MAX, RecordKey
from tidelog.queues.lock_wheel import BUCKET_MS
from tidelog.queues.offset_ranges import OffsetRanges
from tidelog.queues.record_times import DeliveryTimes
from tidelog.queues.share_partition import (
    AcquiredRecords,
    AcquireRequest,
    CauseOfDeath,
    DeadRecords,
    DeliveryLimits,
    LogBatch,
    SharePartition,
)
from tidelog.queues.states import FINAL_STATES, RecordState, StateBatch
from tidelog.wire.errors import ErrorCode

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED, DELAYED, WAITING = RecordState
ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)
LIMITS = DeliveryLimits(lock_duration_ms=1_000, delivery_count_max=5, width_max=40)


class ModelRecord:
    def __init__(self, state: RecordState = AVAILABLE, count: int = 0) -> None:
        self.state = state
        self.count = count
        self.owner = ""
        self.deadline_ms = 0

    def settle(self, state: RecordState) -> None:
        self.state, self.owner, self.deadline_ms = state, "", 0


class Model:
    """One object for each offset of the window, and the rules word by word."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.records: dict[int, ModelRecord] = {}

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def next_offset(self) -> int:
        return min((offset for offset, record in self.records.items() if record.state is AVAILABLE), default=self.end)

    def run_length(self, offset: int) -> int:
        """The number of available neighbours with the same count."""
        count = self.records[offset].count

        def is_like(other: int) -> bool:
            record = self.records.get(other)
            return record is not None and record.state is AVAILABLE and record.count == count

        first = last = offset
        while is_like(first - 1):
            first -= 1
        while is_like(last + 1):
            last += 1
        return last - first + 1

    def acquire(self, request: AcquireRequest, batches: list[LogBatch], limits: DeliveryLimits, now_ms: int) -> dict[int, int]:
        """Returns the delivery count of each record that was acquired."""
        acquired: dict[int, int] = {}
        position, is_full = self.next_offset(), False
        assert limits.width_max is not None
        for batch in batches:
            for offset in range(position, batch.first_offset):
                self.skip(offset)
            position = max(position, batch.first_offset)
            if batch.is_skipped:
                for offset in range(position, batch.last_offset + 1):
                    self.skip(offset)
            else:
                is_full = self.acquire_batch(acquired, request, batch, position, limits, now_ms)
            position = max(position, batch.last_offset + 1)
            if is_full or len(acquired) >= request.records_max:
                break
        self.advance()
        return acquired

    def acquire_batch(
        self,
        acquired: dict[int, int],
        request: AcquireRequest,
        batch: LogBatch,
        position: int,
        limits: DeliveryLimits,
        now_ms: int,
    ) -> bool:
        poison_left: int | None = None
        room_at_window_end: bool | None = None
        for offset in range(position, batch.last_offset + 1):
            if offset >= self.end:
                if poison_left is not None:
                    return True
                if room_at_window_end is None:
                    room_at_window_end = self.end - self.start < (limits.width_max or 0)
                    has_request_room = len(acquired) < request.records_max
                    if not room_at_window_end or not has_request_room:
                        return True
                if request.is_limit_strict and self.end - self.start >= (limits.width_max or 0):
                    return True
                self.records[offset] = ModelRecord()
            record = self.records.get(offset)
            if record is None or record.state is not AVAILABLE:
                continue
            if record.count >= limits.throttle_count and poison_left is None:
                if acquired:
                    return True
                poison_left = max(1, self.run_length(offset) >> (record.count - limits.throttle_count + 1))
                if record.count >= limits.delivery_count_max - 1:
                    poison_left = 1
                poison_count = record.count
            elif poison_left is not None and (record.count != poison_count or offset - 1 not in acquired):
                return True
            record.state, record.owner, record.deadline_ms = ACQUIRED, request.member_id, now_ms + limits.lock_duration_ms
            record.count += 1
            acquired[offset] = record.count
            if poison_left is not None:
                poison_left -= 1
                if not poison_left:
                    return True
            if request.is_limit_strict and len(acquired) == request.records_max:
                return True
        is_window_full = self.end - self.start >= (limits.width_max or 0)
        return poison_left is not None or (is_window_full and room_at_window_end is not None)

    def skip(self, offset: int) -> None:
        if offset >= self.end:
            self.records[offset] = ModelRecord(ARCHIVED)
        elif offset in self.records and self.records[offset].state is AVAILABLE:
            self.records[offset].settle(ARCHIVED)

    def release(self, record: ModelRecord, limits: DeliveryLimits) -> None:
        record.settle(ARCHIVED if record.count >= limits.delivery_count_max else AVAILABLE)

    def advance(self) -> None:
        while self.start in self.records and self.records[self.start].state in FINAL_STATES:
            del self.records[self.start]
            self.start += 1


class EngineBesideModel(RuleBasedStateMachine):
    @initialize(start=st.integers(0, 5))
    def begin(self, start: int) -> None:
        self.model = Model(start)
        self.engine = SharePartition(start)
        self.written: dict[int, tuple[int, int]] = {}
        self.written_start = start
        self.log: list[LogBatch] = []
        self.log_end = start
        self.now_ms = 1_000

    # -- the world -----------------------------------------------------------------------------------------------------------

    @rule(size=st.integers(1, 12), hole=st.integers(0, 2), is_skipped=st.booleans())
    def append(self, size: int, hole: int, is_skipped: bool) -> None:
        first = self.log_end + (hole if self.log else 0)
        self.log.append(LogBatch(first, first + size - 1, is_skipped and size < 3))
        self.log_end = first + size

    @rule(steps=st.integers(1, 12))
    def time_passes(self, steps: int) -> None:
        self.now_ms += steps * BUCKET_MS
        expected = 0
        for record in self.model.records.values():
            if record.state is ACQUIRED and record.deadline_ms <= self.now_ms:
                expected += 1
                self.model.release(record, LIMITS)
        self.model.advance()
        due_ms = self.engine.next_lock_end_ms()
        assert not expected or (due_ms is not None and due_ms <= self.now_ms)
        assert self.engine.expire(LIMITS, self.now_ms) == expected
        self.write()

    # -- members -------------------------------------------------------------------------------------------------------------

    @rule(member=st.sampled_from("abc"), records_max=st.integers(1, 15), is_strict=st.booleans(), batch_size=st.integers(1, 20))
    def acquire(self, member: str, records_max: int, is_strict: bool, batch_size: int) -> None:
        request = AcquireRequest(member, records_max, batch_size, is_strict)
        position = self.engine.next_fetch_offset(LIMITS)
        assert position == self.model.next_offset()
        assert self.engine.has_nothing_below(self.model.end) == (position == self.model.end)
        assert not self.engine.has_nothing_below(self.model.end + 1)
        if not self.engine.can_acquire(LIMITS):
            return
        batches = [batch for batch in self.log if batch.last_offset >= position]
        expected = self.model.acquire(request, batches, LIMITS, self.now_ms)
        found = self.engine.acquire(request, batches, LIMITS, self.now_ms)
        counts = {offset: count for first, last, count in found for offset in range(first, last + 1)}
        assert counts == expected
        assert [one.first_offset for one in found] == sorted(one.first_offset for one in found)
        assert not is_strict or len(expected) <= records_max
        self.write()

    @precondition(lambda self: self.model.end > self.model.start)
    @rule(data=st.data(), member=st.sampled_from("abc"), kind=st.sampled_from(list(AcknowledgeType)), each=st.booleans())
    def acknowledge(self, data: st.DataObject, member: str, kind: AcknowledgeType, each: bool) -> None:
        first = data.draw(st.integers(max(0, self.model.start - 2), self.model.end))
        last = data.draw(st.integers(first, min(first + 9, self.model.end)))
        kinds = [data.draw(st.sampled_from(list(AcknowledgeType))) for _ in range(first, last + 1)] if each else [kind]
        batch = AcknowledgementBatch(first, last, kinds)
        check_acknowledgements([batch], AcknowledgeType.RENEW, is_renewal=True)
        expected = self.refusal_of(member, first, last)
        if expected is not None:
            before = self.engine.states()
            with pytest.raises(ApiError) as raised:
                self.engine.acknowledge(member, [batch], LIMITS, self.now_ms)
            assert raised.value.code is expected
            assert self.engine.states() == before
            return
        self.engine.acknowledge(member, [batch], LIMITS, self.now_ms)
        for index, offset in enumerate(range(first, last + 1)):
            if offset >= self.model.start:
                self.settle(self.model.records[offset], kinds[index if each else 0])
        self.model.advance()
        self.write()

    def refusal_of(self, member: str, first: int, last: int) -> ErrorCode | None:
        if last < self.model.start:
            return None
        if last >= self.model.end:
            return ErrorCode.INVALID_REQUEST
        held = [self.model.records[offset] for offset in range(max(first, self.model.start), last + 1)]
        is_held = all(record.state is ACQUIRED and record.owner == member for record in held)
        return None if is_held else ErrorCode.INVALID_RECORD_STATE

    def settle(self, record: ModelRecord, kind: int) -> None:
        if kind == RENEW:
            record.deadline_ms = self.now_ms + LIMITS.lock_duration_ms
        elif kind == RELEASE:
            self.model.release(record, LIMITS)
        else:
            record.settle(ACKNOWLEDGED if kind == ACCEPT else ARCHIVED)

    @rule(member=st.sampled_from("abc"))
    def member_goes(self, member: str) -> None:
        held = [record for record in self.model.records.values() if record.state is ACQUIRED and record.owner == member]
        for record in held:
            self.model.release(record, LIMITS)
        self.model.advance()
        assert self.engine.release_member(member, LIMITS) == bool(held)
        self.write()

    # -- the log and the disk ------------------------------------------------------------------------------------------------

    @rule(beyond=st.integers(0, 8))
    def log_start_moves(self, beyond: int) -> None:
        offset = min(self.model.start + beyond, self.log_end)
        for gone in range(self.model.start, offset):
            self.model.records.pop(gone, None)
        self.model.start = max(self.model.start, offset)
        self.model.advance()
        self.engine.move_start(offset)
        self.log = [batch for batch in self.log if batch.last_offset >= offset]
        self.write()

    @rule()
    def broker_restarts(self) -> None:
        """What was written comes back: locks are forgotten, and what was never settled is available with its last count."""
        batches = [StateBatch(offset, offset, *state) for offset, state in sorted(self.written.items())]
        self.engine = SharePartition(self.written_start, batches)
        self.model.start, last = self.written_start, max(self.written, default=self.written_start - 1)
        self.model.records = {}
        for offset in range(self.written_start, last + 1):
            state, count = self.written.get(offset, (AVAILABLE, 0))
            self.model.records[offset] = ModelRecord(RecordState(state), count)
        self.model.advance()

    def write(self) -> None:
        update = self.engine.take_update()
        if update is None:
            return
        assert update.start_offset >= self.written_start, "the start offset fell"
        self.written_start = update.start_offset
        for batch in update.batches:
            assert batch.delivery_state != ACQUIRED
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.written[offset] = (batch.delivery_state, batch.delivery_count)
        self.written = {offset: state for offset, state in self.written.items() if offset >= self.written_start}

    # -- what always holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def states_agree(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine, model = self.engine, self.model
        assert (engine.start_offset, engine.end_offset) == (model.start, model.end)
        rows = engine.states()
        spread = {offset: row for row in rows for offset in range(row.first_offset, row.last_offset + 1)}
        assert spread.keys() == model.records.keys()
        for offset, record in model.records.items():
            row = spread[offset]
            if record.state in FINAL_STATES:
                assert row.delivery_state in FINAL_STATES
            else:
                assert (row.delivery_state, row.delivery_count) == (record.state, record.count)
                assert record.count <= LIMITS.delivery_count_max
        assert engine.acquired_count == sum(record.state is ACQUIRED for record in model.records.values())
        assert engine.delivery_complete_count == sum(record.state in FINAL_STATES for record in model.records.values())
        unsettled = {offset: record for offset, record in model.records.items() if record.state not in FINAL_STATES}
        assert engine.oldest_due_offset == min(unsettled, default=model.end)
        assert engine.redelivered_count == sum(record.count > (record.state is ACQUIRED) for record in unsettled.values())
        changes = sum(self.differ(offset) for offset in range(model.start + 1, model.end))
        assert len(rows) == changes + bool(model.records), "ranges are split only where the state changes"

    def differ(self, offset: int) -> bool:
        left, right = self.model.records[offset - 1], self.model.records[offset]
        if left.state in FINAL_STATES or right.state in FINAL_STATES:
            return (left.state in FINAL_STATES) != (right.state in FINAL_STATES)
        return vars(left) != vars(right)


EngineBesideModel.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestEngineBesideModel = EngineBesideModel.TestCase


# -- small scenes ------------------------------------------------------------------------------------------------------------


def acquire(
    engine: SharePartition, member: str, *batches: LogBatch, records_max: int = 500, strict: bool = False, now_ms: int = 0
) -> list[AcquiredRecords]:
    request = AcquireRequest(member, records_max, is_limit_strict=strict)
    return engine.acquire(request, batches, LIMITS, now_ms)


def settle(engine: SharePartition, member: str, first: int, last: int, kind: AcknowledgeType) -> None:
    engine.acknowledge(member, [AcknowledgementBatch(first, last, [kind])], LIMITS, 0)


def test_a_batch_is_delivered_once_acknowledged_and_forgotten() -> None:
    engine = SharePartition(10)
    assert acquire(engine, "a", LogBatch(10, 14)) == [(10, 14, 1)]
    assert engine.next_fetch_offset(LIMITS) == 15
    settle(engine, "a", 10, 14, ACCEPT)
    assert (engine.start_offset, engine.range_count) == (15, 0)
    assert engine.take_update() == (15, 0, ())
    assert engine.take_update() is None


def test_one_stuck_record_stops_new_ones_at_the_width_of_the_window_but_not_redelivery() -> None:
    engine = SharePartition(0)
    assert acquire(engine, "a", LogBatch(0, 39)) == [(0, 39, 1)]
    settle(engine, "a", 1, 39, ACCEPT)
    assert not engine.can_acquire(LIMITS)
    assert acquire(engine, "b", LogBatch(40, 49)) == []
    settle(engine, "a", 0, 0, RELEASE)
    assert engine.can_acquire(LIMITS)
    assert acquire(engine, "b", LogBatch(0, 39), LogBatch(40, 49)) == [(0, 0, 2)]
    settle(engine, "b", 0, 0, ACCEPT)
    assert acquire(engine, "b", LogBatch(40, 49)) == [(40, 49, 1)]


def test_on_a_queue_topic_a_stuck_record_stops_nothing() -> None:
    limits = DeliveryLimits(width_max=None, acquired_max=20, ranges_max=10)
    engine = SharePartition(0)
    for first in range(0, 100_000, 10):
        request = AcquireRequest("a", 10)
        assert engine.acquire(request, [LogBatch(first, first + 9)], limits, 0) == [(first, first + 9, 1)]
        engine.acknowledge("a", [AcknowledgementBatch(max(1, first), first + 9, [ACCEPT])], limits, 0)
    assert (engine.start_offset, engine.end_offset, engine.range_count) == (0, 100_000, 2)
    assert engine.acquire(AcquireRequest("a", 100), [LogBatch(100_000, 100_029)], limits, 0) == [(100_000, 100_018, 1)]
    assert not engine.can_acquire(limits), "20 are acquired, and no more may be"


def test_suspected_poison_is_delivered_in_ever_smaller_pieces_and_alone_at_last() -> None:
    engine = SharePartition(0)
    log = LogBatch(0, 15), LogBatch(16, 19)
    assert acquire(engine, "a", log[0]) == [(0, 15, 1)]
    settle(engine, "a", 0, 15, RELEASE)
    assert acquire(engine, "a", log[0]) == [(0, 15, 2)]
    settle(engine, "a", 0, 15, RELEASE)
    assert acquire(engine, "a", log[0]) == [(0, 15, 3)], "the limit is 5, so 3 deliveries are suspicious"
    settle(engine, "a", 0, 15, RELEASE)
    assert acquire(engine, "a", *log) == [(0, 7, 4)], "half of them, and no others"
    settle(engine, "a", 0, 7, RELEASE)
    assert acquire(engine, "a", *log) == [(0, 0, 5)], "the last attempt is for one record alone"
    assert acquire(engine, "b", *log) == [(1, 1, 5)]
    settle(engine, "a", 0, 0, RELEASE)
    assert engine.start_offset == 1, "the limit is reached: archived, not released"


def test_a_renewed_lock_outlives_its_first_deadline_and_is_not_written() -> None:
    engine = SharePartition(0)
    acquire(engine, "a", LogBatch(0, 9), now_ms=0)
    engine.acknowledge("a", [AcknowledgementBatch(0, 4, [RENEW])], LIMITS, 600)
    assert engine.take_update() is None
    assert engine.expire(LIMITS, 1_000) == 5
    assert engine.states() == [(0, 4, ACQUIRED, 1), (5, 9, AVAILABLE, 1)]
    assert engine.next_lock_end_ms() == 1_600
    assert engine.expire(LIMITS, 1_600) == 5
    assert engine.next_lock_end_ms() is None


def test_markers_aborted_batches_and_holes_are_archived_and_never_hold_up_the_start() -> None:
    engine = SharePartition(0)
    log = LogBatch(3, 4), LogBatch(5, 5, is_skipped=True), LogBatch(9, 9)
    assert acquire(engine, "a", *log) == [(3, 4, 1), (9, 9, 1)]
    assert engine.start_offset == 3
    update = engine.take_update()
    assert update is not None
    assert update == (3, 4, ((5, 8, ARCHIVED, 0),))
    settle(engine, "a", 3, 4, ACCEPT)
    assert engine.start_offset == 9


def test_a_strict_limit_ends_inside_of_a_batch_and_the_rest_goes_to_another_member() -> None:
    engine = SharePartition(0)
    assert acquire(engine, "a", LogBatch(0, 9), records_max=4, strict=True) == [(0, 3, 1)]
    assert acquire(engine, "b", LogBatch(0, 9), records_max=4, strict=True) == [(4, 7, 1)]
    assert acquire(engine, "c", LogBatch(0, 9), records_max=4) == [(8, 9, 1)]
    with pytest.raises(ApiError) as raised:
        settle(engine, "a", 3, 4, ACCEPT)
    assert raised.value.code is ErrorCode.INVALID_RECORD_STATE


def test_after_a_reload_what_was_never_settled_is_handed_out_again() -> None:
    written = [StateBatch(0, 1, ACKNOWLEDGED, 1), StateBatch(4, 5, AVAILABLE, 2), StateBatch(8, 9, ARCHIVED, 5)]
    engine = SharePartition(0, written)
    assert (engine.start_offset, engine.end_offset) == (2, 10)
    assert acquire(engine, "a", LogBatch(0, 9)) == [(2, 3, 1), (4, 5, 3), (6, 7, 1)]
    settled = SharePartition(0, [StateBatch(0, 1, ACKNOWLEDGED, 1), StateBatch(2, 9, ARCHIVED, 5)])
    assert (settled.start_offset, settled.range_count) == (10, 0), "trailing final ranges must not use up the window"


def test_a_log_that_begins_later_takes_the_start_with_it_locked_or_not() -> None:
    engine = SharePartition(0)
    acquire(engine, "a", LogBatch(0, 9))
    assert engine.move_start(5)
    settle(engine, "a", 0, 4, ACCEPT)
    assert engine.states() == [(5, 9, ACQUIRED, 1)]
    assert engine.move_start(20)
    assert (engine.start_offset, engine.end_offset, engine.acquired_count) == (20, 20, 0)
    assert not engine.move_start(15)


@pytest.mark.parametrize(
    ("batches", "type_max", "is_renewal"),
    [
        pytest.param([AcknowledgementBatch(5, 4, [1])], 3, False, id="first after last"),
        pytest.param([AcknowledgementBatch(0, 4, [1]), AcknowledgementBatch(4, 5, [1])], 3, False, id="overlap"),
        pytest.param([AcknowledgementBatch(0, 4, [1, 1])], 3, False, id="neither one type nor one for each"),
        pytest.param([AcknowledgementBatch(0, 0, [])], 3, False, id="no type"),
        pytest.param([AcknowledgementBatch(0, 0, [4])], 3, True, id="renewal in version 1"),
        pytest.param([AcknowledgementBatch(0, 0, [5])], 4, True, id="unknown type in version 2"),
        pytest.param([AcknowledgementBatch(0, 0, [-1])], 4, False, id="negative type"),
        pytest.param([AcknowledgementBatch(0, 0, [4])], 4, False, id="renewal without the flag"),
    ],
)
def test_acknowledgements_that_make_no_sense_are_refused(
    batches: list[AcknowledgementBatch], type_max: int, is_renewal: bool
) -> None:
    with pytest.raises(ApiError) as raised:
        check_acknowledgements(batches, type_max, is_renewal)
    assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_with_dead_letters_a_record_is_archived_only_when_its_letter_is_durable() -> None:
    engine = SharePartition(0)
    limits = DeliveryLimits(delivery_count_max=2, has_dead_letters=True)
    acquire(engine, "a", LogBatch(0, 3))
    engine.acknowledge("a", [AcknowledgementBatch(0, 3, [REJECT, ACCEPT, RELEASE, REJECT])], limits, 0)
    assert engine.take_dead() == [DeadRecords(0, 0, 1, CauseOfDeath.REJECTED), DeadRecords(3, 3, 1, CauseOfDeath.REJECTED)]
    update = engine.take_update()
    assert update is not None
    assert (update.start_offset, update.delivery_complete_count) == (0, 1)
    assert [batch[:3] for batch in update.batches] == [(1, 1, ACKNOWLEDGED), (2, 2, AVAILABLE)], "nothing of a letter on its way"
    assert engine.states()[0] == (0, 0, ARCHIVING, 1)
    with pytest.raises(ApiError) as raised:
        settle(engine, "a", 0, 0, ACCEPT)
    assert raised.value.code is ErrorCode.INVALID_RECORD_STATE
    acquire(engine, "b", LogBatch(0, 3))
    assert engine.release_member("b", limits)
    assert engine.take_dead() == [DeadRecords(2, 2, 2, CauseOfDeath.EXHAUSTED)]
    engine.archive_dead(0, 0)
    assert engine.start_offset == 2
    engine.archive_dead(2, 3)
    assert (engine.start_offset, engine.delivery_complete_count) == (4, 0)
    engine.archive_dead(0, 3)


def test_what_a_member_that_is_gone_has_held_is_nobodys_until_it_is_released() -> None:
    engine = SharePartition(0)
    acquire(engine, "a", LogBatch(0, 9))
    assert engine.disown("a")
    assert not engine.disown("a")
    # The same member comes back before the rest was done.
    acquire(engine, "a", LogBatch(10, 19))
    with pytest.raises(ApiError, match="is acquired by another member"):
        settle(engine, "a", 0, 9, AcknowledgeType.ACCEPT)
    assert engine.release_disowned(LIMITS)
    assert engine.next_fetch_offset(LIMITS) == 0
    settle(engine, "a", 10, 19, AcknowledgeType.ACCEPT)


@pytest.mark.parametrize("period", [2, 3])
def test_many_rows_that_become_equal_are_merged(period: int) -> None:
    """In one pass, as when a member goes away that held every other record."""
    ranges = OffsetRanges(0)
    states = [(ACQUIRED if offset % period else AVAILABLE, 1 if offset < 500 else 2) for offset in range(1_000)]
    for offset, (state, count) in enumerate(states):
        ranges.extend(offset, state, count)
    for row in range(300, 900):
        ranges.set(row, AVAILABLE, ranges.count(row))
        states[row] = AVAILABLE, states[row][1]
    ranges.merge(range(len(ranges)))
    expected = [(key, len(list(group))) for key, group in groupby(states)]
    found = [(ranges.state(row), ranges.count(row), *ranges.bounds(row)) for row in range(len(ranges))]
    assert [((state, count), last - first + 1) for state, count, first, last in found] == expected
    assert (ranges.start_offset, ranges.end_offset) == (0, 1_000)


# -- records with times ------------------------------------------------------------------------------------------------------

QUEUE_LIMITS = DeliveryLimits(lock_duration_ms=1_000, delivery_count_max=5, width_max=None, acquired_max=100, ranges_max=50)
DAWN_MS = 1_700_000_000_000


def take(
    engine: SharePartition, *batches: LogBatch, wall_ms: int = DAWN_MS, limits: DeliveryLimits = QUEUE_LIMITS
) -> list[AcquiredRecords]:
    return engine.acquire(AcquireRequest("a", 500, is_limit_strict=True), batches, limits, 0, wall_ms)


def accept(engine: SharePartition, first: int, last: int, limits: DeliveryLimits = QUEUE_LIMITS) -> None:
    engine.acknowledge("a", [AcknowledgementBatch(first, last, [ACCEPT])], limits, 0)


def timed(first: int, last: int, *times: tuple[int, int, int]) -> LogBatch:
    """A batch whose times are given as (offset, due after the dawn, expires after the dawn)."""
    spread = [DeliveryTimes(offset, DAWN_MS + due if due else 0, DAWN_MS + end if end else 0) for offset, due, end in times]
    return LogBatch(first, last, times=spread)


def test_a_delayed_record_is_skipped_until_it_is_due_and_stops_nothing() -> None:
    engine = SharePartition(0)
    log = timed(0, 9, (0, 5_000, 0), (4, 900, 0)), LogBatch(10, 19)
    assert take(engine, *log) == [(1, 3, 1), (5, 19, 1)]
    accept(engine, 1, 3)
    accept(engine, 5, 19)
    assert (engine.start_offset, engine.delayed_count, engine.delivery_complete_count) == (0, 2, 18)
    due_ms = engine.next_due_ms()
    assert due_ms is not None
    assert DAWN_MS + 900 <= due_ms < DAWN_MS + 900 + BUCKET_MS
    assert not engine.wake_delayed(DAWN_MS + 899)
    assert engine.next_fetch_offset(QUEUE_LIMITS) == 20
    assert engine.wake_delayed(due_ms)
    assert engine.next_fetch_offset(QUEUE_LIMITS) == 4
    assert take(engine, *log, wall_ms=due_ms) == [(4, 4, 1)]
    accept(engine, 4, 4)
    assert engine.wake_delayed(DAWN_MS + 5_000)
    assert take(engine, *log, wall_ms=DAWN_MS + 5_000) == [(0, 0, 1)]
    accept(engine, 0, 0)
    assert (engine.start_offset, engine.delayed_count, engine.next_due_ms()) == (20, 0, None)


def test_a_delayed_record_has_one_entry_however_often_its_batch_is_read() -> None:
    engine = SharePartition(0)
    log = timed(0, 3, *[(offset, 1_000 * offset + 1_000, 0) for offset in range(4)])
    assert take(engine, log) == []
    for number in range(4):
        wall_ms = DAWN_MS + 1_000 * (number + 1)
        assert engine.wake_delayed(wall_ms)
        assert take(engine, log, wall_ms=wall_ms) == [(number, number, 1)]
        assert engine.delay_entry_count == 3 - number
        assert not engine.wake_delayed(wall_ms)
    assert engine.next_due_ms() is None


def test_a_clock_that_goes_back_delays_again() -> None:
    engine = SharePartition(0)
    log = timed(0, 0, (0, 1_000, 0))
    assert take(engine, log) == []
    assert engine.wake_delayed(DAWN_MS + 1_000)
    assert take(engine, log, wall_ms=DAWN_MS + 500) == []
    assert engine.wake_delayed(DAWN_MS + 1_000)
    assert take(engine, log, wall_ms=DAWN_MS + 1_000) == [(0, 0, 1)]


def test_delays_are_found_again_after_a_reload() -> None:
    engine = SharePartition(0)
    log = timed(0, 9, (2, 1_000, 0), (5, 2_000, 0))
    assert take(engine, log) == [(0, 1, 1), (3, 4, 1), (6, 9, 1)]
    deliveries = engine.take_update()
    assert deliveries is not None
    assert deliveries.batches == ((0, 1, AVAILABLE, 1), (3, 4, AVAILABLE, 1), (6, 9, AVAILABLE, 1)), "they are counted at once"
    accept(engine, 0, 1)
    accept(engine, 3, 4)
    update = engine.take_update()
    assert update is not None
    reloaded = SharePartition(update.start_offset, update.batches)
    assert take(reloaded, log) == [(6, 9, 1)], "what was not settled comes again, and what is delayed does not"
    assert reloaded.wake_delayed(DAWN_MS + 1_000)
    assert take(reloaded, log, wall_ms=DAWN_MS + 1_000) == [(2, 2, 1)]


def test_a_record_that_is_due_much_later_is_looked_at_again() -> None:
    engine = SharePartition(0)
    month_ms = 30 * 24 * 3_600_000
    log = timed(0, 1, (0, month_ms, 0), (1, month_ms + 5_000_000, 0))
    assert take(engine, log) == []
    look_ms = engine.next_due_ms()
    assert look_ms is not None
    assert look_ms < DAWN_MS + month_ms
    assert engine.wake_delayed(look_ms)
    assert take(engine, log, wall_ms=look_ms) == []
    assert engine.wake_delayed(DAWN_MS + month_ms)
    assert take(engine, log, wall_ms=DAWN_MS + month_ms) == [(0, 0, 1)]


def test_what_nobody_received_expires_and_what_somebody_received_does_not() -> None:
    engine = SharePartition(0)
    log = timed(0, 3, (0, 0, 500), (2, 0, 500), (3, 900, 500))
    assert take(engine, log) == [(0, 2, 1)]
    engine.acknowledge("a", [AcknowledgementBatch(0, 2, [RELEASE])], QUEUE_LIMITS, 0)
    assert engine.wake_delayed(DAWN_MS + 900)
    assert take(engine, log, wall_ms=DAWN_MS + 900) == [(0, 2, 2)]
    assert engine.take_expired_count() == 1
    assert [each.delivery_state for each in engine.states()] == [ACQUIRED, ARCHIVED]
    accept(engine, 0, 2)
    assert engine.start_offset == 4


@pytest.mark.parametrize("buries", [True, False])
def test_an_expired_record_becomes_a_dead_letter_only_where_the_queue_asks_for_it(*, buries: bool) -> None:
    limits = QUEUE_LIMITS._replace(has_dead_letters=True, buries_expired=buries)
    engine = SharePartition(0)
    assert take(engine, timed(0, 1, (0, 0, 500)), wall_ms=DAWN_MS + 500, limits=limits) == [(1, 1, 1)]
    assert engine.take_dead() == ([DeadRecords(0, 0, 0, CauseOfDeath.EXPIRED)] if buries else [])
    assert engine.start_offset == (0 if buries else 1)


def test_with_too_many_holes_only_what_leaves_no_more_of_them_is_handed_out() -> None:
    engine = SharePartition(0)
    limits = QUEUE_LIMITS._replace(ranges_max=3)
    dues = dict.fromkeys(range(10), 5000) | {5: 1_000, 0: 2_000}
    log = timed(0, 9, *[(offset, due, 0) for offset, due in dues.items()]), LogBatch(10, 11)
    assert take(engine, log[0], limits=limits) == []
    assert engine.wake_delayed(DAWN_MS + 1_000)
    assert engine.range_count == 3
    assert not engine.can_acquire(limits), "offset 5 would become a hole, and so would new ones"
    assert engine.wake_delayed(DAWN_MS + 2_000)
    assert take(engine, *log, wall_ms=DAWN_MS + 2_000, limits=limits) == [(0, 0, 1)]
    accept(engine, 0, 0, limits)
    assert not engine.can_acquire(limits)
    assert engine.wake_delayed(DAWN_MS + 5_000)
    assert engine.range_count == 1
    assert take(engine, *log, wall_ms=DAWN_MS + 5_000, limits=limits) == [(1, 11, 1)]


# -- order by key ------------------------------------------------------------------------------------------------------------


def keyed(first: int, keys: str, *times: tuple[int, int, int]) -> LogBatch:
    """A batch whose records have these keys of one letter; a dot is a record without a key."""
    found = [RecordKey(first + number, key.encode()) for number, key in enumerate(keys) if key != "."]
    return timed(first, first + len(keys) - 1, *times)._replace(keys=found)


def ordered(start: int = 0, batches: Sequence[StateBatch] = ()) -> SharePartition:
    return SharePartition(start, batches, is_ordered_by_key=True)


def offsets(records: list[AcquiredRecords]) -> list[int]:
    return [offset for first, last, _ in records for offset in range(first, last + 1)]


def test_of_a_key_one_record_is_handed_out_at_a_time_in_its_order() -> None:
    engine = ordered()
    log = keyed(0, "aab.ab."), keyed(7, "ca")
    assert offsets(take(engine, *log)) == [0, 2, 3, 6, 7]
    assert take(engine, *log) == []
    accept(engine, 3, 3)
    accept(engine, 2, 2)
    assert offsets(take(engine, *log)) == [5]
    accept(engine, 0, 0)
    assert offsets(take(engine, *log)) == [1]
    accept(engine, 5, 7)
    accept(engine, 1, 1)
    assert offsets(take(engine, *log)) == [4]
    accept(engine, 4, 4)
    assert offsets(take(engine, *log)) == [8]
    accept(engine, 8, 8)
    assert (engine.start_offset, engine.range_count) == (9, 0)


def test_a_released_record_keeps_its_turn_and_one_that_is_given_up_gives_it_on() -> None:
    engine = ordered()
    log = keyed(0, "aaa")
    limits = QUEUE_LIMITS._replace(has_dead_letters=True)
    assert offsets(take(engine, log, limits=limits)) == [0]
    engine.acknowledge("a", [AcknowledgementBatch(0, 0, [RELEASE])], limits, 0)
    assert take(engine, log, limits=limits) == [(0, 0, 2)]
    engine.acknowledge("a", [AcknowledgementBatch(0, 0, [REJECT])], limits, 0)
    assert take(engine, log, limits=limits) == [], "its letter is not written yet"
    engine.archive_dead(0, 0)
    assert take(engine, log, limits=limits) == [(1, 1, 1)]
    assert engine.expire(limits, 1_000) == 1
    assert take(engine, log, limits=limits) == [(1, 1, 2)]
    assert engine.release_member("a", limits)
    assert take(engine, log, limits=limits) == [(1, 1, 3)]


def test_a_delayed_record_keeps_back_its_key_and_an_expired_one_gives_its_turn_on() -> None:
    engine = ordered()
    log = keyed(0, "aabb", (0, 1_000, 0), (2, 0, 500))
    assert take(engine, log, wall_ms=DAWN_MS + 500) == []
    assert offsets(take(engine, log, wall_ms=DAWN_MS + 500)) == [3]
    assert engine.wake_delayed(DAWN_MS + 1_000)
    assert offsets(take(engine, log, wall_ms=DAWN_MS + 1_000)) == [0]
    accept(engine, 0, 0)
    assert offsets(take(engine, log, wall_ms=DAWN_MS + 1_000)) == [1]


def test_the_order_is_kept_after_a_reload_and_when_the_log_begins_later() -> None:
    log = keyed(0, "abab"), keyed(4, "ab")
    engine = ordered(0, [StateBatch(1, 1, ACKNOWLEDGED, 1)])
    assert offsets(take(engine, *log)) == [0, 3]
    assert engine.move_start(1)
    assert engine.start_offset == 2
    assert offsets(take(engine, *log)) == [2]
    accept(engine, 2, 3)
    assert offsets(take(engine, *log)) == [4, 5]


def test_the_look_ahead_is_bounded() -> None:
    engine = ordered()
    limits = QUEUE_LIMITS._replace(acquired_max=100_000, ranges_max=100_000)
    assert offsets(take(engine, keyed(0, "a"), limits=limits)) == [0]
    first = 1
    while engine.can_acquire(limits):
        assert take(engine, keyed(first, "a" * 1_000), limits=limits) == []
        first += 1_000
    assert LOOK_AHEAD_MAX <= engine.end_offset <= LOOK_AHEAD_MAX + 1_000
    accept(engine, 0, 0, limits)
    assert engine.next_fetch_offset(limits) == 1
