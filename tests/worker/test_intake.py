"""Intake with order by key: who waits, who goes on, and copies of one message that a crash left behind."""

from collections import deque

from tests.worker.fakes import FakeOutbox, assigned
from tidelog.client.message import Message
from tidelog.deadletters.letter import Letter
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.worker import Backoff, Worker
from tidelog.worker.assigned import Assigned
from tidelog.worker.assignment import Assignment
from tidelog.worker.blocked_keys import Place
from tidelog.worker.failures import FailurePolicy
from tidelog.worker.intake import Intake
from tidelog.worker.letters import foreign_letter
from tidelog.worker.metrics import Counts
from tidelog.worker.pauses import Pauses
from tidelog.worker.settlement import Settlement

KEY = b"k"


class Desk:
    """An intake with all around it; what is handed out stays in its dispatch, for nobody runs it."""

    def __init__(self, messages_max: int = 1_000) -> None:
        options = Worker("127.0.0.1:9092", group="email", topics=["orders"], order="key")._options
        policy = FailurePolicy(retries=2, in_place_retries=0, backoff=Backoff(), retriable=None, levels=2)
        self.counts = Counts()
        self.pauses = Pauses(messages_max, 1 << 30)
        settlement = Settlement(
            options, policy, self.counts, deque(), self.pauses, clock=RealClock(), randomness=RealRandomness()
        )
        self.outbox = settlement.outbox = FakeOutbox()
        self.assignment = Assignment()
        self.source = self._add(assigned())
        self.retry = self._add(assigned(level=0, home=self.source.home, route=self.source.route))
        self.blocked = self.source.home.blocked
        self.intake = Intake(self.assignment, settlement, self.counts, order="key", group="email")
        self.pauses.changes(self.assignment, 0)

    def _add(self, partition: Assigned) -> Assigned:
        self.assignment.add(partition)
        return partition

    def read(self, *offsets: int) -> None:
        """From the source."""
        self.intake.accept([Message.of(b"v", topic="orders", offset=offset, key=KEY).raw for offset in offsets])

    def retry_read(self, *letters: Letter) -> None:
        """From the retry topic, due."""
        raws = [
            Message.of(b"v", topic=self.retry.topic, offset=number, key=KEY, headers=letter.to_headers()).raw
            for number, letter in enumerate(letters, len(self.retry.offsets))
        ]
        self.intake.accept(raws)
        self.intake.take_due(1)

    def handed_out(self) -> list[int]:
        with self.source.route.execution.adding() as dispatch:
            jobs = dispatch.take(100)
            dispatch.release(dict.fromkeys(job.lane for job in jobs))
        return [job.origin for job in jobs]


def letter(origin: int) -> Letter:
    return foreign_letter("orders", 0, 0, origin, None, "email")._replace(attempts=1, due_ms=1)


def test_a_message_waits_in_memory_until_the_letter_before_it_is_due_and_then_comes_after_it() -> None:
    desk = Desk()
    desk.blocked.add(KEY, 3, Place(0, 1))
    desk.read(4, 5)
    assert desk.handed_out() == []
    assert desk.source.parked == 2
    desk.retry_read(letter(3))
    assert desk.handed_out() == [3, 4, 5]
    assert desk.source.parked == 0
    assert desk.outbox.letters == []


def test_beyond_its_share_of_memory_it_is_written_behind_the_letter() -> None:
    desk = Desk(messages_max=1)
    desk.blocked.add(KEY, 0, Place(1, 77))
    desk.read(*range(1, 61))
    assert desk.source.parked == 50
    assert [(each.offset, each.level, each.due_ms, each.attempts) for each in desk.outbox.letters] == [
        (offset, 1, 77, 0) for offset in range(51, 61)
    ]
    assert len(desk.blocked) == 11


def test_of_several_copies_in_retry_topics_the_last_is_handled() -> None:
    desk = Desk()
    desk.blocked.add(KEY, 3, Place(0, 1))
    desk.blocked.add(KEY, 3, Place(0, 1))
    desk.read(4)
    desk.retry_read(letter(3))
    assert desk.handed_out() == []
    assert (desk.counts.skipped, desk.retry.offsets.position) == (1, 1)
    desk.retry_read(letter(3))
    assert desk.handed_out() == [3, 4]


def test_a_message_whose_letter_waits_is_not_handled_from_the_source() -> None:
    desk = Desk()
    desk.blocked.add(KEY, 3, Place(0, 1))
    desk.read(3)
    assert desk.handed_out() == []
    assert desk.source.offsets.position == 4


def test_letters_of_others_are_handled_in_their_turn() -> None:
    """A replay, say: nobody told the table of it."""
    desk = Desk()
    desk.retry_read(letter(3))
    assert desk.handed_out() == [3]
    desk.blocked.add(KEY, 1, Place(0, 9))
    desk.retry_read(letter(2))
    assert desk.handed_out() == []
    assert desk.retry.parked == 1


def test_a_message_in_a_retry_topic_without_a_story_is_handled() -> None:
    desk = Desk()
    desk.intake.accept([Message.of(b"v", topic=desk.retry.topic, offset=0, key=KEY).raw])
    desk.intake.take_due(1)
    assert desk.handed_out() == [0]
