"""What a share group has left to do in its partitions, wherever they are led: for descriptions and for autoscalers.

Two brokers know a part each. The share coordinator knows what is settled, with or without members. The leader of a partition
knows where its log ends and, while members fetch, what they hold, what is delayed and what was delivered in vain. Both are asked,
on this broker or over the listener between brokers: a leader with one DescribeShareGroupOffsets for all of its partitions
(``wire/own_fields``).

The age of the oldest message comes from the header of its batch, which is read on the executor.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.api import Pace, ResultCollector
from tidelog.controller.errors import ApiError
from tidelog.coordinator.errors import CoordinatorNotAvailable
from tidelog.coordinator.machine import OnDone
from tidelog.groups.lag import BatchTimes, next_unread, timestamp_within
from tidelog.log.partition_log import PartitionLog
from tidelog.ports.steps import Steps
from tidelog.queues.records import SharePartitionKey
from tidelog.queues.share_coordinator import UNINITIALIZED_OFFSET, ShareStateSummary
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.own_fields import UNKNOWN
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode
    from tidelog.broker.peer_channel import PeerError

NOTHING_DUE = -2
DESCRIBE_SHARE_GROUP_OFFSETS = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1
# A request names this many partitions at most, so that it is never refused for its size.
PARTITIONS_PER_REQUEST_MAX = 1_000


class SharePlace(NamedTuple):
    """A partition of a group."""

    topic: str
    topic_id: bytes
    partition: int


class LeaderFigures(NamedTuple):
    """What the leader of a partition knows of a group, as the fields of DescribeShareGroupOffsets. Without members here, nothing
    is held, and what is delayed is not known."""

    log_start_offset: int = UNKNOWN
    end_offset: int = UNKNOWN
    oldest_timestamp_ms: int = UNKNOWN
    """The timestamp of the first message that is neither settled nor delayed; NOTHING_DUE if there is none."""
    acquired_count: int = UNKNOWN
    delayed_count: int = UNKNOWN
    redelivered_count: int = UNKNOWN


class ShareFigures(NamedTuple):
    summary: ShareStateSummary
    leader: LeaderFigures = LeaderFigures()
    leader_error: Exception | None = None
    """Why the leader's figures are not known."""

    @property
    def unsettled(self) -> int | None:
        """How many messages are not settled; None if the leader did not say where its log ends. A group that has not begun has
        everything to do: if it began to read at the end, its first member would say so."""
        start_offset, settled = self.summary.start_offset, max(0, self.summary.delivery_complete_count)
        log_start_offset, end_offset = self.leader.log_start_offset, self.leader.end_offset
        if end_offset == UNKNOWN:
            return None
        if start_offset == UNINITIALIZED_OFFSET:
            return end_offset - log_start_offset
        return max(0, min(end_offset - log_start_offset, end_offset - start_offset - settled))

    @property
    def redelivered(self) -> int:
        """How many messages are not settled although they were delivered before; UNKNOWN if nobody knows."""
        known = self.leader.redelivered_count
        return self.summary.redelivered_count if known == UNKNOWN else known


class LeaderQuestion(NamedTuple):
    topic: str
    partition: int
    start_offset: int
    """Where the group is, as the share coordinator says."""


OnFigures = Callable[[Sequence[ShareFigures | Exception]], None]
OnLeaderFigures = Callable[[Sequence[LeaderFigures | Exception]], None]


# -- everything about a group --------------------------------------------------------------------------------------------------


def ask_share_figures(broker: "BrokerNode", group_id: str, places: Sequence[SharePlace], on_found: OnFigures) -> None:
    """Call back with what is known of each place, in their order, or the reason why its state is not known."""
    summaries = ResultCollector(len(places), lambda found: _add_leaders(broker, group_id, places, found, on_found))

    def ask() -> Steps[None]:
        states, pace = broker.coordinators.share_states, Pace()
        for position, place in enumerate(places):
            if states.service.topic is None:
                summaries.put(position, ShareStateSummary())
            else:
                states.summary(SharePartitionKey(group_id, place.topic_id, place.partition), _putter(summaries, position))
            if pace.is_pause_due():
                yield

    broker.work_slices.run(ask(), _raise_error)


def _putter(collector: ResultCollector, position: int) -> OnDone:
    return lambda result, error: collector.put(position, error if error is not None else result)


def _add_leaders(
    broker: "BrokerNode",
    group_id: str,
    places: Sequence[SharePlace],
    summaries: Sequence[ShareStateSummary | Exception],
    on_found: OnFigures,
) -> None:
    known = [(place, each) for place, each in zip(places, summaries, strict=True) if isinstance(each, ShareStateSummary)]

    def found(answers: Sequence[LeaderFigures | Exception]) -> None:
        rest = iter(answers)
        figures: list[ShareFigures | Exception] = []
        for each in summaries:
            if isinstance(each, Exception):
                figures.append(each)
                continue
            answer = next(rest)
            if isinstance(answer, Exception):
                figures.append(ShareFigures(each, leader_error=answer))
            else:
                figures.append(ShareFigures(each, answer))
        on_found(figures)

    ask_leaders(broker, group_id, [(place, each.start_offset) for place, each in known], found)


