"""``DeadLetters``: what ``tidelog dlq`` does, from Python, on any Kafka.

    letters = DeadLetters("127.0.0.1:9092")
    for count in letters.list():
        print(count.topic, count.error, count.letters)
    letters.replay("orders.email.dlq", error="ConnectionError", rate=100)

It keeps only a connection; a ledger topic next to the letters records what was replayed or discarded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypedDict, Unpack

from tidelog.client.admin import PartitionBounds
from tidelog.client.errors import InvalidArgument, TidelogError
from tidelog.deadletters.broker_letter import Repetitions
from tidelog.deadletters.cluster import DeadLetterCluster
from tidelog.deadletters.dead_letter import DeadLetter, Depth, LetterCount, LetterCounter, LetterFilter
from tidelog.deadletters.ledger import LedgerMark
from tidelog.deadletters.replay import (
    Discard,
    LetterAction,
    Progress,
    ReplayRequest,
    ReplayResult,
    ReplayToOrigin,
    ReplayToRetryTopic,
    now_ms,
    ranges_to_read,
    replay_letters,
)

Time = int | datetime


class NoSuchLetter(TidelogError):
    """There is no letter at that offset: retention deleted it, it is not written yet, or the offset is a transaction marker."""


class FilterArguments(TypedDict, total=False):
    """Selects letters; a letter must match everything that is given."""

    error: str | Sequence[str] | None
    """The exception's class, with its module or the last part alone; or several, of which one must match."""
    key: str | bytes | None
    since: Time | None
    """The letter last failed at this time or later: milliseconds since 1970, or a datetime with a time zone."""
    until: Time | None
    """The letter last failed before this."""
    partition: int | None
    first_offset: int | None
    """The first offset in the dead-letter topic. ``last_offset`` is included."""
    last_offset: int | None


class Shown(NamedTuple):
    """One letter, and its mark: None while it waits."""

    dead_letter: DeadLetter
    mark: LedgerMark | None


class OriginReaders(NamedTuple):
    """The groups that would see letters again that are replayed to their origin."""

    topic: str
    group: str
    """The group for which the letters failed."""
    other_groups: tuple[str, ...]


