"""A simulated member of a group: what both protocols have in common.

It reads what it owns from the committed offset on, and commits where it is; after a pause that is the first thing that it does,
before it can know whether anything is still its own.
"""

from collections.abc import Callable, Iterable
from typing import Any

from simulation.client import Environment
from simulation.fetched_batches import fetched_batches
from simulation.group_client import INTERRUPTED, UNAVAILABLE, GroupClient
from simulation.group_history import Commit, GroupHistory, OffsetRead, Ownership
from simulation.history import Outcome, PartitionId, Poll, TopicLife
from simulation.randomness import SimulatedRandomness
from tidelog.records.errors import RecordError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey

SESSION_MS = 400
THINK_US = (1_000, 40_000)
COMMIT_LIKELIHOOD = 0.5
FETCH_VERSIONS = (5, 17)
FETCH_TOPIC_IDS_SINCE = 13

# The group has gone on without this member, or waits for it to join.
SHUT_OUT = {
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
}


class Owned:
    """A partition of this member. ``position`` is None until the committed offset was read."""

    __slots__ = ("assignment", "committed", "end_offset", "ownership", "position")

    def __init__(self, ownership: Ownership, assignment: int) -> None:
        self.ownership = ownership
        self.assignment = assignment
        self.position: int | None = None
        self.committed = -1
        self.end_offset = -1


