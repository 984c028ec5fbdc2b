"""Replays or discards letters, each exactly once: what is sent for a letter and its mark are one transaction.

A run opens the one transactional id of its dead-letter topic, which fences any other run on that topic and ends that one's open
transaction. Then it reads the ledger to its end: nobody else can add a mark from here on, so the ledger is complete. Then it
reads the letters from the beginning to what was the end when it started, leaves out those with a mark and those that the filter
does not match, and commits the rest in transactions of at most ``BATCH_LETTERS`` letters and ``BATCH_BYTES`` bytes.

Whatever is killed, and whenever: a letter was sent and has its mark, or neither. The next run continues with the letters that
have none. A run that was fenced ends with Fenced at its next transaction. It keeps one batch, what ``DeadLetterCluster.read``
holds, and the ledger's intervals in memory.

A replay sends a letter to its group's retry topic or to its origin. To the retry topic it goes at level 0, due now, under its own
partition number and with its story, so that one can still see why it failed and that it was replayed. Its attempts begin again at
0, or it would be dead after the first. To the origin it goes as it first came, without a story: other groups read it there, and
to them it is a message like any other.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidelog.client.errors import (
    Fenced,
    InvalidArgument,
    InvalidTopic,
    MessageTooLarge,
    NotAuthorized,
    TidelogError,
    TransactionFailed,
    UnknownTopic,
)
from tidelog.deadletters.broker_letter import Repetitions
from tidelog.deadletters.cluster import DeadLetterCluster
from tidelog.deadletters.dead_letter import DeadLetter, LetterFilter
from tidelog.deadletters.ledger import DISCARDED, REPLAYED, Ledger, LedgerMark
from tidelog.deadletters.letter import Headers
from tidelog.deadletters.topics import FAILURE_CONFIG, LEDGER_CONFIG, ensure_topics, ledger_topic, retry_topic

BATCH_LETTERS = 1000
BATCH_BYTES = 8 << 20
TRANSACTIONAL_ID_PREFIX = "tidelog.dlq."
# The maximum for each batch. A transaction is mostly aborted because a broker went away, and it comes back.
ATTEMPTS_MAX = 5
RETRY_SECONDS = 0.2
REPEATED = "a broker that crashed has written the letter twice"

# A second attempt does not help after these errors.
_REFUSALS = (MessageTooLarge, UnknownTopic, NotAuthorized, InvalidTopic)


class Progress(NamedTuple):
    """Reported after every batch. ``read`` of ``total`` offsets were read; transaction markers count, so this is an estimate."""

    read: int
    total: int
    letters: int
    """Replayed or discarded so far."""


class ReplayResult(NamedTuple):
    """The outcome of a replay or discard; with a dry run, what it would do now."""

    topic: str
    letters: int
    """The number of letters replayed or discarded by this run."""
    done_before: int
    """Letters of the whole topic that were marked by earlier runs."""
    not_fitting: int
    """Letters that the filter did not match."""
    foreign: int
    """Matching letters that a replay left alone: without a story, with that of another dead-letter topic, or without a copy of
    the record that they are about."""
    targets: Mapping[str, int]
    """Letters by the topic to which they were sent."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- actions -----------------------------------------------------------------------------------------------------------------


