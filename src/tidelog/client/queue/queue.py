"""``Queue``: a topic as a queue of jobs, on a share group (KIP-932), with Tidelog or with Apache Kafka 4.2 and newer.

Any number of workers share a topic, whatever its number of partitions. Each message is locked for the worker that gets it, and
is acknowledged, released or rejected by itself. A lock that is neither renewed nor settled ends after the visibility timeout, and
the message is delivered again: at least once, in no promised order.

Who does what: the thread of the application fetches and settles, over one ``LeaderSession`` for each broker that leads partitions
of this worker. One more thread, which starts with the first ``receive``, sends the heartbeats of the group, renews locks, and
releases messages whose delay is over. Nothing is fetched ahead of ``receive``, so no lock runs while nobody works on its message,
and no delivery is counted that nobody sees: of several leaders with messages, only one is asked. When none has any, all are asked
to wait for some, and a second one may answer while ``receive`` returns with the jobs of the first. Its jobs are handed out next,
or are released when nobody asks for them within a second.

A connection that is lost takes its locks with it: the broker gives the messages to others. Jobs that came over it are lost, which
their ``ack`` says with ``LockLost``.
"""

import logging
import math
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

from tidelog.client.errors import BrokerUnavailable, Closed, InvalidArgument, TidelogError, UnknownQueue
from tidelog.client.futures import Delivery
from tidelog.client.librdkafka import bootstrap_addresses
from tidelog.client.producer import Headers, Producer
from tidelog.client.queue.job import Job, JobOrigin
from tidelog.client.queue.leader_session import (
    AcquiredRange,
    FetchedJobs,
    LeaderSession,
    ShareFetchAnswer,
    ShareSettlement,
    TopicIndex,
)
from tidelog.client.queue.membership import ShareMembership
from tidelog.client.queue.schedule import MessageTimes, QueueTopic
from tidelog.client.queue.share_groups import (
    LOCK_DURATION,
    OFFSET_RESET,
    ORDER,
    ORDER_BY_KEY,
    ORDERS,
    group_settings,
    set_group_settings,
)
from tidelog.client.tracing import extract, messaging_spans
from tidelog.client.wire.brokers import NO_LEADER, Brokers
from tidelog.client.wire.errors import BrokerError, ClientError, UnknownPartition, check_code, toolkit_errors
from tidelog.client.wire.retries import retried_while_unknown
from tidelog.records.batch import read_records
from tidelog.records.errors import RecordError
from tidelog.records.header import iterate_headers
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode

_logger = logging.getLogger(__name__)

# What a broker accepts as share.record.lock.duration.ms, in seconds. Its own limits may be narrower.
VISIBILITY_SECONDS_MIN = 1.0
VISIBILITY_SECONDS_MAX = 3_600.0
# As long as SQS keeps a message invisible. A delay is held by this process, so that longer ones are unlikely to come true.
HOLD_SECONDS_MAX = 12 * 3_600.0
MESSAGES_MAX = 10_000
# What fits into a request that a broker accepts (socket.request.max.bytes).
JOB_BYTES_MAX = 100_000_000
WAIT_SECONDS_MAX = 3_600.0

CONNECT_SECONDS_MAX = 3.0
REQUEST_SECONDS_MAX = 30.0
# A fetch waits at the broker for this long. While this worker holds jobs it waits for less, because an acknowledgement over the
# same connection waits behind it.
FETCH_WAIT_MS = 500
FETCH_WAIT_HOLDING_MS = 50
# Neither does it wait for more than this part of a lock, because locks are counted from when their fetch was sent.
FETCH_WAIT_LOCK_PART = 0.1
# How long the first receive waits to be assigned partitions.
JOIN_SECONDS_MAX = 5.0
# While the cluster restarts, receive returns nothing. After this time it says that there is no broker.
OUTAGE_SECONDS_MAX = 60.0
PAUSE_SECONDS = 0.1
# Locks are renewed when this part of their time is left, so that one that fails can be tried again.
RENEW_AT = 2 / 3
# A leader that does not answer must not hold up the others for longer.
STALL_SECONDS_MAX = 1.0
# A job that nobody asks for is released after this time, so that another worker gets it. One that was delivered before has come
# closer to its delivery limit, and stays until its lock has to be renewed.
UNASKED_SECONDS_MAX = 1.0
# A batch may be decompressed to this size and number of records.
BATCH_BYTES_MAX = 256 << 20
BATCH_RECORDS_MAX = 1 << 24


