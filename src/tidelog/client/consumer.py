"""Reading messages: ``consumer.poll()`` returns the next ones, ``consumer.commit()`` says that they are handled.

librdkafka fetches in the background into a bounded queue; when the caller is slow the queue fills up and fetching waits. A poll
takes what has arrived, or waits for the first message. Only this file decides when an offset is committed (see ``Consumer``).

A seek takes effect before the next message of its partition is handed out. Where librdkafka refuses it, because it is still
starting with the partition, the seek stays pending: messages from the old position are dropped, and every poll repeats the seek.

One lock protects everything that moves messages. It is held during a poll, including those of the ``_IdlePoller``. librdkafka
calls back within polls only, so the callbacks (``rebalance.py``) run with the lock held.
"""

import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from tidelog.client.arrivals import PASSING_ERRORS, Arrivals
from tidelog.client.assignment import Assignment
from tidelog.client.commits import COMMIT_TIMEOUT_SECONDS, Commits
from tidelog.client.consumer_settings import (
    FETCH_WAIT_SECONDS,
    PREFETCH_BYTES,
    PREFETCH_RECORDS,
    PROTOCOLS,
    REFUSED,
    check_choice,
    check_guarantee,
    check_subscription,
    consumer_defaults,
    start_of,
)
from tidelog.client.errors import Closed, GroupError, InvalidArgument, UnknownTopic, from_kafka_error, kafka_errors
from tidelog.client.librdkafka import CONNECT_TIMEOUT_SECONDS
from tidelog.client.message import Message, Messages
from tidelog.client.offset_queries import OffsetQueries, start_offsets
from tidelog.client.raw_consumer import OffsetCommit, RawConsumer
from tidelog.client.rebalance import LOOKUP_TIMEOUT_SECONDS, Rebalance, RebalanceCallback, RebalanceCallbacks
from tidelog.client.topic_partition import TopicPartition, milliseconds_of, partition_of
from tidelog.client.tracing import extract, messaging_spans

_logger = logging.getLogger(__name__)

MAX_RECORDS = 500
PROCESSING_TIMEOUT_SECONDS = 3600.0
AUTO_COMMIT_INTERVAL_SECONDS = 5.0
# librdkafka's wait cannot be interrupted: an interrupt is noticed after this long at most.
_WAIT_SECONDS = 0.25
# While messages that have arrived before are handed out, rebalances are answered this often.
_REBALANCE_SECONDS = 0.1
# How long a commit that waits for a rebalance polls at a time.
_COMMIT_POLL_SECONDS = 0.05
# How often the idle poller wakes up within max.poll.interval.ms.
_WAKES_PER_POLL_INTERVAL = 4
# librdkafka does not seek in a partition that it is still starting with.
_SEEK_LATER = frozenset((KafkaError._STATE, KafkaError._PREV_IN_PROGRESS))


def requested_commits(what: Any) -> dict[TopicPartition, OffsetCommit]:
    """Convert the argument of ``commit`` to one offset per partition: the highest."""
    requested: dict[TopicPartition, OffsetCommit] = {}
    for each in _offset_commits(what):
        known = requested.get(each.partition)
        if known is None or known.offset < each.offset:
            requested[each.partition] = each
    return requested


def _offset_commits(what: Any) -> Iterable[OffsetCommit]:
    if isinstance(what, Message):
        return [_offset_commit(what)]
    if isinstance(what, Mapping):
        return [OffsetCommit(TopicPartition(*partition), offset) for partition, offset in what.items()]
    if isinstance(what, KafkaTopicPartition) or not isinstance(what, Iterable) or isinstance(what, str):
        raise InvalidArgument(f"commit takes messages, a dict of offsets, or a list of TopicPartition: not {what!r}")
    return [_offset_commit(one) for one in what]


def _offset_commit(one: Any) -> OffsetCommit:
    if isinstance(one, KafkaTopicPartition):
        return OffsetCommit(
            partition_of(one), one.offset, one.metadata or "", -1 if one.leader_epoch is None else one.leader_epoch
        )
    raw = one.raw if isinstance(one, Message) else one
    return OffsetCommit(_partition_of(raw), raw.offset() + 1)


def _partition_of(raw_message: Any) -> TopicPartition:
    return TopicPartition(raw_message.topic(), raw_message.partition())


