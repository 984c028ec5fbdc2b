"""Producer state: Kafka's rules one by one, then against a model that remembers everything."""

import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.log.producers.producer_model import SEQUENCES, ProducerModel, batch_header
from tests.memory_size import bytes_each
from tidelog.log.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    LogError,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from tidelog.log.producers.producer_snapshot import decode_snapshot, encode_snapshot
from tidelog.log.producers.producer_state import (
    BATCHES_KEPT_MAX,
    BatchMetadata,
    CompletedTransaction,
    ProducerEntry,
    ProducerState,
)
from tidelog.records.control import ControlType, EndTransactionMarker
from tidelog.records.header import BatchHeader

DAY_MS = 86_400_000
ABORT = EndTransactionMarker(ControlType.ABORT, 0)
COMMIT = EndTransactionMarker(ControlType.COMMIT, 0)


def written(*batches: tuple[int, int], producer_id: int = 7, epoch: int = 0) -> ProducerState:
    """A state after batches of (first sequence, count), at consecutive offsets from 100 on."""
    state, offset = ProducerState(DAY_MS), 100
    for first_sequence, count in batches:
        state.update(batch_header(producer_id, epoch, first_sequence, count), offset)
        offset += count
    return state


def test_an_unknown_producer_may_start_anywhere() -> None:
    state = ProducerState(DAY_MS)
    assert state.check(batch_header(7, 3, 500, 10)) is None
    state.update(batch_header(7, 3, 500, 10), 100)
    assert state.check(batch_header(8, 3, 77, 1)) is None
    assert state.check(batch_header(7, 3, 510, 1)) is None


def test_a_copy_is_answered_with_the_batch_that_was_written() -> None:
    state = written((0, 3), (3, 2))
    found = state.check(batch_header(7, 0, 0, 3))
    assert found is not None
    assert (found.first_offset, found.last_offset, found.timestamp) == (100, 102, 1000)
    found = state.check(batch_header(7, 0, 3, 2))
    assert found is not None
    assert (found.first_offset, found.last_offset) == (103, 104)


def test_a_copy_with_another_end_is_no_copy() -> None:
    with pytest.raises(OutOfOrderSequence, match="the next sequence is 5, the batch has 3 to 5"):
        written((0, 3), (3, 2)).check(batch_header(7, 0, 3, 3))


def test_a_gap_is_refused() -> None:
    with pytest.raises(OutOfOrderSequence, match="the next sequence is 5, the batch has 6 to 6"):
        written((0, 3), (3, 2)).check(batch_header(7, 0, 6, 1))


def test_five_batches_are_remembered() -> None:
    """A producer takes "duplicate" for success, so nothing that is not known to be written may be called that."""
    state = written(*((number, 1) for number in range(6)))
    for number in range(1, 6):
        assert state.check(batch_header(7, 0, number, 1)) is not None
    for count in (1, 2):
        with pytest.raises(OutOfOrderSequence, match="the next sequence is 6"):
            state.check(batch_header(7, 0, 0, count))


def test_sequences_wrap() -> None:
    state = written((SEQUENCES - 3, 3))
    assert state.check(batch_header(7, 0, 0, 1)) is None
    state = written((SEQUENCES - 3, 5))
    assert state.check(batch_header(7, 0, 2, 1)) is None
    assert state.check(batch_header(7, 0, SEQUENCES - 3, 5)) is not None
    with pytest.raises(OutOfOrderSequence, match="the next sequence is 2"):
        state.check(batch_header(7, 0, 0, 1))


def test_an_older_epoch_is_fenced_even_for_a_copy() -> None:
    state = written((0, 1), epoch=4)
    with pytest.raises(InvalidProducerEpoch, match="sent a batch of epoch 3, but is at epoch 4"):
        state.check(batch_header(7, 3, 0, 1))


def test_a_new_epoch_starts_at_zero() -> None:
    state = written((0, 5), epoch=4)
    assert state.check(batch_header(7, 5, 0, 1)) is None
    with pytest.raises(OutOfOrderSequence, match="must start its new epoch 5 at sequence 0, but sent 5"):
        state.check(batch_header(7, 5, 5, 1))
    state.update(batch_header(7, 5, 0, 2), 105)
    assert state.check(batch_header(7, 5, 2, 1)) is None
    entry = state.entry(7)
    assert entry is not None
    assert (entry.epoch, len(entry.batches)) == (5, 1)


def test_after_a_marker_of_a_new_epoch_sequences_start_at_zero() -> None:
    state = written((0, 5), epoch=4)
    state.update_marker(7, 5, ABORT, 105, 2000)
    assert state.check(batch_header(7, 5, 0, 1)) is None
    with pytest.raises(OutOfOrderSequence, match="must start epoch 5 at sequence 0, but sent 5"):
        state.check(batch_header(7, 5, 5, 1))


