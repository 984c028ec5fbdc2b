"""AlterPartition: the leaders of partitions ask for other in-sync sets."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.config.listeners import ListenerRole
from tidelog.controller.in_sync_set import ANY_BROKER_EPOCH, InSyncChange, InSyncResult, alter_partitions
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

BROKER_EPOCHS_SINCE = 3


def handle(context: RequestContext, request: DecodedMessage) -> None:
    has_epochs = context.header.api_version >= BROKER_EPOCHS_SINCE
    changes = [
        InSyncChange(
            topic.topic_id,
            wanted.partition_index,
            wanted.leader_epoch,
            wanted.partition_epoch,
            tuple((member.broker_id, member.broker_epoch) for member in wanted.new_isr_with_epochs)
            if has_epochs
            else tuple((member, ANY_BROKER_EPOCH) for member in wanted.new_isr),
            wanted.leader_recovery_state,
        )
        for topic in request.topics
        for wanted in topic.partitions
    ]
    rules = context.broker.settings
    context.decide(lambda image: alter_partitions(image, rules, request.broker_id, request.broker_epoch, changes), _response)


def _response(results: list[InSyncResult]) -> dict[str, Any]:
    topics: dict[bytes, list[dict[str, Any]]] = {}
    for result in results:
        fields: dict[str, Any] = {"partition_index": result.partition, "error_code": result.error}
        state = result.state
        if state is not None:
            fields |= {
                "leader_id": state.leader,
                "leader_epoch": state.leader_epoch,
                "isr": state.isr,
                "leader_recovery_state": state.leader_recovery_state,
                "partition_epoch": state.partition_epoch,
            }
        topics.setdefault(result.topic_id, []).append(fields)
    return {
        "error_code": ErrorCode.NONE,
        "topics": [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()],
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code, "topics": []}


API = Api(
    key=ApiKey.ALTER_PARTITION,
    name="AlterPartition",
    versions=(2, 3),
    handle=handle,
    failure=_failure,
    listeners=frozenset((ListenerRole.CONTROLLER,)),
    is_forwarded=True,
)
