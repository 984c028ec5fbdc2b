"""ShareGroupHeartbeat (KIP-932): joins a share group, stays in it, changes a subscription, leaves.

A heartbeat may find partitions for which the share coordinator keeps no state yet. They are initialized before it is answered,
and the answer has the assignment that follows. Other members hear of it with their next heartbeats.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.share_requests import check_share_groups_enabled
from tidelog.coordinator.machine import OnDone
from tidelog.groups.share.group import TopicState
from tidelog.groups.share.protocol import ShareHeartbeatRequest, ShareHeartbeatResponse, StateInitialization
from tidelog.queues.records import SharePartitionKey
from tidelog.queues.share_coordinator import UNINITIALIZED_OFFSET
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker = context.broker
    check_share_groups_enabled(broker)
    heartbeat = ShareHeartbeatRequest(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.rack_id,
        request.subscribed_topic_names,
        context.header.client_id or "",
        f"/{context.session.client_host}",
    )

    groups = broker.coordinators.groups

    def done(response: ShareHeartbeatResponse | None, error: Exception | None) -> None:
        if response is None or error is not None:
            context.fail(error or AssertionError("a decision has a response"))
        elif response.initialization is not None:
            # With the assignment that is possible then, a member need not wait for its next heartbeat.
            again = heartbeat._replace(member_epoch=response.member_epoch)
            _Initialization(broker, response.initialization, lambda: beat(again, partial(done_again, response))).start()
        else:
            context.reply_later(lambda: _fields(response))

    def done_again(first: ShareHeartbeatResponse, second: ShareHeartbeatResponse | None, error: Exception | None) -> None:
        context.reply_later(lambda: _fields(first if second is None or error is not None else second))

    def beat(request: ShareHeartbeatRequest, on_done: OnDone) -> None:
        groups.write(request.group_id, lambda machine: machine.share.heartbeat(request), on_done)

    beat(heartbeat, done)


class _Initialization:
    """Begins the states of some partitions, and tells the group when it has begun all that it can."""

    __slots__ = ("_broker", "_done", "_missing", "_on_noted", "_wanted")

    def __init__(self, broker: "BrokerNode", wanted: StateInitialization, on_noted: Callable[[], None]) -> None:
        self._broker = broker
        self._wanted = wanted
        self._on_noted = on_noted
        self._done: dict[bytes, list[int]] = {}
        self._missing = sum(len(state.partitions) for state in wanted.topics.values())

    def start(self) -> None:
        group_id, state_epoch, topics = self._wanted
        states = self._broker.coordinators.share_states
        for topic_id, state in topics.items():
            for index in state.partitions:
                key = SharePartitionKey(group_id, topic_id, index)
                states.initialize(key, state_epoch, UNINITIALIZED_OFFSET, partial(self._initialized, key))

    def _initialized(self, key: SharePartitionKey, _: object, error: Exception | None) -> None:
        self._missing -= 1
        # What failed is begun again with a later heartbeat.
        if error is None:
            self._done.setdefault(key.topic_id, []).append(key.partition)
        if self._missing:
            return
        group_id, _, topics = self._wanted
        done = {topic_id: TopicState(topics[topic_id].name, tuple(sorted(each))) for topic_id, each in self._done.items()}
        groups = self._broker.coordinators.groups
        # If the group does not hear of it, a later heartbeat begins the states again, which changes nothing.
        groups.write(group_id, lambda machine: machine.share.states_initialized(group_id, done), lambda *_: self._on_noted())


def _fields(response: ShareHeartbeatResponse) -> dict[str, Any]:
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


API = Api(key=ApiKey.SHARE_GROUP_HEARTBEAT, name="ShareGroupHeartbeat", versions=(1, 1), handle=handle)