@pytest.mark.parametrize("producer_id", [7, 8])
def test_a_batch_of_a_producer_needs_a_sequence(producer_id: int) -> None:
    with pytest.raises(InvalidRecord, match="no sequence number: -1"):
        written((0, 1)).check(batch_header(producer_id, 0, -1, 1))


def test_a_batch_outside_the_open_transaction_is_refused() -> None:
    state = ProducerState(DAY_MS)
    state.update(batch_header(7, 0, 0, 2, transactional=True), 100)
    assert state.check(batch_header(7, 0, 2, 1, transactional=True)) is None
    with pytest.raises(InvalidTransactionState, match="open since offset 100"):
        state.check(batch_header(7, 0, 2, 1))
    assert state.check(batch_header(7, 0, 0, 2)) is not None, "a copy is a copy"
    state.update_marker(7, 0, COMMIT, 102, 1000)
    assert state.check(batch_header(7, 0, 2, 1)) is None


def test_a_transaction_from_its_first_batch_to_below_the_high_watermark() -> None:
    state = ProducerState(DAY_MS)
    state.update(batch_header(7, 0, 0, 2, transactional=True), 100)
    state.update(batch_header(8, 0, 0, 5, transactional=True), 102)
    state.update(batch_header(7, 0, 2, 1, transactional=True), 107)
    assert (state.first_unstable_offset, state.oldest_open_transaction) == (100, 100)
    completed = state.update_marker(7, 0, ABORT, 108, 1000)
    assert completed == CompletedTransaction(7, 100, 108, is_aborted=True)
    assert state.last_stable_offset_for(completed) == 102
    state.complete(completed)
    assert (state.first_unstable_offset, state.oldest_open_transaction) == (100, 102)
    state.on_high_watermark(108)
    assert state.first_unstable_offset == 100, "the marker itself is not below the high watermark"
    state.on_high_watermark(109)
    assert state.first_unstable_offset == 102
    completed = state.update_marker(8, 0, COMMIT, 109, 1000)
    assert completed == CompletedTransaction(8, 102, 109, is_aborted=False)
    assert state.last_stable_offset_for(completed) == 110
    state.complete(completed)
    state.on_high_watermark(110)
    assert state.first_unstable_offset is None


def test_a_marker_without_a_transaction_ends_none() -> None:
    state = ProducerState(DAY_MS)
    assert state.update_marker(7, 2, COMMIT, 100, 5000) is None
    entry = state.entry(7)
    assert entry is not None
    assert entry.snapshot_fields() == (7, 2, -1, -1, 0, 5000, 0, -1)


def test_markers_of_older_epochs_are_fenced() -> None:
    state = ProducerState(DAY_MS)
    state.check_marker(7, 0, COMMIT)
    state.update_marker(7, 2, EndTransactionMarker(ControlType.COMMIT, 5), 100, 1000)
    state.check_marker(7, 2, EndTransactionMarker(ControlType.ABORT, 5))
    state.check_marker(7, 3, EndTransactionMarker(ControlType.ABORT, 6))
    with pytest.raises(InvalidProducerEpoch, match="has epoch 1 of producer 7, which is at epoch 2"):
        state.check_marker(7, 1, EndTransactionMarker(ControlType.ABORT, 5))
    with pytest.raises(TransactionCoordinatorFenced, match="has coordinator epoch 4, the last one had 5"):
        state.check_marker(7, 2, EndTransactionMarker(ControlType.ABORT, 4))


def test_idle_producers_expire_unless_a_transaction_is_open() -> None:
    state = ProducerState(1000)
    state.update(batch_header(1, 0, 0, 1, timestamp=5000), 0)
    state.update(batch_header(2, 0, 0, 1, timestamp=5001), 1)
    state.update(batch_header(3, 0, 0, 1, timestamp=0, transactional=True), 2)
    assert state.remove_expired(5999) == 0
    assert state.remove_expired(6000) == 1
    assert [entry.producer_id for entry in state.entries()] == [2, 3]
    assert state.producer_count == 2
    assert state.check(batch_header(1, 0, 44, 1)) is None


def test_loading_finds_the_oldest_transaction_whatever_the_order() -> None:
    state = ProducerState(DAY_MS)
    state.update(batch_header(9, 0, 0, 1, transactional=True), 50)
    state.update(batch_header(8, 0, 0, 1, transactional=True), 60)
    again = ProducerState(DAY_MS)
    again.load(decode_snapshot(encode_snapshot(state.entries()), "x"))
    assert (again.oldest_open_transaction, again.first_unstable_offset) == (50, 50)
    assert again.describe() == state.describe()
    again.clear()
    assert (again.oldest_open_transaction, again.first_unstable_offset, again.entries()) == (None, None, [])


