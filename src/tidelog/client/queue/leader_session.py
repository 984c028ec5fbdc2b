"""The share session with the leader of some partitions: one connection, over which records are locked, settled and renewed.

A session belongs to its connection: when the connection ends, for whatever reason, the broker releases everything that this
member holds there, and the session is not opened again. The queue opens another one, and jobs of the old one are lost.

Every request has the session's next epoch, so requests go out one after the other: whoever has the session's ``turn`` sends. A
fetch that waits for records is the exception. ``begin_fetch`` sends it and gives the turn back, so that fetches wait at several
brokers at the same time. The next one who has the turn takes its answer first, because answers come in order.

Settlements of several threads share a request: each thread leaves what it wants in the outbox, and the first that has the turn
sends all of it.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Any, NamedTuple, Self

from tidelog.client.wire.connection import BrokerConnection
from tidelog.client.wire.errors import BrokerError, ClientError, error_of
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, encode_request
from tidelog.wire.protocol import ApiKey

TopicIndex = tuple[bytes, int]
"""A topic's id, and a partition."""

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
    lock_seconds: float


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


class _Outgoing:
    """Records that one caller settles. ``failures`` has those that were refused."""

    __slots__ = ("failures", "is_done", "kind", "records")

    def __init__(self, kind: ShareSettlement, records: Sequence[tuple[TopicIndex, int]]) -> None:
        self.kind = kind
        self.records = records
        self.failures: dict[tuple[TopicIndex, int], str] = {}
        self.is_done = False

    def done(self) -> None:
        self.is_done = True

    def fail(self, reason: str, records: Iterable[tuple[TopicIndex, int]] | None = None) -> None:
        self.failures.update(dict.fromkeys(self.records if records is None else records, reason))


class LeaderSession:
    def __init__(self, node_id: int, connection: BrokerConnection, group: str, member_id: str, request_seconds: float) -> None:
        self.node_id = node_id
        self.lock_seconds = 0.0
        """How long locks last, as the broker said last; 0 before the first answer."""
        self._connection = connection
        self._identity = {"group_id": group, "member_id": member_id}
        self._request_seconds = request_seconds
        self._turn = TurnLock()
        self._epoch = INITIAL_EPOCH
        self._is_open = True
        self._closed_because = ""
        self._wanted: frozenset[TopicIndex] = frozenset()
        self._fetched: frozenset[TopicIndex] = frozenset()
        self._is_fetching = False
        self._answers: list[ShareFetchAnswer] = []
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

    def begin_fetch(self, records_max: int, wait_ms: int) -> None:
        """Ask for records, unless an answer is on its way or has come. ``end_fetch`` takes it."""
        with self._turn:
            if not self._is_open or self._is_fetching or self._answers:
                return
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
                self._connection.send(ApiKey.SHARE_FETCH, version, body, self._request_seconds)
            except ClientError as error:
                self._end(str(error))
                raise
            self._fetched = self._wanted
            self._is_fetching = True

    def end_fetch(self) -> list[ShareFetchAnswer]:
        """The answers that have come, after waiting for one that is on its way."""
        with self._turn:
            self._finish_fetch()
            answers, self._answers = self._answers, []
            return answers

    def take_answers(self) -> list[ShareFetchAnswer]:
        """Answers that somebody else had to take on the way to an answer of their own."""
        if not self._answers:
            return []
        with self._turn:
            answers, self._answers = self._answers, []
            return answers

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
        self._answers.append(_fetched(answer, self.lock_seconds))

    # -- settling ------------------------------------------------------------------------------------------------------------

    def settle(self, kind: ShareSettlement, records: Sequence[tuple[TopicIndex, int]]) -> Mapping[tuple[TopicIndex, int], str]:
        """Settle records, or renew their locks. Returns when that is durable, with a reason for each that was refused."""
        outgoing = _Outgoing(kind, records)
        with self._outbox_mutex:
            self._outbox.append(outgoing)
        with self._turn:
            if not outgoing.is_done:
                self._send_outbox()
        return outgoing.failures

    def _send_outbox(self) -> None:
        with self._outbox_mutex:
            sending, self._outbox = self._outbox, []
        renewals = [each for each in sending if each.kind is ShareSettlement.RENEW]
        final = [each for each in sending if each.kind is not ShareSettlement.RENEW]
        for group, is_renewal in ((final, False), (renewals, True)):
            if group:
                self._acknowledge(group, is_renewal)
        for each in sending:
            each.done()

    def _acknowledge(self, sending: list[_Outgoing], is_renewal: bool) -> None:
        by_partition: dict[TopicIndex, dict[int, ShareSettlement]] = {}
        for each in sending:
            for partition, offset in each.records:
                by_partition.setdefault(partition, {})[offset] = each.kind
        refused = self._request_acknowledge(by_partition, is_renewal)
        for partition, reason in refused.items():
            # The broker refuses all of a partition if it refuses one, so each is tried by itself.
            offsets = by_partition[partition]
            reasons = {partition: reason}
            for offset, kind in offsets.items():
                if len(offsets) > 1:
                    reasons = self._request_acknowledge({partition: {offset: kind}}, is_renewal)
                if reasons:
                    for each in sending:
                        if (partition, offset) in each.records:
                            each.fail(reasons[partition], [(partition, offset)])

    def _request_acknowledge(
        self, by_partition: Mapping[TopicIndex, Mapping[int, ShareSettlement]], is_renewal: bool
    ) -> dict[TopicIndex, str]:
        """One request. Returns why partitions were refused."""
        if not self._is_open:
            return dict.fromkeys(by_partition, self._closed_because)
        try:
            # First, because its answer comes first and advances the epoch.
            self._finish_fetch()
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
            return dict.fromkeys(by_partition, reason)
        self._advance()
        return {
            (topic.topic_id, partition.partition_index): _reason(partition)
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


def _reason(partition: DecodedMessage) -> str:
    code = error_of(partition.error_code)
    if code is ErrorCode.INVALID_RECORD_STATE:
        return "its lock has expired, or somebody else has settled it; allow more time with visibility_timeout= or renew=True"
    return f"{partition.error_message or code.message} ({code.name})"


def _fetched(answer: DecodedMessage, lock_seconds: float) -> ShareFetchAnswer:
    found, is_stale = [], False
    for topic in answer.responses:
        for partition in topic.partitions:
            is_stale = is_stale or partition.error_code != ErrorCode.NONE
            acquired = [AcquiredRange(*_range(each)) for each in partition.acquired_records]
            if acquired:
                found.append(FetchedJobs((topic.topic_id, partition.partition_index), partition.records or b"", acquired))
    return ShareFetchAnswer(found, is_stale, lock_seconds)


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
