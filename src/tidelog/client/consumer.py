"""Reading messages: ``consumer.poll()`` returns the next ones, ``consumer.commit()`` says that they are handled.

librdkafka fetches in the background and keeps a bounded queue; a caller that is slow fills it, and the fetch waits. A poll
takes what is there, or waits for the first message. When an offset is committed is decided here and nowhere else (see
``Consumer``).

One lock is around everything that moves messages; it is held during a poll, also the keeper's (``keeper.py``). librdkafka calls
us back within polls only, so the callbacks (``rebalance.py``) have the lock too.
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException

from tidelog.client.arrivals import PASSING_ERRORS, Arrivals
from tidelog.client.assignment import Assignment
from tidelog.client.commits import COMMIT_TIMEOUT_SECONDS, Commits
from tidelog.client.configuration import bootstrap_addresses, librdkafka_configuration
from tidelog.client.consumer_offsets import ConsumerOffsets, ends_of, offsets_wanted, place_of
from tidelog.client.consumer_settings import (
    COOPERATIVE,
    GUARANTEES,
    ISOLATIONS,
    PREFETCH_BYTES,
    PREFETCH_RECORDS,
    PROTOCOLS,
    REFUSED,
    check_choice,
    check_subscription,
    consumer_defaults,
    start_of,
)
from tidelog.client.errors import InvalidArgument, TidelogError, from_kafka_error
from tidelog.client.keeper import PROCESSING_TIMEOUT_SECONDS, Keeper
from tidelog.client.message import Message, Messages
from tidelog.client.reachability import CONNECT_TIMEOUT_SECONDS, ConnectionProblems, wait_for_broker
from tidelog.client.rebalance import Rebalance, RebalanceCallback
from tidelog.client.start import OffsetLookup
from tidelog.client.topic_partition import Partition

_logger = logging.getLogger(__name__)

MAX_RECORDS = 500
# librdkafka's wait cannot be interrupted: this is how long an interrupt waits at most.
_WAIT_SECONDS = 0.25
# While messages are handed out that have arrived before: how often rebalances are looked after.
_SERVE_SECONDS = 0.1
_DRIVE_SECONDS = 0.05
AUTO_COMMIT_INTERVAL_SECONDS = 5.0


class Consumer(ConsumerOffsets):
    """Reads topics, alone or as a member of a ``group`` that shares their partitions.

    ``guarantee`` is what holds when this process or a broker dies at any moment:

    * ``"at-least-once"`` (default): no message is lost, some come again. Nothing is committed but what ``commit()`` is
      called for; with ``auto_commit=True`` each ``poll`` commits, every few seconds, what earlier polls have handed out:
      calling it again says that they are handled. A message is never covered by a commit before it was handed out.
    * ``"at-most-once"``: no message comes twice, some may be lost. ``poll`` commits what it is about to hand out, and hands it
      out only when that is durable. A ``seek`` back repeats messages, as it is asked to.
    * ``"exactly-once"``: messages that come out of a transaction of a Producer are there once for each that went in. Offsets are
      committed by ``tx.send_offsets(consumer)`` and in no other way; after an aborted transaction call ``rewind()``.

    ``start`` is where a group begins in a partition that it never committed in: ``"earliest"``, ``"latest"``, or a time
    (milliseconds since 1970, or a datetime with a zone). A group that fell behind retention goes on with the oldest message
    that is left. Without a group every consumer reads all partitions of ``topics``, or those of ``assign``, and nothing is
    committed.

    ``on_assigned``, ``on_revoked`` and ``on_lost`` get a list of ``Partition``. During ``on_revoked`` the partitions are still
    this consumer's: it may commit. What is lost is gone: others may have it, so nothing is committed, and ``on_revoked`` is
    not called for it.

    The group rebalances by Kafka's ``cooperative-sticky`` (``assignor=``, for example "range", chooses another);
    ``protocol="consumer"`` is the newer protocol (KIP-848). Processing may take long: a thread keeps the member's place when
    there is no poll for half of ``max.poll.interval.ms``, up to ``processing_timeout`` seconds; callbacks come from that
    thread then. ``max_prefetch_bytes`` and ``max_prefetch_records`` bound what is fetched ahead. ``config`` has settings of
    librdkafka, raw.

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
        processing_timeout: float = PROCESSING_TIMEOUT_SECONDS,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        config: Mapping[str, object] | None = None,
    ) -> None:
        check_choice("guarantee", guarantee, GUARANTEES)
        check_choice("protocol", protocol, PROTOCOLS)
        check_choice("isolation", isolation, ISOLATIONS)
        if group is None and (guarantee != "at-least-once" or auto_commit):
            raise InvalidArgument(f"{guarantee} with commits needs a group=: offsets are committed for a group")
        if auto_commit and guarantee != "at-least-once":
            raise InvalidArgument(f"auto_commit is for at-least-once: {guarantee} has its own time to commit")
        if guarantee == "exactly-once" and isolation != "read_committed":
            raise InvalidArgument("exactly-once reads committed messages only: leave isolation= as it is")
        self._subscription = check_subscription(topics, pattern, group)
        settings = librdkafka_configuration(
            bootstrap,
            config,
            consumer_defaults(
                group=group,
                protocol=protocol,
                assignor=assignor,
                isolation=isolation,
                instance_id=instance_id,
                max_prefetch_bytes=max_prefetch_bytes,
                max_prefetch_records=max_prefetch_records,
            ),
            refused=REFUSED,
        )
        self.addresses = bootstrap_addresses(bootstrap)
        self.group = group
        self.guarantee = guarantee
        self._start = start_of(start)
        self._auto_commit_seconds = auto_commit_interval if auto_commit else None
        self._processing_timeout = processing_timeout
        self._max_poll_interval_ms = int(str(settings.get("max.poll.interval.ms", 300_000)))
        strategy = settings.get("partition.assignment.strategy", COOPERATIVE)
        self._open(
            settings, protocol == "consumer" or strategy == COOPERATIVE, (on_assigned, on_revoked, on_lost), connect_timeout
        )

    def _open(
        self,
        settings: dict[str, object],
        is_incremental: bool,
        callbacks: tuple[RebalanceCallback | None, RebalanceCallback | None, RebalanceCallback | None],
        connect_timeout: float,
    ) -> None:
        problems = ConnectionProblems()
        try:
            self.handle: Any = KafkaConsumer({**settings, "error_cb": problems, "on_commit": self._on_commit})
        except KafkaException as error:
            raise from_kafka_error(error.args[0], "open a consumer", self.addresses, otherwise=InvalidArgument) from error
        self._lock = threading.RLock()
        self._arrivals = Arrivals(self.handle.consume)
        self._assignment = Assignment(self.handle, self._arrivals)
        self._commits = Commits(self.handle, self.addresses, self._assignment, self._drive)
        self._lookup = OffsetLookup(self.handle, self.addresses)
        self._rebalance = Rebalance(
            self.handle,
            self.addresses,
            self._assignment,
            self._commits,
            self._lookup,
            self._start,
            is_incremental=is_incremental,
            callbacks=callbacks,
        )
        self._keeper: Keeper | None = None
        self._is_closed = False
        self._is_begun = False
        self._is_assigned_by_hand = False
        self._has_unsent_messages = False
        self._polled_at = self._served_at = self._auto_committed_at = monotonic()
        try:
            wait_for_broker(self.handle, self.addresses, problems, connect_timeout)
        except TidelogError:
            self.handle.close()
            raise

    # -- reading -------------------------------------------------------------------------------------------------------------

    def poll(self, max_records: int = MAX_RECORDS, timeout: float = 1.0) -> Messages:
        """The next messages, up to ``max_records``: those that are there, or after waiting ``timeout`` seconds at most the
        first that come. Empty when none came. Within a partition they are in order. What cannot be gone on with is
        raised, typed."""
        if max_records < 1:
            raise InvalidArgument(f"max_records is at least 1: not {max_records}")
        return self._poll(max_records, max_records, timeout)

    def __iter__(self) -> Iterator[Message]:
        """Messages one by one, without end. Each counts as handed out when it is returned, so a ``commit()`` in the loop
        covers it and those before it, not those that were fetched with it."""
        while True:
            if self.guarantee == "at-most-once":
                yield from self.poll()
            else:
                yield from self._poll(1, MAX_RECORDS, _WAIT_SECONDS)

    def close(self) -> None:
        """Leave the group at once, so that others take over without waiting. What was handed out by the last poll is not
        committed unless ``commit()`` was called: nobody has said that it is handled. Not from ``on_assigned`` and the like."""
        if self._is_closed:
            return
        with self._lock:
            if self._rebalance.is_running:
                raise InvalidArgument("close within a callback of a poll: return from it first")
        if self._keeper is not None:
            self._keeper.stop()
        with self._lock:
            if not self._is_closed:
                # It is open until librdkafka has called on_revoked, which may commit.
                self.handle.close()
                self._is_closed = True
        if self._rebalance.failures:
            raise self._rebalance.failures.pop(0)

    def __del__(self) -> None:
        # One that was forgotten: confluent-kafka's own end of it waits for callbacks that nobody would call.
        if not getattr(self, "_is_closed", True):
            self._rebalance.silence()
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- what the group knows ------------------------------------------------------------------------------------------------

    def commit(
        self, what: Any = None, *, asynchronous: bool = False, timeout: float = COMMIT_TIMEOUT_SECONDS
    ) -> dict[Partition, int]:
        """Commit what was handed out so far; or ``what``: a Message or several (each means: up to and with it), a dict of
        offsets by (topic, partition), or a list of confluent_kafka.TopicPartition.

        Returns what is durable now, as offsets of the next messages. Partitions that have left this consumer since are missing:
        whoever has them handles those messages again. ``asynchronous`` starts it and returns an empty dict.
        """
        self._check_open()
        if self.group is None:
            raise InvalidArgument("commit needs a group=: offsets are committed for a group")
        if self.guarantee == "exactly-once":
            raise InvalidArgument(
                "exactly-once commits in a transaction: with producer.transaction() as tx: tx.send_offsets(consumer)"
            )
        if what is None:
            with self._lock:
                wanted = self._commits.news(self._assignment.positions())
        else:
            wanted = offsets_wanted(what)
        if asynchronous:
            self._commits.start(wanted)
            return {}
        return self._commits.commit(wanted, timeout)

    # -- within a poll -------------------------------------------------------------------------------------------------------

    def _poll(self, count_max: int, fetch_max: int, timeout: float) -> Messages:
        with self._lock:
            self._check_open()
            if self._rebalance.is_running:
                raise InvalidArgument("poll within a callback of a poll: return from it first")
            if not self._is_begun:
                self._begin()
            try:
                self._before_poll()
                self._fetch(fetch_max, timeout)
                messages = self._hand_out(count_max)
            finally:
                self._polled_at = monotonic()
            if not messages and (self._arrivals.errors or self._rebalance.failures):
                self._raise_problems()
            return Messages(messages)

    def _before_poll(self) -> None:
        assignment = self._assignment
        if self._auto_commit_seconds is not None:
            self._rebalance.handled = assignment.positions()
            if monotonic() - self._auto_committed_at >= self._auto_commit_seconds:
                self._auto_committed_at = monotonic()
                self._commits.start(self._commits.news(self._rebalance.handled))
        if self._rebalance.is_unresolved:
            self._rebalance.resolve_starts()
        if assignment.unsought:
            self._seek_again()

    def _fetch(self, count_max: int, timeout: float) -> None:
        """Until something has arrived that may be handed out, or the time is over, or something is to be raised."""
        arrivals, assignment = self._arrivals, self._assignment
        if len(arrivals) and not assignment.paused:
            if monotonic() - self._served_at > _SERVE_SECONDS:
                # Handed out first, and no more fetched than it takes to answer a rebalance.
                self._served_at = monotonic()
                self._take_over(1, 0)
            return
        self._take_over(count_max, 0)
        deadline = monotonic() + timeout
        while not self._has_news():
            wait = min(_WAIT_SECONDS, deadline - monotonic())
            if wait <= 0:
                return
            self._take_over(1, wait)
            if assignment.unsought:
                self._seek_again()
            if self._has_news():
                self._take_over(count_max - 1, 0)

    def _has_news(self) -> bool:
        if self._arrivals.errors or self._rebalance.failures:
            return True
        paused = self._assignment.paused
        return len(self._arrivals) > 0 and (not paused or not self._arrivals.partitions() <= paused)

    def _take_over(self, count_max: int, timeout: float) -> None:
        if count_max > 0:
            generation = self._assignment.generation
            self._arrivals.fetch(count_max, timeout)
            if self._assignment.generation != generation or self._assignment.unsought:
                self._arrivals.drop(self._assignment.is_barred)
            self._assignment.note_arrivals()

    def _hand_out(self, count_max: int) -> list[Any]:
        if not len(self._arrivals):
            return []
        messages = self._arrivals.take(count_max, self._assignment.paused)
        if messages and self.guarantee == "at-most-once":
            messages = self._committed_before(messages)
        if messages and not self._has_unsent_messages:
            self._has_unsent_messages = True
            self._rebalance.went_with_messages = False
        return messages

    def _committed_before(self, messages: list[Any]) -> list[Any]:
        """At most once: before any of it is handed out. What cannot be committed any more is somebody else's by now."""
        wanted = ends_of(messages)
        try:
            committed = self._commits.commit(wanted, COMMIT_TIMEOUT_SECONDS)
        except BaseException:
            self._arrivals.put_back([message for message in messages if not self._assignment.is_barred(place_of(message))])
            raise
        return messages if len(committed) == len(wanted) else [message for message in messages if place_of(message) in committed]

    def _raise_problems(self) -> None:
        if self._rebalance.failures:
            raise self._rebalance.failures.pop(0)
        for error in self._arrivals.take_errors():
            if error.code() in PASSING_ERRORS or (error.retriable() and not error.fatal()):
                _logger.info("librdkafka: %s", error)
            else:
                raise from_kafka_error(error, "poll", self.addresses)

    def _drive(self) -> bool:
        """Poll, for a commit that waits for a rebalance."""
        with self._lock:
            if self._rebalance.is_running or self._is_closed:
                return False
            self._take_over(1, _DRIVE_SECONDS)
            return True

    def keep_place(self, idle_seconds_min: float, idle_seconds_max: float, now: float) -> bool:
        """For the keeper: poll in the caller's stead when it has been away for that long; whether it was done."""
        if not idle_seconds_min <= now - self._polled_at <= idle_seconds_max or not self._lock.acquire(blocking=False):
            # Whoever has the lock is in a poll or a callback of one.
            return False
        try:
            if self._is_closed:
                return False
            self._take_over(1, 0)
            return True
        finally:
            self._lock.release()

    def _on_commit(self, error: Any, raw_partitions: list[Any]) -> None:
        self._commits.on_commit(error, raw_partitions)

    def _begin(self) -> None:
        """At the first use: join the group, or take all partitions."""
        if not self._is_assigned_by_hand:
            if not self._subscription:
                raise InvalidArgument("there is nothing to read: give topics= or pattern=, or call assign()")
            if self.group is None:
                self._assign_by_hand(dict.fromkeys(self._all_partitions(self._subscription)))
            else:
                calls = self._rebalance
                self.handle.subscribe(self._subscription, on_assign=calls.assigned, on_revoke=calls.revoked, on_lost=calls.lost)
                self._keeper = Keeper(self, self._max_poll_interval_ms, self._processing_timeout)
        self._is_begun = True
