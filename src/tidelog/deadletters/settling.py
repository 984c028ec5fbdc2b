"""Does something about letters, each exactly once: what is sent for them and their marks are one transaction.

A run opens the one transactional id of its dead-letter topic, which fences any other run on that topic and ends what that one
had open. Then it reads the ledger to its end: from here on nobody else can add a mark, so what it sees is all there is. Then it
reads the letters from the beginning to what was the end when it started, leaves out those with a mark and those that the filter
does not want, and commits the rest in transactions of at most ``BATCH_LETTERS`` letters and ``BATCH_BYTES`` bytes.

Whatever is killed, and whenever: a letter was sent and has its mark, or neither; the next run goes on with those that have none.
A run that was fenced ends with Fenced at its next transaction. Memory is one batch, what ``reading`` holds, and the ledger's
intervals.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidelog.client.errors import (
    Fenced,
    InvalidTopic,
    MessageTooLarge,
    NotAuthorized,
    TidelogError,
    TransactionFailed,
    UnknownTopic,
)
from tidelog.client.producer import Producer
from tidelog.deadletters.connection import Connection
from tidelog.deadletters.dead_letter import DeadLetter
from tidelog.deadletters.filters import Filter
from tidelog.deadletters.ledger import Ledger, Mark
from tidelog.deadletters.ledger_reading import read_ledger
from tidelog.deadletters.names import ledger_topic
from tidelog.deadletters.outgoing import Outgoing
from tidelog.deadletters.pacing import Pacer
from tidelog.deadletters.reading import read
from tidelog.deadletters.topics import LEDGER_CONFIG, ensure_topics

BATCH_LETTERS = 1000
BATCH_BYTES = 8 << 20
TRANSACTIONAL_ID_PREFIX = "tidelog.dlq."
# Of one batch. What aborts a transaction is mostly a broker that went away and comes back.
ATTEMPTS_MAX = 5
RETRY_SECONDS = 0.2

# What no second attempt changes.
_REFUSALS = (MessageTooLarge, UnknownTopic, NotAuthorized, InvalidTopic)


class Progress(NamedTuple):
    """Told after every batch. ``read`` of ``total`` offsets were looked at (an estimate: marks of transactions count)."""

    read: int
    total: int
    settled: int


class Settled(NamedTuple):
    """What a run did. With a dry run: what it would do now."""

    topic: str
    letters: int
    """Replayed or discarded by this run."""
    done_before: int
    """Letters of the whole topic that were marked by earlier runs."""
    not_fitting: int
    foreign: int
    """Fitting letters that a replay left alone: without a story, or with that of another dead-letter topic."""
    targets: Mapping[str, int]
    """Letters by the topic that they were sent to."""


class Action(Protocol):
    """What to do about a letter."""

    def wants(self, dead: DeadLetter, /) -> bool:
        """False for a letter that it must leave alone."""

    def prepare(self, dead: DeadLetter, /) -> None:
        """Before anything is sent for it; makes topics. Not in a dry run."""

    def decide(self, dead: DeadLetter, /) -> tuple[Outgoing | None, Mark]:
        """What to send for it, and what to say of it in the ledger."""


class Marker:
    """The producer that may mark letters of one dead-letter topic. Opening it fences every other."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._topic = topic
        self._ledger = ledger_topic(topic)
        wanted = {self._ledger: LEDGER_CONFIG}
        ensure_topics(connection.admin, topic, wanted, addresses=connection.addresses, partitions=1)
        self._producer: Producer = connection.producer(TRANSACTIONAL_ID_PREFIX + topic)

    def close(self) -> None:
        self._producer.close()

    def forget(self, keys: Sequence[bytes]) -> None:
        """Tombstones for marks that nobody needs any more."""
        for first in range(0, len(keys), BATCH_LETTERS):
            self._commit([(Outgoing(self._ledger, 0, key, None, ()), None) for key in keys[first : first + BATCH_LETTERS]])

    def settle(self, decided: Sequence[tuple[DeadLetter, Outgoing | None, Mark]], ledger: Ledger) -> None:
        """One transaction: what is sent for each of these letters, and its mark. The ledger knows them afterwards."""
        records: list[tuple[Outgoing, DeadLetter | None]] = []
        for dead, outgoing, mark in decided:
            if outgoing is not None:
                records.append((outgoing, dead))
            key = ledger.place(dead.partition, dead.offset).to_key()
            records.append((Outgoing(self._ledger, 0, key, mark.to_value(), ()), None))
        self._commit(records)
        for dead, _, _ in decided:
            ledger.add(dead.partition, dead.offset)

    def _commit(self, records: Sequence[tuple[Outgoing, DeadLetter | None]]) -> None:
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
                    f"another replay or discard of {self._topic} was started while this one ran and took over: what this one had "
                    "committed stays, the other one goes on with the rest; wait for it to end",
                    code=error.code,
                ) from error
            except TransactionFailed:
                for delivery, dead in deliveries:
                    _refuse(dead, delivery.exception(0) if delivery.done() else None)
                if attempt == ATTEMPTS_MAX:
                    raise
                time.sleep(RETRY_SECONDS * 2**attempt)