class Consumer:
    """Reads topics, alone or as a member of a ``group`` that shares their partitions.

    ``guarantee`` holds when this process or a broker dies at any moment:

    * ``"at-least-once"`` (default): no message is lost, some are repeated. Only ``commit()`` commits. With ``auto_commit=True``
      ``poll`` commits every few seconds what earlier polls have handed out: calling it again means that those messages are
      handled. A commit never covers a message before it was handed out.
    * ``"at-most-once"``: no message is repeated, some may be lost. ``poll`` commits what it is about to hand out, and hands it
      out only when the commit is durable. A ``seek`` back repeats messages, because it was asked to.
    * ``"exactly-once"``: a message is in the results of a Producer's transactions once. Only ``tx.send_offsets(consumer)``
      commits offsets; after an aborted transaction call ``rewind()``.

    ``start`` is where a group begins in a partition in which it has never committed: ``"earliest"``, ``"latest"``, or a time
    (milliseconds since 1970, or a datetime with a zone). A group that fell behind retention continues with the oldest message
    that is left. Without a group every consumer reads all partitions of ``topics``, or those of ``assign``, and nothing is
    committed.

    ``on_assigned``, ``on_revoked`` and ``on_lost`` get a list of ``TopicPartition``. During ``on_revoked`` the partitions still
    belong to this consumer, so it may commit. Lost partitions may belong to other members already: nothing is committed for
    them, and ``on_revoked`` is not called.

    The group rebalances by Kafka's ``cooperative-sticky`` (``assignor=``, for example "range", chooses another);
    ``protocol="consumer"`` is the newer protocol (KIP-848). Processing may take long: when there is no poll for half of
    ``max.poll.interval.ms``, a thread polls for the member, up to ``processing_timeout`` seconds; callbacks run in that thread
    then. ``max_prefetch_bytes`` and ``max_prefetch_records`` bound what is fetched ahead.
    A broker answers a fetch when it has ``fetch_min_bytes``, or after ``fetch_wait`` seconds: more bytes, fewer requests.
    ``config`` has settings of librdkafka.

    One thread polls; ``commit``, ``pause``, ``resume``, ``lag`` may be called from others. Opening waits for a broker,
    ``connect_timeout`` seconds at most: BrokerUnavailable names the addresses. Close it, or use it in a ``with``.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        group: str | None = None,
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        start: str | int | datetime = "earliest",
        guarantee: str = "at-least-once",
        auto_commit: bool = False,
        auto_commit_interval: float = AUTO_COMMIT_INTERVAL_SECONDS,
        protocol: str = "classic",
        assignor: str | None = None,
        isolation: str = "read_committed",
        instance_id: str | None = None,
        max_prefetch_bytes: int = PREFETCH_BYTES,
        max_prefetch_records: int = PREFETCH_RECORDS,
        fetch_min_bytes: int = 1,
        fetch_wait: float = FETCH_WAIT_SECONDS,
        processing_timeout: float = PROCESSING_TIMEOUT_SECONDS,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        config: Mapping[str, object] | None = None,
    ) -> None:
        check_choice("protocol", protocol, PROTOCOLS)
        check_guarantee(guarantee, group=group, auto_commit=auto_commit, isolation=isolation)
        self._subscription = check_subscription(topics, pattern, group)
        self._start = start_of(start)
        defaults = consumer_defaults(
            group=group,
            protocol=protocol,
            assignor=assignor,
            isolation=isolation,
            instance_id=instance_id,
            max_prefetch_bytes=max_prefetch_bytes,
            max_prefetch_records=max_prefetch_records,
            fetch_min_bytes=fetch_min_bytes,
            fetch_wait=fetch_wait,
        )
        self._raw = RawConsumer(
            bootstrap,
            config,
            defaults=defaults,
            refused=REFUSED,
            connect_timeout=connect_timeout,
            on_commit=lambda results: self._commits.on_commit(results),
        )
        self.addresses = self._raw.addresses
        self.group = group
        self._spans = messaging_spans()
        self.guarantee = guarantee
        self._auto_commit_seconds = auto_commit_interval if auto_commit else None
        self._processing_timeout = processing_timeout
        self._lock = threading.RLock()
        self._arrivals = Arrivals(self._raw.handle.consume)
        self._assignment = Assignment(self._raw, self._arrivals)
        self._commits = Commits(self._raw, self._assignment, self._poll_for_commit)
        self._lookup = OffsetQueries(self._raw.handle, self.addresses)
        callbacks = RebalanceCallbacks(on_assigned, on_revoked, on_lost)
        self._rebalance = Rebalance(self._raw, self._assignment, self._commits, self._lookup, self._start, callbacks)
        self._idle_poller: _IdlePoller | None = None
        self._is_begun = False
        self._is_assigned_by_hand = False
        self._polled_at = self._rebalance_answered_at = self._auto_committed_at = monotonic()
        self._is_closed = False

    @property
    def handle(self) -> Any:
        """confluent-kafka's consumer, for what is missing here. Polling it directly breaks the guarantees."""
        return self._raw.handle

    # -- reading -------------------------------------------------------------------------------------------------------------

    def poll(self, max_records: int = MAX_RECORDS, timeout: float = 1.0) -> Messages:
        """The next messages, up to ``max_records``: those that have arrived, or the first that arrive within ``timeout``
        seconds. Empty if none arrived. Within a partition they are in order. Raises typed errors that end the reading."""
        if max_records < 1:
            raise InvalidArgument(f"max_records is at least 1: not {max_records}")
        return self._received(self._poll(max_records, max_records, timeout))

    def __iter__(self) -> Iterator[Message]:
        """Messages one by one, without end. Each counts as handed out when it is returned, so a ``commit()`` in the loop covers
        it and those before it, but not those that were fetched with it."""
        while True:
            if self.guarantee == "at-most-once":
                yield from self.poll()
            else:
                yield from self._received(self._poll(1, MAX_RECORDS, _WAIT_SECONDS))

    def _received(self, messages: Messages) -> Messages:
        """Record the span of a poll that brought messages, where the program uses OpenTelemetry."""
        if self._spans is not None and messages:
            topics = sorted({message.topic for message in messages})
            self._spans.received(topics, (extract(each.headers_list) for each in messages), len(messages), self.group)
        return messages

    def close(self) -> None:
        """Leave the group at once, so that others take over without waiting. What the last poll handed out is not committed
        unless ``commit()`` was called, because nobody has said that it is handled. Must not be called within a callback."""
        if self._is_closed:
            return
        with self._lock:
            if self._rebalance.is_running:
                raise InvalidArgument("close was called within a callback of a poll: return from it first")
        if self._idle_poller is not None:
            self._idle_poller.stop()
        with self._lock:
            if not self._is_closed:
                # The consumer stays open until librdkafka has called on_revoked, which may commit.
                self._raw.close()
                self._is_closed = True
        if self._raw.failures:
            raise self._raw.failures.pop(0)

    def __del__(self) -> None:
        # The consumer was never closed. confluent-kafka's own finalizer would wait for callbacks that nobody calls.
        if not getattr(self, "_is_closed", True):
            self._rebalance.silence()
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- commits -------------------------------------------------------------------------------------------------------------

    def commit(
        self, what: Any = None, *, asynchronous: bool = False, timeout: float = COMMIT_TIMEOUT_SECONDS
    ) -> dict[TopicPartition, int]:
        """Commit what was handed out so far; or ``what``: one or several Messages (each: up to and including it), a dict of
        offsets by (topic, partition), or a list of confluent_kafka.TopicPartition.

        Returns what is durable now, as offsets of the next messages. Partitions that have left this consumer since are missing:
        their new owners handle those messages again. ``asynchronous`` starts the commit and returns an empty dict.
        """
        self._check_open()
        if self.group is None:
            raise InvalidArgument("commit needs a group=, because offsets are committed for a group")
        if self.guarantee == "exactly-once":
            raise InvalidArgument(
                "exactly-once commits in a transaction: with producer.transaction() as tx: tx.send_offsets(consumer)"
            )
        if what is None:
            with self._lock:
                wanted = self._commits.changed(self._assignment.positions())
        else:
            wanted = requested_commits(what)
        if asynchronous:
            self._commits.start(wanted)
            return {}
        return self._commits.commit(wanted, timeout)

    # -- position ------------------------------------------------------------------------------------------------------------

    def seek(
        self, topic: str, partition: int | None = None, *, offset: int | None = None, timestamp: int | datetime | None = None
    ) -> None:
        """Continue with the message at ``offset``, or with the first of ``timestamp`` or later; without ``partition``, in each
        assigned partition of the topic. Nothing from before the seek is handed out after it.

        In ``on_assigned``, and before the first poll, it sets where to start. GroupError if the partition is not assigned to this
        consumer, which cannot move the group for others.
        """
        if (offset is None) == (timestamp is None):
            raise InvalidArgument("seek takes offset= or timestamp=")
        if offset is not None and (isinstance(offset, bool) or not isinstance(offset, int) or offset < 0):
            raise InvalidArgument(f"an offset is 0 or more: not {offset!r}; see seek_to_beginning and seek_to_end")
        with self._lock:
            partitions = self._partitions(topic, partition)
            if timestamp is not None:
                offsets = self._lookup.at(partitions, milliseconds_of(timestamp), LOOKUP_TIMEOUT_SECONDS)
            else:
                offsets = {one: int(offset or 0) for one in partitions}
            self._seek_all(offsets)

    def seek_to_beginning(self, topic: str, partition: int | None = None) -> None:
        """Continue with the oldest message that is kept."""
        with self._lock:
            self._seek_all(self._lookup.beginnings(self._partitions(topic, partition), LOOKUP_TIMEOUT_SECONDS))

    def seek_to_end(self, topic: str, partition: int | None = None) -> None:
        """Continue after the last message that exists now."""
        with self._lock:
            self._seek_all(self._lookup.ends(self._partitions(topic, partition), LOOKUP_TIMEOUT_SECONDS))

    def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Hand out nothing of these partitions, by default of all that are assigned, until ``resume``. They stay assigned; a
        partition that leaves and comes back is not paused any more."""
        with self._lock:
            chosen = self._chosen(partitions)
            self._assignment.pause(chosen)
            if not self._rebalance.is_assigning:
                self._raw.pause(chosen)

    def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Continue where ``pause`` stopped."""
        with self._lock:
            chosen = self._chosen(partitions)
            self._assignment.resume(chosen)
            if not self._rebalance.is_assigning:
                self._raw.resume(chosen)

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        with self._lock:
            return sorted(self._assignment.paused)

    def assign(self, partitions: Iterable[tuple[str, int] | tuple[str, int, int]]) -> None:
        """Read exactly these partitions, given as (topic, partition) or (topic, partition, offset), without joining a group; a
        ``group=`` is only used to commit. Without an offset they start at the committed offset, else at ``start=``."""
        if self._subscription:
            raise InvalidArgument("assign is for a consumer without topics= and pattern=")
        wanted: dict[TopicPartition, int | None] = {}
        for one in partitions:
            wanted[TopicPartition(one[0], one[1])] = one[2] if len(one) == 3 else None
        with self._lock:
            self._check_open()
            self._assign_by_hand(wanted)

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return messages of the last poll that were not handled: they come next again, and a ``commit()`` does not cover them.
        Messages of partitions that have left are dropped."""
        with self._lock:
            self._check_open()
            back = [message.raw for message in messages if not self._assignment.is_barred(_partition_of(message.raw))]
            self._arrivals.put_back(back)

    # -- in transactions -----------------------------------------------------------------------------------------------------

    def transaction_offsets(self) -> tuple[list[Any], Any]:
        """Return the input of ``tx.send_offsets``: the offsets of what was handed out (confluent_kafka.TopicPartition), and this
        consumer's identity in its group.

        GroupError if partitions went to another member after messages of theirs were handed out: the messages are in the
        transaction, but their offsets cannot be. Abort it and ``rewind()``.
        """
        self._check_open()
        if self.group is None:
            raise InvalidArgument("offsets in a transaction need a group=")
        with self._lock:
            if self._rebalance.has_lost_messages:
                raise GroupError(
                    "partitions with messages of this transaction went to another member: abort it and rewind()",
                    retriable=True,
                )
            self._rebalance.clear_handed_out()
            positions = self._assignment.positions().items()
            return self._raw.transaction_offsets(OffsetCommit(partition, offset) for partition, offset in positions)

    def group_metadata(self) -> Any:
        """This consumer's identity in its group, for confluent-kafka's ``send_offsets_to_transaction``. ``tx.send_offsets`` does
        more."""
        self._check_open()
        return self._raw.handle.consumer_group_metadata()

    def rewind(self) -> None:
        """Go back to the committed offsets, after an aborted transaction or a failed batch: what was handed out since is
        repeated."""
        with self._lock:
            self._check_open()
            self._rebalance.clear_handed_out()
            partitions = self._assignment.partitions
            committed = self._lookup.committed(partitions, LOOKUP_TIMEOUT_SECONDS)
            fresh = [partition for partition in partitions if partition not in committed]
            committed.update(start_offsets(self._lookup, fresh, self._start, LOOKUP_TIMEOUT_SECONDS))
            self._seek_all(committed)

    # -- observation ---------------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Grows with every change of what is assigned."""
        return self._assignment.generation

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        with self._lock:
            return sorted(self._assignment.partitions)

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next message that will be handed out, by partition. Partitions of which nothing was read yet are left
        out."""
        with self._lock:
            self._check_open()
            return self._assignment.positions()

    def position(self, topic: str, partition: int) -> int | None:
        """The position in one partition; None if it is not assigned or nothing was read of it yet."""
        return self.positions().get(TopicPartition(topic, partition))

    def committed(self, timeout: float = LOOKUP_TIMEOUT_SECONDS) -> dict[TopicPartition, int]:
        """The group's committed offsets in the assigned partitions; those without a commit are left out."""
        self._check_open()
        if self.group is None:
            raise InvalidArgument("committed needs a group=")
        return self._lookup.committed(self.assignment(), timeout)

    def lag(self, timeout: float = LOOKUP_TIMEOUT_SECONDS) -> dict[TopicPartition, int]:
        """The number of offsets between this consumer's position and the end, by partition, looked up now.

        A partition that nothing was read of counts from the committed offset, or from where it will start. With read_committed
        the end is the last stable offset, so messages of an open transaction do not count; transaction markers do.
        """
        with self._lock:
            self._check_open()
            known = self._assignment.positions()
            partitions = sorted(self._assignment.partitions)
        unread = [partition for partition in partitions if partition not in known]
        if unread and self.group is not None:
            known.update(self._lookup.committed(unread, timeout))
            unread = [partition for partition in unread if partition not in known]
        known.update(start_offsets(self._lookup, unread, self._start, timeout))
        ends = self._lookup.ends(partitions, timeout)
        return {partition: max(0, ends[partition] - known[partition]) for partition in partitions}

    # -- within a poll -------------------------------------------------------------------------------------------------------

    def _poll(self, count_max: int, fetch_max: int, timeout: float) -> Messages:
        with self._lock:
            self._check_open()
            if self._rebalance.is_running:
                raise InvalidArgument("poll was called within a callback of a poll: return from it first")
            if not self._is_begun:
                self._begin()
            try:
                self._before_poll()
                self._fetch(fetch_max, timeout)
                messages = self._hand_out(count_max)
            finally:
                self._polled_at = monotonic()
            if not messages and (self._arrivals.errors or self._raw.failures):
                self._raise_problems()
            return Messages(messages)

    def _before_poll(self) -> None:
        assignment = self._assignment
        if self._auto_commit_seconds is not None:
            handled = assignment.positions()
            self._rebalance.note_handled(handled)
            if monotonic() - self._auto_committed_at >= self._auto_commit_seconds:
                self._auto_committed_at = monotonic()
                self._commits.start(self._commits.changed(handled))
        if self._rebalance.is_unresolved:
            self._rebalance.resolve_starts()
        if assignment.pending_seeks:
            self._repeat_seeks()

    def _fetch(self, count_max: int, timeout: float) -> None:
        """Fetch until something has arrived that may be handed out, the time is up, or there is an error to raise."""
        arrivals, assignment = self._arrivals, self._assignment
        if len(arrivals) and not assignment.paused:
            if monotonic() - self._rebalance_answered_at > _REBALANCE_SECONDS:
                # Hand them out first, and fetch no more than it takes to answer a rebalance.
                self._rebalance_answered_at = monotonic()
                self._take_over(1, 0)
            return
        self._take_over(count_max, 0)
        deadline = monotonic() + timeout
        while not self._has_news():
            wait = min(_WAIT_SECONDS, deadline - monotonic())
            if wait <= 0:
                return
            self._take_over(1, wait)
            if assignment.pending_seeks:
                self._repeat_seeks()
            if self._has_news():
                self._take_over(count_max - 1, 0)

    def _has_news(self) -> bool:
        if self._arrivals.errors or self._raw.failures:
            return True
        paused = self._assignment.paused
        return len(self._arrivals) > 0 and (not paused or not self._arrivals.partitions() <= paused)

    def _take_over(self, count_max: int, timeout: float) -> None:
        if count_max > 0:
            generation = self._assignment.generation
            self._arrivals.fetch(count_max, timeout)
            if self._assignment.generation != generation or self._assignment.pending_seeks:
                self._arrivals.drop(self._assignment.is_barred)
            self._assignment.note_arrivals()

    def _hand_out(self, count_max: int) -> list[Any]:
        if not len(self._arrivals):
            return []
        messages = self._arrivals.take(count_max, self._assignment.paused)
        if messages and self.guarantee == "at-most-once":
            messages = self._committed_before(messages)
        if messages:
            self._rebalance.note_handed_out()
        return messages

    def _committed_before(self, messages: list[Any]) -> list[Any]:
        """Commit before anything is handed out, which makes it at most once. What cannot be committed belongs to another member
        by now."""
        ends = {_partition_of(message): message.offset() + 1 for message in messages}
        wanted = {partition: OffsetCommit(partition, offset) for partition, offset in ends.items()}
        try:
            committed = self._commits.commit(wanted, COMMIT_TIMEOUT_SECONDS)
        except BaseException:
            self._arrivals.put_back([each for each in messages if not self._assignment.is_barred(_partition_of(each))])
            raise
        return messages if len(committed) == len(wanted) else [each for each in messages if _partition_of(each) in committed]

    def _raise_problems(self) -> None:
        if self._raw.failures:
            raise self._raw.failures.pop(0)
        for error in self._arrivals.take_errors():
            if error.code() in PASSING_ERRORS or (error.retriable() and not error.fatal()):
                _logger.info("librdkafka: %s", error)
            else:
                raise from_kafka_error(error, "poll", self.addresses)

    def _poll_for_commit(self) -> bool:
        """Poll once for a commit that waits for a rebalance. Returns False if that is not possible here."""
        with self._lock:
            if self._rebalance.is_running or self._is_closed:
                return False
            self._take_over(1, _COMMIT_POLL_SECONDS)
            return True

    def poll_if_idle(self, idle_seconds_min: float, idle_seconds_max: float) -> bool:
        """Called by the idle poller: poll if the last poll was that long ago. Returns whether it polled."""
        idle_seconds = monotonic() - self._polled_at
        if not idle_seconds_min <= idle_seconds <= idle_seconds_max or not self._lock.acquire(blocking=False):
            # The thread that has the lock is in a poll, or in a callback of one.
            return False
        try:
            if self._is_closed:
                return False
            self._take_over(1, 0)
            return True
        finally:
            self._lock.release()

    def _begin(self) -> None:
        """Join the group or assign all partitions, on first use."""
        if not self._is_assigned_by_hand:
            if not self._subscription:
                raise InvalidArgument("there is nothing to read: pass topics= or pattern=, or call assign()")
            if self.group is None:
                self._assign_by_hand(dict.fromkeys(self._all_partitions(self._subscription)))
            else:
                rebalance = self._rebalance
                self._raw.subscribe(
                    self._subscription,
                    on_assigned=rebalance.on_assigned,
                    on_revoked=rebalance.on_revoked,
                    on_lost=rebalance.on_lost,
                )
                self._idle_poller = _IdlePoller(self, self._raw.max_poll_interval_ms, self._processing_timeout)
        self._is_begun = True

    # -- offsets and partitions ----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the consumer is closed")

    def _partitions(self, topic: str, partition: int | None) -> list[TopicPartition]:
        self._check_open()
        if not self._is_begun and (self.group is None or self._is_assigned_by_hand):
            self._begin()
        if partition is not None:
            return [TopicPartition(topic, partition)]
        found = [one for one in self._assignment.partitions if one.topic == topic]
        if not found:
            raise GroupError(f"no partition of {topic} is assigned to this consumer now", retriable=True)
        return found

    def _chosen(self, partitions: Iterable[tuple[str, int]] | None) -> list[TopicPartition]:
        self._check_open()
        chosen = self._assignment.partitions if partitions is None else [TopicPartition(*one) for one in partitions]
        for one in chosen:
            if one not in self._assignment:
                raise _not_assigned(one)
        return chosen

    def _seek_all(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            self._seek(partition, offset)

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        rebalance = self._rebalance
        if partition not in self._assignment:
            if rebalance.had_assignment or self._is_assigned_by_hand:
                raise _not_assigned(partition)
            rebalance.seek_early(partition, offset)
        elif rebalance.is_assigning:
            rebalance.start_at(partition, offset)
        else:
            self._assignment.seek(partition, offset)
            self._repeat_seeks()

    def _repeat_seeks(self) -> None:
        assignment = self._assignment
        for partition, offset in list(assignment.pending_seeks.items()):
            try:
                self._raw.handle.seek(KafkaTopicPartition(*partition, offset))
            except KafkaException as error:
                if error.args[0].code() in _SEEK_LATER:
                    continue
                assignment.cancel_seek(partition)
                raise from_kafka_error(error, f"seek in {partition}", self.addresses) from error
            assignment.sought(partition)

    def _assign_by_hand(self, wanted: Mapping[TopicPartition, int | None]) -> None:
        without_offset = [partition for partition, offset in wanted.items() if offset is None]
        offsets = {partition: offset for partition, offset in wanted.items() if offset is not None}
        if self.group is not None:
            offsets.update(self._lookup.committed(without_offset, LOOKUP_TIMEOUT_SECONDS))
            without_offset = [partition for partition in without_offset if partition not in offsets]
        offsets.update(start_offsets(self._lookup, without_offset, self._start, LOOKUP_TIMEOUT_SECONDS))
        # librdkafka remembers what was paused, even across assignments.
        self._raw.resume(sorted(self._assignment.paused))
        self._raw.assign({partition: offsets[partition] for partition in wanted})
        self._assignment.remove(self._assignment.partitions)
        self._assignment.add(wanted)
        for partition, offset in offsets.items():
            self._assignment.start_at(partition, offset)
        self._is_assigned_by_hand = True

    def _all_partitions(self, topics: list[str]) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for topic in topics:
            with kafka_errors(f"partitions of {topic}", self.addresses):
                description = self._raw.handle.list_topics(topic, timeout=LOOKUP_TIMEOUT_SECONDS).topics[topic]
            if description.error is not None:
                raise from_kafka_error(description.error, f"partitions of {topic}", self.addresses, otherwise=UnknownTopic)
            found += [TopicPartition(topic, partition) for partition in sorted(description.partitions)]
        return found


def _not_assigned(partition: TopicPartition) -> GroupError:
    return GroupError(f"{partition} is not assigned to this consumer now", retriable=True)


class _IdlePoller:
    """A thread that polls for a consumer whose caller is busy, so that long processing does not cost the membership.

    Kafka takes a member for stuck if it has not polled for ``max.poll.interval.ms``, and gives its partitions to others while it
    is still at work. This thread polls once half of that time has passed, and every quarter from then on. Rebalances are then
    also answered in time, so that one slow member does not hold up its group: ``on_assigned``, ``on_revoked`` and ``on_lost`` are
    called from this thread, with the consumer's lock held. A message that such a poll brings waits in ``Arrivals`` for the
    caller: at most one for each time the thread wakes.

    A handler that never returns must still be noticed: after ``processing_timeout`` this thread no longer polls, and the group
    takes the partitions as usual. It holds the consumer weakly, so that it ends with a consumer that was never closed.
    """

    def __init__(self, consumer: Consumer, max_poll_interval_ms: int, processing_timeout: float) -> None:
        self._consumer = weakref.ref(consumer)
        self._interval_seconds = max_poll_interval_ms / 1000
        self._processing_timeout = processing_timeout
        self._stopped = threading.Event()
        self.polls = 0
        self._thread = threading.Thread(target=self._run, name="tidelog-consumer-idle", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_seconds / _WAKES_PER_POLL_INTERVAL):
            consumer = self._consumer()
            if consumer is None:
                return
            if consumer.poll_if_idle(self._interval_seconds / 2, self._processing_timeout):
                self.polls += 1
            del consumer
