"""AssignReplicasToDirs: a broker says in which of its directories replicas are, or that they are lost (KIP-858)."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.config.listeners import ListenerRole
from tidelog.controller.replica_directories import ReplicaDirectory, ReplicaDirectoryResult, assign_replicas
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    assignments = [
        ReplicaDirectory(directory.id_, topic.topic_id, partition.partition_index)
        for directory in request.directories
        for topic in directory.topics
        for partition in topic.partitions
    ]
    rules = context.broker.settings
    context.decide(lambda image: assign_replicas(image, rules, request.broker_id, request.broker_epoch, assignments), _response)


def _response(results: list[ReplicaDirectoryResult]) -> dict[str, Any]:
    directories: dict[bytes, dict[bytes, list[dict[str, Any]]]] = {}
    for result in results:
        wanted = result.wanted
        fields = {"partition_index": wanted.partition, "error_code": result.error}
        directories.setdefault(wanted.directory, {}).setdefault(wanted.topic_id, []).append(fields)
    return {
        "error_code": ErrorCode.NONE,
        "directories": [
            {
                "id_": directory,
                "topics": [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()],
            }
            for directory, topics in directories.items()
        ],
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code, "directories": []}


API = Api(
    key=ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    name="AssignReplicasToDirs",
    versions=(0, 0),
    handle=handle,
    failure=_failure,
    listeners=frozenset((ListenerRole.CONTROLLER,)),
    is_forwarded=True,
)
