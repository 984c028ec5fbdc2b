"""The share session with the leader of some partitions: one connection, over which records are locked, settled and renewed.

A session belongs to its connection: when the connection ends, for whatever reason, the broker releases everything that this
member holds there, and the session is not opened again. The queue opens another one, and jobs of the old one are lost.

Every request has the session's next epoch, so requests go out one after the other: whoever has the session's ``turn`` sends. A
fetch that waits for records is the exception. ``begin_fetch`` sends it and gives the turn back, so that fetches wait at several
brokers at the same time. The next one who has the turn reads its answer first, because answers come in order, and hands it to
``on_fetched``.

Locks are counted from when their fetch was sent. The broker locks records later than that, so it never frees one that this side
believes to be locked, however long the answer took or lay unread.

A broker tells members apart and not deliveries: when a lock has ended and this member has received the record again, settling
the earlier delivery would settle the later one. So a session remembers the latest delivery of each record that somebody still
has, and settles no other. It cannot miss one, because it reads what was fetched before it settles anything.

Settlements of several threads share a request: each thread leaves what it wants in the outbox, and the first that has the turn
sends all of it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import IntEnum
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import WeakValueDictionary

from tidelog.client.queue.job import Job
from tidelog.client.wire.connection import BrokerConnection
from tidelog.client.wire.errors import BrokerError, ClientError, error_of
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, encode_request
from tidelog.wire.protocol import ApiKey

TopicIndex = tuple[bytes, int]
"""A topic's id, and a partition."""
Place = tuple[TopicIndex, int]
"""A partition, and an offset in it."""

FETCH_BYTES_MAX = 50 << 20
RECORD_LIMIT_MODE = 1
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
# What a fetch may take beyond the time that the broker was asked to wait.
ANSWER_SECONDS_MAX = 30.0


class ShareSettlement(IntEnum):
    """Kafka's acknowledgement types. A gap is an offset without a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquiredRange(NamedTuple):
    first: int
    last: int
    deliveries: int


class FetchedJobs(NamedTuple):
    partition: TopicIndex
    records: bytes
    acquired: list[AcquiredRange]


class ShareFetchAnswer(NamedTuple):
    partitions: list[FetchedJobs]
    is_stale: bool
    """A partition is not led by this broker, or not known to it."""
    locked_until: float
    """By the monotonic clock; at the broker the locks may last a little longer."""


OnFetched = Callable[["LeaderSession", ShareFetchAnswer], None]


class TurnLock:
    """A lock that is handed over in the order in which it was asked for, so that a loop that fetches does not starve those that
    acknowledge."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> Self:
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return self
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False


# A rejection waits for its dead letter, and what comes with it would share its answer. Renewals are requests by themselves.
_REQUEST_OF = {ShareSettlement.RELEASE: ShareSettlement.ACCEPT}


class _Refusal(NamedTuple):
    """Why a partition of an acknowledgement was refused."""

    reason: str
    is_for_one: bool = False
    """The broker refuses all records of a partition because of one, so each is tried by itself."""


class _Outgoing:
    """The jobs that one caller settles together. ``failures`` holds those that the leader refused."""

    __slots__ = ("failures", "is_done", "jobs", "kind")

    def __init__(self, kind: ShareSettlement, jobs: Iterable[Job]) -> None:
        self.kind = kind
        self.jobs = list(jobs)
        self.failures: dict[Job, str] = {}
        self.is_done = False

    def done(self) -> None:
        self.is_done = True

    def fail(self, job: Job, reason: str) -> None:
        self.failures[job] = reason


