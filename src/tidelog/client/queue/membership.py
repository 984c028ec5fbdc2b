"""Membership of a share group: heartbeats to the group's coordinator, and the partitions that the group assigns to this member.

A member that the group does not know any more joins again with its next heartbeat; a coordinator that has moved is looked up
again. What the group will never accept (too many members, a group of another kind) is a ``refusal``, which the queue raises.
"""

import time
import uuid

from tidelog.client.errors import GroupError, InvalidArgument, TidelogError
from tidelog.client.queue.leader_session import TopicIndex
from tidelog.client.wire.brokers import Brokers
from tidelog.client.wire.errors import BrokerError, ClientError, InvalidAnswer, UnsupportedByBroker, check_code
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

GROUP_KEY = 0
JOINING_EPOCH = 0
LEAVING_EPOCH = -1
# A group that has just begun assigns partitions a moment after its first member has joined.
EMPTY_HANDED_SECONDS = 0.1
RETRY_SECONDS = 0.25

_REJOIN = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH))
_FATAL = {
    ErrorCode.GROUP_MAX_SIZE_REACHED: "raise group.share.max.size of the brokers, or stop other workers",
    ErrorCode.GROUP_ID_NOT_FOUND: "a group of that name exists and is no share group: pass another group=",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "a group of that name exists and is no share group: pass another group=",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "ask for the permission on the group",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "ask for the permission on the topic",
    ErrorCode.INVALID_REQUEST: "the broker refuses the member's request",
    ErrorCode.UNSUPPORTED_VERSION: "share groups are not enabled: the cluster's feature share.version must be 1 or more",
}


class ShareMembership:
    def __init__(self, brokers: Brokers, group: str, topic: str) -> None:
        """``brokers`` is for this object alone."""
        self.member_id = str(uuid.uuid4())
        self.assignment: frozenset[TopicIndex] = frozenset()
        self.refusal: TidelogError | None = None
        self._brokers = brokers
        self._group = group
        self._topic = topic
        self._epoch = JOINING_EPOCH
        self._coordinator: int | None = None
        self._interval_seconds = EMPTY_HANDED_SECONDS
        self._next_beat = 0.0

    @property
    def next_beat(self) -> float:
        """When the next heartbeat is due, by the monotonic clock."""
        return self._next_beat

    def beat(self) -> None:
        """Send one heartbeat. A failure that will pass is tried again soon."""
        try:
            self._beat()
        except BrokerError as error:
            self._take_refusal(error)
            self._next_beat = time.monotonic() + RETRY_SECONDS
        except UnsupportedByBroker as error:
            self.refusal = InvalidArgument(f"{error}: queues need Tidelog, or Apache Kafka 4.2 or newer")
        except ClientError:
            self._coordinator = None
            self._next_beat = time.monotonic() + RETRY_SECONDS

    def leave(self) -> None:
        if self._epoch == JOINING_EPOCH or self._coordinator is None:
            return
        fields = {"group_id": self._group, "member_id": self.member_id, "member_epoch": LEAVING_EPOCH}
        self._brokers.request(self._coordinator, ApiKey.SHARE_GROUP_HEARTBEAT, fields)
        self._epoch = JOINING_EPOCH

    def _beat(self) -> None:
        if self._coordinator is None:
            self._coordinator = find_coordinator(self._brokers, self._group)
        fields = {
            "group_id": self._group,
            "member_id": self.member_id,
            "member_epoch": self._epoch,
            "rack_id": None,
            "subscribed_topic_names": [self._topic] if self._epoch == JOINING_EPOCH else None,
        }
        answer = self._brokers.request(self._coordinator, ApiKey.SHARE_GROUP_HEARTBEAT, fields)
        check_code(answer.error_code, f"group {self._group}", answer.error_message)
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assignment = frozenset(
                (topic.topic_id, index) for topic in answer.assignment.topic_partitions for index in topic.partitions
            )
        self._interval_seconds = answer.heartbeat_interval_ms / 1000
        pause = self._interval_seconds if self.assignment else min(EMPTY_HANDED_SECONDS, self._interval_seconds)
        self._next_beat = time.monotonic() + pause

    def _take_refusal(self, error: BrokerError) -> None:
        if error.code in _REJOIN:
            self._epoch = JOINING_EPOCH
        elif error.code in _FATAL:
            self.refusal = GroupError(f"{error}: {_FATAL[error.code]}", code=int(error.code))
        else:
            self._coordinator = None


def find_coordinator(brokers: Brokers, group: str) -> int:
    """The node that coordinates a group."""
    answer = brokers.request_any(ApiKey.FIND_COORDINATOR, {"key_type": GROUP_KEY, "coordinator_keys": [group]})
    if len(answer.coordinators) != 1:
        raise InvalidAnswer(f"the answer has {len(answer.coordinators)} coordinators of {group} instead of one")
    (found,) = answer.coordinators
    check_code(found.error_code, f"the coordinator of {group}", found.error_message)
    # Its address comes with the metadata.
    brokers.ask_metadata([])
    return int(found.node_id)
