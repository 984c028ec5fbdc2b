"""``DeadLetters``: what ``tidelog dlq`` does, from Python, on any Kafka.

    letters = DeadLetters("127.0.0.1:9092")
    for count in letters.list():
        print(count.topic, count.error, count.letters)
    letters.replay("orders.email.dlq", error="ConnectionError", rate=100)

It keeps nothing but a connection; what was replayed or discarded stands in the ledger topic beside the letters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypedDict, Unpack

from tidelog.client.errors import InvalidArgument, TidelogError
from tidelog.deadletters.actions import Discard, ReplayToOrigin, ReplayToRetryTopic, now_ms
from tidelog.deadletters.connection import Bounds, Connection
from tidelog.deadletters.counts import Count, Counter
from tidelog.deadletters.dead_letter import TIMESTAMP_NOT_AVAILABLE, DeadLetter
from tidelog.deadletters.depth import Depth
from tidelog.deadletters.filters import Filter
from tidelog.deadletters.ledger import Mark
from tidelog.deadletters.ledger_reading import read_ledger
from tidelog.deadletters.reading import read
from tidelog.deadletters.settling import Progress, Settled, ranges_to_read, settle

Time = int | datetime


class NoSuchLetter(TidelogError):
    """There is no letter at that place: deleted by retention, not yet written, or a mark of a transaction."""


class FilterArguments(TypedDict, total=False):
    """Which letters are meant; all that are given must fit."""

    error: str | Sequence[str] | None
    """The exception's class, with its module or the last part alone; one of several."""
    key: str | bytes | None
    since: Time | None
    """Last failed at this time or later: milliseconds since 1970, or a datetime with a time zone."""
    until: Time | None
    """Last failed before this."""
    partition: int | None
    first_offset: int | None
    """Of the dead-letter topic, as ``last_offset``, which is included."""
    last_offset: int | None


class Shown(NamedTuple):
    """One letter, and what became of it: None while it waits."""

    dead_letter: DeadLetter
    mark: Mark | None


class OriginReaders(NamedTuple):
    """Who would see letters again that are replayed to their origin."""

    topic: str
    group: str
    """The group that they failed for."""
    other_groups: tuple[str, ...]


