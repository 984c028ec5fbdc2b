"""OffsetDelete: deletes a group's positions in topics that no member of the group subscribes to."""

from collections.abc import Sequence
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    topics = [(topic.name, [each.partition_index for each in topic.partitions]) for topic in request.topics]

    def done(results: Sequence[tuple[str, Sequence[tuple[int, ErrorCode]]]], error: Exception | None) -> None:
        if error is not None:
            context.fail(error)
        else:
            context.reply_later(lambda: {"topics": [_topic(name, codes) for name, codes in results]})

    context.broker.coordinators.groups.write(
        request.group_id, lambda machine: machine.offsets.delete(request.group_id, topics), done
    )


def _topic(name: str, codes: Sequence[tuple[int, ErrorCode]]) -> dict[str, Any]:
    return {"name": name, "partitions": [{"partition_index": partition, "error_code": code} for partition, code in codes]}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for either
    return {"error_code": code}


API = Api(key=ApiKey.OFFSET_DELETE, name="OffsetDelete", versions=(0, 0), handle=handle, failure=_failure)