class LeaderSession:
    def __init__(
        self, connection: BrokerConnection, group: str, member_id: str, request_seconds: float, on_fetched: OnFetched
    ) -> None:
        """``on_fetched`` is called by whichever thread has read an answer, and must not settle anything."""
        self.lock_seconds = 0.0
        """How long locks last, as the broker said last; 0 before the first answer."""
        self._connection = connection
        self._identity = {"group_id": group, "member_id": member_id}
        self._request_seconds = request_seconds
        self._on_fetched = on_fetched
        self._turn = TurnLock()
        self._epoch = INITIAL_EPOCH
        self._is_open = True
        self._closed_because = ""
        self._wanted: frozenset[TopicIndex] = frozenset()
        self._fetched: frozenset[TopicIndex] = frozenset()
        self._is_fetching = False
        self._asked_at = 0.0
        self._latest: WeakValueDictionary[Place, Job] = WeakValueDictionary()
        self._gaps: list[Place] = []
        self._outbox_mutex = threading.Lock()
        self._outbox: list[_Outgoing] = []

    @property
    def is_open(self) -> bool:
        return self._is_open

    def fileno(self) -> int:
        return self._connection.fileno()

    def want(self, partitions: frozenset[TopicIndex]) -> None:
        """What the next fetch is about."""
        self._wanted = partitions

    @property
    def wants_nothing(self) -> bool:
        return not self._wanted

    # -- fetching ------------------------------------------------------------------------------------------------------------

    @property
    def is_fetching(self) -> bool:
        """Whether an answer is on its way, or has come and is not read."""
        return self._is_fetching

    def begin_fetch(self, records_max: int, wait_ms: int) -> bool:
        """Ask for records, unless an answer is on its way. ``end_fetch`` reads it. Returns whether the broker was asked."""
        with self._turn:
            if not self._is_open or self._is_fetching:
                return False
            fields = {
                **self._identity,
                "share_session_epoch": self._epoch,
                "max_wait_ms": wait_ms,
                "min_bytes": 1,
                "max_bytes": FETCH_BYTES_MAX,
                "max_records": records_max,
                "batch_size": records_max,
                "share_acquire_mode": RECORD_LIMIT_MODE,
                "is_renew_ack": False,
                "topics": _topics({each: [] for each in self._wanted - self._fetched}),
                "forgotten_topics_data": _forgotten(self._fetched - self._wanted),
            }
            try:
                version = self._connection.version_of(ApiKey.SHARE_FETCH)
                body = encode_request(ApiKey.SHARE_FETCH, version, fields)
                self._asked_at = time.monotonic()
                self._connection.send(ApiKey.SHARE_FETCH, version, body, self._request_seconds)
            except ClientError as error:
                self._end(str(error))
                raise
            self._fetched = self._wanted
            self._is_fetching = True
            return True

    def end_fetch(self) -> None:
        """Read the answer, after waiting for one that is on its way, unless somebody else has read it on the way to an answer of
        their own."""
        with self._turn:
            self._finish_fetch()
            if self._gaps:
                self._send_outbox()

    def _finish_fetch(self) -> None:
        if not self._is_fetching:
            return
        self._is_fetching = False
        try:
            version = self._connection.version_of(ApiKey.SHARE_FETCH)
            answer = self._connection.receive_message(ApiKey.SHARE_FETCH, version, ANSWER_SECONDS_MAX)
            if answer.error_code != ErrorCode.NONE:
                raise BrokerError(answer.error_code, "the fetch was refused", answer.error_message)
        except ClientError as error:
            self._end(str(error))
            raise
        self._advance()
        self.lock_seconds = answer.acquisition_lock_timeout_ms / 1000
        self._on_fetched(self, _fetched(answer, self._asked_at + self.lock_seconds))

    def note(self, jobs: Iterable[Job]) -> None:
        """For ``on_fetched``: these are the latest deliveries of their records."""
        for job in jobs:
            self._latest[job.place] = job

    def skip(self, partition: TopicIndex, offsets: Iterable[int]) -> None:
        """For ``on_fetched``: there are no records at these offsets. The broker is told with whatever is settled next."""
        self._gaps += [(partition, offset) for offset in offsets]

    # -- settling ------------------------------------------------------------------------------------------------------------

    def settle(self, kind: ShareSettlement, jobs: Iterable[Job]) -> Mapping[Job, str]:
        """Settle jobs, or renew their locks. Returns when that is durable, with a reason for each that was refused."""
        outgoing = _Outgoing(kind, jobs)
        with self._outbox_mutex:
            self._outbox.append(outgoing)
        with self._turn:
            if not outgoing.is_done:
                self._send_outbox()
        return outgoing.failures

    def _send_outbox(self) -> None:
        # If this fails the session has ended, which is why everything below is refused.
        with suppress(ClientError):
            # First, because its answer comes first and advances the epoch, and because it may have later deliveries.
            self._finish_fetch()
        with self._outbox_mutex:
            sending, self._outbox = self._outbox, []
        gaps, self._gaps = self._gaps, []
        requests: dict[ShareSettlement, dict[Place, ShareSettlement]] = {}
        if gaps:
            requests[ShareSettlement.ACCEPT] = dict.fromkeys(gaps, ShareSettlement.GAP)
        for each in sending:
            settled = requests.setdefault(_REQUEST_OF.get(each.kind, each.kind), {})
            for job in each.jobs:
                place = job.place
                if self._latest.get(place) is job:
                    settled[place] = each.kind
                else:
                    each.fail(job, "its lock has expired, and this worker has received it again")
        refused = {
            kind: self._acknowledge(settled, is_renewal=kind is ShareSettlement.RENEW) for kind, settled in requests.items()
        }
        for each in sending:
            reasons = refused[_REQUEST_OF.get(each.kind, each.kind)]
            for job in each.jobs if reasons else ():
                if job not in each.failures and job.place in reasons:
                    each.fail(job, reasons[job.place])
            each.done()

    def _acknowledge(self, settled: Mapping[Place, ShareSettlement], *, is_renewal: bool) -> dict[Place, str]:
        """Returns why records were refused."""
        by_partition: dict[TopicIndex, dict[int, ShareSettlement]] = {}
        for (partition, offset), kind in settled.items():
            by_partition.setdefault(partition, {})[offset] = kind
        if not by_partition:
            return {}
        reasons: dict[Place, str] = {}
        for partition, refusal in self._request_acknowledge(by_partition, is_renewal).items():
            offsets = by_partition[partition]
            for offset, kind in offsets.items():
                refused = {partition: refusal}
                if refusal.is_for_one and len(offsets) > 1:
                    refused = self._request_acknowledge({partition: {offset: kind}}, is_renewal)
                if refused:
                    reasons[partition, offset] = refused[partition].reason
        return reasons

    def _request_acknowledge(
        self, by_partition: Mapping[TopicIndex, Mapping[int, ShareSettlement]], is_renewal: bool
    ) -> dict[TopicIndex, _Refusal]:
        """One request. Returns why partitions were refused."""
        if not self._is_open:
            return dict.fromkeys(by_partition, _Refusal(self._closed_because))
        try:
            fields = {
                **self._identity,
                "share_session_epoch": self._epoch,
                "is_renew_ack": is_renewal,
                "topics": _topics({partition: _batches(offsets) for partition, offsets in by_partition.items()}),
            }
            answer = self._connection.request(ApiKey.SHARE_ACKNOWLEDGE, fields, self._request_seconds)
            if answer.error_code != ErrorCode.NONE:
                raise BrokerError(answer.error_code, "the settlement was refused", answer.error_message)
        except ClientError as error:
            reason = f"{error}; whether this settlement took effect is not known, and the locks of this connection are released"
            self._end(str(error))
            return dict.fromkeys(by_partition, _Refusal(reason))
        self._advance()
        # What a renewed lock lasts for: the setting may have changed since the last fetch.
        self.lock_seconds = answer.acquisition_lock_timeout_ms / 1000 or self.lock_seconds
        return {
            (topic.topic_id, partition.partition_index): _refusal(partition)
            for topic in answer.responses
            for partition in topic.partitions
            if partition.error_code != ErrorCode.NONE
        }

    def _advance(self) -> None:
        self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1

    # -- the end -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release everything and end the session. The broker does the same when the connection ends; asking it first means that
        the records are free when this returns."""
        with self._turn:
            try:
                if self._is_open and (self._epoch != INITIAL_EPOCH or self._is_fetching):
                    self._finish_fetch()
                    fields = {**self._identity, "share_session_epoch": FINAL_EPOCH, "is_renew_ack": False, "topics": []}
                    self._connection.request(ApiKey.SHARE_ACKNOWLEDGE, fields, self._request_seconds)
            except ClientError:
                pass  # The broker is gone, or ends the session with the connection.
            self._end("the queue was closed")

    def _end(self, reason: str) -> None:
        self._connection.close()
        if self._is_open:
            self._is_open = False
            self._closed_because = f"{reason}, and with the connection its locks were released"


def _refusal(partition: DecodedMessage) -> _Refusal:
    code = error_of(partition.error_code)
    if code is ErrorCode.INVALID_RECORD_STATE:
        why = "its lock has expired, or somebody else has settled it; allow more time with visibility_timeout= or renew=True"
        return _Refusal(why, is_for_one=True)
    return _Refusal(f"{partition.error_message or code.message} ({code.name})")


def _fetched(answer: DecodedMessage, locked_until: float) -> ShareFetchAnswer:
    found, is_stale = [], False
    for topic in answer.responses:
        for partition in topic.partitions:
            is_stale = is_stale or partition.error_code != ErrorCode.NONE
            acquired = [AcquiredRange(*_range(each)) for each in partition.acquired_records]
            if acquired:
                found.append(FetchedJobs((topic.topic_id, partition.partition_index), partition.records or b"", acquired))
    return ShareFetchAnswer(found, is_stale, locked_until)


def _range(acquired: DecodedMessage) -> tuple[int, int, int]:
    return acquired.first_offset, acquired.last_offset, acquired.delivery_count


def _batches(offsets: Mapping[int, ShareSettlement]) -> list[dict[str, Any]]:
    """Neighbours with the same settlement share a batch."""
    batches: list[dict[str, Any]] = []
    last, last_kind = -2, None
    for offset in sorted(offsets):
        kind = offsets[offset]
        if offset == last + 1 and kind is last_kind:
            batches[-1]["last_offset"] = offset
        else:
            batches.append({"first_offset": offset, "last_offset": offset, "acknowledge_types": [int(kind)]})
        last, last_kind = offset, kind
    return batches


def _topics(partitions: Mapping[TopicIndex, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    topics: dict[bytes, list[dict[str, Any]]] = {}
    for (topic_id, index), batches in sorted(partitions.items(), key=lambda item: item[0]):
        topics.setdefault(topic_id, []).append({"partition_index": index, "acknowledgement_batches": batches})
    return [{"topic_id": topic_id, "partitions": each} for topic_id, each in topics.items()]


def _forgotten(partitions: Iterable[TopicIndex]) -> list[dict[str, Any]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return [{"topic_id": topic_id, "partitions": each} for topic_id, each in topics.items()]
