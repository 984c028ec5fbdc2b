"""One classic group.

What the log holds of it (``record``): generation, protocol, leader, members with their subscriptions and assignments, as they
were when it was last stable or empty. What is ahead of that, a rebalance with its members, waits and votes, is soft: after a
crash the group is as it was last stable, its members find out by their next request, and join again.

Members are in the order in which they joined, which decides who leads next; nothing depends on the order of a set.
"""

from collections.abc import Sequence
from typing import Any

from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import OnDone
from tidelog.groups.classic.member import ClassicMember
from tidelog.groups.classic.requests import JoinedMember, Protocols
from tidelog.groups.classic.state import PREVIOUS_STATES, ClassicState
from tidelog.groups.classic.subscription import subscribed_topics
from tidelog.groups.classic.votes import select_protocol
from tidelog.groups.group import GroupType
from tidelog.groups.records import GroupMetadataRecord
from tidelog.wire.errors import ErrorCode

CONSUMER_PROTOCOL_TYPE = "consumer"


class ClassicGroup:
    __slots__ = (
        "_joining",
        "_rebalance_began_ms",
        "_subscribed_topics",
        "_supporters",
        "generation",
        "group_id",
        "is_new_member_added",
        "leader_id",
        "members",
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

    def __init__(self, group_id: str, state_timestamp_ms: int) -> None:
        self.group_id = group_id
        self.state = self.previous_state = ClassicState.EMPTY
        self.state_timestamp_ms = state_timestamp_ms
        """Wall clock, of the last change of state; -1 when it is not known."""
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by group.instance.id."""
        self.pending_members: dict[str, None] = {}
        """Ids that were given out, to members that have not joined with them yet. Oldest first."""
        self.pending_sync: dict[str, None] = {}
        """Of this generation, not heard of by SyncGroup."""
        self.replacements: dict[str, tuple[str, ClassicMember]] = {}
        """By new member id: the old id of a static member and its successor, from the decision to the replay of its record."""
        self.is_new_member_added = False
        """Since the timer of the initial rebalance last looked."""
        self._joining = 0
        self._supporters: dict[str, int] = {}
        self._subscribed_topics: frozenset[str] | None = None
        self.rebalances = 0
        """Those that ended with a stable group, since the group was loaded."""
        self.rebalance_ms_last = 0
        self.rebalance_ms_total = 0
        self._rebalance_began_ms: int | None = None

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
        api_version: int,  # noqa: ARG002 -- every group is asked in the same way; classic ones do not mind the version
    ) -> None:
        generation = generation_id_or_member_epoch
        if generation < 0 and self.state is ClassicState.EMPTY:
            return  # A consumer that assigns itself; it uses groups for their offsets only.
        if generation < 0 and not member_id and group_instance_id is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members, and the commit is from none of them")
        error = self.generation_error(member_id, group_instance_id, generation)
        if error is not ErrorCode.NONE:
            raise ApiError(error)
        if self.state is ClassicState.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may read the offsets of a classic group."""

    def check_deletion(self) -> None:
        if self.has_members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        topics = self._topics()
        return topics is None or topic in topics

    def empty_since_ms(self) -> int | None:
        is_known = self.state is ClassicState.EMPTY and self.protocol_type and self.state_timestamp_ms >= 0
        return self.state_timestamp_ms if is_known else None

    def tombstones(self) -> Sequence[Any]:
        return (GroupMetadataRecord(self.group_id, None),)

    def _topics(self) -> frozenset[str] | None:
        """None when a member's metadata cannot be read: it might be any topic."""
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
        """Whether the member is in the generation that it thinks it is in."""
        error = self.member_error(member_id, group_instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these could be in the group: with one protocol at least that all members have."""
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
        """How many members' JoinGroup waits."""
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
        """Its answers must have been taken before: nobody would find them any more."""
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
        """A static member has come back under another id; if it led, it still does."""
        was_leader = self.leader_id == old.member_id
        self.remove(old)
        self.add(new, self.protocol_type)
        if was_leader:
            self.leader_id = new.member_id

    def update(self, member: ClassicMember, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        self._count_support(member, -1)
        member.protocols = protocols
        self._count_support(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def _count_support(self, member: ClassicMember, change: int) -> None:
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
        """Returns the answer to an earlier JoinGroup that waited: the client has given it up and asked again."""
        earlier, member.join_answer = member.join_answer, answer
        if earlier is None:
            self._joining += 1
        return earlier

    def take_join_answer(self, member: ClassicMember) -> OnDone | None:
        answer, member.join_answer = member.join_answer, None
        if answer is not None:
            self._joining -= 1
        return answer

    def take_sync_answer(self, member: ClassicMember) -> OnDone | None:
        answer, member.sync_answer = member.sync_answer, None
        return answer

    # -- rebalances ----------------------------------------------------------------------------------------------------------

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
        """The leader stays if it has joined again; else the first member that has. False when none has."""
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is not None and leader.join_answer is not None:
            return True
        joined = next((member for member in self.members.values() if member.join_answer is not None), None)
        if joined is None:
            return False
        self.leader_id = joined.member_id
        return True

    def begin_generation(self, now_ms: int, monotonic_ms: int) -> None:
        """All who will be in it have joined."""
        self.generation += 1
        self.protocol_name = select_protocol(self.members.values())
        self._subscribed_topics = None
        self.pending_sync.clear()
        state = ClassicState.COMPLETING_REBALANCE if self.members else ClassicState.EMPTY
        self.move_to(state, now_ms, monotonic_ms)

    def joined_members(self, replaced: ClassicMember | None = None) -> tuple[JoinedMember, ...]:
        """For the leader, who assigns. ``replaced`` stands for the static member whose group.instance.id it has."""
        joined = []
        for member in self.members.values():
            shown = member if replaced is None or member.group_instance_id != replaced.group_instance_id else replaced
            joined.append(JoinedMember(shown.member_id, shown.group_instance_id, shown.metadata(self.protocol_name)))
        return tuple(joined)
