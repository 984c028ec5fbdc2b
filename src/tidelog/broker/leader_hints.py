"""Who leads a partition, told along with an error (KIP-951), so that a client need not ask for metadata first."""

from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import NodeEndpoint

HINTED_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def current_leader(image: ClusterImage, name: str | None, topic_id: bytes | None, index: int) -> tuple[int, int] | None:
    """(leader, leader epoch)."""
    topic = image.topic(name) if name is not None else image.topic_by_id(topic_id or b"")
    partition = topic.partitions.get(index) if topic is not None else None
    return (partition.leader, partition.leader_epoch) if partition is not None else None


def leader_endpoints(image: ClusterImage, leaders: set[int]) -> list[NodeEndpoint]:
    brokers = (image.brokers.find(leader) for leader in sorted(leaders))
    return [
        NodeEndpoint(broker.broker_id, broker.end_points[0].host, broker.end_points[0].port, broker.rack)
        for broker in brokers
        if broker is not None
    ]
