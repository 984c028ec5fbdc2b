"""DescribeQuorum: returns the leader of the metadata log, and how far each voter and each observer has replicated it.

Only the leader knows. Any other node refuses, as in Kafka.
"""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.broker.metadata_quorum import ReplicaStatus
from tidelog.controller.errors import ApiError
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    wanted = [(topic.topic_name, part.partition_index) for topic in request.topics for part in topic.partitions]
    if wanted != [(METADATA_TOPIC, 0)]:
        # As in Kafka, a request that also asks for another topic gets this error for everything that it asked for.
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        context.reply(_refusal(request, code, f"only {METADATA_TOPIC}-0 has a quorum"))
        return
    if not context.broker.quorum.is_leader:
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead the metadata quorum")
    topic = {"topic_name": METADATA_TOPIC, "partitions": [_partition_fields(context)]}
    context.reply({"error_code": ErrorCode.NONE, "error_message": "", "topics": [topic], "nodes": _nodes_fields(context)})


def _partition_fields(context: RequestContext) -> dict[str, Any]:
    status = context.broker.quorum.status()
    return {
        "partition_index": 0,
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "leader_id": status.leader_id,
        "leader_epoch": status.epoch,
        "high_watermark": status.high_watermark,
        "current_voters": [_replica_fields(replica) for replica in status.voters],
        "observers": [_replica_fields(replica) for replica in status.observers],
    }


def _replica_fields(replica: ReplicaStatus) -> dict[str, Any]:
    return {
        "replica_id": replica.key.node_id,
        "replica_directory_id": replica.key.directory_id,
        "log_end_offset": replica.log_end_offset,
        "last_fetch_timestamp": replica.last_fetch_ms,
        "last_caught_up_timestamp": replica.last_caught_up_ms,
    }


def _nodes_fields(context: RequestContext) -> list[dict[str, Any]]:
    """The listeners of the voters. A broker that is alone may have no listener for controllers: then its own stand for it."""
    broker = context.broker
    nodes = []
    for voter in broker.quorum.voters.voters:
        listeners = [{"name": each.listener, "host": each.host, "port": each.port} for each in voter.endpoints]
        registered = broker.image.brokers.find(voter.node_id) if not listeners else None
        if registered is not None:
            listeners = [{"name": each.name, "host": each.host, "port": each.port} for each in registered.end_points]
        nodes.append({"node_id": voter.node_id, "listeners": listeners})
    return nodes


def _refusal(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    topics = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                {
                    "partition_index": part.partition_index,
                    "error_code": code,
                    "error_message": message,
                    "leader_id": 0,
                    "leader_epoch": 0,
                    "high_watermark": 0,
                    "current_voters": [],
                    "observers": [],
                }
                for part in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return {"error_code": ErrorCode.NONE, "error_message": "", "topics": topics, "nodes": []}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the whole request failed
    return {"error_code": code, "error_message": message, "topics": [], "nodes": []}


API = Api(
    key=ApiKey.DESCRIBE_QUORUM,
    name="DescribeQuorum",
    versions=(0, 2),
    handle=handle,
    failure=_failure,
    listeners=ALL_LISTENERS,
    is_forwarded=True,
    is_repeatable=True,
)
