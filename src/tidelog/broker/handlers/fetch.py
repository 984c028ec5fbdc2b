"""Fetch: slices of segment files, as many as the limits allow, or a wait until there is something to send.

The client listener serves consumers only: a request that claims to be a replica is refused, so that nobody moves a high watermark
by pretending.

Consumers that wait for something send the same bytes again and again, many of them the same as others, and get the same bytes
back. So small requests of one partition or a few are decoded once, and so are empty answers about one partition encoded.
"""

from functools import lru_cache
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.delayed_fetch import DelayedFetch, ReadSet, WantedPartition, read_partitions
from tidelog.broker.fetch_sessions import NO_SESSION, FetchSession, SessionChoice
from tidelog.broker.leader_hints import HINTED_ERRORS, current_leader, leader_endpoints
from tidelog.log.reading import Isolation
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

READ_COMMITTED = 1
# A request for a few partitions.
KEPT_BYTES_MAX = 256
KEPT_MAX = 1024


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
    # More than the answer can hold would never come.
    bytes_min = min(request.bytes_min, bytes_max)
    is_enough = found.bytes_read >= bytes_min or found.has_error
    if is_enough or request.wait_ms_max <= 0 or not wanted:
        _reply(context, choice, wanted, found)
        return

    def finish(later: ReadSet) -> None:
        context.session.remove_delayed(delayed)
        _reply(context, choice, wanted, later)

    delayed = DelayedFetch(broker, wanted, bytes_min, bytes_max, isolation, found, finish)
    context.session.add_delayed(delayed)
    delayed.start(request.wait_ms_max)


def _wanted(context: RequestContext, request: FetchRequest, choice: SessionChoice) -> list[WantedPartition]:
    if choice.is_incremental and choice.session is not None:
        partitions = choice.session.partitions
        return [_find(context, name, topic_id, known.wanted) for (name, topic_id, _), known in partitions.items()]
    return [_find(context, topic.name, topic.topic_id, want) for topic in request.topics for want in topic.partitions]


def _find(context: RequestContext, name: str | None, topic_id: bytes | None, want: FetchPartition) -> WantedPartition:
    partition, error = None, None
    try:
        partition = context.broker.partitions.find(name, topic_id, want.partition)
    except Exception as failure:
        error = context.code_of(failure)
    return WantedPartition(
        name, topic_id, want.partition, want.fetch_offset, want.bytes_max, want.current_leader_epoch, partition, error
    )


def _reply(context: RequestContext, choice: SessionChoice, wanted: list[WantedPartition], found: ReadSet) -> None:
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
            result = result._replace(aborted=())  # Not a list, which could not be looked up.
        context.reply_parts([_nothing_new(version, wanted[0].topic, wanted[0].topic_id, result)])
        return
    topics: dict[tuple[str | None, bytes | None], list[FetchResult]] = {}
    leaders: set[int] = set()
    for want, result in zip(wanted, found.results, strict=True):
        if result.records is not None and want.partition is not None:
            want.partition.fetched_bytes += result.records.length
        elif result.error is not ErrorCode.NONE:
            context.count_error(result.error)
        if result.error in HINTED_ERRORS and version >= LEADER_HINTS_SINCE:
            result = _with_leader(context, want, result, leaders)
        if session is None or _is_told(session, want, result) or not choice.is_incremental:
            topics.setdefault((want.topic, want.topic_id), []).append(result)
    results = [FetchTopicResult(name, topic_id, partitions) for (name, topic_id), partitions in topics.items()]
    session_id = session.id if session is not None else NO_SESSION
    endpoints = leader_endpoints(context.broker.image, leaders) if leaders else ()
    context.reply_parts(encode_fetch_response(version, results, session_id=session_id, node_endpoints=endpoints))


@lru_cache(KEPT_MAX)
def _nothing_new(version: int, name: str | None, topic_id: bytes | None, result: FetchResult) -> bytes:
    parts = encode_fetch_response(version, [FetchTopicResult(name, topic_id, [result])])
    return b"".join(parts)  # type: ignore[arg-type]  # without records there are only buffers


def _decode(header: RequestHeader, frame: memoryview) -> FetchRequest:
    if len(frame) - header.body_position > KEPT_BYTES_MAX:
        return decode_fetch_request(header, frame)
    return _decode_kept(header.api_version, bytes(frame[header.body_position :]))


@lru_cache(KEPT_MAX)
def _decode_kept(version: int, body: bytes) -> FetchRequest:
    return decode_fetch_request(RequestHeader(ApiKey.FETCH, version, 0, None, 0), memoryview(body))


def _reply_throttled(context: RequestContext, choice: SessionChoice, throttle_time_ms: int) -> None:
    """Empty. A client whose first request was answered so begins its session anew."""
    session_id = NO_SESSION
    if choice.session is not None:
        if choice.is_incremental:
            session_id = choice.session.id
        else:
            context.broker.fetch_sessions.drop(choice.session.id)
    version = context.header.api_version
    context.reply_parts(encode_fetch_response(version, [], throttle_time_ms=throttle_time_ms, session_id=session_id))


def _with_leader(context: RequestContext, want: WantedPartition, result: FetchResult, leaders: set[int]) -> FetchResult:
    leader = current_leader(context.broker.image, want.topic, want.topic_id, want.partition_index)
    if leader is not None:
        leaders.add(leader[0])
    return result._replace(current_leader=leader)


def _is_told(session: FetchSession, want: WantedPartition, result: FetchResult) -> bool:
    key = (want.topic, want.topic_id, want.partition_index)
    known = session.partitions.get(key)
    if known is None:
        return True
    if result.records is not None:
        session.rotate(key)
    return known.take_news(result)


def _reply_error(context: RequestContext, code: ErrorCode) -> None:
    context.count_error(code)
    context.reply_parts(
        encode_fetch_response(context.header.api_version, [], error=code, throttle_time_ms=context.throttle_time_ms())
    )


def _failure(request: FetchRequest, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    """Each partition has it: before version 7 the response has no error of the whole."""
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
