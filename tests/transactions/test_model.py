"""Random operations, crashes, requests that come late or twice. At the end of each run all is healed and looked at:

- a partition that got markers of a transaction got the same outcome as every other partition of it;
- what the producer heard is what the partitions got;
- with transactions v2 a request of an old transaction changes nothing about a later one;
- what is loaded from the log is what was there before, all that is committed at least.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.transactions.harness import TransactionBench
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.records import TransactionValue
from tidelog.transactions.state import TransactionState
from tidelog.wire.end_txn import EndTxnRequest
from tidelog.wire.errors import ErrorCode

IDS = ("a", "b")
PARTITIONS = [("t", index) for index in range(4)]
Request = tuple[str, int, int, bool]


class Producer:
    """A client of one transactional id: what it believes to be, and the transaction that it is in."""

    def __init__(self) -> None:
        self.producer: tuple[int, int] | None = None
        self.partitions: set[TopicPartition] = set()


class Coordinator(RuleBasedStateMachine):
    """``outcomes`` and ``parts`` are what was decided, and for which partitions, by the id and epoch of the markers."""

    def __init__(self) -> None:
        super().__init__()
        self.producers = {name: Producer() for name in IDS}
        self.requests: list[Request] = []
        self.outcomes: dict[tuple[int, int], bool] = {}
        self.parts: dict[tuple[int, int], set[TopicPartition]] = {}

    @initialize(near_the_end=st.booleans())
    def start(self, near_the_end: bool) -> None:
        self.bench = TransactionBench()
        if near_the_end:
            for name in IDS:
                self.bench.started(name)
                self.bench.put(self.bench.value(name)._replace(producer_epoch=2**15 - 4), name)

    # -- clients -------------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(IDS), is_named=st.booleans())
    def init(self, name: str, is_named: bool) -> None:
        """A new instance takes over, or the old one goes on after an error."""
        client = self.producers[name]
        expected = client.producer if is_named and client.producer is not None else (-1, -1)
        before = self._value(name)
        result = self.bench.init(name, expected)
        if result.error is ErrorCode.NONE:
            if before is not None and expected == (-1, -1):
                assert (result.producer_id, result.producer_epoch) != (before.producer_id, before.producer_epoch)
            client.producer = result.producer_id, result.producer_epoch
            client.partitions = set()
        elif before is not None and before.state is TransactionState.ONGOING and self.bench.state(name) == "PREPARE_ABORT":
            self._note_decision(name, is_commit=False)

    @precondition(lambda self: any(each.producer for each in self.producers.values()))
    @rule(name=st.sampled_from(IDS), partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3))
    def add(self, name: str, partitions: list[TopicPartition]) -> None:
        client = self.producers[name]
        if client.producer is not None and self.bench.add(client.producer, *partitions, transactional_id=name) is ErrorCode.NONE:
            client.partitions |= set(partitions)

    @rule(name=st.sampled_from(IDS), is_commit=st.booleans(), is_heard=st.booleans())
    def end(self, name: str, is_commit: bool, is_heard: bool) -> None:
        client = self.producers[name]
        if client.producer is None:
            return
        request = (name, *client.producer, is_commit)
        self.requests.append(request)
        result = self._end(request)
        if is_heard and result.error is ErrorCode.NONE:
            client.producer = result.producer_id, result.producer_epoch
            client.partitions = set()

    def _end(self, request: Request) -> Any:
        name, producer_id, producer_epoch, is_commit = request
        before = self._value(name)
        assert before is not None
        result = self.bench.end((producer_id, producer_epoch), is_commit, name)
        after = self.bench.value(name)
        if after != before:
            assert (before.producer_id, before.producer_epoch) == (producer_id, producer_epoch), (
                "an old request ended a transaction"
            )
            self._note_decision(name, is_commit=is_commit)
        elif result.error is ErrorCode.NONE:
            assert self.outcomes[producer_id, producer_epoch + 1] is is_commit, "a repetition heard of another outcome"
            assert (result.producer_id, result.producer_epoch) == (after.producer_id, after.producer_epoch)
        return result

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def a_request_comes_late_or_twice(self, data: st.DataObject) -> None:
        self._end(data.draw(st.sampled_from(self.requests)))

    def _note_decision(self, name: str, *, is_commit: bool) -> None:
        """The state was just changed to a decision; its markers have this id and epoch."""
        value = self.bench.value(name)
        assert value.state is (TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT)
        key = value.producer_id, value.producer_epoch
        assert key not in self.outcomes, "one epoch, two transactions"
        self.outcomes[key] = is_commit
        self.parts[key] = {(topic, partition) for topic, partitions in value.partitions for partition in partitions}

    # -- markers, time and crashes -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.bench.sendings)
    @rule(data=st.data(), count=st.integers(1, 3))
    def markers_arrive(self, data: st.DataObject, count: int) -> None:
        data.draw(st.sampled_from(self.bench.sendings)).deliver(count)
        self.bench.run_for(1)

    @rule(is_long=st.booleans())
    def time_passes(self, is_long: bool) -> None:
        before = {name: self._value(name) for name in IDS}
        self.bench.run_for(70_000 if is_long else 500)
        self.bench.run_for(1)
        for name, value in before.items():
            if value is not None and value.state is TransactionState.ONGOING and self.bench.state(name) != "ONGOING":
                self._note_decision(name, is_commit=False)

    @rule(
        name=st.sampled_from(IDS),
        is_commit=st.booleans(),
        is_written=st.booleans(),
        is_kept=st.booleans(),
    )
    def crash_in_the_middle_of_an_end(self, name: str, is_commit: bool, is_written: bool, is_kept: bool) -> None:
        client = self.producers[name]
        if client.producer is None:
            return
        before = self._value(name)
        producer = client.producer
        self.requests.append((name, *producer, is_commit))
        answers = self.bench.begin(lambda machine: machine.ends.end(EndTxnRequest(name, *producer, is_commit), 2))
        sent = len(self.bench.sendings)
        if is_written:
            self.bench.runtime.flush()
        assert len(self.bench.sendings) == sent, "a marker before the decision is committed"
        decided = self._value(name)
        self.bench.crash(keeps_uncommitted=is_kept)
        assert all(isinstance(answer, Exception) or answer.error is not ErrorCode.NONE or decided == before for answer in answers)
        found = self._value(name)
        assert found == (decided if is_written and is_kept else before)
        if found != before:
            self._note_decision(name, is_commit=is_commit)
        self.bench.run_for(1)

    @rule(keeps_uncommitted=st.booleans())
    def crash(self, keeps_uncommitted: bool) -> None:
        before = {name: self._value(name) for name in IDS}
        self.bench.crash(keeps_uncommitted)
        assert {name: self._value(name) for name in IDS} == before, "everything was committed"
        self.bench.run_for(1)

    # -- what must hold ------------------------------------------------------------------------------------------------------

    def _value(self, name: str) -> TransactionValue | None:
        metadata = self.bench.machine.table.find(name)
        return None if metadata is None else metadata.value

    @invariant()
    def markers_say_what_was_decided(self) -> None:
        if not hasattr(self, "bench"):
            return
        for partition, markers in self.bench.written.items():
            for producer_id, producer_epoch, is_commit in markers:
                key = producer_id, producer_epoch
                assert self.outcomes[key] is is_commit
                assert partition in self.parts[key]

    @invariant()
    def nothing_unexpected_was_reported(self) -> None:
        if hasattr(self, "bench"):
            assert {event for event, _ in self.bench.events} <= {"transactions_timed_out"}

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.settle()
        self.markers_say_what_was_decided()
        for key, partitions in self.parts.items():
            for partition in partitions:
                assert (*key, self.outcomes[key]) in self.bench.written[partition], "a partition without its marker"
        assert not self.bench.machine.table.prepared
        assert len(self.bench.machine.ends) == 0


TestCoordinator = Coordinator.TestCase
TestCoordinator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