class DeadLetters:
    """The dead letters of a cluster. Safe to use from several threads; nothing to close.

    ``config`` has settings of librdkafka, raw (``security.protocol`` and the like). The first call connects: BrokerUnavailable
    names the addresses within ten seconds.
    """

    def __init__(self, bootstrap: str | Sequence[str], *, config: Mapping[str, object] | None = None) -> None:
        self._connection = Connection(bootstrap, config)

    @property
    def addresses(self) -> str:
        """Of the cluster, as they were given."""
        return self._connection.addresses

    def topics(self) -> list[str]:
        """All dead-letter topics: those called TOPIC.GROUP.dlq."""
        return self._connection.dead_letter_topics()

    def list(self, *topics: str, **filters: Unpack[FilterArguments]) -> list[Count]:
        """What waits, counted by topic, group and class of error, with ages; of these topics, or of all.

        Reads every letter that waits, in bounded memory. UnknownTopic when one of the topics is not there.
        """
        counter = Counter(now_ms())
        for topic in self._connection.dead_letter_topics(topics):
            for dead in self.letters(topic, **filters):
                counter.add(dead)
        return counter.counts()

    def letters(self, topic: str, **filters: Unpack[FilterArguments]) -> Iterator[DeadLetter]:
        """Every letter that waits and fits, each partition in its order, up to what was the end when this began."""
        wanted = make_filter(**filters)
        self._connection.dead_letter_topics([topic])
        bounds = self._connection.bounds(topic)
        ledger = read_ledger(self._connection, topic, bounds)
        for messages in read(self._connection, topic, ranges_to_read(wanted, bounds, ledger)):
            for message in messages:
                if not ledger.is_handled(message.partition(), message.offset()):
                    dead = DeadLetter.of(message)
                    if wanted.fits(dead):
                        yield dead

    def show(self, topic: str, partition: int, offset: int) -> Shown:
        """One letter with its whole story, also when it was replayed or discarded. NoSuchLetter when there is none."""
        self._connection.dead_letter_topics([topic])
        bounds = self._connection.bounds(topic)
        bound = bounds.get(partition)
        if bound is None:
            raise NoSuchLetter(f"{topic} has no partition {partition}: it has 0 to {len(bounds) - 1}")
        for messages in read(self._connection, topic, {partition: (offset, offset + 1)} if _is_within(offset, bound) else {}):
            for message in messages:
                ledger = read_ledger(self._connection, topic, bounds, watched=(partition, offset))
                return Shown(DeadLetter.of(message), ledger.watched_mark)
        raise NoSuchLetter(
            f"{topic} has no letter at {partition}:{offset}: its offsets there are {bound.start} to {bound.end - 1}, "
            "some of which may be marks of transactions"
            if bound.start < bound.end
            else f"{topic} has no letter at {partition}:{offset}: the partition is empty"
        )

    def replay(
        self,
        topic: str,
        *,
        to_origin: bool = False,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
        **filters: Unpack[FilterArguments],
    ) -> Settled:
        """Send the letters that wait and fit back to their group's retry topic, each exactly once.

        Exactly once for readers with read_committed, however often this is run and whatever is killed: the message and its mark
        are one transaction, and a run goes on where the last one stopped. It ends with what was there when it began.
        ``to_origin`` sends them to the topic that they came from, where other groups see them again (``origin_readers`` names
        them). ``rate`` is letters per second. ``dry_run`` sends nothing. Fenced: another run on this topic took over.
        """
        action = ReplayToOrigin(self._connection) if to_origin else ReplayToRetryTopic(self._connection)
        wanted = make_filter(**filters)
        return settle(self._connection, topic, wanted, action, rate=rate, is_dry_run=dry_run, progress=progress)

    def discard(
        self,
        topic: str,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
        **filters: Unpack[FilterArguments],
    ) -> Settled:
        """Mark the letters that wait and fit as done with: no longer counted, never replayed. There is no way back.

        They stay in the topic until retention deletes them, and ``show`` still shows them. Fenced as ``replay``.
        """
        wanted = make_filter(**filters)
        return settle(self._connection, topic, wanted, Discard(reason), is_dry_run=dry_run, progress=progress)

    def depth(self, *topics: str, estimate: bool = False) -> Sequence[Depth]:
        """How many letters of each of these topics, or of all, wait: neither replayed nor discarded.

        Reads what waits, to count no mark of a transaction as a letter; ``estimate`` only asks for offsets and reads the ledger:
        fast however many there are, and at least as high.
        """
        count = self._estimate if estimate else self._count
        return [count(topic) for topic in self._connection.dead_letter_topics(topics)]

    def origin_readers(self, topic: str, **filters: Unpack[FilterArguments]) -> OriginReaders | None:
        """Who would see again what a replay with ``to_origin`` sends: the groups with committed offsets of that topic. None
        when there is nothing to replay."""
        for dead in self.letters(topic, **filters):
            if dead.letter is not None and dead.is_replayable:
                readers = self._connection.groups_reading(dead.letter.topic)
                others = tuple(group for group in readers if group != dead.letter.group)
                return OriginReaders(dead.letter.topic, dead.letter.group, others)
        return None

    def _count(self, topic: str) -> Depth:
        bounds = self._connection.bounds(topic)
        ledger = read_ledger(self._connection, topic, bounds)
        letters, oldest_ms = 0, None
        for messages in read(self._connection, topic, ranges_to_read(Filter(), bounds, ledger)):
            for message in messages:
                if ledger.is_handled(message.partition(), message.offset()):
                    continue
                letters += 1
                kind, timestamp = message.timestamp()
                if kind != TIMESTAMP_NOT_AVAILABLE and (oldest_ms is None or timestamp < oldest_ms):
                    oldest_ms = timestamp
        return Depth(topic, letters, oldest_ms)

    def _estimate(self, topic: str) -> Depth:
        bounds = self._connection.bounds(topic)
        ledger = read_ledger(self._connection, topic, bounds)
        handled = sum(ledger.handled(partition).count(*bound) for partition, bound in bounds.items())
        return Depth(topic, sum(bound.end - bound.start for bound in bounds.values()) - handled, is_estimate=True)


def make_filter(
    *,
    error: str | Sequence[str] | None = None,
    key: str | bytes | None = None,
    since: Time | None = None,
    until: Time | None = None,
    partition: int | None = None,
    first_offset: int | None = None,
    last_offset: int | None = None,
) -> Filter:
    """From the arguments that ``DeadLetters`` takes; InvalidArgument when they make no sense."""
    errors = (error,) if isinstance(error, str) else tuple(error or ())
    return Filter(
        errors=errors,
        key=key.encode() if isinstance(key, str) else key,
        since_ms=_milliseconds(since),
        until_ms=_milliseconds(until),
        partition=partition,
        first_offset=first_offset,
        last_offset=last_offset,
    ).checked()


def _milliseconds(time: Time | None) -> int | None:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InvalidArgument(f"a time is milliseconds since 1970, or a datetime with a time zone: not {time!r}")
        return round(time.timestamp() * 1000)
    return time


def _is_within(offset: int, bound: Bounds) -> bool:
    return bound.start <= offset < bound.end
