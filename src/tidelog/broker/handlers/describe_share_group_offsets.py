"""DescribeShareGroupOffsets: where share groups are in their partitions, and how many records they have left (KIP-1226).

The lag is the end of the partition, less the start offset, less the records after it that are settled already. The partition's
leader is asked for the end. The lag is -1 where that does not answer, or nobody has counted. Fields of our own
(``wire/own_fields``) say what else is known of each partition.

Another broker asks with a mark for what this one knows as a leader.
"""

from collections.abc import Sequence
from typing import Any

from tidelog.broker.api import Api, RequestContext, ResultCollector
from tidelog.broker.share_figures import (
    LeaderFigures,
    LeaderQuestion,
    ShareFigures,
    SharePlace,
    ask_share_figures,
    find_leader_figures,
)
from tidelog.broker.share_requests import check_share_groups_enabled
from tidelog.config.listeners import ListenerRole
from tidelog.groups.share.group import TopicStates
from tidelog.queues.records import UNKNOWN_COUNT
from tidelog.queues.share_coordinator import UNINITIALIZED_OFFSET
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.own_fields import UNKNOWN
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey

UNKNOWN_LAG = UNKNOWN


def handle(context: RequestContext, request: DecodedMessage) -> None:
    check_share_groups_enabled(context.broker)
    groups = list(request.groups)
    gather = ResultCollector(
        len(groups), lambda described: context.continue_in_slices(context.reply_in_slices({"groups": described}))
    )
    is_from_broker = context.session.listener.role is ListenerRole.INTER_BROKER
    for position, group in enumerate(groups):
        if group.is_for_leader and is_from_broker:
            _answer_as_leader(context, group, gather, position)
        else:
            _Description(context, group, gather, position).start()


def _answer_as_leader(context: RequestContext, group: DecodedMessage, gather: ResultCollector, position: int) -> None:
    topics = [] if group.topics is None else group.topics
    asked = [
        LeaderQuestion(topic.topic_name, index, start_offset)
        for topic in topics
        for index, start_offset in zip(topic.partitions, topic.start_offsets, strict=False)
    ]

    def found(figures: Sequence[LeaderFigures | Exception]) -> None:
        described = [
            {
                "topic_name": question.topic,
                "topic_id": ZERO_UUID,
                "partitions": [_failed(context, question.partition, each)]
                if isinstance(each, Exception)
                else [_partition(question.partition, **each._asdict())],
            }
            for question, each in zip(asked, figures, strict=True)
        ]
        gather.put(position, {"group_id": group.group_id, "topics": described, "error_code": ErrorCode.NONE})

    find_leader_figures(context.broker, group.group_id, asked, found)


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
        places = [SharePlace(name, topic_id, index) for name, topic_id, indexes in self._topics for index in indexes]
        known = [place for place in places if place.topic_id != ZERO_UUID]
        ask_share_figures(self._context.broker, self._group.group_id, known, lambda figures: self._described(places, figures))

    def _described(self, places: Sequence[SharePlace], figures: Sequence[ShareFigures | Exception]) -> None:
        rest = iter(figures)
        found: list[dict[str, Any]] = []
        for place in places:
            if place.topic_id == ZERO_UUID:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                found.append(_partition(place.partition, error_code=code, error_message=code.message))
                continue
            each = next(rest)
            if isinstance(each, Exception):
                found.append(_failed(self._context, place.partition, each))
            else:
                if each.leader_error is not None:
                    self._context.code_of(each.leader_error)
                found.append(_described_partition(place.partition, each))
        self._summarized(found)

    def _summarized(self, partitions: Sequence[dict[str, Any]]) -> None:
        described = iter(partitions)
        topics = [
            {"topic_name": name, "topic_id": topic_id, "partitions": [next(described) for _ in indexes]}
            for name, topic_id, indexes in self._topics
        ]
        self._put({"group_id": self._group.group_id, "topics": topics, "error_code": ErrorCode.NONE})

    def _put(self, fields: dict[str, Any]) -> None:
        self._gather.put(self._position, fields)


def _described_partition(index: int, figures: ShareFigures) -> dict[str, Any]:
    summary = figures.summary
    known = {**figures.leader._asdict(), "redelivered_count": figures.redelivered}
    if summary.start_offset == UNINITIALIZED_OFFSET:
        return _partition(index, leader_epoch=summary.leader_epoch, **known)
    unsettled = figures.unsettled
    is_counted = unsettled is not None and summary.delivery_complete_count != UNKNOWN_COUNT
    lag = unsettled if is_counted else UNKNOWN_LAG
    return _partition(index, start_offset=summary.start_offset, leader_epoch=summary.leader_epoch, lag=lag, **known)


def _failed(context: RequestContext, index: int, error: Exception) -> dict[str, Any]:
    code, message = context.code_of(error)
    return _partition(index, error_code=code, error_message=message)


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
