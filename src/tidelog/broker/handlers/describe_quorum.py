"""DescribeQuorum: returns the leader of the metadata log and how far each voter has replicated it. There is one voter."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

# This stands for a voter that is known by its id alone, without a directory (kraft.version 0).
NO_DIRECTORY_ID = bytes(16)


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
    context.reply({"error_code": ErrorCode.NONE, "error_message": "", "topics": [topic], "nodes": [_node_fields(context)]})


def _partition_fields(context: RequestContext) -> dict[str, Any]:
    broker = context.broker
    log = broker.directory.logs[METADATA_TOPIC, 0]
    now_ms = broker.clock.now_ms()
    voter = {
        "replica_id": broker.config.node_id,
        "replica_directory_id": NO_DIRECTORY_ID,
        "log_end_offset": log.log_end_offset,
        # The leader is always caught up with itself.
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    return {
        "partition_index": 0,
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "leader_id": broker.config.node_id,
        "leader_epoch": broker.quorum.epoch,
        "high_watermark": log.high_watermark,
        "current_voters": [voter],
        "observers": [],
    }


def _node_fields(context: RequestContext) -> dict[str, Any]:
    """The voter's address is the broker's own: one process is both, behind one listener."""
    broker = context.broker
    registered = broker.image.brokers.find(broker.config.node_id)
    endpoints = registered.end_points if registered is not None else ()
    listeners = [{"name": endpoint.name, "host": endpoint.host, "port": endpoint.port} for endpoint in endpoints]
    return {"node_id": broker.config.node_id, "listeners": listeners}


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


API = Api(key=ApiKey.DESCRIBE_QUORUM, name="DescribeQuorum", versions=(0, 2), handle=handle, failure=_failure)
