"""Intake with order by key: who waits, who goes on, and copies of one message that a crash left behind."""

from tests.worker.fakes import FakeOutbox, assigned, message_run, plain_letter
from tidelog.client.message import Message
from tidelog.deadletters.letter import Letter
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.worker import Backoff, Worker
from tidelog.worker.failures import FailurePolicy, ScheduledRetry
from tidelog.worker.intake import Intake
from tidelog.worker.metrics import WorkerCounts
from tidelog.worker.partitions import AssignedPartition, AssignedPartitions, ReadAhead
from tidelog.worker.settlement import Settlement

KEY = b"k"


class Desk:
    """An intake with all around it; what is dispatched stays in its dispatch, because nobody runs it."""

    def __init__(self, messages_max: int = 1_000) -> None:
        options = Worker("127.0.0.1:9092", group="email", topics=["orders"], order="key")._options
        policy = FailurePolicy(retries=2, in_place_retries=0, backoff=Backoff(), retriable=None, levels=2)
        self.counts = WorkerCounts()
        read_ahead = ReadAhead(messages_max, 1 << 30)
        self.outbox = FakeOutbox()
        settlement = Settlement(
            options, policy, self.counts, read_ahead, self.outbox, clock=RealClock(), randomness=RealRandomness()
        )
        self.partitions = AssignedPartitions()
        self.source = self._add(assigned())
        self.retry = self._add(assigned(level=0, family=self.source.family, execution=self.source.execution))
        self.blocked = self.source.family.blocked
        self.intake = Intake(self.partitions, settlement, order="key", group="email")
        read_ahead.changes(self.partitions, 0)

    def _add(self, partition: AssignedPartition) -> AssignedPartition:
        self.partitions.add(partition)
        return partition

    def read(self, *offsets: int) -> None:
        """From the source."""
        self.accept(self.source, *(Message.of(b"v", offset=offset, key=KEY) for offset in offsets))

    def retry_read(self, *letters: Letter) -> None:
        """From the retry topic, due."""
        numbered = enumerate(letters, len(self.retry.offsets))
        self.accept(self.retry, *(Message.of(b"v", offset=n, key=KEY, headers=each.to_headers()) for n, each in numbered))
        self.intake.take_due(1)

    def accept(self, partition: AssignedPartition, *messages: Message) -> None:
        self.intake.accept([message_run(partition, list(messages))])

    def dispatched(self) -> list[int]:
        with self.source.execution.adding() as dispatch:
            items = dispatch.take(100)
            dispatch.release(dict.fromkeys(item.lane for item in items))
        return [item.source_offset for item in items]


def letter(source_offset: int) -> Letter:
    return plain_letter(source_offset, attempts=1, due_ms=1)


def test_a_message_waits_in_memory_until_the_letter_before_it_is_due_and_then_comes_after_it() -> None:
    desk = Desk()
    desk.blocked.add(KEY, 3, ScheduledRetry(0, 1))
    desk.read(4, 5)
    assert desk.dispatched() == []
    assert desk.source.parked == 2
    desk.retry_read(letter(3))
    assert desk.dispatched() == [3, 4, 5]
    assert desk.source.parked == 0
    assert desk.outbox.letters == []


def test_beyond_its_share_of_memory_it_is_written_behind_the_letter() -> None:
    desk = Desk(messages_max=1)
    desk.blocked.add(KEY, 0, ScheduledRetry(1, 77))
    desk.read(*range(1, 61))
    assert desk.source.parked == 50
    assert [(each.offset, each.level, each.due_ms, each.attempts) for each in desk.outbox.letters] == [
        (offset, 1, 77, 0) for offset in range(51, 61)
    ]
    assert len(desk.blocked) == 11


def test_of_several_copies_in_retry_topics_the_last_is_handled() -> None:
    desk = Desk()
    desk.blocked.add(KEY, 3, ScheduledRetry(0, 1))
    desk.blocked.add(KEY, 3, ScheduledRetry(0, 1))
    desk.read(4)
    desk.retry_read(letter(3))
    assert desk.dispatched() == []
    assert (desk.counts["skipped"], desk.retry.offsets.position) == (1, 1)
    desk.retry_read(letter(3))
    assert desk.dispatched() == [3, 4]


def test_a_message_whose_letter_waits_is_not_handled_from_the_source() -> None:
    desk = Desk()
    desk.blocked.add(KEY, 3, ScheduledRetry(0, 1))
    desk.read(3)
    assert desk.dispatched() == []
    assert desk.source.offsets.position == 4


def test_letters_of_others_are_handled_in_their_turn() -> None:
    """A replay, say: nobody told the table of it."""
    desk = Desk()
    desk.retry_read(letter(3))
    assert desk.dispatched() == [3]
    desk.blocked.add(KEY, 1, ScheduledRetry(0, 9))
    desk.retry_read(letter(2))
    assert desk.dispatched() == []
    assert desk.retry.parked == 1


def test_a_message_in_a_retry_topic_without_a_story_is_handled() -> None:
    desk = Desk()
    desk.accept(desk.retry, Message.of(b"v", offset=0, key=KEY))
    desk.intake.take_due(1)
    assert desk.dispatched() == [0]
