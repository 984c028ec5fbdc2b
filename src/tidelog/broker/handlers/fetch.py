"""Fetch: sends slices of segment files up to the limits, or waits until there is something to send.

The client listener serves consumers only: a request that claims to be a replica is refused, so that nobody moves a high watermark
by pretending.

Consumers that wait for records send the same bytes again and again, often the same as other consumers, and get the same bytes
back. So small requests for a few partitions are decoded once, and empty responses about one partition are encoded once.

A fetch that waits (``DelayedFetch``) is answered when there are enough bytes, when its time is up, or when one of its partitions
has an error. While it waits it costs nothing: each of its partitions calls it when its watermark moves. A fetch that wants many
bytes from a thousand partitions is called a thousand times before it has them, so then it reads only the partition that moved,
until there may be enough.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.error_mapping import error_code_of
from tidelog.broker.fetch_sessions import NO_SESSION, FetchSession, SessionChoice
from tidelog.broker.response_fields import HINTED_ERRORS, current_leader, leader_endpoints
from tidelog.log.reading import Isolation, LogRead, read
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import (
    CONSUMER_REPLICA_ID,
    LEADER_HINTS_SINCE,
    TOPIC_IDS_SINCE,
    VERSIONS,
    FetchPartition,
    FetchRequest,
    FetchResult,
    FetchTopicResult,
    decode_fetch_request,
    encode_fetch_response,
)
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey, RequestHeader

if TYPE_CHECKING:
    from tidelog.broker.timers import Timer

READ_COMMITTED = 1
# Requests and empty responses that are cached: those of a few partitions.
CACHED_BYTES_MAX = 256
CACHED_MAX = 1024
# Thousands of long polls end all the time. Those that end within a few milliseconds of each other end together, because waking up
# for each of them would cost as much as answering it.
COARSE_WAIT_MS_MIN = 100
COARSE_STEP_MS = 10


class RequestedPartition(NamedTuple):
    """One partition of a fetch request, with the partition that was found or the error."""

    topic: str | None
    topic_id: bytes | None
    partition_index: int
    fetch_offset: int
    bytes_max: int
    current_leader_epoch: int
    partition: Partition | None
    error: tuple[ErrorCode, str] | None


class ReadSet(NamedTuple):
    results: list[FetchResult]
    """The results, in the order of the request."""
    bytes_read: int
    has_error: bool


def read_partitions(
    wanted: list[RequestedPartition], bytes_max: int, isolation: Isolation, on_unexpected: Callable[[Exception], None]
) -> ReadSet:
    """Read each partition once. The first one with data may exceed the limits by its first batch, so that a reader always makes
    progress."""
    results = []
    remaining = bytes_max
    bytes_read = 0
    has_error = False
    for want in wanted:
        result, length = _read_one(want, min(remaining, want.bytes_max), isolation, bytes_read == 0, on_unexpected)
        results.append(result)
        bytes_read += length
        remaining = max(0, remaining - length)
        has_error = has_error or result.error is not ErrorCode.NONE
    return ReadSet(results, bytes_read, has_error)


def _read_one(
    want: RequestedPartition, bytes_max: int, isolation: Isolation, at_least_one: bool, on_unexpected: Callable[[Exception], None]
) -> tuple[FetchResult, int]:
    partition = want.partition
    if partition is None:
        code = want.error[0] if want.error is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return FetchResult(want.partition_index, code), 0
    log = partition.log
    try:
        partition.check_epoch(want.current_leader_epoch)
        found: LogRead = read(log, want.fetch_offset, bytes_max, isolation, at_least_one)
    except Exception as error:
        code, _ = error_code_of(error)
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            on_unexpected(error)
        return FetchResult(want.partition_index, code, log_start_offset=log.log_start_offset), 0
    aborted = None
    if isolation is Isolation.LAST_STABLE:
        aborted = [(transaction.producer_id, transaction.first_offset) for transaction in found.aborted]
    records = found.records
    result = FetchResult(
        want.partition_index,
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        aborted,
        records,
    )
    return result, records.length if records is not None else 0


class FetchLimits(NamedTuple):
    bytes_min: int
    bytes_max: int
    isolation: Isolation


def handle(context: RequestContext, request: FetchRequest) -> None:
    if request.replica_id != CONSUMER_REPLICA_ID:
        _reply_error(context, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    broker = context.broker
    choice = broker.fetch_sessions.choose(request, context.header.api_version >= TOPIC_IDS_SINCE)
    if choice.error is not ErrorCode.NONE:
        _reply_error(context, choice.error)
        return
    isolation = Isolation.LAST_STABLE if request.isolation_level == READ_COMMITTED else Isolation.HIGH_WATERMARK
    wanted = _wanted(context, request, choice)
    bytes_max = min(request.bytes_max, broker.config.fetch_bytes_max)
    if context.usage is not None:
        bytes_max = broker.throttling.fetch_bytes_max(context, bytes_max)
    found = read_partitions(wanted, bytes_max, isolation, broker.on_unexpected_error)
    # A minimum above what the response can hold would never be reached.
    bytes_min = min(request.bytes_min, bytes_max)
    is_enough = found.bytes_read >= bytes_min or found.has_error
    if is_enough or request.wait_ms_max <= 0 or not wanted:
        _reply(context, choice, wanted, found)
        return

    limits = FetchLimits(bytes_min, bytes_max, isolation)
    DelayedFetch(context, choice, wanted, limits, found).start(request.wait_ms_max)


def _wanted(context: RequestContext, request: FetchRequest, choice: SessionChoice) -> list[RequestedPartition]:
    if choice.is_incremental and choice.session is not None:
        partitions = choice.session.partitions
        return [_find(context, name, topic_id, known.wanted) for (name, topic_id, _), known in partitions.items()]
    return [_find(context, topic.name, topic.topic_id, want) for topic in request.topics for want in topic.partitions]


def _find(context: RequestContext, name: str | None, topic_id: bytes | None, want: FetchPartition) -> RequestedPartition:
    partition, error = None, None
    try:
        partition = context.broker.partitions.find(name, topic_id, want.partition)
    except Exception as failure:
        error = context.code_of(failure)
    return RequestedPartition(
        name, topic_id, want.partition, want.fetch_offset, want.bytes_max, want.current_leader_epoch, partition, error
    )


class DelayedFetch:
    """A fetch that waits. It is registered with its partitions from ``start`` until it is answered or cancelled. It drops its
    references afterwards, so that nothing is left for the cycle collector."""

    __slots__ = (
        "_bytes_found",
        "_choice",
        "_context",
        "_found",
        "_is_done",
        "_lengths",
        "_limits",
        "_places",
        "_timer",
        "_wanted",
    )

    def __init__(
        self,
        context: RequestContext,
        choice: SessionChoice,
        wanted: list[RequestedPartition],
        limits: FetchLimits,
        found: ReadSet,
    ) -> None:
        """``found`` is what there was when the request arrived, which was not enough."""
        self._context = context
        self._choice = choice
        self._wanted = wanted
        self._limits = limits
        # The response to send if time runs out and nothing has moved; None if the partitions have to be read again. A response
        # with records is not kept: its slices keep files open, and a deletion does not move a watermark.
        self._found: ReadSet | None = None if found.bytes_read else found
        self._is_done = False
        self._timer: Timer | None = None
        # The bytes that each requested partition has by itself, and each partition's positions in the request. Filled when
        # needed.
        self._lengths: list[int] = []
        self._places: dict[Partition, list[int]] = {}
        self._bytes_found = 0

    def start(self, wait_ms_max: int) -> None:
        broker = self._context.broker
        self._context.session.add_delayed(self)
        for want in self._wanted:
            if want.partition is not None:
                want.partition.add_fetch_waiter(self)
        if wait_ms_max >= COARSE_WAIT_MS_MIN:
            # This fires a few milliseconds late, together with others.
            wait_ms_max += -(broker.clock.monotonic_ms() + wait_ms_max) % COARSE_STEP_MS
        self._timer = broker.timers.schedule(wait_ms_max, self._time_out)

    def on_data(self, partition: Partition) -> None:
        """Answer if there is enough now. A partition that has gone away is an error, which the reader should get at once."""
        self._found = None
        if self._is_done or (self._limits.bytes_min > 1 and not self._may_be_enough(partition)):
            return
        found = self._read()
        if found.bytes_read >= self._limits.bytes_min or found.has_error:
            self._complete(found)

    def _may_be_enough(self, partition: Partition) -> bool:
        """A cheap upper bound: False is certain, True needs a full read in the order of the request and within the limits."""
        if not self._lengths:
            self._lengths = [0] * len(self._wanted)
            for place, want in enumerate(self._wanted):
                if want.partition is not None:
                    self._places.setdefault(want.partition, []).append(place)
            moved: Iterable[int] = range(len(self._wanted))
        else:
            moved = self._places.get(partition, ())
        for place in moved:
            want = self._wanted[place]
            bytes_max = min(self._limits.bytes_max, want.bytes_max)
            result, length = _read_one(want, bytes_max, self._limits.isolation, True, self._context.broker.on_unexpected_error)
            if result.error is not ErrorCode.NONE:
                return True
            self._bytes_found += length - self._lengths[place]
            self._lengths[place] = length
        return self._bytes_found >= self._limits.bytes_min

    def cancel(self) -> None:
        """Called when nobody waits for the response any more."""
        if not self._is_done:
            self._leave()

    def _read(self) -> ReadSet:
        return read_partitions(
            self._wanted, self._limits.bytes_max, self._limits.isolation, self._context.broker.on_unexpected_error
        )

    def _time_out(self) -> None:
        self._complete(self._found if self._found is not None else self._read())

    def _complete(self, found: ReadSet) -> None:
        self._leave()
        self._context.session.remove_delayed(self)
        _reply(self._context, self._choice, self._wanted, found)

    def _leave(self) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        for want in self._wanted:
            if want.partition is not None:
                want.partition.remove_fetch_waiter(self)


def _reply(context: RequestContext, choice: SessionChoice, wanted: list[RequestedPartition], found: ReadSet) -> None:
    if context.usage is not None:
        throttle_time_ms = context.broker.throttling.answer_fetch(context, found.bytes_read)
        if throttle_time_ms:
            _reply_throttled(context, choice, throttle_time_ms)
            return
    session = choice.session
    version = context.header.api_version
    if session is None and len(wanted) == 1 and not (found.bytes_read or found.has_error or found.results[0].aborted):
        result = found.results[0]
        if result.aborted is not None:
            result = result._replace(aborted=())  # A list is not hashable.
        context.reply_parts([_encode_empty(version, wanted[0].topic, wanted[0].topic_id, result)])
        return
    topics: dict[tuple[str | None, bytes | None], list[FetchResult]] = {}
    leaders: set[int] = set()
    for want, result in zip(wanted, found.results, strict=True):
        if result.records is not None and want.partition is not None:
            want.partition.count_fetched(result.records.length)
        elif result.error is not ErrorCode.NONE:
            context.count_error(result.error)
        if result.error in HINTED_ERRORS and version >= LEADER_HINTS_SINCE:
            result = _with_leader(context, want, result, leaders)
        if session is None or _must_tell(session, want, result) or not choice.is_incremental:
            topics.setdefault((want.topic, want.topic_id), []).append(result)
    results = [FetchTopicResult(name, topic_id, partitions) for (name, topic_id), partitions in topics.items()]
    session_id = session.id if session is not None else NO_SESSION
    endpoints = leader_endpoints(context.broker.image, leaders) if leaders else ()
    context.reply_parts(encode_fetch_response(version, results, session_id=session_id, node_endpoints=endpoints))


@lru_cache(CACHED_MAX)
def _encode_empty(version: int, name: str | None, topic_id: bytes | None, result: FetchResult) -> bytes:
    parts = encode_fetch_response(version, [FetchTopicResult(name, topic_id, [result])])
    return b"".join(parts)  # type: ignore[arg-type]  # without records there are only buffers


def _decode(header: RequestHeader, frame: memoryview) -> FetchRequest:
    if len(frame) - header.body_position > CACHED_BYTES_MAX:
        return decode_fetch_request(header, frame)
    return _decode_cached(header.api_version, bytes(frame[header.body_position :]))


@lru_cache(CACHED_MAX)
def _decode_cached(version: int, body: bytes) -> FetchRequest:
    return decode_fetch_request(RequestHeader(ApiKey.FETCH, version, 0, None, 0), memoryview(body))


def _reply_throttled(context: RequestContext, choice: SessionChoice, throttle_time_ms: int) -> None:
    """Reply without records. A client whose first request gets this reply starts another session."""
    session_id = NO_SESSION
    if choice.session is not None:
        if choice.is_incremental:
            session_id = choice.session.id
        else:
            context.broker.fetch_sessions.drop(choice.session.id)
    version = context.header.api_version
    context.reply_parts(encode_fetch_response(version, [], throttle_time_ms=throttle_time_ms, session_id=session_id))


def _with_leader(context: RequestContext, want: RequestedPartition, result: FetchResult, leaders: set[int]) -> FetchResult:
    leader = current_leader(context.broker.image, want.topic, want.topic_id, want.partition_index)
    if leader is not None:
        leaders.add(leader[0])
    return result._replace(current_leader=leader)


def _must_tell(session: FetchSession, want: RequestedPartition, result: FetchResult) -> bool:
    key = (want.topic, want.topic_id, want.partition_index)
    known = session.partitions.get(key)
    if known is None:
        return True
    if result.records is not None:
        session.rotate(key)
    return known.update_told(result)


def _reply_error(context: RequestContext, code: ErrorCode) -> None:
    context.count_error(code)
    context.reply_parts(
        encode_fetch_response(context.header.api_version, [], error=code, throttle_time_ms=context.throttle_time_ms())
    )


def _failure(request: FetchRequest, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no message field
    """Put the code into each partition: before version 7 the response has no code for the whole request."""
    return {
        "error_code": code,
        "responses": [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id or ZERO_UUID,
                "partitions": [
                    {"partition_index": wanted.partition, "error_code": code, "high_watermark": -1} for wanted in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


API = Api(key=ApiKey.FETCH, name="Fetch", versions=VERSIONS, handle=handle, failure=_failure, decode=_decode)
