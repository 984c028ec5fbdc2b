"""Fields that the responses of several APIs share: brokers, partitions, permissions, changed settings, and leaders.

A hint about the current leader comes with an error (KIP-951), so that a client need not fetch metadata first.
"""

from collections.abc import Collection
from typing import Any

from tidelog.controller.configs import ResourceAlteration
from tidelog.metadata.brokers import BrokerImage
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER
from tidelog.metadata.topics import PartitionImage
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.produce import NodeEndpoint

# Bit n stands for the operation with Kafka's number n. Without an authorizer everybody may do everything.
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (
    1 << number for number in range(3, 13)
)
_COMMON_OPERATIONS = _CREATE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
TOPIC_OPERATIONS = _COMMON_OPERATIONS | _READ | _WRITE | _DELETE
GROUP_OPERATIONS = _READ | _DELETE | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
CLUSTER_OPERATIONS = _COMMON_OPERATIONS | _CLUSTER_ACTION | _IDEMPOTENT_WRITE
# The value of the field when the client did not ask for it.
OPERATIONS_NOT_ASKED_FOR = -(2**31)


def broker_addresses(image: ClusterImage, listener: str, with_fenced: bool = False) -> list[tuple[BrokerImage, dict[str, Any]]]:
    """Return the brokers that are not fenced and their addresses on the listener of this name. A broker without it cannot be
    reached from there, and is left out as in Kafka."""
    return [
        (broker, {"host": endpoint.host, "port": endpoint.port, "rack": broker.rack})
        for broker in sorted(image.brokers, key=lambda broker: broker.broker_id)
        if (not broker.fenced or with_fenced) and (endpoint := broker.endpoint(listener)) is not None
    ]


def named_controller(image: ClusterImage, listener: str, leader_id: int) -> int:
    """The broker that clients are told to send changes to: the active controller if it is among the brokers that they know, else
    any of those, because every broker forwards such requests. -1 if there is none."""
    known = [broker.broker_id for broker, _ in broker_addresses(image, listener)]
    return leader_id if leader_id in known else next(iter(known), -1)


def partition_fields(
    image: ClusterImage, index: int, partition: PartitionImage, lost_leaders: Collection[int] = ()
) -> dict[str, Any]:
    """``lost_leaders`` are brokers that are probably gone, although the metadata does not say so yet."""
    # A broker that has just started again may still be fenced, and is not among the brokers of the answer.
    leader = image.brokers.find(partition.leader)
    has_leader = leader is not None and not leader.fenced and leader.broker_id not in lost_leaders
    return {
        "error_code": ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": index,
        "leader_id": partition.leader if has_leader else NO_LEADER,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [replica for replica in partition.replicas if not image.brokers.is_active(replica)],
    }


def altered_fields(altered: list[ResourceAlteration]) -> dict[str, Any]:
    return {
        "responses": [
            {
                "error_code": resource.error,
                "error_message": resource.message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
            for resource in altered
        ]
    }


def alteration_failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    resources = dict.fromkeys((resource.resource_type, resource.resource_name) for resource in request.resources)
    return altered_fields([ResourceAlteration(*resource, code, message) for resource in resources])


HINTED_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def current_leader(image: ClusterImage, name: str | None, topic_id: bytes | None, index: int) -> tuple[int, int] | None:
    """Return (leader, leader epoch)."""
    topic = image.topic(name) if name is not None else image.topic_by_id(topic_id or b"")
    partition = topic.partitions.get(index) if topic is not None else None
    return (partition.leader, partition.leader_epoch) if partition is not None else None


def leader_endpoints(image: ClusterImage, leaders: set[int], listener: str) -> list[NodeEndpoint]:
    """The addresses of leaders on the listener of this name."""
    brokers = (image.brokers.find(leader) for leader in sorted(leaders))
    return [
        NodeEndpoint(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
        for broker in brokers
        if broker is not None and (endpoint := broker.endpoint(listener)) is not None
    ]