class OutgoingMessage(NamedTuple):
    """A message to send. With ``partition`` None the key decides."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class LetterAction(Protocol):
    """Decides what is done with a letter."""

    def accepts(self, dead: DeadLetter, /) -> bool:
        """Returns False for a letter that must be left alone."""

    def prepare(self, dead: DeadLetter, /) -> None:
        """Create topics before anything is sent for the letter. Not called in a dry run."""

    def decide(self, dead: DeadLetter, /) -> tuple[OutgoingMessage | None, LedgerMark]:
        """Return the message to send for the letter, and its mark in the ledger."""


class ReplayToRetryTopic:
    """Sends the letter to its group's retry topic, so that only the group for which it failed sees it again."""

    def __init__(self, cluster: DeadLetterCluster) -> None:
        self._cluster = cluster
        self._ready: set[str] = set()

    def accepts(self, dead: DeadLetter) -> bool:
        if dead.letter is not None and dead.letter.is_from_broker:
            raise InvalidArgument(
                f"the letters of {dead.topic} are those of a share group, which has no retry topic: replay them to their origin, "
                f"{dead.letter.topic}, with to_origin=True (--to-origin)"
            )
        return dead.is_replayable

    def prepare(self, dead: DeadLetter) -> None:
        """Create the retry topic, with as many partitions as the dead-letter topic has."""
        assert dead.letter is not None, "only letters with a story are replayed"
        name = retry_topic(dead.letter.topic, dead.letter.group, 0)
        if name not in self._ready:
            ensure_topics(self._cluster.admin, dead.topic, {name: FAILURE_CONFIG})
            self._ready.add(name)

    def decide(self, dead: DeadLetter) -> tuple[OutgoingMessage, LedgerMark]:
        return _replayed(to_retry_topic(dead, now_ms()))


class ReplayToOrigin:
    """Sends the letter to its origin, so that every group that reads the topic sees it again."""

    def __init__(self, cluster: DeadLetterCluster) -> None:
        self._cluster = cluster
        self._partitions: dict[str, int] = {}

    def accepts(self, dead: DeadLetter) -> bool:
        return dead.is_replayable

    def prepare(self, dead: DeadLetter) -> None:
        """Check the origin. One that was deleted is not created again."""

    def decide(self, dead: DeadLetter) -> tuple[OutgoingMessage, LedgerMark]:
        assert dead.letter is not None, "only letters with a story are replayed"
        name = dead.letter.topic
        if name not in self._partitions:
            found = self._cluster.topics().get(name)
            if found is None:
                raise UnknownTopic(
                    f"the letters of {dead.topic} came from {name}, which no longer exists at {self._cluster.addresses}: "
                    "create it, or replay them to the group's retry topic"
                )
            self._partitions[name] = len(found)
        return _replayed(to_origin(dead, self._partitions[name]))


class Discard:
    """Discards the letter: nobody sees it again, and it is no longer counted. It stays in the topic until retention deletes
    it."""

    def __init__(self, reason: str | None) -> None:
        self._reason = reason

    def accepts(self, _dead: DeadLetter) -> bool:
        return True

    def prepare(self, _dead: DeadLetter) -> None:
        """Nothing is sent, so no topic is needed."""

    def decide(self, _dead: DeadLetter) -> tuple[None, LedgerMark]:
        return None, LedgerMark(DISCARDED, now_ms(), reason=self._reason)


def to_retry_topic(dead: DeadLetter, now_ms: int) -> OutgoingMessage:
    assert dead.letter is not None, "only letters with a story are replayed"
    letter = dead.letter._replace(attempts=0, level=0, due_ms=now_ms, replays=dead.letter.replays + 1)
    topic = retry_topic(letter.topic, letter.group, 0)
    return OutgoingMessage(topic, dead.partition, dead.key, dead.value, letter.to_headers(dead.headers))


def to_origin(dead: DeadLetter, partitions: int) -> OutgoingMessage:
    """Return the message for the origin, in its old partition if the topic still has it."""
    assert dead.letter is not None, "only letters with a story are replayed"
    partition = dead.letter.partition if dead.letter.partition < partitions else None
    return OutgoingMessage(dead.letter.topic, partition, dead.key, dead.value, dead.original_headers)


def _replayed(outgoing: OutgoingMessage) -> tuple[OutgoingMessage, LedgerMark]:
    return outgoing, LedgerMark(REPLAYED, now_ms(), target=outgoing.topic)


# -- running -----------------------------------------------------------------------------------------------------------------


class ReplayRequest(NamedTuple):
    """One run on one dead-letter topic. ``rate`` is letters per second, None is unlimited."""

    topic: str
    filter: LetterFilter
    action: LetterAction
    rate: float | None = None
    is_dry_run: bool = False
    progress: Callable[[Progress], None] | None = None


