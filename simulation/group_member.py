"""Simulated members of groups: a base class for both protocols, and one class for each.

A member reads the partitions that it owns from the committed offset on and commits its position. After a pause it commits first,
before it can know whether it still owns anything.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any

from simulation.client import Environment, fetched_batches
from simulation.group_checker import Commit, GroupHistory, OffsetRead, Ownership
from simulation.group_client import INTERRUPTED, UNAVAILABLE, GroupClient
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

# The group has continued without this member, or waits for it to join.
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
        """The time until which the coordinator must wait for this member, according to its answers."""
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
        """The epoch that commits are sent with."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """The identity of the member that a commit comes from."""
        raise NotImplementedError

    def commit_versions(self) -> tuple[int, int]:
        raise NotImplementedError

    def offset_fetch_group(self) -> dict[str, Any]:
        raise NotImplementedError

    # -- partitions ----------------------------------------------------------------------------------------------------------

    def assure(self, sent_us: int) -> None:
        """Note that a sign of life that was sent then has been answered: neither the session nor a rebalance can end much
        earlier."""
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
        """Take ownership of partitions."""
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
        """Commit the positions of the partitions that were read."""
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
        """Note the outcome of a commit, even when its member is gone or asleep."""
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
            return  # ``_read_positions`` starts over.
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


JOIN_VERSIONS = (5, 9)
SYNC_VERSIONS = (3, 5)
HEARTBEAT_VERSIONS = (3, 4)
COMMIT_VERSIONS = (7, 9)
LEAVE_VERSION = 4
NO_GENERATION = -1
# A coordinator that is still loading answers every heartbeat that all is well. So each comes right after a question that only a
# loaded coordinator answers: one that has answered is not reloaded within this time.
COORDINATOR_STAYS_US = 50_000
PROTOCOL = "range"

_NEW_ID_NEEDED = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


class ClassicMember(GroupMember):
    """A member of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

    It is eager: when it learns of a rebalance it commits, releases everything, and joins again. The leader deals out the
    partitions in turn, from a random start, so that they move. A static member keeps its instance id over its lives."""

    def __init__(
        self,
        name: str,
        group: str,
        environment: Environment,
        randomness: SimulatedRandomness,
        history: GroupHistory,
        topics: Callable[[], list[TopicLife]],
        instance_id: str | None,
    ) -> None:
        super().__init__(name, group, environment, randomness, history, topics)
        self._instance_id = instance_id
        self._member_id = ""
        self._generation = NO_GENERATION
        # Whether it waits for an answer to JoinGroup or what follows it, and to a heartbeat.
        self._is_joining = False
        self._is_in = False
        self._is_beating = False

    # -- life ----------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._member_id = ""
        self._generation = NO_GENERATION
        self._is_joining = self._is_in = self._is_beating = False

    def go_on(self) -> None:
        if self._is_in:
            self.heartbeat()
        else:
            self._join()

    def say_goodbye(self) -> None:
        self.commit(self.owned)
        if self._member_id:
            member = {"member_id": self._member_id, "group_instance_id": self._instance_id, "reason": None}
            fields = {"group_id": self.group, "members": [member]}
            self.call(ApiKey.LEAVE_GROUP, LEAVE_VERSION, fields, lambda _: None)

    def epoch(self) -> int:
        return self._generation

    def identity(self) -> dict[str, Any]:
        return {"member_id": self._member_id, "group_instance_id": self._instance_id}

    def commit_versions(self) -> tuple[int, int]:
        return COMMIT_VERSIONS

    def offset_fetch_group(self) -> dict[str, Any]:
        return {"group_id": self.group, "member_id": None, "member_epoch": -1}

    # -- joining -------------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        if self._is_joining or self._is_in:
            return
        self._is_joining = True
        fields = {
            "group_id": self.group,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": self.rebalance_ms,
            "protocol_type": "consumer",
            "protocols": [{"name": PROTOCOL, "metadata": _subscription(self.topic_names())}],
            "reason": None,
            **self.identity(),
        }
        self.call(ApiKey.JOIN_GROUP, self.draw(JOIN_VERSIONS), fields, self._joined)

    def _joined(self, answer: DecodedMessage | None) -> None:
        code = ErrorCode.NOT_COORDINATOR if answer is None else ErrorCode(answer.error_code)
        if answer is None or code is not ErrorCode.NONE:
            self._is_joining = False
            if answer is not None and code is ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
                self._join()
            else:
                self._start_over("JoinGroup", code)
            return
        if self._instance_id is None and self._member_id and answer.member_id != self._member_id:
            self.base.problem("another member", f"{self.name} joined as {self._member_id}, and is {answer.member_id}")
        self._member_id = answer.member_id
        self._generation = answer.generation_id
        self._sync(answer)

    def _sync(self, joined: DecodedMessage) -> None:
        assignments = []
        if joined.leader == self._member_id and not joined.skip_assignment:
            dealt = self._deal([member.member_id for member in joined.members])
            assignments = [{"member_id": member_id, "assignment": _assignment(each)} for member_id, each in dealt.items()]
        version = self.draw(SYNC_VERSIONS)
        fields = {
            "group_id": self.group,
            "generation_id": self._generation,
            **self.identity(),
            "protocol_type": "consumer",
            "protocol_name": PROTOCOL,
            "assignments": assignments,
        }
        self.call(ApiKey.SYNC_GROUP, version, fields, self._synced)

    def _deal(self, member_ids: list[str]) -> dict[str, dict[str, list[int]]]:
        dealt: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in member_ids}
        turn = self.draw((0, len(member_ids) - 1))
        for partition in self.partitions():
            name = self.base.topics[partition.topic_id].name
            dealt[member_ids[turn % len(member_ids)]].setdefault(name, []).append(partition.number)
            turn += 1
        return dealt

    def _synced(self, answer: DecodedMessage | None) -> None:
        self._is_joining = False
        code = ErrorCode.NOT_COORDINATOR if answer is None else ErrorCode(answer.error_code)
        if answer is None or code is not ErrorCode.NONE:
            self._start_over("SyncGroup", code)
            return
        self._is_in = True
        mine = _read_assignment(answer.assignment)
        topics = [(self.by_name(name), indexes) for name, indexes in mine.items()]
        self.take([PartitionId(topic.topic_id, index) for topic, indexes in topics for index in indexes])
        self.heartbeat()

    def _start_over(self, api: str, code: ErrorCode) -> None:
        """Leave the generation, and join again."""
        self._is_in = False
        if code in _NEW_ID_NEEDED:
            self._member_id = ""
        if code not in SHUT_OUT | UNAVAILABLE | INTERRUPTED:
            self.unexpected(api, code)
        self.soon("joins again", self._join)

    # -- heartbeats ----------------------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        if not self._is_in or self._is_beating:
            return
        self._is_beating = True
        fields = {"group_id": self.group, "generation_id": self._generation, **self.identity()}
        generation, sent_us = self._generation, self.now_us
        loaded_us = -COORDINATOR_STAYS_US

        def asked(answer: DecodedMessage | None) -> None:
            nonlocal loaded_us
            if answer is not None and answer.groups[0].error_code == ErrorCode.NONE:
                loaded_us = self.now_us

        def answered(answer: DecodedMessage | None) -> None:
            self._is_beating = False
            # An answer about an earlier generation says nothing about this one.
            if answer is not None and self._is_in and generation == self._generation:
                is_loaded = self.now_us - loaded_us < COORDINATOR_STAYS_US
                self._beaten(ErrorCode(answer.error_code), sent_us if is_loaded else None)

        self.call(ApiKey.OFFSET_FETCH, 9, {"groups": [{**self.offset_fetch_group(), "topics": []}]}, asked)
        self.call(ApiKey.HEARTBEAT, self.draw(HEARTBEAT_VERSIONS), fields, answered)

    def _beaten(self, code: ErrorCode, sent_us: int | None) -> None:
        """``sent_us`` is None if the coordinator may not have known whom it answered."""
        if code is ErrorCode.NONE:
            if sent_us is not None:
                self.assure(sent_us)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            if self.coordinator.is_ready:
                self.commit(self.owned)
            self.lose_everything()
            self._is_in = False
            self._join()
        elif code in SHUT_OUT:
            self.lose_everything()
            self._start_over("Heartbeat", code)
        elif code not in UNAVAILABLE | INTERRUPTED:
            self.unexpected("Heartbeat", code)


# -- the consumers' own formats ----------------------------------------------------------------------------------------------


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _subscription(topics: list[str]) -> bytes:
    return struct.pack(">hi", 0, len(topics)) + b"".join(map(_text, topics)) + struct.pack(">i", -1)


def _assignment(topics: dict[str, list[int]]) -> bytes:
    parts = [struct.pack(">hi", 0, len(topics))]
    for name, indexes in topics.items():
        parts.append(_text(name) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes))
    return b"".join(parts) + struct.pack(">i", -1)


def _read_assignment(data: bytes) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    if not data:
        return topics
    _, count = struct.unpack_from(">hi", data)
    position = 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", data, position)
        name = bytes(data[position + 2 : position + 2 + length]).decode()
        position += 2 + length
        (indexes,) = struct.unpack_from(">i", data, position)
        topics[name] = list(struct.unpack_from(f">{indexes}i", data, position + 4))
        position += 4 + 4 * indexes
    return topics


JOIN_EPOCH = 0
LEAVE_EPOCH = -1
UNCHANGED_MS = -1
VERSION = 1
COMMIT_VERSION = 9
FULL_LIKELIHOOD = 0.2

_PUT_OUT = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}


class ConsumerMember(GroupMember):
    """A member of a KIP-848 group, in which everything is a heartbeat.

    It sends all fields when it joins and after a lost response, and otherwise only those that changed. When a response revokes
    partitions it commits, releases them at once and reports that in the next heartbeat."""

    _member_id = ""
    _epoch = JOIN_EPOCH
    _must_be_full = True
    _is_beating = False
    _has_changed = False

    # -- life ----------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._member_id = f"{self.name}.{self.life}"
        self._epoch = JOIN_EPOCH
        self._must_be_full = True
        self._is_beating = self._has_changed = False

    def go_on(self) -> None:
        self.heartbeat()

    def say_goodbye(self) -> None:
        self.commit(self.owned)
        if self._epoch != JOIN_EPOCH:
            fields = {**self._nothing_new(), "member_epoch": LEAVE_EPOCH}
            self.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, VERSION, fields, lambda _: None)

    def epoch(self) -> int:
        return self._epoch

    def identity(self) -> dict[str, Any]:
        return {"member_id": self._member_id, "group_instance_id": None}

    def commit_versions(self) -> tuple[int, int]:
        return COMMIT_VERSION, COMMIT_VERSION

    def offset_fetch_group(self) -> dict[str, Any]:
        return {"group_id": self.group, "member_id": self._member_id, "member_epoch": self._epoch}

    # -- heartbeats ----------------------------------------------------------------------------------------------------------

    def _nothing_new(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self._member_id,
            "member_epoch": self._epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": UNCHANGED_MS,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
        }

    def heartbeat(self) -> None:
        if self._is_beating:
            return
        self._is_beating = True
        fields = self._nothing_new()
        if self._epoch == JOIN_EPOCH or self._must_be_full or self.chance(FULL_LIKELIHOOD):
            fields |= {"rebalance_timeout_ms": self.rebalance_ms, "subscribed_topic_names": self.topic_names()}
            self._has_changed = True
        if self._has_changed:
            fields["topic_partitions"] = self._owned_fields()
        self._has_changed = self._must_be_full = False
        sent_us = self.now_us
        self.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, VERSION, fields, lambda answer: self._beaten(answer, sent_us))

    def _owned_fields(self) -> list[dict[str, Any]]:
        topics: dict[bytes, list[int]] = {}
        for topic_id, index in self.owned:
            topics.setdefault(topic_id, []).append(index)
        return [{"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in topics.items()]

    def _beaten(self, answer: DecodedMessage | None, sent_us: int) -> None:
        self._is_beating = False
        code = ErrorCode.NOT_COORDINATOR if answer is None else ErrorCode(answer.error_code)
        if answer is not None and code is ErrorCode.NONE:
            self._epoch = answer.member_epoch
            self.assure(sent_us)
            if answer.assignment is not None:
                self._reconcile(answer.assignment)
        elif code in _PUT_OUT:
            self.lose_everything()
            self._epoch = JOIN_EPOCH
            self.soon("joins again", self.heartbeat)
        else:
            # Whatever the lost answer contained must be sent again.
            self._must_be_full = True
            if code not in UNAVAILABLE | INTERRUPTED:
                self.unexpected("ConsumerGroupHeartbeat", code)

    def _reconcile(self, assignment: DecodedMessage) -> None:
        mine = [PartitionId(topic.topic_id, index) for topic in assignment.topic_partitions for index in topic.partitions]
        lost = [partition for partition in self.owned if partition not in mine]
        new = [partition for partition in mine if partition not in self.owned]
        if not lost and not new:
            return
        if self.coordinator.is_ready:
            self.commit(lost)
        self.give_up(lost)
        self._has_changed = True
        self.take(new)
        self.soon("says what it has", self.heartbeat)
