"""TxnOffsetCommit: commits a group's positions as part of a transaction. They take effect when it commits, and never if it
aborts.

The partition that holds them must be part of the transaction: up to version 4 AddOffsetsToTxn has added it, from version 5 on it
is added here.
"""

from collections.abc import Sequence
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.transactions.client_errors import client_kind
from tidelog.broker.transactions.verification import PartitionCodes
from tidelog.controller.errors import ApiError
from tidelog.coordinator.errors import DecisionTooLarge
from tidelog.transactions.coordinator import TransactionPartitions, offsets_partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.offset_commit import (
    NO_RETENTION_TIME_MS,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetCommitTopicResult,
)
from tidelog.wire.protocol import ApiKey

ABORTABLE_SINCE = 4
VERSION_2_SINCE = 5
# The version of OffsetCommit whose member checks apply.
OFFSET_COMMIT_VERSION = 9
# The codes of that version about groups and members, for clients that only know generations.
_CODES = {
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH: ErrorCode.ILLEGAL_GENERATION,
}


def handle(context: RequestContext, request: DecodedMessage) -> None:
    groups = context.broker.coordinators.groups
    topic = groups.topic
    if topic is None:
        raise ApiError(ErrorCode.NOT_COORDINATOR, "the group coordinator's topic does not exist yet: call FindCoordinator first")
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id must not be empty")
    partition = offsets_partition(request.group_id, len(topic.partitions))
    producer = request.producer_id, request.producer_epoch

    def verified(codes: PartitionCodes) -> None:
        code = codes[partition]
        if code is ErrorCode.NOT_ENOUGH_REPLICAS:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # Clients of a group retry after this code.
        if code is not ErrorCode.NONE:
            context.fail(ApiError(code))
            return
        groups.write(
            request.group_id,
            lambda machine: machine.offsets.commit(_commit(request), OFFSET_COMMIT_VERSION, is_transactional=True),
            done,
            producer,
        )

    def done(results: Sequence[OffsetCommitTopicResult] | None, error: Exception | None) -> None:
        if isinstance(error, DecisionTooLarge):
            error = ApiError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, str(error))
        if results is None:
            context.fail(error or ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            context.reply_later(lambda: {"topics": [_topic_fields(result) for result in results]})

    version = context.header.api_version
    client = client_kind(version, abortable_since=ABORTABLE_SINCE, version_2_since=VERSION_2_SINCE)
    partitions = TransactionPartitions(request.transactional_id, *producer, [partition])
    context.broker.transaction_verification.verify(partitions, client, verified)


def _commit(request: DecodedMessage) -> OffsetCommitRequest:
    topics = [
        OffsetCommitTopic(
            topic.name,
            None,
            [
                OffsetCommitPartition(
                    each.partition_index, each.committed_offset, each.committed_leader_epoch, each.committed_metadata
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return OffsetCommitRequest(
        request.group_id, request.generation_id, request.member_id, request.group_instance_id, NO_RETENTION_TIME_MS, topics
    )


def _topic_fields(result: OffsetCommitTopicResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "partitions": [
            {"partition_index": partition, "error_code": _CODES.get(code, code)} for partition, code in result.partitions
        ],
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [{"partition_index": each.partition_index, "error_code": code} for each in topic.partitions],
            }
            for topic in request.topics
        ]
    }


API = Api(key=ApiKey.TXN_OFFSET_COMMIT, name="TxnOffsetCommit", versions=(0, 5), handle=handle, failure=_failure)