def replay_letters(cluster: DeadLetterCluster, request: ReplayRequest) -> ReplayResult:
    """Do the action for every letter that matches and has no mark. A dry run writes nothing and fences nobody."""
    request.filter.checked()
    pacer = Pacer(request.rate)
    cluster.dead_letter_topics([request.topic])
    if request.is_dry_run:
        return _Run(cluster, request, pacer, None).run()
    writer = LedgerWriter(cluster, request.topic)
    try:
        return _Run(cluster, request, pacer, writer).run()
    finally:
        writer.close()


class Pacer:
    """Limits the letters per second: each batch waits until those before it had their time. The clock is passed in."""

    __slots__ = ("_free_at", "_rate")

    def __init__(self, rate: float | None) -> None:
        """``rate`` None means no limit."""
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise InvalidArgument(f"a rate is a number of letters per second above 0: not {rate}")
        self._rate = rate
        self._free_at: float | None = None

    def batch_letters(self, letters_max: int) -> int:
        """The number of letters that one transaction may have: those of a second, so that the stream is even."""
        return letters_max if self._rate is None else max(1, min(letters_max, int(self._rate)))

    def delay(self, letters: int, now: float) -> float:
        """How long to wait, from ``now`` on, before that many are sent. They count as sent then."""
        if self._rate is None:
            return 0.0
        # Unused time is not saved up: a pause must not end in a burst.
        starts_at = now if self._free_at is None else max(now, self._free_at)
        self._free_at = starts_at + letters / self._rate
        return starts_at - now


class LedgerWriter:
    """The producer that may mark letters of one dead-letter topic. Opening it fences every other."""

    def __init__(self, cluster: DeadLetterCluster, topic: str) -> None:
        self._admin = cluster.admin
        self._topic = topic
        self._ledger = ledger_topic(topic)
        ensure_topics(cluster.admin, topic, {self._ledger: LEDGER_CONFIG}, partitions=1)
        self._producer = cluster.open_producer(TRANSACTIONAL_ID_PREFIX + topic)

    def close(self) -> None:
        try:
            self._producer.close()
        except TidelogError:
            # What counts was committed before, and the rest is void. The error of the run itself is the one to report.
            return

    def forget(self, keys: Sequence[bytes]) -> None:
        """Write tombstones for stale marks."""
        for first in range(0, len(keys), BATCH_LETTERS):
            self._commit([(OutgoingMessage(self._ledger, 0, key, None), None) for key in keys[first : first + BATCH_LETTERS]])

    def commit(self, decided: Sequence[tuple[DeadLetter, OutgoingMessage | None, LedgerMark]], ledger: Ledger) -> None:
        """Send the messages of these letters and their marks in one transaction, and note the letters in ``ledger``."""
        records: list[tuple[OutgoingMessage, DeadLetter | None]] = []
        for dead, outgoing, mark in decided:
            if outgoing is not None:
                records.append((outgoing, dead))
            key = ledger.place(dead.partition, dead.offset).to_key()
            records.append((OutgoingMessage(self._ledger, 0, key, mark.to_value()), None))
        self._commit(records)
        for dead, _, _ in decided:
            ledger.add(dead.partition, dead.offset)

    def _commit(self, records: Sequence[tuple[OutgoingMessage, DeadLetter | None]]) -> None:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            deliveries = []
            try:
                with self._producer.transaction() as transaction:
                    for outgoing, dead in records:
                        delivery = transaction.send(
                            outgoing.topic,
                            outgoing.value,
                            key=outgoing.key,
                            headers=outgoing.headers or None,
                            partition=outgoing.partition,
                        )
                        if dead is not None:
                            deliveries.append((delivery, dead))
                return
            except Fenced as error:
                raise Fenced(
                    f"another replay or discard of {self._topic} was started while this one ran and took over: what this one has "
                    "committed stays, and the other one continues with the rest; wait for it to end",
                    code=error.code,
                ) from error
            except TransactionFailed:
                for delivery, dead in deliveries:
                    self._raise_refusal(dead, delivery.exception(0) if delivery.done() else None)
                if attempt == ATTEMPTS_MAX:
                    raise
                time.sleep(RETRY_SECONDS * 2**attempt)

    def _raise_refusal(self, dead: DeadLetter, error: BaseException | None) -> None:
        if isinstance(error, _REFUSALS):
            reason = self._admin.with_topic_limit(error) if isinstance(error, MessageTooLarge) else error
            raise type(error)(
                f"the letter {dead.topic} {dead.partition}:{dead.offset} cannot be replayed: {reason}. Its transaction was "
                "aborted; exclude the letter by its offset, or discard it",
                code=error.code,
            ) from error


