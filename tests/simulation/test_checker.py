"""A checker that finds nothing proves nothing: each kind of bad history is planted, and found."""

from collections.abc import Callable

import pytest

from simulation.checker import CHECKS, check
from simulation.history import ACKS_ALL, Attempt, History, Outcome, PartitionId, Poll, Shortage

TOPIC_ID = b"t" * 16
PARTITION = PartitionId(TOPIC_ID, 0)


class Story:
    """A history that is told step by step."""

    def __init__(self, has_retention: bool = False) -> None:
        self.history = History()
        self.life = self.history.created("orders", TOPIC_ID, 1, has_retention)

    def send(
        self, value: str, offset: int | None = None, acks: int = ACKS_ALL, producer: str = "p", connection: int = 1
    ) -> Attempt:
        """Acknowledged at ``offset``; None: nobody knows."""
        attempt = self.history.sent(producer, connection, PARTITION, (value,), acks)
        self.history.answered(attempt, Outcome.UNKNOWN if offset is None else Outcome.ACKED, -1 if offset is None else offset)
        return attempt

    def poll(
        self,
        *records: tuple[int, str],
        high_watermark: int | None = None,
        fetch_offset: int | None = None,
        start: int = 0,
        assignment: int = 1,
        is_final: bool = False,
        sent_at: int | None = None,
    ) -> None:
        history = self.history
        end = records[-1][0] + 1 if records else 0
        poll = Poll(
            "final" if is_final else "c",
            assignment,
            PARTITION,
            fetch_offset if fetch_offset is not None else records[0][0] if records else 0,
            list(records),
            end if high_watermark is None else high_watermark,
            start,
            history.now() if sent_at is None else sent_at,
            history.now(),
            is_final,
        )
        history.polls.append(poll)

    def final(self, *records: tuple[int, str], **more: int) -> None:
        self.poll(*records, is_final=True, **more)

    def kinds(self) -> set[str]:
        return {violation.kind for violation in check(self.history)}


def a_good_story() -> Story:
    story = Story()
    for offset, value in enumerate("abc"):
        story.send(value, offset)
    story.poll((0, "a"), (1, "b"), high_watermark=3)
    story.poll((2, "c"))
    story.final((0, "a"), (1, "b"), (2, "c"))
    return story


def test_a_good_history_is_good() -> None:
    assert a_good_story().kinds() == set()


def lost_write(story: Story) -> None:
    story.send("a", 0)
    story.send("b", 1)
    story.final((0, "a"), high_watermark=2)


def lost_write_with_acks_1_and_no_power_cut(story: Story) -> None:
    story.send("a", 0, acks=1)
    story.final()


def acknowledged_elsewhere(story: Story) -> None:
    story.send("a", 0)
    story.send("b", 1)
    story.final((0, "b"), (1, "a"))


def two_values_at_one_offset(story: Story) -> None:
    story.send("a")
    story.send("b")
    story.poll((0, "a"))
    story.final((0, "b"))


def value_at_two_offsets(story: Story) -> None:
    story.send("a", 0)
    story.final((0, "a"), (1, "a"))


def three_copies_of_what_was_sent_twice(story: Story) -> None:
    story.send("a")
    story.send("a", 1)
    story.final((0, "a"), (1, "a"), (2, "a"))


def sends_out_of_order(story: Story) -> None:
    story.send("a", 1)
    story.send("b", 0)
    story.final((0, "b"), (1, "a"))


def sends_of_one_connection_swapped_without_an_answer(story: Story) -> None:
    story.send("a", acks=0)
    story.send("b", acks=0)
    story.final((0, "b"), (1, "a"))


def skipped_poll(story: Story) -> None:
    for offset, value in enumerate("abc"):
        story.send(value, offset)
    story.poll((0, "a"), high_watermark=3)
    story.poll((2, "c"))
    story.final((0, "a"), (1, "b"), (2, "c"))


