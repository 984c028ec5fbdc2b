"""AddOffsetsToTxn: a transaction is about to commit a group's offsets, so that group's partition is part of it."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.metadata.topics import TopicImage
from tidelog.transactions.machine import TransactionMachine
from tidelog.transactions.results import FENCED_SINCE_ADD_OFFSETS, error_for_version
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker = context.broker
    version = context.header.api_version

    def found(topic: TopicImage | None, error: Exception | None) -> None:
        if topic is None:
            context.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)))
            return
        partitions = len(topic.partitions)

        def add(machine: TransactionMachine) -> CoordinatorResult:
            return machine.add_offsets(
                request.transactional_id, request.producer_id, request.producer_epoch, request.group_id, partitions
            )

        broker.settling.write(request.transactional_id, add, lambda code: code, done)

    def done(code: ErrorCode | None, error: Exception | None) -> None:
        if code is None:
            context.fail(error or ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            shown = error_for_version(code, version, FENCED_SINCE_ADD_OFFSETS)
            context.reply_later(lambda: {"error_code": shown})

    broker.coordinators.groups.with_topic(found)


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


API = Api(key=ApiKey.ADD_OFFSETS_TO_TXN, name="AddOffsetsToTxn", versions=(0, 4), handle=handle, failure=_failure)
