"""ConsumerGroupHeartbeat (KIP-848): joins a group, stays in it, changes a subscription, confirms revoked partitions, leaves."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.groups.consumer.requests import ConsumerHeartbeatRequest, ConsumerHeartbeatResponse
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    heartbeat = ConsumerHeartbeatRequest(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        request.subscribed_topic_names,
        request.subscribed_topic_regex,
        request.server_assignor,
        _owned(request.topic_partitions),
        context.header.client_id or "",
        f"/{context.session.client_host}",
        context.header.api_version,
    )

    def done(response: Any, error: Exception | None) -> None:
        if error is not None:
            context.fail(error)
        else:
            context.reply_later(lambda: _fields(response))

    context.broker.coordinators.groups.write(request.group_id, lambda machine: machine.consumer.heartbeat(heartbeat), done)


def _owned(topics: tuple[DecodedMessage, ...] | None) -> dict[bytes, frozenset[int]] | None:
    if topics is None:
        return None
    owned: dict[bytes, frozenset[int]] = {}
    for topic in topics:
        owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()).union(topic.partitions)
    return owned


def _fields(response: ConsumerHeartbeatResponse) -> dict[str, Any]:
    assignment = None
    if response.assignment is not None:
        topics = [{"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in sorted(response.assignment.items())]
        assignment = {"topic_partitions": topics}
    return {
        "error_code": ErrorCode.NONE,
        "member_id": response.member_id,
        "member_epoch": response.member_epoch,
        "heartbeat_interval_ms": response.heartbeat_interval_ms,
        "assignment": assignment,
    }


API = Api(key=ApiKey.CONSUMER_GROUP_HEARTBEAT, name="ConsumerGroupHeartbeat", versions=(0, 1), handle=handle)
