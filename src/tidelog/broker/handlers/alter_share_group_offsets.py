"""AlterShareGroupOffsets: sets where an empty share group goes on. What it knew about the records after that is forgotten.

The group first takes a new epoch, from which on leaders with an older state are fenced. Then each state starts over with it.
"""

from typing import Any

from tidelog.broker.api import Api, RequestContext, ResultCollector
from tidelog.broker.share_requests import check_share_groups_enabled
from tidelog.controller.errors import ApiError
from tidelog.groups.share.group import TopicState
from tidelog.metadata.topics import TopicImage
from tidelog.queues.records import SharePartitionKey
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    check_share_groups_enabled(context.broker)
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
    _Alteration(context, request).start()


class _Alteration:
    __slots__ = ("_context", "_request", "_results", "_topics", "_wanted")

    def __init__(self, context: RequestContext, request: DecodedMessage) -> None:
        self._context = context
        self._request = request
        image = context.broker.image
        self._topics: dict[str, TopicImage | None] = {topic.topic_name: image.topic(topic.topic_name) for topic in request.topics}
        # The offsets of the partitions that exist.
        self._wanted: dict[SharePartitionKey, int] = {}
        self._results: dict[tuple[str, int], tuple[ErrorCode, str | None]] = {}
        for topic in request.topics:
            found = self._topics[topic.topic_name]
            for partition in topic.partitions:
                index = partition.partition_index
                if found is None or index not in found.partitions:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    self._results[topic.topic_name, index] = code, code.message
                else:
                    self._wanted[SharePartitionKey(request.group_id, found.topic_id, index)] = partition.start_offset

    def start(self) -> None:
        group_id = self._request.group_id
        groups = self._context.broker.coordinators.groups
        topics = self._states()
        groups.write(group_id, lambda machine: machine.share.begin_alteration(group_id, topics), self._begun)

    def _states(self) -> dict[bytes, TopicState]:
        image = self._context.broker.image
        indexes: dict[bytes, list[int]] = {}
        for key in self._wanted:
            indexes.setdefault(key.topic_id, []).append(key.partition)
        found = {topic_id: image.topic_by_id(topic_id) for topic_id in indexes}
        return {
            topic_id: TopicState(topic.name, tuple(sorted(indexes[topic_id])))
            for topic_id, topic in found.items()
            if topic is not None
        }

    def _begun(self, state_epoch: int | None, error: Exception | None) -> None:
        if state_epoch is None or error is not None:
            self._context.fail(error or AssertionError("a decision has a response"))
            return
        keys = list(self._wanted)
        gather = ResultCollector(len(keys), lambda _: self._altered())
        states = self._context.broker.coordinators.share_states
        for position, key in enumerate(keys):

            def done(_: Any, error: Exception | None, position: int = position, key: SharePartitionKey = key) -> None:
                if error is not None:
                    topic = self._context.broker.image.topic_by_id(key.topic_id)
                    self._wanted.pop(key)
                    self._results[topic.name if topic is not None else "", key.partition] = self._context.code_of(error)
                gather.put(position, None)

            states.initialize(key, state_epoch, self._wanted[key], done)

    def _altered(self) -> None:
        group_id = self._request.group_id
        groups = self._context.broker.coordinators.groups
        topics = self._states()
        groups.write(group_id, lambda machine: machine.share.states_initialized(group_id, topics), self._noted)

    def _noted(self, _: Any, error: Exception | None) -> None:
        if error is not None:
            self._context.fail(error)
        else:
            self._context.reply_later(self._response)

    def _response(self) -> dict[str, Any]:
        topics = []
        for topic in self._request.topics:
            found = self._topics[topic.topic_name]
            partitions = []
            for partition in topic.partitions:
                code, message = self._results.get((topic.topic_name, partition.partition_index), (ErrorCode.NONE, None))
                partitions.append({"partition_index": partition.partition_index, "error_code": code, "error_message": message})
            topic_id = ZERO_UUID if found is None else found.topic_id
            topics.append({"topic_name": topic.topic_name, "topic_id": topic_id, "partitions": partitions})
        return {"error_code": ErrorCode.NONE, "responses": topics}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - for the whole request
    return {"error_code": code, "error_message": message, "responses": ()}


API = Api(
    key=ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    name="AlterShareGroupOffsets",
    versions=(0, 0),
    handle=handle,
    failure=_failure,
)
