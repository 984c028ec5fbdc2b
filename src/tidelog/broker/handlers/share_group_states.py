"""The share coordinator's interface to other brokers (APIs 83 to 87): begin, read, write, delete and summarize the states of
share partitions. It is served on the listener between brokers only: a client could otherwise settle what others hold.

Each partition is decided by itself, on a shard of this broker; one whose shard is led elsewhere is refused, and never passed on.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext, ResultCollector
from tidelog.broker.share_requests import check_share_groups_enabled
from tidelog.broker.share_state_calls import STATE_APIS, StateApi
from tidelog.config.listeners import ListenerRole
from tidelog.coordinator.machine import OnDone
from tidelog.ports.steps import Steps
from tidelog.queues.records import SharePartitionKey
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage


def handle(api: StateApi, context: RequestContext, request: DecodedMessage) -> Steps[None]:
    check_share_groups_enabled(context.broker)
    asked = [(topic.topic_id, partition) for topic in request.topics for partition in topic.partitions]
    gather = ResultCollector(len(asked), lambda results: context.continue_in_slices(_reply(context, request, results)))
    states, pace = context.broker.coordinators.share_states, Pace()
    for position, (topic_id, partition) in enumerate(asked):
        key = SharePartitionKey(request.group_id, topic_id, partition.partition)
        states.ask_here(api.read_request(key, partition), _putter(context, api, gather, position, key.partition))
        if pace.is_pause_due():
            yield


def _putter(context: RequestContext, api: StateApi, gather: ResultCollector, position: int, index: int) -> OnDone:
    def decided(result: Any, error: Exception | None) -> None:
        if error is not None:
            code, message = context.code_of(error)
            gather.put(position, {"partition": index, "error_code": code, "error_message": message})
        else:
            gather.put(position, {"partition": index, "error_code": ErrorCode.NONE, **api.response_fields(result)})

    return decided


def _reply(context: RequestContext, request: DecodedMessage, results: Sequence[dict[str, Any]]) -> Steps[None]:
    yield from context.reply_in_slices(_response(request, results))


def _response(request: DecodedMessage, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rest = iter(results)
    topics = [{"topic_id": topic.topic_id, "partitions": [next(rest) for _ in topic.partitions]} for topic in request.topics]
    return {"results": topics}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    failed = [
        {"partition": partition.partition, "error_code": code, "error_message": message}
        for topic in request.topics
        for partition in topic.partitions
    ]
    return _response(request, failed)


APIS = tuple(
    Api(
        key=api.key,
        name=api.name,
        versions=api.versions,
        handle=partial(handle, api),
        failure=_failure,
        listeners=frozenset((ListenerRole.INTER_BROKER,)),
    )
    for api in STATE_APIS
)
