"""OffsetFetch: the positions that groups have committed; of one group until version 7, of several from 8 on.

Each group is answered by its own shard, and one that cannot be had fails alone. Where an error goes depends on the version: to
the group from 8 on, to the response from 2 on, and before that to every partition that was asked for.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.gather import Gather
from tidelog.controller.errors import ApiError
from tidelog.groups.machine import GroupMachine
from tidelog.groups.offsets import FetchedOffset, FetchedTopic
from tidelog.wire.errors import ErrorCode
from tidelog.wire.kio_adapter import Message
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey

TOP_LEVEL_ERRORS_SINCE = 2
BATCHED_SINCE = 8
TOPIC_IDS_SINCE = 10
# Far beyond what a client asks for at once; each is a read of its own.
GROUPS_MAX = 10_000


def handle(context: RequestContext, request: Message) -> None:
    is_batched = context.header.api_version >= BATCHED_SINCE
    groups: Sequence[Message] = request.groups if is_batched else [request]
    if len(groups) > GROUPS_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{len(groups)} groups in one request, at most {GROUPS_MAX}")
    _Fetch(context, request.require_stable).start(groups)


class _Fetch:
    """One request."""

    __slots__ = ("_context", "_require_stable", "_version")

    def __init__(self, context: RequestContext, require_stable: bool) -> None:
        self._context = context
        self._version = context.header.api_version
        self._require_stable = require_stable

    def start(self, groups: Sequence[Message]) -> None:
        gather = Gather(len(groups), self._reply)
        for index, group in enumerate(groups):
            self._read(group, partial(gather.put, index))

    def _read(self, group: Message, answer: Callable[[dict[str, Any]], None]) -> None:
        wanted = self._wanted(group)

        def query(machine: GroupMachine) -> list[FetchedTopic]:
            has_member = self._version >= BATCHED_SINCE
            return machine.offsets.fetch(
                group.group_id,
                None if wanted is None else [(name, partitions) for name, _, partitions in wanted if name is not None],
                member_id=group.member_id if has_member else None,
                member_epoch=group.member_epoch if has_member else -1,
                require_stable=self._require_stable,
            )

        def done(fetched: list[FetchedTopic], error: Exception | None) -> None:
            if error is not None:
                code, _ = self._context.code_of(error)
                answer(_failed(group, code, self._version))
            else:
                answer({"group_id": group.group_id, "topics": self._topics(wanted, fetched)})

        self._context.broker.coordinators.groups.read(group.group_id, query, done)

    def _wanted(self, group: Message) -> list[tuple[str | None, bytes, Sequence[int]]] | None:
        """(name, id, partitions) of the topics asked for; the name is None where no topic has the id. None: all topics."""
        if group.topics is None:
            return None
        if self._version < TOPIC_IDS_SINCE:
            return [(topic.name, ZERO_UUID, topic.partition_indexes) for topic in group.topics]
        image = self._context.broker.image
        found = [(image.topic_by_id(topic.topic_id), topic) for topic in group.topics]
        return [(None if known is None else known.name, topic.topic_id, topic.partition_indexes) for known, topic in found]

    def _topics(
        self, wanted: list[tuple[str | None, bytes, Sequence[int]]] | None, fetched: list[FetchedTopic]
    ) -> list[dict[str, Any]]:
        if wanted is None:
            # A topic that has no id cannot be told of by its id.
            is_speakable = self._version < TOPIC_IDS_SINCE
            return [
                _topic(topic.name, topic.topic_id, topic.partitions) for topic in fetched if is_speakable or any(topic.topic_id)
            ]
        known = iter(fetched)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        return [
            _topic(name, topic_id, next(known).partitions)
            if name is not None
            else _topic(name, topic_id, [FetchedOffset(partition, error=unknown) for partition in partitions])
            for name, topic_id, partitions in wanted
        ]

    def _reply(self, answers: Sequence[dict[str, Any]]) -> None:
        self._context.reply_later(lambda: {"groups": answers} if self._version >= BATCHED_SINCE else answers[0])


def _topic(name: str | None, topic_id: bytes, partitions: Sequence[FetchedOffset]) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": topic_id,
        "partitions": [
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": leader_epoch,
                "metadata": metadata,
                "error_code": error,
            }
            for partition, offset, leader_epoch, metadata, error in partitions
        ],
    }


def _failed(group: Message, code: ErrorCode, version: int) -> dict[str, Any]:
    if version >= TOP_LEVEL_ERRORS_SINCE:
        return {"group_id": group.group_id, "error_code": code}
    topics = [
        _topic(topic.name, ZERO_UUID, [FetchedOffset(partition, error=code) for partition in topic.partition_indexes])
        for topic in group.topics
    ]
    return {"topics": topics}


def _failure(request: Message, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    groups = [{"group_id": group.group_id, "error_code": code} for group in request.groups or ()]
    topics = _failed(request, code, 0)["topics"] if request.topics else []
    return {"error_code": code, "topics": topics, "groups": groups}


API = Api(key=ApiKey.OFFSET_FETCH, name="OffsetFetch", versions=(1, 10), handle=handle, failure=_failure)