def _refuse(dead: DeadLetter, error: BaseException | None) -> None:
    if isinstance(error, _REFUSALS):
        raise type(error)(
            f"the letter {dead.topic} {dead.partition}:{dead.offset} cannot be replayed: {error}. Nothing of its transaction was "
            "sent; leave it out by its offset, or discard it",
            code=error.code,
        ) from error


def settle(
    connection: Connection,
    topic: str,
    wanted: Filter,
    action: Action,
    *,
    rate: float | None = None,
    is_dry_run: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Settled:
    """Do ``action`` for every letter that fits and has no mark. A dry run writes nothing and fences nobody."""
    wanted = wanted.checked()
    pacer = Pacer(rate)
    connection.dead_letter_topics([topic])
    if is_dry_run:
        return _Run(connection, topic, wanted, action, pacer, progress, None).go()
    marker = Marker(connection, topic)
    try:
        return _Run(connection, topic, wanted, action, pacer, progress, marker).go()
    finally:
        _close(marker)


def _close(marker: Marker) -> None:
    try:
        marker.close()
    except TidelogError:
        # Everything that counts was committed before; what was not is void. The run's own error is the one to see.
        return


class _Run:
    def __init__(
        self,
        connection: Connection,
        topic: str,
        wanted: Filter,
        action: Action,
        pacer: Pacer,
        progress: Callable[[Progress], None] | None,
        marker: Marker | None,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._wanted = wanted
        self._action = action
        self._pacer = pacer
        self._progress = progress
        self._marker = marker
        bounds = connection.bounds(topic)
        self._ledger = read_ledger(connection, topic, bounds)
        self._ranges = ranges_to_read(wanted, bounds, self._ledger)
        self._letters = self._foreign = self._not_fitting = self._read = 0
        self._total = sum(end - start for start, end in self._ranges.values())
        self._done_before = sum(self._ledger.counts.values())
        self._targets: dict[str, int] = {}

    def go(self) -> Settled:
        if self._marker is not None:
            self._marker.forget(self._ledger.stale_keys())
        batch: list[DeadLetter] = []
        size = 0
        letters_max = self._pacer.batch_letters(BATCH_LETTERS)
        for dead in self._fitting():
            size_bytes = dead.size_bytes
            if batch and (len(batch) >= letters_max or size + size_bytes > BATCH_BYTES):
                self._settle(batch)
                batch, size = [], 0
            batch.append(dead)
            size += size_bytes
        if batch:
            self._settle(batch)
        if self._marker is not None and self._letters:
            self._connection.wait_until_committed([ledger_topic(self._topic), *self._targets])
        self._tell()
        return Settled(
            self._topic, self._letters, self._done_before, self._not_fitting, self._foreign, dict(sorted(self._targets.items()))
        )

    def _fitting(self) -> Iterator[DeadLetter]:
        for messages in read(self._connection, self._topic, self._ranges):
            for message in messages:
                self._read += 1
                if self._ledger.is_handled(message.partition(), message.offset()):
                    continue
                dead = DeadLetter.of(message)
                if not self._wanted.fits(dead):
                    self._not_fitting += 1
                elif not self._action.wants(dead):
                    self._foreign += 1
                else:
                    yield dead
            self._tell()

    def _settle(self, batch: list[DeadLetter]) -> None:
        if self._marker is not None:
            for dead in batch:
                self._action.prepare(dead)
            time.sleep(self._pacer.delay(len(batch), time.monotonic()))
        decided = [(dead, *self._action.decide(dead)) for dead in batch]
        if self._marker is not None:
            self._marker.settle(decided, self._ledger)
        for _, outgoing, _ in decided:
            if outgoing is not None:
                self._targets[outgoing.topic] = self._targets.get(outgoing.topic, 0) + 1
        self._letters += len(batch)
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(Progress(self._read, self._total, self._letters))


def ranges_to_read(wanted: Filter, bounds: Mapping[int, tuple[int, int]], ledger: Ledger) -> dict[int, tuple[int, int]]:
    """What must be read to see every letter that may fit: from the first that has no mark."""
    ranges = {}
    for partition, (start, end) in bounds.items():
        narrowed = wanted.narrow(partition, start, end)
        if narrowed is None:
            continue
        first = ledger.handled(partition).first_missing(narrowed[0])
        if first < narrowed[1]:
            ranges[partition] = (first, narrowed[1])
    return ranges