def test_an_empty_state_costs_next_to_nothing() -> None:
    assert bytes_each(lambda number: ProducerState(DAY_MS)) < 500


def verdict_of(state: ProducerState, header: BatchHeader) -> str | int:
    """In the model's words."""
    try:
        earlier = state.check(header)
    except LogError as error:
        return type(error).__name__
    return "write" if earlier is None else earlier.last_offset


class ProducerStateMachine(RuleBasedStateMachine):
    """Several clients write, repeat themselves, skip, come back with other epochs; markers, expiry, reloads in between."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ProducerState(1000)
        self.model = ProducerModel()
        self.end_offset = 0
        self.now_ms = 10_000

    @rule(
        producer_id=st.integers(1, 3),
        epoch_step=st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
        count=st.integers(1, 4),
        transactional=st.booleans(),
        data=st.data(),
    )
    def send(self, producer_id: int, epoch_step: int, count: int, transactional: bool, data: st.DataObject) -> None:
        producer = self.model.producers.get(producer_id)
        epoch = max(0, (producer.epoch if producer else 0) + epoch_step)
        if producer is None:
            first_sequence = data.draw(st.sampled_from([0, 1000, SEQUENCES - 3, SEQUENCES - 1]))
        elif epoch != producer.epoch:
            first_sequence = data.draw(st.sampled_from([0, 0, 0, 1, producer.next_sequence]))
        else:
            skipped = data.draw(st.sampled_from([0, 0, 0, 0, 1, 5, -1]))
            first_sequence = max(0, producer.next_sequence + skipped)
            if producer.batches and data.draw(st.integers(0, 3)) == 0:
                repeated = data.draw(st.sampled_from(producer.batches[-8:]))
                first_sequence = repeated.first_sequence
                count = repeated.last_sequence - repeated.first_sequence + 1
        self.deliver(producer_id, epoch, first_sequence, count, transactional)

    def deliver(self, producer_id: int, epoch: int, first_sequence: int, count: int, transactional: bool) -> None:
        expected = self.model.verdict(producer_id, epoch, first_sequence, count, transactional)
        header = batch_header(producer_id, epoch, first_sequence, count, transactional=transactional, timestamp=self.now_ms)
        assert verdict_of(self.state, header) == expected
        if expected != "write":
            return
        self.state.update(header, self.end_offset)
        self.model.write(producer_id, epoch, first_sequence, count, transactional, self.end_offset)
        self.model.producers[producer_id].last_timestamp = self.now_ms
        self.end_offset += count

    @rule(producer_id=st.integers(1, 3), count=st.integers(5, 8), transactional=st.booleans())
    def send_many(self, producer_id: int, count: int, transactional: bool) -> None:
        for _ in range(count):
            producer = self.model.producers.get(producer_id)
            epoch, sequence = (producer.epoch, producer.next_sequence) if producer else (0, SEQUENCES - 4)
            self.deliver(producer_id, epoch, sequence, 1, transactional)

    @rule(
        producer_id=st.integers(1, 3),
        control_type=st.sampled_from([ControlType.ABORT, ControlType.COMMIT]),
        epoch_step=st.sampled_from([0, 0, 0, 1, -1]),
        coordinator_step=st.sampled_from([0, 0, 0, 1, -1]),
    )
    def end_transaction(self, producer_id: int, control_type: ControlType, epoch_step: int, coordinator_step: int) -> None:
        producer = self.model.producers.get(producer_id)
        epoch = max(0, (producer.epoch if producer else 0) + epoch_step)
        coordinator_epoch = max(0, (producer.coordinator_epoch if producer else 0) + coordinator_step)
        marker = EndTransactionMarker(control_type, coordinator_epoch)
        fenced = producer is not None and (epoch < producer.epoch or coordinator_epoch < producer.coordinator_epoch)
        try:
            self.state.check_marker(producer_id, epoch, marker)
        except (InvalidProducerEpoch, TransactionCoordinatorFenced):
            assert fenced
            return
        assert not fenced
        offset = self.end_offset
        completed = self.state.update_marker(producer_id, epoch, marker, offset, self.now_ms)
        transaction = self.model.write_marker(producer_id, epoch, coordinator_epoch, offset)
        self.model.producers[producer_id].last_timestamp = self.now_ms
        self.end_offset += 1
        if transaction is None:
            assert completed is None
            return
        aborted = control_type is ControlType.ABORT
        assert completed == CompletedTransaction(producer_id, transaction.first_offset, offset, aborted)
        assert self.state.last_stable_offset_for(completed) == min([*self.model.open_first_offsets, offset + 1])
        self.state.complete(completed)

    @rule(behind=st.integers(0, 10))
    def move_high_watermark(self, behind: int) -> None:
        offset = max(0, self.end_offset - behind)
        self.state.on_high_watermark(offset)
        self.model.decide(offset)

    @rule(step_ms=st.sampled_from([0, 1, 400, 1000]))
    def wait(self, step_ms: int) -> None:
        self.now_ms += step_ms
        expired = [
            producer_id
            for producer_id, producer in self.model.producers.items()
            if self.now_ms - producer.last_timestamp >= 1000 and self.model.open_transaction(producer_id) is None
        ]
        assert self.state.remove_expired(self.now_ms) == len(expired)
        for producer_id in expired:
            del self.model.producers[producer_id]

    @rule()
    def reload(self) -> None:
        before = self.state.describe()
        self.state.load(decode_snapshot(encode_snapshot(self.state.entries()), "x"))
        self.model.reload()
        assert self.state.describe() == before

    @invariant()
    def same_state(self) -> None:
        assert self.state.first_unstable_offset == self.model.first_unstable_offset
        assert self.state.oldest_open_transaction == min(self.model.open_first_offsets, default=None)
        assert sorted(entry.producer_id for entry in self.state.entries()) == sorted(self.model.producers)
        for producer_id, producer in self.model.producers.items():
            entry = self.state.entry(producer_id)
            assert entry is not None
            transaction = self.model.open_transaction(producer_id)
            assert entry.current_transaction_first_offset == (transaction.first_offset if transaction else -1)
            assert (entry.epoch, entry.coordinator_epoch) == (producer.epoch, producer.coordinator_epoch)
            assert entry.last_timestamp == producer.last_timestamp
            assert [(batch.first_sequence, batch.last_sequence, batch.last_offset) for batch in entry.batches] == [
                (batch.first_sequence % SEQUENCES, batch.last_sequence % SEQUENCES, batch.last_offset)
                for batch in producer.batches[-5:]
            ]


TestProducerStateAgainstAModel = ProducerStateMachine.TestCase
TestProducerStateAgainstAModel.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


# A batch knows where it began, also across the end of the sequence numbers; a producer's last five are kept in little memory.


# A hundred thousand producers of one partition take at most 100 MB, of which the dictionary that finds them takes ten.
BYTES_MAX = 900


@pytest.mark.parametrize(
    ("last_sequence", "offset_delta", "first_sequence"),
    [(9, 9, 0), (9, 0, 9), (0, 1, 2**31 - 1), (4, 9, 2**31 - 5), (2**31 - 1, 4, 2**31 - 5)],
)
def test_first_sequence_wraps(last_sequence: int, offset_delta: int, first_sequence: int) -> None:
    assert BatchMetadata(last_sequence, 100, offset_delta, 0).first_sequence == first_sequence


def test_first_offset() -> None:
    assert BatchMetadata(9, 109, 9, 0).first_offset == 100


def test_a_new_entry_has_written_nothing() -> None:
    assert ProducerEntry(7, 3).snapshot_fields() == (7, 3, -1, -1, 0, -1, -1, -1)


def test_the_last_batch_is_what_a_snapshot_keeps() -> None:
    entry = ProducerEntry(7, 3, [BatchMetadata(1, 10, 1, 50), BatchMetadata(4, 13, 2, 60)], 5, 70, 12)
    assert entry.snapshot_fields() == (7, 3, 4, 13, 2, 70, 5, 12)


def test_the_last_five_batches_are_kept_as_they_are() -> None:
    largest = BatchMetadata(2**31 - 1, 2**63 - 1, 2**31 - 1, 2**63 - 1)
    smallest = BatchMetadata(-1, 0, 0, -(2**63))
    batches = [BatchMetadata(number, number + 100, 0, number + 1000) for number in range(5)] + [largest, smallest]
    entry = ProducerEntry(7, 3, batches)
    assert entry.batches == batches[-BATCHES_KEPT_MAX:]
    assert (entry.last_sequence, entry.last_offset, entry.last_offset_delta) == (-1, 0, 0)


def test_an_epoch_begins_without_batches() -> None:
    entry = ProducerEntry(7, 3, [BatchMetadata(4, 13, 2, 60)])
    entry.begin_epoch(4)
    assert (entry.epoch, entry.batches, entry.last_sequence, entry.last_offset, entry.last_offset_delta) == (4, [], -1, -1, 0)


def test_what_a_producer_takes() -> None:
    count = 1000
    tracemalloc.start()
    try:
        entries = [
            ProducerEntry(
                producer_id,
                3,
                (BatchMetadata(1000 + number, 2**33 + number, 999, 2**40 + producer_id + number) for number in range(5)),
                last_timestamp=2**40 + producer_id,
            )
            for producer_id in range(5_000, 5_000 + count)
        ]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(entries) < BYTES_MAX
