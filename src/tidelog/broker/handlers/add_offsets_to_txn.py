"""AddOffsetsToTxn: a transaction is about to commit a group's offsets, so the partition that holds them becomes part of it."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.transactions.client_errors import coordinator_error
from tidelog.controller.errors import ApiError
from tidelog.metadata.topics import TopicImage
from tidelog.transactions.coordinator import TransactionPartitions, offsets_partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

FENCED_SINCE = 2


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker = context.broker
    version = context.header.api_version

    def found(topic: TopicImage | None, error: Exception | None) -> None:
        if topic is None:
            context.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)))
            return
        added = TransactionPartitions(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [offsets_partition(request.group_id, len(topic.partitions))],
        )
        broker.concurrent_transactions.write(
            request.transactional_id, lambda coordinator: coordinator.add_partitions(added), lambda code: code, done
        )

    def done(code: ErrorCode | None, error: Exception | None) -> None:
        if code is None:
            context.fail(error or ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            shown = coordinator_error(code, version, FENCED_SINCE)
            context.reply_later(lambda: {"error_code": shown})

    broker.coordinators.groups.with_topic(found)


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


API = Api(key=ApiKey.ADD_OFFSETS_TO_TXN, name="AddOffsetsToTxn", versions=(0, 4), handle=handle, failure=_failure)
