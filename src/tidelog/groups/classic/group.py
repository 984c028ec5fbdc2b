"""One classic group: its members, its state, and its GroupMetadata record.

The log holds the group as it was when it was last stable or empty: generation, protocol, leader, members with their subscriptions
and assignments. Everything ahead of that, a rebalance with its members, waiting requests and votes, is soft state: after a crash
the group is as it was when it was last stable, its members find out with their next request, and join again. The record has the
metadata of the chosen protocol only: after a restart members seem to support no other, until they join again.

Members are in the order in which they joined, which decides who leads next; nothing depends on the order of a set.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import OnDone
from tidelog.groups.classic.requests import JoinedMember, Protocols
from tidelog.groups.consumer_protocol import subscribed_topics
from tidelog.groups.group import GroupType, MetadataBudget
from tidelog.groups.records import GroupMetadataRecord, GroupMetadataValue, MemberMetadata
from tidelog.wire.errors import ErrorCode


class ClassicState(Enum):
    """The states of a classic group, with Kafka's names."""

    EMPTY = "Empty"
    """The group has no members; it may hold offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The group waits for members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The group waits for the leader's assignment."""
    STABLE = "Stable"
    """The assignment is in the log."""
    DEAD = "Dead"
    """DescribeGroups shows this for a group that does not exist. No group is ever in this state."""


PREVIOUS_STATES: dict[ClassicState, tuple[ClassicState, ...]] = {
    ClassicState.EMPTY: (ClassicState.PREPARING_REBALANCE,),
    ClassicState.PREPARING_REBALANCE: (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE, ClassicState.EMPTY),
    ClassicState.COMPLETING_REBALANCE: (ClassicState.PREPARING_REBALANCE,),
    ClassicState.STABLE: (ClassicState.COMPLETING_REBALANCE,),
    ClassicState.DEAD: (),
}


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member of a classic group: what it asked for, what it was assigned, and which of its requests wait.

    A member whose request waits cannot send heartbeats, so its session time-out is suspended. The exception is a member that
    joins for the first time: its client may be gone and come back under another id, so it has a limit of its own.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Whether the member joins for the first time and has not been answered yet."""
    join_answer: OnDone | None = field(default=None, init=False)
    sync_answer: OnDone | None = field(default=None, init=False)
    deadline_ms: int = field(default=0, init=False)
    """The end of the session, on the monotonic clock."""
    _timer_ms: int = field(default=0, init=False)
    _answers_in_flight: int = field(default=0, init=False)
    """The number of answers that are decided, and sent once they are committed."""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the member waits for an answer; then its silence must not end its session."""
        if self.is_new:
            return False
        return self.join_answer is not None or self.sync_answer is not None or self._answers_in_flight > 0

    def has_joined(self) -> None:
        self.is_new = False

    def answer_decided(self) -> None:
        self._answers_in_flight += 1

    def answer_given(self, now_ms: int) -> None:
        """Called when an answer was sent: the session continues from here."""
        self._answers_in_flight -= 1
        self.deadline_ms = now_ms + self.session_timeout_ms

    def expect_within(self, now_ms: int, timeout_ms: int) -> bool:
        """Move the deadline. Returns True when the member's timer must be armed for it, because it has no timer yet or a later
        one. A member has a timer from its first session until it is removed."""
        self.deadline_ms = now_ms + timeout_ms
        return not self._timer_ms or self._timer_ms > self.deadline_ms

    def keep_alive(self, now_ms: int) -> None:
        """Note a sign of life other than a heartbeat. It never shortens the session."""
        self.deadline_ms = max(self.deadline_ms, now_ms + self.session_timeout_ms)

    def timer_armed(self) -> None:
        self._timer_ms = self.deadline_ms

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for a protocol; empty if the member does not support it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""


