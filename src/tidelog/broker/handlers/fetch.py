"""Fetch: slices of segment files, as many as the limits allow, or a wait until there is something to send.

The client listener serves consumers only: a request that claims to be a replica is refused, so that nobody moves a high watermark
by pretending.
"""

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.delayed_fetch import DelayedFetch, ReadSet, WantedPartition, read_partitions
from tidelog.broker.error_mapping import error_code_of
from tidelog.broker.fetch_sessions import NO_SESSION, FetchSession, SessionChoice
from tidelog.log.reading import Isolation
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import (
    CONSUMER_REPLICA_ID,
    VERSIONS,
    FetchPartition,
    FetchRequest,
    FetchResult,
    FetchTopicResult,
    decode_fetch_request,
    encode_fetch_response,
)
from tidelog.wire.protocol import ApiKey

READ_COMMITTED = 1


def handle(context: RequestContext, request: FetchRequest) -> None:
    if request.replica_id != CONSUMER_REPLICA_ID:
        _reply_error(context, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    broker = context.broker
    choice = broker.fetch_sessions.choose(request)
    if choice.error is not ErrorCode.NONE:
        _reply_error(context, choice.error)
        return
    isolation = Isolation.LAST_STABLE if request.isolation_level == READ_COMMITTED else Isolation.HIGH_WATERMARK
    wanted = _wanted(context, request, choice)
    bytes_max = min(request.bytes_max, broker.config.fetch_bytes_max)
    found = read_partitions(wanted, bytes_max, isolation, broker.on_unexpected_error)
    is_enough = found.bytes_read >= request.bytes_min or found.has_error
    if is_enough or request.wait_ms_max <= 0 or not wanted:
        _reply(context, choice, wanted, found)
        return

    def finish(later: ReadSet) -> None:
        context.session.remove_delayed(delayed)
        _reply(context, choice, wanted, later)

    delayed = DelayedFetch(broker, wanted, request.bytes_min, bytes_max, isolation, finish)
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
        error = error_code_of(failure)
        if error[0] is ErrorCode.UNKNOWN_SERVER_ERROR:
            context.broker.on_unexpected_error(failure)
    return WantedPartition(
        name, topic_id, want.partition, want.fetch_offset, want.bytes_max, want.current_leader_epoch, partition, error
    )


def _reply(context: RequestContext, choice: SessionChoice, wanted: list[WantedPartition], found: ReadSet) -> None:
    session = choice.session
    topics: dict[tuple[str | None, bytes | None], list[FetchResult]] = {}
    for want, result in zip(wanted, found.results, strict=True):
        if session is None or _is_told(session, want, result) or not choice.is_incremental:
            topics.setdefault((want.topic, want.topic_id), []).append(result)
    results = [FetchTopicResult(name, topic_id, partitions) for (name, topic_id), partitions in topics.items()]
    session_id = session.id if session is not None else NO_SESSION
    context.reply_parts(encode_fetch_response(context.header.api_version, results, session_id=session_id))


def _is_told(session: FetchSession, want: WantedPartition, result: FetchResult) -> bool:
    key = (want.topic, want.topic_id, want.partition_index)
    known = session.partitions.get(key)
    if known is None:
        return True
    if result.records is not None:
        session.rotate(key)
    return known.take_news(result)


def _reply_error(context: RequestContext, code: ErrorCode) -> None:
    context.reply_parts(encode_fetch_response(context.header.api_version, [], error=code))


API = Api(key=ApiKey.FETCH, name="Fetch", versions=VERSIONS, handle=handle, decode=decode_fetch_request)
