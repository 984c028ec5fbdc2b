"""DescribeShareGroupOffsets: where share groups are in their partitions, and how many records they have left (KIP-1226).

The lag is the end of the partition, less the start offset, less the records after it that are settled already. It is -1 where
this broker does not lead the partition, or nobody has counted.
"""

from collections.abc import Sequence
from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext, ResultCollector
from tidelog.broker.share_requests import check_share_groups_enabled
from tidelog.groups.share.group import TopicStates
from tidelog.ports.steps import Steps
from tidelog.queues.records import UNKNOWN_COUNT, SharePartitionKey
from tidelog.queues.share_coordinator import UNINITIALIZED_OFFSET, ShareStateSummary
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey

UNKNOWN_LAG = -1


def handle(context: RequestContext, request: DecodedMessage) -> None:
    check_share_groups_enabled(context.broker)
    groups = list(request.groups)
    gather = ResultCollector(
        len(groups), lambda described: context.continue_in_slices(context.reply_in_slices({"groups": described}))
    )
    for position, group in enumerate(groups):
        _Description(context, group, gather, position).start()


class _Description:
    """The description of one group."""

    __slots__ = ("_context", "_gather", "_group", "_position", "_topics")

    def __init__(self, context: RequestContext, group: DecodedMessage, gather: ResultCollector, position: int) -> None:
        self._context = context
        self._group = group
        self._gather = gather
        self._position = position
        self._topics: list[tuple[str, bytes, Sequence[int]]] = []

    def start(self) -> None:
        group_id = self._group.group_id
        groups = self._context.broker.coordinators.groups
        groups.read(group_id, lambda machine: machine.share.states_of(group_id), self._found)

    def _found(self, states: TopicStates | None, error: Exception | None) -> None:
        if states is None or error is not None:
            code, message = self._context.code_of(error or AssertionError("a query has a response"))
            self._put({"group_id": self._group.group_id, "topics": (), "error_code": code, "error_message": message})
            return
        image = self._context.broker.image
        if self._group.topics is None:
            self._topics = [(name, topic_id, partitions) for topic_id, (name, partitions) in states.items()]
        else:
            for wanted in self._group.topics:
                topic = image.topic(wanted.topic_name)
                self._topics.append((wanted.topic_name, ZERO_UUID if topic is None else topic.topic_id, wanted.partitions))
        self._context.continue_in_slices(self._ask_all())

    def _ask_all(self) -> Steps[None]:
        places = [(topic_id, index) for _, topic_id, indexes in self._topics for index in indexes]
        inner = ResultCollector(len(places), self._summarized)
        pace = Pace()
        for place, (topic_id, index) in enumerate(places):
            self._ask(inner, place, topic_id, index)
            if pace.is_pause_due():
                yield

    def _ask(self, inner: ResultCollector, place: int, topic_id: bytes, index: int) -> None:
        if topic_id == ZERO_UUID:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            inner.put(place, _partition(index, error_code=code, error_message=code.message))
            return

        def done(summary: ShareStateSummary | None, error: Exception | None) -> None:
            if summary is None or error is not None:
                code, message = self._context.code_of(error or AssertionError("a query has a response"))
                inner.put(place, _partition(index, error_code=code, error_message=message))
            else:
                inner.put(place, self._described(topic_id, index, summary))

        states = self._context.broker.coordinators.share_states
        if states.service.topic is None:
            done(ShareStateSummary(), None)
        else:
            states.summary(SharePartitionKey(self._group.group_id, topic_id, index), done)

    def _described(self, topic_id: bytes, index: int, summary: ShareStateSummary) -> dict[str, Any]:
        start_offset = summary.start_offset
        if start_offset == UNINITIALIZED_OFFSET:
            return _partition(index, leader_epoch=summary.leader_epoch)
        lag = UNKNOWN_LAG
        try:
            end_offset = self._context.broker.partitions.find(None, topic_id, index).log.high_watermark
        except Exception as error:
            self._context.code_of(error)
        else:
            if summary.delivery_complete_count != UNKNOWN_COUNT:
                lag = max(0, end_offset - start_offset - summary.delivery_complete_count)
        return _partition(index, start_offset=start_offset, leader_epoch=summary.leader_epoch, lag=lag)

    def _summarized(self, partitions: Sequence[dict[str, Any]]) -> None:
        described = iter(partitions)
        topics = [
            {"topic_name": name, "topic_id": topic_id, "partitions": [next(described) for _ in indexes]}
            for name, topic_id, indexes in self._topics
        ]
        self._put({"group_id": self._group.group_id, "topics": topics, "error_code": ErrorCode.NONE})

    def _put(self, fields: dict[str, Any]) -> None:
        self._gather.put(self._position, fields)


def _partition(index: int, **fields: Any) -> dict[str, Any]:
    nothing = {"start_offset": UNINITIALIZED_OFFSET, "leader_epoch": 0, "lag": UNKNOWN_LAG, "error_code": ErrorCode.NONE}
    return {"partition_index": index, **nothing, **fields}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    groups = [
        {"group_id": group.group_id, "topics": (), "error_code": code, "error_message": message} for group in request.groups
    ]
    return {"groups": groups}


API = Api(
    key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    name="DescribeShareGroupOffsets",
    versions=(0, 1),
    handle=handle,
    failure=_failure,
)