def metadata_size(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def select_protocol(members: Collection[ClassicMember]) -> str | None:
    """Choose the protocol that most members prefer, among those that every member supports. The first in the order of members
    wins a tie. Returns None when they have none in common."""
    counts: dict[str, int] = {}
    for member in members:
        for name, _ in dict(member.protocols).items():
            counts[name] = counts.get(name, 0) + 1
    votes: dict[str, int] = {}
    for member in members:
        for name, _ in member.protocols:
            if counts[name] == len(members):
                votes[name] = votes.get(name, 0) + 1
                break
    return max(votes, key=votes.__getitem__, default=None)


CONSUMER_PROTOCOL_TYPE = "consumer"


class ClassicGroup:
    __slots__ = (
        "_budget",
        "_is_new_member_added",
        "_joining",
        "_rebalance_began_ms",
        "_subscribed_topics",
        "_supporters",
        "generation",
        "group_id",
        "leader_id",
        "members",
        "metadata_bytes",
        "pending_members",
        "pending_sync",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "rebalance_ms_last",
        "rebalance_ms_total",
        "rebalances",
        "replacements",
        "state",
        "state_timestamp_ms",
        "static_members",
    )

    def __init__(self, group_id: str, state_timestamp_ms: int, budget: MetadataBudget | None = None) -> None:
        """A group that is only a step on the way to its record has no ``budget``."""
        self.group_id = group_id
        self._budget = budget
        self.metadata_bytes = 0
        """The size of what the members sent with JoinGroup."""
        self.state = self.previous_state = ClassicState.EMPTY
        self.state_timestamp_ms = state_timestamp_ms
        """The wall-clock time of the last change of state; -1 when it is not known."""
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by group.instance.id."""
        self.pending_members: dict[str, None] = {}
        """The ids that were given to members that have not joined with them yet, oldest first."""
        self.pending_sync: dict[str, None] = {}
        """The members of this generation that have not sent SyncGroup."""
        self.replacements: dict[str, tuple[str, ClassicMember]] = {}
        """By new member id: the old id of a static member, and its successor. An entry exists from the decision until its record
        is replayed."""
        self._is_new_member_added = False
        self._joining = 0
        self._supporters: dict[str, int] = {}
        self._subscribed_topics: frozenset[str] | None = None
        self.rebalances = 0
        """Rebalances that ended with a stable group since the group was loaded."""
        self.rebalance_ms_last = 0
        self.rebalance_ms_total = 0
        self._rebalance_began_ms: int | None = None

    @classmethod
    def stable(
        cls, group_id: str, state_timestamp_ms: int, generation: int, protocol_type: str, members: Iterable[ClassicMember]
    ) -> "ClassicGroup":
        """Create a stable group whose members were assigned by another protocol."""
        group = cls(group_id, state_timestamp_ms)
        group.state = ClassicState.STABLE
        group.generation = generation
        for member in members:
            group.add(member, protocol_type)
        group.protocol_name = select_protocol(group.members.values())
        return group

    # -- what all groups have ------------------------------------------------------------------------------------------------

    @property
    def type(self) -> GroupType:
        return GroupType.CLASSIC

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def has_members(self) -> bool:
        return self.state is not ClassicState.EMPTY

    @property
    def member_count(self) -> int:
        return len(self.members)

    def check_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id_or_member_epoch: int,
        api_version: int,  # noqa: ARG002 -- all groups share this signature; classic ones accept every version
    ) -> None:
        generation = generation_id_or_member_epoch
        if generation < 0 and self.state is ClassicState.EMPTY:
            return  # A consumer that assigns itself partitions uses the group for its offsets only.
        if generation < 0 and not member_id and group_instance_id is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members, and the commit does not name one of them")
        error = self.generation_error(member_id, group_instance_id, generation)
        if error is not ErrorCode.NONE:
            raise ApiError(error)
        if self.state is ClassicState.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anyone may read the offsets of a classic group."""

    def check_deletion(self) -> None:
        if self.has_members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        topics = self._topics()
        return topics is None or topic in topics

    def may_read(self, topic: str) -> bool:
        """Subscriptions are certain only in a stable group of consumers; other protocols do not tell which topics they read."""
        if self.state is ClassicState.EMPTY:
            return False
        is_certain = self.state is ClassicState.STABLE and self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return not is_certain or self.is_subscribed_to(topic)

    def empty_since_ms(self) -> int | None:
        is_known = self.state is ClassicState.EMPTY and self.protocol_type and self.state_timestamp_ms >= 0
        return self.state_timestamp_ms if is_known else None

    def tombstones(self) -> Sequence[Any]:
        return (GroupMetadataRecord(self.group_id, None),)

    def _topics(self) -> frozenset[str] | None:
        """The subscribed topics; None when a member's metadata cannot be parsed, because it might subscribe to any topic."""
        if self._subscribed_topics is None:
            found: set[str] = set()
            for member in self.members.values():
                topics = subscribed_topics(member.metadata(self.protocol_name))
                if topics is None:
                    return None
                found.update(topics)
            self._subscribed_topics = frozenset(found)
        return self._subscribed_topics

    # -- checks --------------------------------------------------------------------------------------------------------------

    def member_error(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        if group_instance_id is not None:
            known = self.static_members.get(group_instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def generation_error(self, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        """The error of a member that is not in the generation that it claims; NONE if it is."""
        error = self.member_error(member_id, group_instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols could join: all members must support at least one of them."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supporters.get(name, 0) == len(self.members) for name, _ in protocols)

    @property
    def has_all_joined(self) -> bool:
        return self._joining == len(self.members) and not self.pending_members

    @property
    def joining(self) -> int:
        """The number of members whose JoinGroup waits."""
        return self._joining

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- members -------------------------------------------------------------------------------------------------------------

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        assert member.member_id not in self.members, member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.pending_members.pop(member.member_id, None)
        self._count_support(member, 1)

    def remove(self, member: ClassicMember) -> None:
        """Remove a member. Its answers must have been taken before: nobody would find them afterwards."""
        assert member.join_answer is None, "would never be answered"
        assert member.sync_answer is None, "would never be answered"
        del self.members[member.member_id]
        self.pending_sync.pop(member.member_id, None)
        self._count_support(member, -1)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace(self, old: ClassicMember, new: ClassicMember) -> None:
        """A static member has returned under another id. If it was the leader, it stays the leader."""
        was_leader = self.leader_id == old.member_id
        self.remove(old)
        self.add(new, self.protocol_type)
        if was_leader:
            self.leader_id = new.member_id

    def prepare_replacement(self, old: ClassicMember, new: ClassicMember) -> None:
        """Let the replay of the record that is being decided replace ``old``."""
        self.replacements[new.member_id] = (old.member_id, new)

    def withdraw_replacement(self, new: ClassicMember) -> None:
        del self.replacements[new.member_id]

    def update(self, member: ClassicMember, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        self._count_support(member, -1)
        member.protocols = protocols
        self._count_support(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def release_metadata(self) -> None:
        """The group is gone, and its members with it."""
        self._hold(-self.metadata_bytes)

    def _hold(self, change: int) -> None:
        self.metadata_bytes += change
        if self._budget is not None:
            self._budget.hold(change)

    def _count_support(self, member: ClassicMember, change: int) -> None:
        self._hold(change * (metadata_size(member.protocols) + len(member.assignment)))
        supporters = self._supporters
        for name in dict(member.protocols):
            count = supporters.get(name, 0) + change
            if count:
                supporters[name] = count
            else:
                supporters.pop(name, None)
        self._subscribed_topics = None

    # -- waiting -------------------------------------------------------------------------------------------------------------

    def wait_for_join(self, member: ClassicMember, answer: OnDone) -> OnDone | None:
        """Returns the answer to an earlier JoinGroup that waited: the client has abandoned that one."""
        earlier, member.join_answer = member.join_answer, answer
        if earlier is None:
            self._joining += 1
        return earlier

    def take_join_answer(self, member: ClassicMember) -> OnDone | None:
        answer, member.join_answer = member.join_answer, None
        if answer is not None:
            self._joining -= 1
        return answer

    def wait_for_sync(self, member: ClassicMember, answer: OnDone) -> OnDone | None:
        """Returns the answer to an earlier SyncGroup that waited: the client has abandoned that one."""
        earlier, member.sync_answer = member.sync_answer, answer
        return earlier

    def take_sync_answer(self, member: ClassicMember) -> OnDone | None:
        answer, member.sync_answer = member.sync_answer, None
        return answer

    # -- rebalances ----------------------------------------------------------------------------------------------------------

    def note_new_member(self) -> None:
        """Note that a member has joined during the initial rebalance, which then waits longer."""
        self._is_new_member_added = True

    def take_new_member_added(self) -> bool:
        """Return whether a member was added since the last call."""
        is_added, self._is_new_member_added = self._is_new_member_added, False
        return is_added

    def assign(self, member_id: str, assignment: bytes) -> None:
        member = self.members[member_id]
        self._hold(len(assignment) - len(member.assignment))
        member.assignment = assignment

    def inherit_assignment(self, old: ClassicMember, new: ClassicMember) -> None:
        """``new`` is not a member yet."""
        new.assignment = old.assignment

    def clear_assignments(self) -> None:
        for member_id in self.members:
            self.assign(member_id, b"")

    def move_to(self, state: ClassicState, now_ms: int, monotonic_ms: int) -> None:
        assert self.state in PREVIOUS_STATES[state], f"{self.group_id}: {self.state} -> {state}"
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms
        if state is ClassicState.PREPARING_REBALANCE:
            if self._rebalance_began_ms is None:
                self._rebalance_began_ms = monotonic_ms
        elif state is ClassicState.EMPTY:
            self._rebalance_began_ms = None
        elif state is ClassicState.STABLE and self._rebalance_began_ms is not None:
            self.rebalances += 1
            self.rebalance_ms_last = monotonic_ms - self._rebalance_began_ms
            self.rebalance_ms_total += self.rebalance_ms_last
            self._rebalance_began_ms = None

    def elect_joined_leader(self) -> bool:
        """The leader stays if it has joined again; otherwise the first member that has joined leads. Returns False if no member
        has."""
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is not None and leader.join_answer is not None:
            return True
        joined = next((member for member in self.members.values() if member.join_answer is not None), None)
        if joined is None:
            return False
        self.leader_id = joined.member_id
        return True

    def begin_generation(self, now_ms: int, monotonic_ms: int) -> None:
        """Begin a generation, now that all its members have joined."""
        self.generation += 1
        self.protocol_name = select_protocol(self.members.values())
        self._subscribed_topics = None
        self.pending_sync.clear()
        state = ClassicState.COMPLETING_REBALANCE if self.members else ClassicState.EMPTY
        self.move_to(state, now_ms, monotonic_ms)

    def joined_members(self, successor: ClassicMember | None = None) -> tuple[JoinedMember, ...]:
        """The members, for the leader, which assigns. ``successor`` is shown instead of the static member with its
        group.instance.id."""
        joined = []
        for member in self.members.values():
            shown = member if successor is None or member.group_instance_id != successor.group_instance_id else successor
            joined.append(JoinedMember(shown.member_id, shown.group_instance_id, shown.metadata(self.protocol_name)))
        return tuple(joined)


def group_record(
    group: ClassicGroup, assignments: Mapping[str, bytes], successor: ClassicMember | None = None
) -> GroupMetadataRecord:
    """``assignments`` are by member id; the others get an empty one. ``successor`` takes the place, and the assignment, of the
    static member with its group.instance.id."""
    leader_id, members = group.leader_id, []
    for member in group.members.values():
        assignment = assignments.get(member.member_id, b"")
        if successor is not None and member.group_instance_id == successor.group_instance_id:
            if leader_id == member.member_id:
                leader_id = successor.member_id
            member = successor
        members.append(
            MemberMetadata(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(group.protocol_name),
                assignment,
            )
        )
    return GroupMetadataRecord(
        group.group_id,
        GroupMetadataValue(
            group.protocol_type, group.generation, group.protocol_name, leader_id, group.state_timestamp_ms, tuple(members)
        ),
    )


def load_group(group_id: str, value: GroupMetadataValue, budget: MetadataBudget) -> ClassicGroup:
    """Rebuild the group from its record. It is stable, or empty when it has no members: no other state is ever written."""
    group = ClassicGroup(group_id, value.current_state_timestamp, budget)
    group.generation = value.generation
    group.protocol_name = value.protocol
    for member in value.members:
        group.add(_load_member(member, value.protocol or ""), value.protocol_type)
    group.protocol_type = value.protocol_type
    group.leader_id = value.leader
    if value.members:
        group.state = ClassicState.STABLE
    return group


def _load_member(member: MemberMetadata, protocol_name: str) -> ClassicMember:
    # Records before version 1 have no rebalance time-out.
    rebalance_timeout_ms = member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout
    return ClassicMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        rebalance_timeout_ms,
        member.session_timeout,
        ((protocol_name, member.subscription),),
        member.assignment,
    )