def poll_that_begins_too_late(story: Story) -> None:
    story.send("a", 0)
    story.send("b", 1)
    story.poll((1, "b"), fetch_offset=0)
    story.final((0, "a"), (1, "b"))


def backward_poll(story: Story) -> None:
    story.send("a", 0)
    story.send("b", 1)
    story.poll((0, "a"), (1, "b"))
    story.poll((1, "b"))
    story.final((0, "a"), (1, "b"))


def never_sent(story: Story) -> None:
    story.final((0, "x"))


def refused_but_written(story: Story) -> None:
    attempt = story.history.sent("p", 1, PARTITION, ("a",), ACKS_ALL)
    story.history.answered(attempt, Outcome.FAILED)
    story.final((0, "a"))


def vanished(story: Story) -> None:
    story.send("a", acks=0)
    story.poll((0, "a"))
    story.history.lost_unsynced()
    story.final(high_watermark=1)


def high_watermark_fell(story: Story) -> None:
    story.send("a")
    story.poll((0, "a"))
    story.poll(fetch_offset=1, high_watermark=0)
    story.final((0, "a"))


def high_watermark_below_an_acknowledgement(story: Story) -> None:
    story.send("a", 0)
    story.poll(high_watermark=0)
    story.final((0, "a"))


def read_above_the_high_watermark(story: Story) -> None:
    story.send("a")
    story.poll((0, "a"), high_watermark=0)
    story.final((0, "a"))


def start_moved(story: Story) -> None:
    story.final(start=3, high_watermark=3, fetch_offset=3)


def read_below_the_start(story: Story) -> None:
    story.life.has_retention = True
    story.send("a")
    story.final((0, "a"), start=1)


def start_above_the_high_watermark(story: Story) -> None:
    story.life.has_retention = True
    story.final(start=1)


def read_of_a_deleted_topic(story: Story) -> None:
    story.send("a")
    story.life.deletion_sent_at = story.history.now()
    story.life.deleted_at = story.history.now()
    story.poll((0, "a"))


def write_to_a_deleted_topic(story: Story) -> None:
    story.life.deletion_sent_at = story.history.now()
    story.life.deleted_at = story.history.now()
    story.send("a", 0)


def no_final_read(story: Story) -> None:
    story.send("a")


def acknowledged_by_too_few_replicas(story: Story) -> None:
    with_shortage(story, lambda: story.send("a", 0))
    story.final((0, "a"))


def with_shortage(story: Story, during: Callable[[], object]) -> None:
    """Something while everybody knows that there are too few replicas."""
    now = story.history.now
    shortage = Shortage(asked_at=now(), begun_at=now())
    story.life.shortages.append(shortage)
    during()
    shortage.ending_at = now()
    shortage.ended_at = now()


def noticed_by_a_client(story: Story) -> None:
    story.history.problem("reply out of order", "2 before 1")
    story.final()


PLANTED: tuple[tuple[Callable[[Story], None], str], ...] = (
    (lost_write, "lost write"),
    (lost_write_with_acks_1_and_no_power_cut, "lost write"),
    (acknowledged_elsewhere, "lost write"),
    (two_values_at_one_offset, "two values at one offset"),
    (value_at_two_offsets, "value at two offsets"),
    (three_copies_of_what_was_sent_twice, "value at two offsets"),
    (sends_out_of_order, "sends out of order"),
    (sends_of_one_connection_swapped_without_an_answer, "order of sends lost"),
    (skipped_poll, "skipped poll"),
    (poll_that_begins_too_late, "skipped poll"),
    (backward_poll, "backward poll"),
    (never_sent, "never sent"),
    (refused_but_written, "refused but written"),
    (vanished, "vanished"),
    (high_watermark_fell, "high watermark fell"),
    (high_watermark_below_an_acknowledgement, "high watermark fell"),
    (read_above_the_high_watermark, "read above the high watermark"),
    (start_moved, "start moved"),
    (read_below_the_start, "read below the start"),
    (start_above_the_high_watermark, "start above the high watermark"),
    (read_of_a_deleted_topic, "deleted topic answers"),
    (write_to_a_deleted_topic, "deleted topic answers"),
    (no_final_read, "no final read"),
    (acknowledged_by_too_few_replicas, "acknowledged by too few replicas"),
    (noticed_by_a_client, "reply out of order"),
)


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_violation_is_found(plant: Callable[[Story], None], kind: str) -> None:
    story = Story()
    plant(story)
    assert kind in story.kinds()


