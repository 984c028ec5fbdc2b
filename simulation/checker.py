"""Checks whether a log could have produced a history: Jepsen's list, and what "visible means durable" adds.

Each check is a function from a history to violations and is listed in ``CHECKS``. Checks cover one life of a topic: records of a
topic whose deletion was requested may be gone. A batch that a producer sent several times may occur that often, and no more.

``losses`` are moments at which unsynced data may have been lost. Only records that were acknowledged with acks=1 and never read,
or sent with acks=0, may be lost then.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from simulation.history import ACKS_ALL, NEVER, Attempt, History, Outcome, PartitionId, Poll

NO_OFFSET = -1


class Violation(NamedTuple):
    kind: str
    text: str


Check = Callable[[History], Iterator[Violation]]


def noticed_problems(history: History) -> Iterator[Violation]:
    for kind, text in history.problems:
        yield Violation(kind, text)


def reads_of_what_was_never_sent(history: History) -> Iterator[Violation]:
    outcomes: dict[tuple[PartitionId, str], set[Outcome]] = defaultdict(set)
    for attempt in history.attempts:
        for value in attempt.values:
            outcomes[attempt.partition, value].add(attempt.outcome)
    for poll in history.polls:
        for offset, value in poll.records:
            known = outcomes.get((poll.partition, value))
            if known is None:
                yield Violation("never sent", f"{_at(history, poll.partition, offset)} holds {value}")
            elif known == {Outcome.FAILED}:
                yield Violation("refused but written", f"{_at(history, poll.partition, offset)} holds {value}")


def one_value_per_offset(history: History) -> Iterator[Violation]:
    found: dict[tuple[PartitionId, int], str] = {}
    for partition, offset, value, source in _sightings(history):
        known = found.setdefault((partition, offset), value)
        if known != value:
            yield Violation("two values at one offset", f"{_at(history, partition, offset)}: {known} and {value} ({source})")


def _sightings(history: History) -> Iterator[tuple[PartitionId, int, str, str]]:
    """Where somebody was told that a value is: by a read, or by an acknowledgement that promises durability."""
    for poll in history.polls:
        for offset, value in poll.records:
            yield poll.partition, offset, value, f"read by {poll.consumer}"
    for attempt in _acked(history):
        if attempt.acks == ACKS_ALL:
            for offset, value in enumerate(attempt.values, attempt.base_offset):
                yield attempt.partition, offset, value, "acknowledged"


def no_more_copies_than_attempts(history: History) -> Iterator[Violation]:
    attempts: dict[tuple[PartitionId, str], int] = defaultdict(int)
    for attempt in history.attempts:
        if attempt.outcome is not Outcome.FAILED:
            for value in attempt.values:
                attempts[attempt.partition, value] += 1
    offsets: dict[tuple[PartitionId, str], set[int]] = defaultdict(set)
    for partition, offset, value, _ in _sightings(history):
        offsets[partition, value].add(offset)
    for (partition, value), places in offsets.items():
        allowed = attempts.get((partition, value), 0)
        if allowed and len(places) > allowed:
            text = f"{history.name_of(partition)}: {value}, sent {allowed} times, is at {sorted(places)}"
            yield Violation("value at two offsets", text)


def sends_of_one_producer_stay_in_order(history: History) -> Iterator[Violation]:
    """Acknowledged offsets rise in the order of sending; what a loss may have removed does not count."""
    by_producer: dict[tuple[str, PartitionId], list[Attempt]] = defaultdict(list)
    for attempt in _acked(history):
        by_producer[attempt.producer, attempt.partition].append(attempt)
    for (producer, partition), attempts in by_producer.items():
        attempts.sort(key=lambda attempt: attempt.sent_at)
        highest: Attempt | None = None
        highest_durable: Attempt | None = None
        for later in attempts:
            if highest is not None and _is_loss_between(history, highest.sent_at, later.ended_at):
                highest = highest_durable
            if highest is not None and later.base_offset <= highest.base_offset:
                text = (
                    f"{producer} to {history.name_of(partition)}: {highest.values} acknowledged at {highest.base_offset}, then "
                )
                yield Violation("sends out of order", text + f"{later.values} at {later.base_offset}")
            highest = later
            highest_durable = later if later.acks == ACKS_ALL else highest_durable


def reads_keep_the_order_of_sends(history: History) -> Iterator[Violation]:
    """Covers batches that were sent once, over one connection, even when nobody was told where they are."""
    counts: dict[str, int] = defaultdict(int)
    for attempt in history.attempts:
        counts[attempt.values[0]] += 1
    sent_at = {attempt.values[0]: attempt for attempt in history.attempts if counts[attempt.values[0]] == 1}
    for partition, values in _final_records(history).items():
        newest: dict[tuple[str, int], Attempt] = {}
        for offset, value in sorted(values.items()):
            found = sent_at.get(value)
            if found is not None:
                earlier = newest.get((found.producer, found.connection))
                if earlier is not None and found.sent_at < earlier.sent_at:
                    text = f"{_at(history, partition, offset)}: {value} is behind {earlier.values[0]}, which was sent after it"
                    yield Violation("order of sends lost", text)
                newest[found.producer, found.connection] = found


def polls_neither_skip_nor_go_back(history: History) -> Iterator[Violation]:
    expected: dict[tuple[str, PartitionId, int], int] = {}
    for poll in history.polls:
        key = poll.consumer, poll.partition, poll.assignment
        offset = expected.setdefault(key, poll.fetch_offset)
        for found, _ in poll.records:
            if found != offset:
                kind = "skipped poll" if found > offset else "backward poll"
                yield Violation(kind, f"{poll.consumer} got {_at(history, poll.partition, found)} where {offset} was next")
            offset = found + 1
        expected[key] = offset


def high_watermark_never_falls(history: History) -> Iterator[Violation]:
    """A fetch that was sent after something was known to be visible sees at least that.

    This does not hold while a topic has too few replicas: then the high watermark stands still, and a new process knows only
    where it was when it was last written down."""
    known: dict[PartitionId, list[tuple[int, int]]] = defaultdict(list)
    for poll in history.polls:
        known[poll.partition].append((poll.ended_at, poll.high_watermark))
    for attempt in _acked(history):
        if attempt.acks == ACKS_ALL:
            known[attempt.partition].append((attempt.ended_at, attempt.base_offset + len(attempt.values)))
    floors: dict[PartitionId, tuple[list[int], list[int]]] = {}
    for partition, entries in known.items():
        entries.sort()
        highest = NO_OFFSET
        heights = []
        for _, height in entries:
            highest = max(highest, height)
            heights.append(highest)
        floors[partition] = [moment for moment, _ in entries], heights
    for poll in history.polls:
        moments, heights = floors[poll.partition]
        before = bisect_left(moments, poll.sent_at)
        is_short = history.topics[poll.partition.topic_id].may_be_short_within(poll.sent_at, poll.ended_at)
        if before and not is_short and poll.high_watermark < heights[before - 1]:
            text = (
                f"{poll.consumer} sees {history.name_of(poll.partition)} up to {poll.high_watermark}, after {heights[before - 1]}"
            )
            yield Violation("high watermark fell", text)


def nothing_is_read_above_the_high_watermark(history: History) -> Iterator[Violation]:
    for poll in history.polls:
        if poll.records and poll.records[-1][0] >= poll.high_watermark:
            text = (
                f"{poll.consumer} got {_at(history, poll.partition, poll.records[-1][0])}, high watermark {poll.high_watermark}"
            )
            yield Violation("read above the high watermark", text)


def too_few_replicas_acknowledge_nothing(history: History) -> Iterator[Violation]:
    for attempt in _acked(history):
        life = history.topics[attempt.partition.topic_id]
        if attempt.acks == ACKS_ALL and life.is_short_throughout(attempt.sent_at, attempt.ended_at):
            text = f"{_at(history, attempt.partition, attempt.base_offset)}: {attempt.values}"
            yield Violation("acknowledged by too few replicas", text)


def acknowledged_writes_are_there(history: History) -> Iterator[Violation]:
    final = _final_records(history)
    starts = _final_starts(history)
    for attempt in _acked(history):
        if _is_doomed(history, attempt.partition):
            continue
        if attempt.acks != ACKS_ALL and _is_loss_between(history, attempt.sent_at, NEVER):
            continue
        records = final.get(attempt.partition, {})
        start = starts.get(attempt.partition, 0)
        for offset, value in enumerate(attempt.values, attempt.base_offset):
            if offset >= start and records.get(offset) != value:
                text = f"{_at(history, attempt.partition, offset)}: {value}, acks={attempt.acks}, now {records.get(offset)}"
                yield Violation("lost write", text)


def what_was_read_stays(history: History) -> Iterator[Violation]:
    final = _final_records(history)
    starts = _final_starts(history)
    for poll in history.polls:
        if poll.is_final or _is_doomed(history, poll.partition):
            continue
        records = final.get(poll.partition, {})
        start = starts.get(poll.partition, 0)
        for offset, value in poll.records:
            if offset >= start and records.get(offset) != value:
                text = f"{_at(history, poll.partition, offset)}: {value}, read by {poll.consumer}, now {records.get(offset)}"
                yield Violation("vanished", text)


def only_retention_moves_the_start(history: History) -> Iterator[Violation]:
    for poll in history.polls:
        life = history.topics[poll.partition.topic_id]
        if poll.log_start_offset > 0 and not life.has_retention:
            yield Violation("start moved", f"{history.name_of(poll.partition)} starts at {poll.log_start_offset}")
        if poll.log_start_offset > poll.high_watermark:
            text = f"{history.name_of(poll.partition)} starts at {poll.log_start_offset}, high watermark {poll.high_watermark}"
            yield Violation("start above the high watermark", text)
        if poll.records and poll.records[0][0] < poll.log_start_offset:
            text = f"{_at(history, poll.partition, poll.records[0][0])}, which starts at {poll.log_start_offset}"
            yield Violation("read below the start", text)


def deleted_topics_stay_deleted(history: History) -> Iterator[Violation]:
    for poll in history.polls:
        life = history.topics[poll.partition.topic_id]
        if poll.sent_at > life.deleted_at:
            yield Violation("deleted topic answers", f"{poll.consumer} reads {history.name_of(poll.partition)}")
    for attempt in _acked(history):
        if attempt.sent_at > history.topics[attempt.partition.topic_id].deleted_at:
            yield Violation("deleted topic answers", f"{attempt.producer} writes to {history.name_of(attempt.partition)}")


def every_partition_is_read_at_the_end(history: History) -> Iterator[Violation]:
    read = {poll.partition for poll in history.polls if poll.is_final}
    for life in history.topics.values():
        for index in range(life.partitions):
            partition = PartitionId(life.topic_id, index)
            if life.deletion_sent_at == NEVER and partition not in read:
                yield Violation("no final read", history.name_of(partition))


CHECKS: tuple[Check, ...] = (
    noticed_problems,
    reads_of_what_was_never_sent,
    one_value_per_offset,
    no_more_copies_than_attempts,
    sends_of_one_producer_stay_in_order,
    reads_keep_the_order_of_sends,
    polls_neither_skip_nor_go_back,
    high_watermark_never_falls,
    nothing_is_read_above_the_high_watermark,
    too_few_replicas_acknowledge_nothing,
    acknowledged_writes_are_there,
    what_was_read_stays,
    only_retention_moves_the_start,
    deleted_topics_stay_deleted,
    every_partition_is_read_at_the_end,
)


def check(history: History) -> list[Violation]:
    """Return all violations, each once."""
    return list(dict.fromkeys(violation for one in CHECKS for violation in one(history)))


def _acked(history: History) -> Iterator[Attempt]:
    return (attempt for attempt in history.attempts if attempt.outcome is Outcome.ACKED)


def _final_polls(history: History) -> Iterator[Poll]:
    return (poll for poll in history.polls if poll.is_final)


def _final_records(history: History) -> dict[PartitionId, dict[int, str]]:
    records: dict[PartitionId, dict[int, str]] = defaultdict(dict)
    for poll in _final_polls(history):
        records[poll.partition].update(poll.records)
    return records


def _final_starts(history: History) -> dict[PartitionId, int]:
    """The highest start that the final reads saw, because retention continues while they run."""
    starts: dict[PartitionId, int] = defaultdict(int)
    for poll in _final_polls(history):
        starts[poll.partition] = max(starts[poll.partition], poll.log_start_offset)
    return starts


def _is_doomed(history: History, partition: PartitionId) -> bool:
    return history.topics[partition.topic_id].deletion_sent_at != NEVER


def _is_loss_between(history: History, first: int, last: int) -> bool:
    index = bisect_left(history.losses, first)
    return index < len(history.losses) and history.losses[index] < last


def _at(history: History, partition: PartitionId, offset: int) -> str:
    return f"{history.name_of(partition)}@{offset}"