class DeadLetters:
    """The dead letters of a cluster. Safe to use from several threads; nothing to close.

    ``config`` has settings of librdkafka (``security.protocol`` and the like). The first call connects: BrokerUnavailable names
    the addresses within ten seconds.
    """

    def __init__(self, bootstrap: str | Sequence[str], *, config: Mapping[str, object] | None = None) -> None:
        self._cluster = DeadLetterCluster(bootstrap, config)

    @property
    def addresses(self) -> str:
        """The bootstrap servers, as they were given."""
        return self._cluster.addresses

    def topics(self) -> list[str]:
        """All dead-letter topics: their names are TOPIC.GROUP.dlq. (A share group may have its letters elsewhere; where they are
        must be said then, and they can be read but not replayed.)"""
        return self._cluster.dead_letter_topics()

    def list(self, *topics: str, **filters: Unpack[FilterArguments]) -> list[LetterCount]:
        """Count the waiting letters of these topics, or of all, by topic, group, class of error and age.

        Reads every letter that waits, in bounded memory. UnknownTopic if one of the topics does not exist.
        """
        counter = LetterCounter(now_ms())
        for topic in self._cluster.dead_letter_topics(topics):
            for dead in self.letters(topic, **filters):
                counter.add(dead)
        return counter.counts()

    def letters(self, topic: str, **filters: Unpack[FilterArguments]) -> Iterator[DeadLetter]:
        """Every waiting letter that matches, each partition in its order, up to what was the end when this began."""
        wanted = make_filter(**filters)
        self._cluster.dead_letter_topics([topic])
        bounds = self._cluster.bounds(topic)
        ledger = self._cluster.read_ledger(topic, bounds)
        repetitions = Repetitions()
        for messages in self._cluster.read(topic, ranges_to_read(wanted, bounds, ledger)):
            for message in messages:
                if not ledger.is_handled(message.partition, message.offset):
                    dead = DeadLetter.of(message)
                    if wanted.matches(dead) and not repetitions.is_repeated(dead):
                        yield dead

    def show(self, topic: str, partition: int, offset: int) -> Shown:
        """One letter with its whole story, even if it was replayed or discarded. NoSuchLetter if there is none."""
        self._cluster.dead_letter_topics([topic])
        bounds = self._cluster.bounds(topic)
        bound = bounds.get(partition)
        if bound is None:
            raise NoSuchLetter(f"{topic} has no partition {partition}: it has 0 to {len(bounds) - 1}")
        for messages in self._cluster.read(topic, {partition: (offset, offset + 1)} if _is_within(offset, bound) else {}):
            for message in messages:
                ledger = self._cluster.read_ledger(topic, bounds, watched=(partition, offset))
                return Shown(DeadLetter.of(message), ledger.watched_mark)
        raise NoSuchLetter(
            f"{topic} has no letter at {partition}:{offset}: its offsets there are {bound.start} to {bound.end - 1}, "
            "some of which may be transaction markers"
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
    ) -> ReplayResult:
        """Send the waiting letters that match back to their group's retry topic, each exactly once. Those that a broker wrote for
        a share group go ``to_origin`` only.

        Exactly once for readers with read_committed, however often this is run and whatever is killed: the message and its mark
        are one transaction, and a run continues where the last one stopped. It ends with what was there when it began.
        ``to_origin`` sends them to the topic that they came from, where other groups see them again (``origin_readers`` names
        them). ``rate`` is letters per second. ``dry_run`` sends nothing. Fenced means that another run on this topic took over.
        """
        action: LetterAction = ReplayToOrigin(self._cluster) if to_origin else ReplayToRetryTopic(self._cluster)
        return replay_letters(self._cluster, ReplayRequest(topic, make_filter(**filters), action, rate, dry_run, progress))

    def discard(
        self,
        topic: str,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
        **filters: Unpack[FilterArguments],
    ) -> ReplayResult:
        """Mark the waiting letters that match as done: no longer counted, never replayed. This cannot be undone.

        They stay in the topic until retention deletes them, and ``show`` still shows them. Fenced as with ``replay``.
        """
        request = ReplayRequest(topic, make_filter(**filters), Discard(reason), is_dry_run=dry_run, progress=progress)
        return replay_letters(self._cluster, request)

    def depth(self, *topics: str, estimate: bool = False) -> Sequence[Depth]:
        """How many letters of each of these topics, or of all, wait: neither replayed nor discarded.

        Reads the waiting letters, so as not to count transaction markers. ``estimate`` only looks up offsets and reads the
        ledger: fast however many letters there are, and an upper bound.
        """
        count = self._estimate if estimate else self._count
        return [count(topic) for topic in self._cluster.dead_letter_topics(topics)]

    def origin_readers(self, topic: str, **filters: Unpack[FilterArguments]) -> OriginReaders | None:
        """The groups that would see again what a replay with ``to_origin`` sends: those with committed offsets of that topic.
        None if there is nothing to replay."""
        for dead in self.letters(topic, **filters):
            if dead.letter is not None and dead.is_replayable:
                readers = self._cluster.admin.groups_with_offsets(dead.letter.topic)
                others = tuple(group for group in readers if group != dead.letter.group)
                return OriginReaders(dead.letter.topic, dead.letter.group, others)
        return None

    def _count(self, topic: str) -> Depth:
        bounds = self._cluster.bounds(topic)
        ledger = self._cluster.read_ledger(topic, bounds)
        letters, oldest_ms = 0, None
        repetitions = Repetitions()
        for messages in self._cluster.read(topic, ranges_to_read(LetterFilter(), bounds, ledger)):
            for message in messages:
                if ledger.is_handled(message.partition, message.offset) or repetitions.is_repeated(DeadLetter.of(message)):
                    continue
                letters += 1
                timestamp_ms = message.timestamp
                if timestamp_ms is not None and (oldest_ms is None or timestamp_ms < oldest_ms):
                    oldest_ms = timestamp_ms
        return Depth(topic, letters, oldest_ms)

    def _estimate(self, topic: str) -> Depth:
        bounds = self._cluster.bounds(topic)
        ledger = self._cluster.read_ledger(topic, bounds)
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
) -> LetterFilter:
    """The filter of the arguments that ``DeadLetters`` takes; InvalidArgument if they contradict each other."""
    errors = (error,) if isinstance(error, str) else tuple(error or ())
    return LetterFilter(
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


def _is_within(offset: int, bound: PartitionBounds) -> bool:
    return bound.start <= offset < bound.end
