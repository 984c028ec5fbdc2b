"""BrokerHeartbeat: a broker is alive, how far it has followed the metadata, and whether it wants to stop (KIP-631).

The session is renewed when the heartbeat arrives. A heartbeat that changes nothing is answered at once, also while decisions
wait.
"""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.config.listeners import ListenerRole
from tidelog.controller.brokers import BrokerHeartbeat, HeartbeatResult, changes_nothing, find_broker, process_heartbeat
from tidelog.raft.errors import NotQuorumLeader
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker = context.broker
    if not broker.controller.is_active:
        # Only the active controller knows who is alive. A broker that another node reassures would not look for the active one.
        context.ask_elsewhere(NotQuorumLeader(f"node {broker.config.node_id} is not the active controller"))
        return
    heartbeat = BrokerHeartbeat(
        request.broker_id,
        request.broker_epoch,
        request.current_metadata_offset,
        request.want_fence,
        request.want_shut_down,
    )
    find_broker(broker.image, heartbeat.broker_id, heartbeat.broker_epoch)
    broker.controller.heard_of(heartbeat.broker_id, heartbeat.broker_epoch, context.session)
    if changes_nothing(broker.image, heartbeat):
        context.reply(_response(HeartbeatResult(is_caught_up=True, is_fenced=False, should_shut_down=False)))
    else:
        context.decide(lambda image: process_heartbeat(image, broker.settings, heartbeat), _response)


def _response(result: HeartbeatResult) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "is_caught_up": result.is_caught_up,
        "is_fenced": result.is_fenced,
        "should_shut_down": result.should_shut_down,
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code, "is_caught_up": False, "is_fenced": True, "should_shut_down": False}


API = Api(
    key=ApiKey.BROKER_HEARTBEAT,
    name="BrokerHeartbeat",
    versions=(0, 1),
    handle=handle,
    failure=_failure,
    listeners=frozenset((ListenerRole.CONTROLLER,)),
    is_forwarded=True,
)