class _Delayed(NamedTuple):
    due: float
    job: Job


class _DecodedBatch(NamedTuple):
    base_offset: int
    crc: int
    records: list[Record]


class Queue:
    """Sends jobs to a topic, and receives them as a member of a share group. Safe to use from many threads; close it, or use it
    in a ``with``.

    ``name`` is the topic. ``group`` shares the jobs among its workers (the queue's name unless given); every group gets all jobs.
    ``visibility_timeout`` is how many seconds a job is locked for the worker that received it. It is the setting
    ``share.record.lock.duration.ms`` of the group, for all its workers: the first ``receive`` changes it if it differs; None
    leaves it as it is (30 s by default). A group that has no ``share.auto.offset.reset`` of its own begins with the earliest
    message. ``renew=True`` renews the locks of jobs for as long as the application keeps them, so that a long job is not run
    twice, while the jobs of a process that dies are free within one time-out. ``order="key"`` hands out the jobs of one key in
    their order, one at a time, to whichever worker; it is the setting ``tidelog.share.order`` of the group, changed by the first
    ``receive``, and needs a queue topic of Tidelog. ``order="none"`` ends that.

    Opening asks a broker whether the queue exists: UnknownQueue, or BrokerUnavailable, which names the addresses.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        name: str,
        group: str | None = None,
        visibility_timeout: float | None = None,
        *,
        renew: bool = False,
        order: str | None = None,
        client_id: str = "tidelog-queue",
    ) -> None:
        if visibility_timeout is not None:
            _check_range("visibility_timeout", visibility_timeout, VISIBILITY_SECONDS_MIN, VISIBILITY_SECONDS_MAX)
        if order not in (None, *ORDERS):
            raise InvalidArgument(f"order={order!r}: expected one of {', '.join(ORDERS)}, or None to leave the group as it is")
        self.name = name
        self.group = group or name
        self._addresses = bootstrap_addresses(bootstrap)
        self._visibility_timeout = visibility_timeout
        self._renew = renew
        self._order = order
        self._client_id = client_id
        self.spans = messaging_spans()
        self._is_closed = False
        self._stop = threading.Event()
        self._opening = threading.Lock()
        self._receiving = threading.Lock()
        self._mutex = threading.Lock()
        self._producer: Producer | None = None
        self._queue_topic: QueueTopic | None = None
        self._membership: ShareMembership | None = None
        self._keeper: threading.Thread | None = None
        self._sessions: dict[int, LeaderSession] = {}
        self._assignment: frozenset[TopicIndex] = frozenset()
        self._is_stale = True
        self._unreachable_since: float | None = None
        self._buffer: deque[Job] = deque()
        self._batches: dict[TopicIndex, _DecodedBatch] = {}
        self._renewed: weakref.WeakSet[Job] = weakref.WeakSet()
        self._delayed: list[_Delayed] = []
        self._held_until = 0.0
        self._held = 0
        # When a receive has ended last, and how many of them have asked the leaders.
        self._asked_at = 0.0
        self._rounds = 0
        self._broken: TidelogError | None = None
        with toolkit_errors(f"queue {name}", self._addresses):
            self._brokers = self._new_brokers()
            self._beats = self._new_brokers()
            try:
                self._brokers.patiently(retried_while_unknown(self._topic))
            except UnknownPartition as error:
                self._brokers.close()
                raise UnknownQueue(f"there is no queue {name}: create it first: tidelog queues create {name}") from error
            except BaseException:
                self._brokers.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Queue {self.name} group {self.group} at {self._addresses}>"

    # -- sending -------------------------------------------------------------------------------------------------------------

    def send(
        self,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        delay: float = 0.0,
        at: int | datetime | None = None,
        ttl: float | None = None,
    ) -> Delivery:
        """Send a job, with others, and return its future at once: ``.result()`` waits until the message is acknowledged by all
        in-sync replicas. ``close`` waits for all.

        With ``delay`` (seconds) or ``at`` (a datetime with a zone, or milliseconds since 1970) nobody receives it before that
        time. With ``ttl`` (seconds from now on, or from when it is due) nobody receives it for the first time after that. All
        three need a queue topic of Tidelog (``tidelog queues create``): NotSupported says so elsewhere. The times are this
        computer's, and the broker compares them with its own.
        """
        times = MessageTimes.of(delay, at, ttl)
        with self._opening:
            self._check_open()
            if times is not None:
                self._check_times(times)
                headers = times.added_to(headers)
            if self._producer is None:
                # A job may be as large as its topic allows: of two limits this leaves one.
                self._producer = Producer(self._addresses, max_message_bytes=JOB_BYTES_MAX)
        return self._producer.send(self.name, value, key=key, headers=headers)

    def _check_times(self, times: MessageTimes) -> None:
        if self._queue_topic is None:
            with toolkit_errors(f"queue {self.name}", self._addresses):
                # Connections of its own: those of the queue may wait for jobs.
                brokers = self._new_brokers()
                try:
                    self._queue_topic = QueueTopic.find(brokers, self.name, times.argument)
                finally:
                    brokers.close()
        self._queue_topic.check(times)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all jobs that were sent are acknowledged; see ``Producer.flush``."""
        if self._producer is not None:
            self._producer.flush() if timeout is None else self._producer.flush(timeout)

    # -- receiving -----------------------------------------------------------------------------------------------------------

    def receive(self, max_messages: int = 10, wait: float = 0.0) -> list[Job]:
        """Up to ``max_messages`` jobs, as soon as there are any; an empty list if there are none within ``wait`` seconds.

        While the cluster restarts or leaders move there is nothing to receive either; BrokerUnavailable after a minute of that.
        """
        _check_range("max_messages", max_messages, 1, MESSAGES_MAX)
        _check_range("wait", wait, 0, WAIT_SECONDS_MAX)
        deadline = time.monotonic() + wait
        with self._receiving:
            self._check_open()
            if self._membership is None:
                self._join()
            is_first = True
            while True:
                jobs = self._receive_once(max_messages, deadline, is_first=is_first)
                is_first = False
                if jobs or time.monotonic() >= deadline:
                    self._asked_at = time.monotonic()
                    self._check_outage()
                    if self.spans is not None and jobs:
                        self.spans.received([self.name], (extract(job.headers_list) for job in jobs), len(jobs), self.group)
                    return jobs

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put back jobs that were received and that nobody has looked at: the next ``receive`` hands them out first."""
        unseen = list(jobs)
        with self._mutex:
            self._held -= len(unseen)
            self._buffer.extendleft(reversed(unseen))

    def _receive_once(self, max_messages: int, deadline: float, *, is_first: bool) -> list[Job]:
        self._check_open()
        if self._membership is not None and self._membership.refusal is not None:
            raise self._membership.refusal
        jobs = self._take_buffered(max_messages)
        if jobs:
            return jobs
        try:
            sessions = self._current_sessions()
            if sessions:
                self._fetch(sessions, max_messages, deadline, is_first=is_first)
                self._unreachable_since = None
        except BrokerError as error:
            self._pass_or_raise(error)
            sessions = []
        except ClientError as error:
            self._is_stale = True
            if self._unreachable_since is None:
                self._unreachable_since = time.monotonic()
                _logger.info("queue %s: %s", self.name, error)
            sessions = []
        broken, self._broken = self._broken, None
        if broken is not None:
            raise broken
        if not sessions or self._is_stale:
            self._stop.wait(max(0.0, min(PAUSE_SECONDS, deadline - time.monotonic())))
        return self._take_buffered(max_messages)

    def _pass_or_raise(self, error: BrokerError) -> None:
        """A session that the broker does not know, or a leader that is being elected, is a matter of trying again."""
        self._is_stale = True
        if not error.code.is_retriable:
            with toolkit_errors(f"receive from {self.name}", self._addresses):
                raise error

    def _take_buffered(self, max_messages: int) -> list[Job]:
        now = time.monotonic()
        jobs: list[Job] = []
        with self._mutex:
            while self._buffer and len(jobs) < max_messages:
                job = self._buffer.popleft()
                # A job that lay here until its lock has ended is somebody else's by now.
                if job.is_held and job.locked_until > now and job.origin.session.is_open:
                    jobs.append(job)
        ending = [job for job in jobs if _is_ending(job, now)]
        if ending:
            # Whoever gets a job has most of its time left.
            self._renew_now(ending)
            jobs = [job for job in jobs if job.is_held]
        if jobs:
            with self._mutex:
                self._held += len(jobs)
                self._held_until = max(self._held_until, jobs[-1].locked_until)
                if self._renew:
                    self._renewed.update(jobs)
        return jobs

    def _fetch(self, sessions: list[LeaderSession], max_messages: int, deadline: float, *, is_first: bool) -> None:
        """Return when a leader has answered with records. First each is asked for what it has, one after the other; when none has
        anything, all of them are asked to wait for records."""
        if is_first and len(sessions) > 1:
            self._rounds += 1
            start = self._rounds % len(sessions)
            self._fetch_in_turn([*sessions[start:], *sessions[:start]], max_messages)
            if self._buffer or time.monotonic() >= deadline:
                return
        is_holding = self._held > 0 and time.monotonic() < self._held_until
        left_ms = max(0, int((deadline - time.monotonic()) * 1000))
        wait_ms = min(FETCH_WAIT_HOLDING_MS if is_holding else FETCH_WAIT_MS, left_ms)
        for session in sessions:
            lock_ms = (session.lock_seconds or VISIBILITY_SECONDS_MIN) * 1000
            session.begin_fetch(max_messages, min(wait_ms, int(lock_ms * FETCH_WAIT_LOCK_PART)))
        asked = list(sessions)
        while asked and not self._buffer:
            self._read_answers(asked, FETCH_WAIT_HOLDING_MS / 1000)

    def _fetch_in_turn(self, sessions: list[LeaderSession], max_messages: int) -> None:
        # Some may have waited for records since an earlier receive.
        asked = [session for session in sessions if session.is_fetching]
        self._read_answers(asked, 0)
        for session in sessions:
            if self._buffer:
                return
            if session.begin_fetch(max_messages, 0):
                asked.append(session)
                patience = time.monotonic() + STALL_SECONDS_MAX
                while session in asked and not self._buffer and (left := patience - time.monotonic()) > 0:
                    self._read_answers(asked, left)

    def _read_answers(self, asked: list[LeaderSession], seconds: float) -> None:
        """Wait until there is an answer, but no longer than so many seconds, and read all that are there. Those who have answered
        are removed from ``asked``."""
        poller = select.poll()
        by_number = {session.fileno(): session for session in asked if session.is_open}
        for number in by_number:
            poller.register(number, select.POLLIN)
        readable = [by_number[number] for number, _ in poller.poll(seconds * 1000)] if by_number else []
        for session in list(asked):
            if session in readable or not session.is_open or not session.is_fetching:
                asked.remove(session)
                session.end_fetch()

    def _take_answer(self, session: LeaderSession, answer: ShareFetchAnswer) -> None:
        """Called by whichever thread has read the answer."""
        self._is_stale = self._is_stale or answer.is_stale
        for fetched in answer.partitions:
            topic_id, index = fetched.partition
            try:
                found = self._records_of(fetched)
            except TidelogError as error:
                self._broken = error
                continue
            origin = JobOrigin(self, session, self.name, topic_id, index)
            jobs = [Job(origin, record, deliveries, answer.locked_until) for record, deliveries in found]
            session.note(jobs)
            session.skip(fetched.partition, _gaps(fetched.acquired, [record.offset for record, _ in found]))
            with self._mutex:
                self._buffer.extend(jobs)

    def _records_of(self, fetched: FetchedJobs) -> list[tuple[Record, int]]:
        """The acquired records with their delivery counts. A leader sends whole batches, of which only a part may be acquired.
        The last batch is kept decoded, because the next fetch often has the rest of it."""
        found: list[tuple[Record, int]] = []
        ranges = deque(fetched.acquired)
        try:
            for position, header in iterate_headers(fetched.records):
                if header.is_control or not ranges or header.last_offset < ranges[0].first:
                    continue
                batch = self._batches.get(fetched.partition)
                if batch is None or (batch.base_offset, batch.crc) != (header.base_offset, header.crc):
                    limits = {"size_max": BATCH_BYTES_MAX, "count_max": BATCH_RECORDS_MAX}
                    batch = _DecodedBatch(
                        header.base_offset, header.crc, list(read_records(fetched.records, position, header, **limits))
                    )
                    self._batches[fetched.partition] = batch
                for record in batch.records:
                    while ranges and ranges[0].last < record.offset:
                        ranges.popleft()
                    if not ranges:
                        break
                    if record.offset >= ranges[0].first:
                        found.append((record, ranges[0].deliveries))
        except RecordError as error:
            raise TidelogError(f"{self.name}[{fetched.partition[1]}]: the broker sent a broken batch: {error}") from error
        return found

    # -- the group and the leaders -------------------------------------------------------------------------------------------

    def _new_brokers(self) -> Brokers:
        return Brokers(self._addresses, self._client_id, CONNECT_SECONDS_MAX, REQUEST_SECONDS_MAX)

    def _topic(self) -> Any:
        answer = self._brokers.ask_metadata([self.name])
        for topic in answer.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownPartition(self.name)
            check_code(topic.error_code, f"queue {self.name}")
            return topic
        raise UnknownPartition(self.name)

    def _join(self) -> None:
        with toolkit_errors(f"group {self.group}", self._addresses):
            self._apply_settings()
        membership = ShareMembership(self._beats, self.group, self.name)
        deadline = time.monotonic() + JOIN_SECONDS_MAX
        while True:
            membership.beat()
            if membership.refusal is not None:
                raise membership.refusal
            if membership.assignment or time.monotonic() >= deadline or self._stop.is_set():
                break
            self._stop.wait(max(0.0, membership.next_beat - time.monotonic()))
        self._membership = membership
        self._keeper = threading.Thread(target=self._keep, name=f"tidelog-queue-{self.name}", daemon=True)
        self._keeper.start()

    def _apply_settings(self) -> None:
        """Give the group its visibility timeout, and let a new group begin with the earliest message."""
        there = group_settings(self._brokers, self.group)
        changes = {}
        if self._visibility_timeout is not None:
            wanted = str(round(self._visibility_timeout * 1000))
            if LOCK_DURATION not in there or there[LOCK_DURATION].value != wanted:
                changes[LOCK_DURATION] = wanted
        if OFFSET_RESET not in there or not there[OFFSET_RESET].is_own:
            changes[OFFSET_RESET] = "earliest"
        if self._order == ORDER_BY_KEY:
            QueueTopic.find(self._brokers, self.name, f"order={self._order!r}")
        # A broker that does not know the setting has no order anyway.
        if self._order is not None and ORDER in there and there[ORDER].value != self._order:
            changes[ORDER] = self._order
        if not changes:
            return
        try:
            set_group_settings(self._brokers, self.group, changes)
        except BrokerError as error:
            if error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
                raise InvalidArgument(f"visibility_timeout={self._visibility_timeout:g}: {error}") from error
            raise

    def _current_sessions(self) -> list[LeaderSession]:
        """A session with each leader of this worker's partitions."""
        membership = self._membership
        assert membership is not None, "receive joins first"
        broken = [node_id for node_id, session in self._sessions.items() if not session.is_open]
        for node_id in broken:
            del self._sessions[node_id]
        assignment = membership.assignment
        if self._is_stale or broken or assignment != self._assignment:
            self._meet_leaders(membership, assignment)
        return [session for session in self._sessions.values() if not session.wants_nothing]

    def _meet_leaders(self, membership: ShareMembership, assignment: frozenset[TopicIndex]) -> None:
        try:
            topic = self._topic()
        except UnknownPartition as error:
            raise UnknownQueue(f"queue {self.name} is gone: there is no topic of that name any more") from error
        by_leader: dict[int, set[TopicIndex]] = {}
        for partition in topic.partitions:
            which = (topic.topic_id, partition.partition_index)
            if which in assignment and partition.leader_id != NO_LEADER:
                by_leader.setdefault(partition.leader_id, set()).add(which)
        for node_id in by_leader:
            if node_id not in self._sessions:
                connection = self._brokers.borrow(node_id)
                self._sessions[node_id] = LeaderSession(
                    connection, self.group, membership.member_id, REQUEST_SECONDS_MAX, self._take_answer
                )
        for node_id, session in self._sessions.items():
            session.want(frozenset(by_leader.get(node_id, ())))
        self._assignment = assignment
        self._is_stale = sum(map(len, by_leader.values())) < len(assignment)

    # -- settling ------------------------------------------------------------------------------------------------------------

    def ack(self, jobs: Iterable[Job]) -> None:
        """Acknowledge jobs; those of one broker with one request. LockLost names the first that is lost; all others are
        acknowledged nevertheless."""
        self._settle(jobs, ShareSettlement.ACCEPT, "acknowledged")

    def reject(self, jobs: Iterable[Job]) -> None:
        """Give up on jobs: they are never delivered again."""
        self._settle(jobs, ShareSettlement.REJECT, "rejected")

    def nack(self, jobs: Iterable[Job], delay: float = 0.0) -> None:
        """Release jobs, to be delivered again at once, or ``delay`` seconds from now on.

        During the delay this process holds the lock by renewing it. If the process ends before, ``close`` releases the jobs at
        once, and after a crash they are free within one visibility timeout.
        """
        _check_range("delay", delay, 0, HOLD_SECONDS_MAX)
        if delay <= 0:
            self._settle(jobs, ShareSettlement.RELEASE, "released")
            return
        held = self._checked(jobs, "released")
        due = time.monotonic() + delay
        with self._mutex:
            for job in held:
                job.settle("released")
                self._delayed.append(_Delayed(due, job))
            self._held -= len(held)

    def extend(self, jobs: Iterable[Job], seconds: float) -> None:
        """Renew the locks of jobs now, and again until ``seconds`` from now on if one visibility timeout is not that long. A
        renewed lock lasts for a whole visibility timeout."""
        _check_range("seconds", seconds, 0, HOLD_SECONDS_MAX)
        held = self._checked(jobs, "extended")
        self._renew_now(held)
        until = time.monotonic() + seconds
        with self._mutex:
            for job in held:
                job.keep_until(until)
            self._renewed.update(held)
        for job in held:
            job.check_held("extended")

    def _settle(self, jobs: Iterable[Job], kind: ShareSettlement, verb: str) -> None:
        held = self._checked(jobs, verb)
        for job in held:
            job.settle(verb)
        with self._mutex:
            self._held -= len(held)
        lost = self._send(held, kind)
        if lost:
            raise lost[0].lock_lost()

    def _checked(self, jobs: Iterable[Job], verb: str) -> list[Job]:
        """The jobs, if ``verb`` is possible for each. AlreadySettled or LockLost otherwise."""
        held = list(jobs)
        for job in held:
            job.check_held(verb)
        return held

    def _send(self, jobs: Iterable[Job], kind: ShareSettlement) -> list[Job]:
        """Returns the jobs that were refused."""
        by_session: dict[LeaderSession, list[Job]] = {}
        for job in jobs:
            by_session.setdefault(job.origin.session, []).append(job)
        lost = []
        for session, its_jobs in by_session.items():
            for job, reason in session.settle(kind, its_jobs).items():
                job.lose(reason)
                lost.append(job)
        return lost

    def _renew_now(self, jobs: Sequence[Job]) -> None:
        now = time.monotonic()
        self._send(jobs, ShareSettlement.RENEW)
        for job in jobs:
            if not job.is_lost:
                job.lock_until(now + job.origin.session.lock_seconds)

    # -- the thread that keeps locks and membership --------------------------------------------------------------------------

    def _keep(self) -> None:
        membership = self._membership
        assert membership is not None, "the keeper starts after the group was joined"
        while not self._stop.wait(self._pause_seconds(membership)):
            try:
                if time.monotonic() >= membership.next_beat and membership.refusal is None:
                    membership.beat()
                self._read_unasked()
                self._keep_locks()
            except Exception:
                # One failure must not end the heartbeats. What it was about shows where the application uses it.
                _logger.exception("queue %s: keeping locks failed, and is tried again", self.name)

    def _pause_seconds(self, membership: ShareMembership) -> float:
        lock_seconds = min([each.lock_seconds for each in list(self._sessions.values()) if each.lock_seconds], default=1.0)
        with self._mutex:
            due = min([each.due for each in self._delayed], default=math.inf)
        left = min(membership.next_beat, due) - time.monotonic()
        # A job that begins to be held just after this look is seen at the next, with most of its lock left.
        longest = lock_seconds / 10 if len(self._sessions) < 2 else min(lock_seconds / 10, UNASKED_SECONDS_MAX / 2)
        return max(0.01, min(left, longest))

    def _read_unasked(self) -> None:
        """Read what has come since the last receive, so that its locks do not run unseen."""
        if self._receiving.locked():
            return
        for session in list(self._sessions.values()):
            if session.is_fetching:
                try:
                    self._read_answers([session], 0)
                except ClientError as error:
                    # The next receive opens another session.
                    _logger.info("queue %s: %s", self.name, error)

    def _keep_locks(self) -> None:
        now = time.monotonic()
        is_unasked = not self._receiving.locked() and now - self._asked_at > UNASKED_SECONDS_MAX
        with self._mutex:
            delayed = [each.job for each in self._delayed if each.due <= now and not each.job.is_lost]
            self._delayed = [each for each in self._delayed if each.due > now and not each.job.is_lost]
            ending = [each.job for each in self._delayed if _is_ending(each.job, now)]
            ending += [
                job for job in self._renewed if job.is_held and (self._renew or job.hold_until > now) and _is_ending(job, now)
            ]
            idle = [job for job in self._buffer if _is_ending(job, now) or (is_unasked and job.deliveries == 1)]
            for job in idle:
                self._buffer.remove(job)
        # Jobs that nobody has asked for go to somebody who does.
        self._send([*delayed, *idle], ShareSettlement.RELEASE)
        self._renew_now(ending)

    # -- the end -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for what was sent, release all jobs that are not settled, and leave the group. Closing twice is fine."""
        with self._opening:
            if self._is_closed:
                return
            self._is_closed = True
        self._stop.set()
        if self._keeper is not None:
            self._keeper.join()
        with self._receiving:
            for session in self._sessions.values():
                session.close()
            if self._membership is not None:
                try:
                    self._membership.leave()
                except ClientError as error:
                    # The group removes the member when its heartbeats stay away.
                    _logger.info("queue %s: %s", self.name, error)
            self._brokers.close()
            self._beats.close()
        if self._producer is not None:
            self._producer.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"the queue {self.name} is closed")

    def _check_outage(self) -> None:
        since = self._unreachable_since
        if since is not None and time.monotonic() - since > OUTAGE_SECONDS_MAX:
            raise BrokerUnavailable(
                f"receive from {self.name}: no broker has answered at {self._addresses} for {OUTAGE_SECONDS_MAX:g} s: "
                "check the address and that the broker runs"
            )


def _is_ending(job: Job, now: float) -> bool:
    return job.locked_until - now < job.origin.session.lock_seconds * RENEW_AT


def _gaps(acquired: Iterable[AcquiredRange], offsets: list[int]) -> list[int]:
    """Acquired offsets without a record: the records of transactions' ends, and what compaction has removed."""
    if sum(each.last - each.first + 1 for each in acquired) == len(offsets):
        return []
    there = set(offsets)
    return [offset for each in acquired for offset in range(each.first, each.last + 1) if offset not in there]


def _check_range(name: str, value: float, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise InvalidArgument(f"{name}={value!r}: expected a number from {low:g} to {high:g}")