def test_every_check_has_found_something() -> None:
    silent = set(CHECKS)
    for plant, _ in PLANTED:
        story = Story()
        plant(story)
        silent -= {one for one in silent if list(one(story.history))}
    assert not silent


def acks_1_lost_by_a_power_cut(story: Story) -> None:
    story.send("a", 0, acks=1)
    story.history.lost_unsynced()
    story.send("b", 0)
    story.final((0, "b"))


def acks_0_lost(story: Story) -> None:
    story.send("a", acks=0)
    story.final()


def sent_again_and_twice_there(story: Story) -> None:
    story.send("a")
    story.send("a", 1, connection=2)
    story.final((0, "a"), (1, "a"))


def swapped_over_two_connections(story: Story) -> None:
    story.send("a", connection=1)
    story.send("b", 0, connection=2)
    story.final((0, "b"), (1, "a"))


def deleted_by_retention(story: Story) -> None:
    story.life.has_retention = True
    story.send("a", 0)
    story.send("b", 1)
    story.poll((0, "a"), high_watermark=2)
    story.final((1, "b"), start=1)


def gone_with_its_topic(story: Story) -> None:
    story.send("a", 0)
    story.poll((0, "a"))
    story.life.deletion_sent_at = story.history.now()


def read_again_from_the_start(story: Story) -> None:
    story.send("a", 0)
    story.poll((0, "a"))
    story.poll((0, "a"), assignment=2)
    story.final((0, "a"))


def seen_late(story: Story) -> None:
    """A fetch that was sent before, and answered from before, the acknowledgement."""
    sent_at = story.history.now()
    story.send("a", 0)
    story.poll(high_watermark=0, sent_at=sent_at)
    story.final((0, "a"))


def short_of_replicas(story: Story) -> None:
    story.send("a", 0)
    with_shortage(story, lambda: story.poll(high_watermark=0))
    story.final((0, "a"))


def acks_1_while_short_of_replicas(story: Story) -> None:
    with_shortage(story, lambda: story.send("a", 0, acks=1))
    story.final((0, "a"))


def acknowledged_while_replicas_were_being_taken_away(story: Story) -> None:
    shortage = Shortage(asked_at=story.history.now())
    story.life.shortages.append(shortage)
    story.send("a", 0)
    shortage.begun_at = story.history.now()
    shortage.ending_at = story.history.now()
    story.send("b", 1)
    shortage.ended_at = story.history.now()
    story.final((0, "a"), (1, "b"))


@pytest.mark.parametrize(
    "tell",
    [
        acks_1_lost_by_a_power_cut,
        acks_0_lost,
        sent_again_and_twice_there,
        swapped_over_two_connections,
        deleted_by_retention,
        gone_with_its_topic,
        read_again_from_the_start,
        seen_late,
        short_of_replicas,
        acks_1_while_short_of_replicas,
        acknowledged_while_replicas_were_being_taken_away,
    ],
)
def test_what_a_log_may_do_is_no_violation(tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    assert story.kinds() == set()


def test_a_high_watermark_that_stays_low_once_there_are_enough_replicas_is_found() -> None:
    story = Story()
    story.send("a", 0)
    with_shortage(story, lambda: None)
    story.poll(high_watermark=0)
    story.final((0, "a"))
    assert story.kinds() == {"high watermark fell"}
