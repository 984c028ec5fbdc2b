"""A simulated member of a KIP-848 group: everything is a heartbeat.

It says everything when it joins and after a lost answer, and otherwise only what changed. What an answer takes from it, it gives
up at once, after a commit, and says so in the next heartbeat.
"""

from typing import Any

from simulation.group_client import INTERRUPTED, UNAVAILABLE
from simulation.group_member import GroupMember
from simulation.history import PartitionId
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
UNCHANGED_MS = -1
VERSION = 1
COMMIT_VERSION = 9
FULL_LIKELIHOOD = 0.2

_PUT_OUT = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}


class ConsumerMember(GroupMember):
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
            # Whatever the answer would have said must be said again.
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
