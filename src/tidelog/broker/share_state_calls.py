"""The five calls of the share coordinator (KIP-932, APIs 83 to 87): what is decided, and how it is said on the wire.

A call is about one group in one partition. The broker that coordinates the key decides it on its own shard; any other broker
sends it over the listener between brokers. Both ways begin here, so that they cannot differ.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.coordinator.errors import CoordinatorError, CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.queues.records import SharePartitionKey
from tidelog.queues.share_coordinator import ShareCoordinator, ShareState, ShareStateSummary, ShareStateWrite
from tidelog.queues.states import StateBatch
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

Fields = Mapping[str, Any]


class StateApi(NamedTuple):
    """One of the five APIs. The functions see what is in the place of one partition in a request, or in a response."""

    key: ApiKey
    name: str
    versions: tuple[int, int]
    read_request: Callable[[SharePartitionKey, DecodedMessage], "StateCall"]
    response_fields: Callable[[Any], Fields]
    """Makes the fields of a response from what was decided."""
    read_response: Callable[[DecodedMessage], Any]
    """Makes what was decided from the response of another broker."""


class StateCall(NamedTuple):
    api: StateApi
    key: SharePartitionKey
    fields: Fields
    """The fields of the request that are the call's own."""
    decide: Callable[[ShareCoordinator], CoordinatorResult]


def request_fields(call: StateCall) -> dict[str, Any]:
    group_id, topic_id, index = call.key
    return {"group_id": group_id, "topics": [{"topic_id": topic_id, "partitions": [{"partition": index, **call.fields}]}]}


def read_reply(call: StateCall, reply: DecodedMessage) -> Any:
    """Return what the other broker has decided about the one partition of a request. Raises what it answered instead."""
    partitions = [partition for topic in reply.results for partition in topic.partitions]
    if len(partitions) != 1:
        raise CoordinatorNotAvailable(f"the share coordinator answered for {len(partitions)} partitions, and was asked for one")
    (partition,) = partitions
    code = ErrorCode(partition.error_code)
    if code is ErrorCode.NONE:
        return call.api.read_response(partition)
    message = partition.error_message or code.message
    unavailable = _UNAVAILABLE.get(code)
    raise ApiError(code, message) if unavailable is None else unavailable(message)


# What the coordinator's broker says about itself, and not about the state: the same call may succeed later, or elsewhere.
_UNAVAILABLE: dict[ErrorCode, type[CoordinatorError]] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: CoordinatorLoading,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: CoordinatorNotAvailable,
    ErrorCode.NOT_COORDINATOR: NotCoordinator,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: NotCoordinator,
    ErrorCode.NOT_ENOUGH_REPLICAS: CoordinatorNotAvailable,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: CoordinatorNotAvailable,
    ErrorCode.KAFKA_STORAGE_ERROR: CoordinatorNotAvailable,
}


def initialize_call(key: SharePartitionKey, state_epoch: int, start_offset: int) -> StateCall:
    fields = {"state_epoch": state_epoch, "start_offset": start_offset}
    return StateCall(INITIALIZE, key, fields, lambda machine: machine.initialize(key, state_epoch, start_offset))


def read_call(key: SharePartitionKey, leader_epoch: int) -> StateCall:
    return StateCall(READ, key, {"leader_epoch": leader_epoch}, lambda machine: machine.read(key, leader_epoch))


def write_call(key: SharePartitionKey, change: ShareStateWrite) -> StateCall:
    fields = {
        "state_epoch": change.state_epoch,
        "leader_epoch": change.leader_epoch,
        "start_offset": change.start_offset,
        "delivery_complete_count": change.delivery_complete_count,
        "state_batches": [batch._asdict() for batch in change.batches],
    }
    return StateCall(WRITE, key, fields, lambda machine: machine.write(key, change))


def delete_call(key: SharePartitionKey) -> StateCall:
    return StateCall(DELETE, key, {}, lambda machine: machine.delete(key))


def summary_call(key: SharePartitionKey) -> StateCall:
    return StateCall(SUMMARY, key, {"leader_epoch": -1}, lambda machine: CoordinatorResult(response=machine.summary(key)))


def _read_change(partition: DecodedMessage) -> ShareStateWrite:
    return ShareStateWrite(
        partition.state_epoch,
        partition.leader_epoch,
        partition.start_offset,
        partition.delivery_complete_count,
        _read_batches(partition.state_batches),
    )


def _read_state(partition: DecodedMessage) -> ShareState:
    return ShareState(partition.state_epoch, partition.start_offset, _read_batches(partition.state_batches))


def _state_fields(state: ShareState) -> Fields:
    batches = [batch._asdict() for batch in state.batches]
    return {"state_epoch": state.state_epoch, "start_offset": state.start_offset, "state_batches": batches}


def _read_summary(partition: DecodedMessage) -> ShareStateSummary:
    return ShareStateSummary(
        partition.state_epoch,
        partition.leader_epoch,
        partition.start_offset,
        partition.delivery_complete_count,
        partition.redelivered_count,
    )


def _read_batches(batches: tuple[DecodedMessage, ...]) -> tuple[StateBatch, ...]:
    return tuple([StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in batches])


def _no_fields(_: object) -> Fields:
    return {}


def _nothing(_: DecodedMessage) -> None:
    """The response says only that it is done."""


INITIALIZE = StateApi(
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    "InitializeShareGroupState",
    (0, 0),
    lambda key, partition: initialize_call(key, partition.state_epoch, partition.start_offset),
    _no_fields,
    _nothing,
)
READ = StateApi(
    ApiKey.READ_SHARE_GROUP_STATE,
    "ReadShareGroupState",
    (0, 0),
    lambda key, partition: read_call(key, partition.leader_epoch),
    _state_fields,
    _read_state,
)
WRITE = StateApi(
    ApiKey.WRITE_SHARE_GROUP_STATE,
    "WriteShareGroupState",
    (0, 1),
    lambda key, partition: write_call(key, _read_change(partition)),
    _no_fields,
    _nothing,
)
DELETE = StateApi(
    ApiKey.DELETE_SHARE_GROUP_STATE,
    "DeleteShareGroupState",
    (0, 0),
    lambda key, _: delete_call(key),
    _no_fields,
    _nothing,
)
SUMMARY = StateApi(
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    "ReadShareGroupStateSummary",
    (0, 1),
    lambda key, _: summary_call(key),
    ShareStateSummary._asdict,
    _read_summary,
)
STATE_APIS = (INITIALIZE, READ, WRITE, DELETE, SUMMARY)
