"""FindCoordinator: returns the broker that coordinates a group or a transactional id. From version 4 on a request may have
several keys.

The first request creates the coordinator's topic. The answer waits for that, because clients that get COORDINATOR_NOT_AVAILABLE
retry only after a while.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.coordinators import CoordinatorType
from tidelog.controller.errors import ApiError
from tidelog.metadata.topics import TopicImage
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

BATCHED_SINCE = 4
SHARE_SINCE = 6
# 16 bytes in base64, without padding.
TOPIC_ID_LENGTH = 22
NO_NODE = {"node_id": -1, "host": "", "port": -1}
# Far more than a client needs in one request; each key costs a hash of its text.
KEYS_MAX = 10_000


def handle(context: RequestContext, request: DecodedMessage) -> None:
    keys: Sequence[str] = request.coordinator_keys if context.header.api_version >= BATCHED_SINCE else [request.key]
    if len(keys) > KEYS_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"the request names {len(keys)} keys, and at most {KEYS_MAX} are allowed")
    if request.key_type == CoordinatorType.SHARE:
        _check_share_keys(context, keys)
    service = context.broker.coordinators.find(request.key_type)
    if service is None:
        names = ", ".join(f"{kind.value} ({kind.name.lower()})" for kind in CoordinatorType)
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"coordinator type {request.key_type} is not supported; supported types are {names}"
        )

    def found(topic: TopicImage | None, error: Exception | None) -> None:
        if topic is None:
            context.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)))
        else:
            context.reply_later(lambda: _response(context, keys, lambda key: service.locate(topic, key).leader))

    service.with_topic(found)


def _check_share_keys(context: RequestContext, keys: Sequence[str]) -> None:
    """A key is group:topic id:partition, and the group may contain colons."""
    if context.header.api_version < SHARE_SINCE:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"the share coordinator is found by version {SHARE_SINCE} and later")
    for key in keys:
        group_id, _, rest = key.rpartition(":")[0].rpartition(":")
        index = key.rpartition(":")[2]
        if not group_id or len(rest) != TOPIC_ID_LENGTH or not index.isdecimal():
            raise ApiError(ErrorCode.INVALID_REQUEST, "the key of a share partition is group:topic id:partition")


def _response(context: RequestContext, keys: Sequence[str], leader_of: Callable[[str], int]) -> dict[str, Any]:
    if context.header.api_version < BATCHED_SINCE:
        return _node(context, leader_of(keys[0]))
    return {"coordinators": [{"key": key, **_node(context, leader_of(key))} for key in keys]}


def _node(context: RequestContext, node_id: int) -> dict[str, Any]:
    broker = context.broker.image.brokers.find(node_id)
    if broker is None or not broker.is_active:
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, **NO_NODE}
    endpoint = broker.endpoint(context.session.listener.name)
    if endpoint is None:
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, **NO_NODE}
    return {"error_code": ErrorCode.NONE, "node_id": node_id, "host": endpoint.host, "port": endpoint.port}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    failed = {"error_code": code, "error_message": message, **NO_NODE}
    return {**failed, "coordinators": [{"key": key, **failed} for key in request.coordinator_keys or ()]}


API = Api(key=ApiKey.FIND_COORDINATOR, name="FindCoordinator", versions=(0, 6), handle=handle, failure=_failure)