class GroupMember(GroupClient):
    def __init__(
        self,
        name: str,
        group: str,
        environment: Environment,
        randomness: SimulatedRandomness,
        history: GroupHistory,
        topics: Callable[[], list[TopicLife]],
    ) -> None:
        super().__init__(name, group, environment, randomness)
        self.owned: dict[PartitionId, Owned] = {}
        self.assured_us = 0
        """Until when the coordinator must count on this member, by what it has answered."""
        self.rebalance_ms = SESSION_MS
        self._history = history
        self._topics = topics
        self._assignments = 0

    def wake(self) -> None:
        self.commit(self.owned)

    def lose_everything(self) -> None:
        self.give_up(list(self.owned))
        self.assured_us = 0

    # -- what a protocol adds ------------------------------------------------------------------------------------------------

    def epoch(self) -> int:
        """What commits are sent with."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Of which member a commit is."""
        raise NotImplementedError

    def commit_versions(self) -> tuple[int, int]:
        raise NotImplementedError

    def offset_fetch_group(self) -> dict[str, Any]:
        raise NotImplementedError

    # -- partitions ----------------------------------------------------------------------------------------------------------

    def assure(self, sent_us: int) -> None:
        """A sign of life that was sent then has been answered: neither the session nor a rebalance can end much earlier."""
        self.assured_us = max(self.assured_us, sent_us + min(SESSION_MS, self.rebalance_ms) * 1000)
        for each in self.owned.values():
            each.ownership.assured_us = self.assured_us

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(life.topic_id, index) for life in self._topics() for index in range(life.partitions)]

    def topic_names(self) -> list[str]:
        return [life.name for life in self._topics()]

    def by_name(self, name: str) -> TopicLife:
        return next(life for life in self._topics() if life.name == name)

    def take(self, partitions: Iterable[PartitionId]) -> None:
        """They are this member's from now on."""
        taken = list(partitions)
        for partition in taken:
            self._assignments += 1
            ownership = self._history.owned(self.group, self.name, partition, self.epoch(), self.assured_us)
            self.owned[partition] = Owned(ownership, self._assignments)
        self._read_positions(taken)

    def give_up(self, partitions: Iterable[PartitionId]) -> None:
        for partition in partitions:
            self._history.given_up(self.owned.pop(partition).ownership)

    def _read_positions(self, partitions: list[PartitionId]) -> None:
        wanted = [one for one in partitions if one in self.owned and self.owned[one].position is None]
        if not wanted:
            return
        names = self.base.topics
        topics = [
            {"name": names[topic_id].name, "partition_indexes": [one.number for one in wanted if one.topic_id == topic_id]}
            for topic_id in dict.fromkeys(one.topic_id for one in wanted)
        ]
        sent_at = self.base.now()
        fields = {"groups": [{**self.offset_fetch_group(), "topics": topics}], "require_stable": True}

        def answered(answer: DecodedMessage | None) -> None:
            if answer is not None:
                self._take_positions(answer, wanted, sent_at)
            if any(one in self.owned and self.owned[one].position is None for one in wanted):
                self.soon("asks for its positions", lambda: self._read_positions(wanted))
            else:
                self._think()

        self.call(ApiKey.OFFSET_FETCH, 9, fields, answered)

    def _take_positions(self, answer: DecodedMessage, wanted: list[PartitionId], sent_at: int) -> None:
        (group,) = answer.groups
        if group.error_code:
            if group.error_code not in UNAVAILABLE | INTERRUPTED | SHUT_OUT:
                self.unexpected("OffsetFetch", group.error_code)
            return
        for topic in group.topics:
            topic_id = self.by_name(topic.name).topic_id
            for found in topic.partitions:
                partition = PartitionId(topic_id, found.partition_index)
                if found.error_code:
                    self.unexpected("OffsetFetch of a partition", found.error_code)
                    continue
                ended_at = self.base.now()
                read = OffsetRead(
                    self.name, self.group, partition, found.committed_offset, found.metadata or "", sent_at, ended_at
                )
                self._history.reads.append(read)
                if partition in wanted and partition in self.owned and self.owned[partition].position is None:
                    self.owned[partition].position = max(0, found.committed_offset)
                    self.owned[partition].committed = found.committed_offset

    # -- commits -------------------------------------------------------------------------------------------------------------

    def commit(self, partitions: Iterable[PartitionId]) -> None:
        """Where it is, of those that it has read of."""
        moved: dict[PartitionId, Commit] = {}
        topics: dict[str, list[dict[str, Any]]] = {}
        for partition in partitions:
            owned = self.owned[partition]
            if owned.position is None or owned.position == owned.committed:
                continue
            commit = self._history.committing(self.group, self.name, partition, self.epoch(), owned.position)
            moved[partition] = commit
            fields = {
                "partition_index": partition.number,
                "committed_offset": owned.position,
                "committed_leader_epoch": -1,
                "committed_metadata": commit.metadata,
            }
            topics.setdefault(self.base.topics[partition.topic_id].name, []).append(fields)
        if not moved:
            return
        version = self.draw(self.commit_versions())
        request = {
            "group_id": self.group,
            **self.identity(),
            "generation_id_or_member_epoch": self.epoch(),
            "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
        }
        life = self.life

        def replied(frame: memoryview | None, position: int) -> None:
            answer = None if frame is None else decode_response(ApiKey.OFFSET_COMMIT, version, frame, position)
            self._committed(answer, moved, life)

        self.coordinator.request(ApiKey.OFFSET_COMMIT, version, encode_request(ApiKey.OFFSET_COMMIT, version, request), replied)

    def _committed(self, answer: DecodedMessage | None, moved: dict[PartitionId, Commit], life: int) -> None:
        """What is known of a commit is known, also when its member is gone or asleep."""
        if answer is not None:
            for topic in answer.topics:
                topic_id = self.by_name(topic.name).topic_id
                for result in topic.partitions:
                    partition = PartitionId(topic_id, result.partition_index)
                    self._end_commit(moved.pop(partition), ErrorCode(result.error_code), life)
            if moved:
                self.base.problem("partition without an answer", f"{self.name}: OffsetCommit of {len(moved)}")
        for commit in moved.values():
            self._history.committed(commit, Outcome.UNKNOWN)

    def _end_commit(self, commit: Commit, error: ErrorCode, life: int) -> None:
        if error is ErrorCode.NONE:
            self._history.committed(commit, Outcome.ACKED)
            owned = self.owned.get(commit.partition)
            if owned is not None and self.life == life and owned.position is not None:
                owned.committed = commit.offset
        elif error in INTERRUPTED:
            self._history.committed(commit, Outcome.UNKNOWN)
        else:
            self._history.committed(commit, Outcome.FAILED)
            if error not in UNAVAILABLE | SHUT_OUT:
                self.unexpected("OffsetCommit", error)

    # -- reading -------------------------------------------------------------------------------------------------------------

    def _think(self) -> None:
        self.later(self._randomness.integer(*THINK_US), "fetches", self.fetch)

    def fetch(self) -> None:
        if not self.fetcher.is_ready or self.fetcher.in_flight:
            return
        asked = {
            partition: (owned.assignment, owned.position) for partition, owned in self.owned.items() if owned.position is not None
        }
        if not asked:
            return  # ``_read_positions`` begins anew.
        base = self.base
        version = self.draw(FETCH_VERSIONS)
        topics: dict[bytes, FetchTopic] = {}
        for (topic_id, index), (_, offset) in asked.items():
            topic = topics.setdefault(topic_id, FetchTopic(base.topics[topic_id].name, topic_id, []))
            topic.partitions.append(FetchPartition(index, offset, self.draw((300, 4_000))))
        request = FetchRequest(
            replica_id=-1,
            wait_ms_max=self.draw((0, 150)),
            bytes_min=1,
            bytes_max=self.draw((500, 20_000)),
            isolation_level=self.draw((0, 1)),
            session_id=0,
            session_epoch=-1,
            topics=list(topics.values()),
            forgotten=[],
            rack_id="",
        )
        sent_at = base.now()
        life = self.life

        def replied(frame: memoryview | None, position: int) -> None:
            if frame is None:
                return  # The next connection fetches.
            # The frame is the connection's own: what a member that is asleep will read is copied.
            data = memoryview(bytes(frame))
            self.when_awake(life, lambda: self._fetched(version, data, position, asked, sent_at))

        self.fetcher.request(ApiKey.FETCH, version, encode_fetch_request(version, request), replied)

    def _fetched(
        self, version: int, data: memoryview, position: int, asked: dict[PartitionId, tuple[int, int]], sent_at: int
    ) -> None:
        response = decode_fetch_response(version, data, position)
        if response.error is not ErrorCode.NONE:
            self.unexpected("Fetch", response.error)
        for topic in response.topics:
            topic_id = self.by_name(topic.name).topic_id if topic.name is not None else topic.topic_id
            for result in topic.partitions:
                partition = PartitionId(topic_id or b"", result.partition)
                owned = self.owned.get(partition)
                if owned is not None and partition in asked and owned.assignment == asked[partition][0]:
                    self._process(partition, owned, result, sent_at)
        late = [one for one, owned in self.owned.items() if owned.position == owned.end_offset]
        if self.coordinator.is_ready:
            self.commit(self.owned if self.chance(COMMIT_LIKELIHOOD) else late)
        self._think()

    def _process(self, partition: PartitionId, owned: Owned, result: FetchedPartition, sent_at: int) -> None:
        base = self.base
        if result.error is not ErrorCode.NONE:
            if result.error is not ErrorCode.KAFKA_STORAGE_ERROR:
                self.unexpected(f"Fetch of {base.name_of(partition)}", result.error)
            return
        assert owned.position is not None
        offset = owned.position
        try:
            batches = list(fetched_batches(result.records))
        except RecordError as error:
            base.problem("corrupt records", f"{self.name}: {base.name_of(partition)} at {offset}: {error}")
            return
        records = [each for batch in batches for each in batch.values() if each[0] >= offset]
        poll = Poll(
            self.name,
            owned.assignment,
            partition,
            offset,
            records,
            result.high_watermark,
            result.log_start_offset,
            sent_at,
            base.now(),
        )
        base.polls.append(poll)
        owned.end_offset = result.high_watermark
        if records:
            owned.position = records[-1][0] + 1
