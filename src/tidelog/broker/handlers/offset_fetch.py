"""OffsetFetch: returns the positions that groups have committed; one group per request up to version 7, several from version 8
on.

Each group is answered by its own shard, and an unavailable shard fails its own groups only. Where an error goes depends on the
version: from 8 on to the group; before that to every requested partition, and from 2 on to the response as well. Kafka omits the
partitions from 2 on; but aiokafka, which uses version 3, looks only there: it would mistake a coordinator that is still loading
for one without commits, and read everything again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tidelog.broker.api import Api, RequestContext, ResultCollector
from tidelog.controller.errors import ApiError
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.offsets import FetchedOffset, FetchedOffsetTopic
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey

BATCHED_SINCE = 8
TOPIC_IDS_SINCE = 10
# Far more than a client needs in one request. Each group needs its own read.
GROUPS_MAX = 10_000
GROUPS_PER_STEP = 16
# The topics and partitions in one request. Each takes a few microseconds, and a group is read in one go.
PARTITIONS_MAX = 20_000


class RequestedTopic(NamedTuple):
    """A topic by name or by id. The name is missing if no topic has that id."""

    name: str | None
    topic_id: bytes | None
    partitions: Sequence[int]


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    is_batched = context.header.api_version >= BATCHED_SINCE
    groups: Sequence[DecodedMessage] = request.groups if is_batched else [request]
    if len(groups) > GROUPS_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"the request names {len(groups)} groups, and at most {GROUPS_MAX} are allowed")
    return _Fetch(context, request.require_stable).start(groups)


class _Fetch:
    """One request."""

    __slots__ = ("_context", "_require_stable", "_version")

    def __init__(self, context: RequestContext, require_stable: bool) -> None:
        self._context = context
        self._version = context.header.api_version
        self._require_stable = require_stable

    def start(self, groups: Sequence[DecodedMessage]) -> Steps[None]:
        def reply(answers: Sequence[dict[str, Any]]) -> None:
            if self._version >= BATCHED_SINCE:
                named = [{"group_id": group.group_id, **answer} for group, answer in zip(groups, answers, strict=True)]
                self._context.continue_in_slices(self._context.reply_in_slices({"groups": named}))
            else:
                self._context.continue_in_slices(self._context.reply_in_slices(answers[0]))

        gather = ResultCollector(len(groups), reply)
        for index, group in enumerate(groups):
            self._read(group, partial(gather.put, index))
            if not (index + 1) % GROUPS_PER_STEP:
                yield

    def _read(self, group: DecodedMessage, answer: Callable[[dict[str, Any]], None]) -> None:
        requested = self._requested(group)

        def query(machine: GroupCoordinator) -> list[FetchedOffsetTopic]:
            has_member = self._version >= BATCHED_SINCE
            return machine.offsets.fetch(
                group.group_id,
                None if requested is None else [(name, partitions) for name, _, partitions in requested if name is not None],
                member_id=group.member_id if has_member else None,
                member_epoch=group.member_epoch if has_member else -1,
                require_stable=self._require_stable,
            )

        def done(fetched: list[FetchedOffsetTopic], error: Exception | None) -> None:
            if error is not None:
                code, _ = self._context.code_of(error)
                answer(_failed(group, code, self._version))
            else:
                answer({"topics": self._topics(requested, fetched)})

        self._context.broker.coordinators.groups.read(group.group_id, query, done)

    def _requested(self, group: DecodedMessage) -> list[RequestedTopic] | None:
        """The requested topics; None means all."""
        if group.topics is None:
            return None
        if self._version < TOPIC_IDS_SINCE:
            return [RequestedTopic(topic.name, None, topic.partition_indexes) for topic in group.topics]
        image = self._context.broker.image
        names = [known.name if (known := image.topic_by_id(topic.topic_id)) is not None else None for topic in group.topics]
        pairs = zip(names, group.topics, strict=True)
        return [RequestedTopic(name, topic.topic_id, topic.partition_indexes) for name, topic in pairs]

    def _topics(self, requested: list[RequestedTopic] | None, fetched: list[FetchedOffsetTopic]) -> list[dict[str, Any]]:
        if requested is None and self._version < TOPIC_IDS_SINCE:
            return [_topic(topic.name, None, topic.partitions) for topic in fetched]
        if requested is None:
            # A topic without an id cannot be shown in this version.
            return [_topic(topic.name, topic.topic_id, topic.partitions) for topic in fetched if topic.topic_id != ZERO_UUID]
        known = iter(fetched)
        return [
            _topic(name, topic_id, _none_of(partitions, ErrorCode.UNKNOWN_TOPIC_ID) if name is None else next(known).partitions)
            for name, topic_id, partitions in requested
        ]


def _none_of(partitions: Sequence[int], error: ErrorCode) -> list[FetchedOffset]:
    return [FetchedOffset(partition, error=error) for partition in partitions]


def _topic(name: str | None, topic_id: bytes | None, partitions: Sequence[FetchedOffset]) -> dict[str, Any]:
    """Return the response's topic, identified by its id if the request did so."""
    answers = [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": leader_epoch,
            "metadata": metadata,
            "error_code": error,
        }
        for partition, offset, leader_epoch, metadata, error in partitions
    ]
    return {"name": name, "partitions": answers} if topic_id is None else {"topic_id": topic_id, "partitions": answers}


def _failed(group: DecodedMessage, code: ErrorCode, version: int) -> dict[str, Any]:
    if version >= BATCHED_SINCE:
        return {"error_code": code}
    topics = [_topic(topic.name, None, _none_of(topic.partition_indexes, code)) for topic in group.topics or ()]
    return {"error_code": code, "topics": topics}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    groups = [{"group_id": group.group_id, "error_code": code} for group in request.groups or ()]
    topics = _failed(request, code, 0)["topics"]
    return {"error_code": code, "topics": topics, "groups": groups}


API = Api(
    key=ApiKey.OFFSET_FETCH, name="OffsetFetch", versions=(1, 10), handle=handle, failure=_failure, elements_max=PARTITIONS_MAX
)