class _Run:
    def __init__(self, cluster: DeadLetterCluster, request: ReplayRequest, pacer: Pacer, writer: LedgerWriter | None) -> None:
        self._cluster = cluster
        self._request = request
        self._pacer = pacer
        self._writer = writer
        bounds = cluster.bounds(request.topic)
        self._ledger = cluster.read_ledger(request.topic, bounds)
        self._ranges = ranges_to_read(request.filter, bounds, self._ledger)
        self._letters = self._foreign = self._not_fitting = self._read = 0
        self._total = sum(end - start for start, end in self._ranges.values())
        self._done_before = sum(self._ledger.counts.values())
        self._targets: dict[str, int] = {}
        self._repetitions = Repetitions()

    def run(self) -> ReplayResult:
        if self._writer is not None:
            self._writer.forget(self._ledger.stale_keys())
        batch: list[DeadLetter] = []
        batch_bytes = 0
        letters_max = self._pacer.batch_letters(BATCH_LETTERS)
        for dead in self._matching():
            if batch and (len(batch) >= letters_max or batch_bytes + dead.size_bytes > BATCH_BYTES):
                self._process(batch)
                batch, batch_bytes = [], 0
            batch.append(dead)
            batch_bytes += dead.size_bytes
        if batch:
            self._process(batch)
        topic = self._request.topic
        if self._writer is not None and self._letters:
            self._cluster.wait_until_committed([ledger_topic(topic), *self._targets])
        self._report()
        targets = dict(sorted(self._targets.items()))
        return ReplayResult(topic, self._letters, self._done_before, self._not_fitting, self._foreign, targets)

    def _matching(self) -> Iterator[DeadLetter]:
        for messages in self._cluster.read(self._request.topic, self._ranges):
            for message in messages:
                self._read += 1
                if self._ledger.is_handled(message.partition, message.offset):
                    continue
                dead = DeadLetter.of(message)
                if not self._request.filter.matches(dead):
                    self._not_fitting += 1
                elif not self._request.action.accepts(dead):
                    self._foreign += 1
                else:
                    yield dead
            self._report()

    def _process(self, batch: list[DeadLetter]) -> None:
        action = self._request.action
        if self._writer is not None:
            for dead in batch:
                action.prepare(dead)
            time.sleep(self._pacer.delay(len(batch), time.monotonic()))
        decided = [(dead, *self._decide(dead)) for dead in batch]
        if self._writer is not None:
            self._writer.commit(decided, self._ledger)
        for _, outgoing, _ in decided:
            if outgoing is not None:
                self._targets[outgoing.topic] = self._targets.get(outgoing.topic, 0) + 1
        self._letters += sum(mark.reason != REPEATED for _, _, mark in decided)
        self._report()

    def _decide(self, dead: DeadLetter) -> tuple[OutgoingMessage | None, LedgerMark]:
        if self._repetitions.is_repeated(dead):
            return None, LedgerMark(DISCARDED, now_ms(), reason=REPEATED)
        return self._request.action.decide(dead)

    def _report(self) -> None:
        if self._request.progress is not None:
            self._request.progress(Progress(self._read, self._total, self._letters))


def ranges_to_read(wanted: LetterFilter, bounds: Mapping[int, tuple[int, int]], ledger: Ledger) -> dict[int, tuple[int, int]]:
    """The offsets that contain every letter that may match, from the first one without a mark."""
    ranges = {}
    for partition, (start, end) in bounds.items():
        narrowed = wanted.narrow(partition, start, end)
        if narrowed is None:
            continue
        first = ledger.handled(partition).first_missing(narrowed[0])
        if first < narrowed[1]:
            ranges[partition] = (first, narrowed[1])
    return ranges