def ask_leaders(broker: "BrokerNode", group_id: str, asked: Sequence[tuple[SharePlace, int]], on_found: OnLeaderFigures) -> None:
    """Call back with what the leaders of the places know of a group, or why not. Each place comes with the offset where the group
    is, as the share coordinator says."""
    by_leader: dict[int, list[int]] = {}
    for position, (place, _) in enumerate(asked):
        by_leader.setdefault(_leader_of(broker, place), []).append(position)
    parts = [(leader, part) for leader, positions in by_leader.items() for part in _parts(positions)]
    found: list[LeaderFigures | Exception] = [LeaderFigures() for _ in asked]
    answered = ResultCollector(len(parts), lambda _: on_found(found))

    def ask(index: int, leader: int, positions: Sequence[int]) -> None:
        def take(answers: Sequence[LeaderFigures | Exception]) -> None:
            for position, answer in zip(positions, answers, strict=True):
                found[position] = answer
            answered.put(index, None)

        questions = [LeaderQuestion(place.topic, place.partition, start) for place, start in (asked[each] for each in positions)]
        if leader == broker.config.node_id:
            find_leader_figures(broker, group_id, questions, take)
        else:
            _ask_leader(broker, leader, group_id, questions, take)

    for index, (leader, positions) in enumerate(parts):
        ask(index, leader, positions)


def _parts(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(positions), PARTITIONS_PER_REQUEST_MAX):
        yield positions[begin : begin + PARTITIONS_PER_REQUEST_MAX]


def _leader_of(broker: "BrokerNode", place: SharePlace) -> int:
    """A partition without a leader is asked for here, which finds the error."""
    topic = broker.image.topic_by_id(place.topic_id)
    state = topic.partitions.get(place.partition) if topic is not None else None
    return state.leader if state is not None and state.leader >= 0 else broker.config.node_id


def _raise_error(error: Exception | None) -> None:
    if error is not None:
        raise error


# -- what a leader knows -------------------------------------------------------------------------------------------------------


def find_leader_figures(broker: "BrokerNode", group_id: str, asked: Sequence[LeaderQuestion], on_found: OnLeaderFigures) -> None:
    """Call back with what this broker knows of the partitions that it leads, or why it does not."""
    found: list[LeaderFigures | Exception] = []
    # The positions, and the offsets whose times are wanted.
    waiting: list[tuple[int, PartitionLog, int]] = []
    for question in asked:
        try:
            figures, log, oldest = _look(broker, group_id, question)
        except Exception as error:
            found.append(error)
            continue
        if oldest is not None:
            waiting.append((len(found), log, oldest))
        found.append(figures)
    if not waiting:
        on_found(found)
        return

    def looked_up(batches: list[BatchTimes | None]) -> None:
        for (position, _, oldest), batch in zip(waiting, batches, strict=True):
            timestamp = None if batch is None else timestamp_within(batch, oldest)
            figures = found[position]
            if timestamp is not None and isinstance(figures, LeaderFigures):
                found[position] = figures._replace(oldest_timestamp_ms=timestamp)
        on_found(found)

    broker.lag.find_times([(log, oldest) for _, log, oldest in waiting], looked_up)


def _look(broker: "BrokerNode", group_id: str, question: LeaderQuestion) -> tuple[LeaderFigures, PartitionLog, int | None]:
    """The figures, and the offset whose age is wanted."""
    partition = broker.partitions.find(question.topic, None, question.partition)
    log = partition.log
    figures = LeaderFigures(log.log_start_offset, log.high_watermark, acquired_count=0)
    start_offset = question.start_offset
    leader = broker.share_sessions.share_partitions.find_existing(group_id, log.topic_id, question.partition)
    engine = None if leader is None else leader.engine
    if engine is not None:
        start_offset = engine.oldest_due_offset
        figures = figures._replace(
            acquired_count=engine.acquired_count,
            delayed_count=engine.delayed_count,
            redelivered_count=engine.redelivered_count,
        )
    offset = next_unread(start_offset, log.log_start_offset, log.high_watermark)
    if offset is None:
        figures = figures._replace(oldest_timestamp_ms=NOTHING_DUE)
    return figures, log, offset


def _ask_leader(
    broker: "BrokerNode", leader: int, group_id: str, asked: Sequence[LeaderQuestion], on_found: OnLeaderFigures
) -> None:
    topics: list[dict[str, Any]] = []
    for name, questions in groupby(asked, attrgetter("topic")):
        of_topic = list(questions)
        partitions = [each.partition for each in of_topic]
        topics.append({"topic_name": name, "partitions": partitions, "start_offsets": [each.start_offset for each in of_topic]})
    fields = {"groups": [{"group_id": group_id, "topics": topics, "is_for_leader": True}]}

    def replied(reply: DecodedMessage) -> None:
        answers = {
            (topic.topic_name, each.partition_index): _read_figures(each)
            for group in reply.groups
            for topic in group.topics
            for each in topic.partitions
        }
        missing = CoordinatorNotAvailable(f"broker {leader} has not answered for its partition")
        on_found([answers.get((each.topic, each.partition), missing) for each in asked])

    def failed(error: "PeerError") -> None:
        on_found([CoordinatorNotAvailable(str(error)) for _ in asked])

    broker.peers.request(leader, DESCRIBE_SHARE_GROUP_OFFSETS, fields, replied, failed)


def _read_figures(partition: DecodedMessage) -> LeaderFigures | Exception:
    code = ErrorCode(partition.error_code)
    if code is not ErrorCode.NONE:
        return ApiError(code, partition.error_message or code.message)
    return LeaderFigures(*[getattr(partition, name) for name in LeaderFigures._fields])
