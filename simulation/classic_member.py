"""A simulated member of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Eager: when it hears of a rebalance it commits, gives up everything, and joins again. The leader deals partitions out in turn,
beginning anywhere, so that they move. A static member keeps its instance id over its lives.
"""

import struct
from collections.abc import Callable
from typing import Any

from simulation.client import Environment
from simulation.group_client import INTERRUPTED, UNAVAILABLE
from simulation.group_history import GroupHistory
from simulation.group_member import SESSION_MS, SHUT_OUT, GroupMember
from simulation.history import PartitionId, TopicLife
from simulation.randomness import SimulatedRandomness
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

JOIN_VERSIONS = (5, 9)
SYNC_VERSIONS = (3, 5)
HEARTBEAT_VERSIONS = (3, 4)
COMMIT_VERSIONS = (7, 9)
LEAVE_VERSION = 4
NO_GENERATION = -1
# A coordinator that is being loaded says to every heartbeat that all is well. So each comes with a question that only a loaded
# one answers, right before it: one that has the answer is not loaded anew within this time.
COORDINATOR_STAYS_US = 50_000
PROTOCOL = "range"

_NEW_ID_NEEDED = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


class ClassicMember(GroupMember):
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
        # Of what it waits for the coordinator: JoinGroup and what follows, a heartbeat.
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
        """It is in no generation, and joins again."""
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
        """``sent_us`` None: the coordinator may not have known whom it answered."""
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
