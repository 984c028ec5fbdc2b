"""JoinGroup: a member wants to be in the next generation.

A dynamic member that does not know its id is given one, and joins with it (version 4 and later): a client that gives up and tries
again would otherwise leave a member behind each time. Static members are in ``static_join``.
"""

from tidelog.coordinator.machine import CoordinatorResult, OnDone
from tidelog.groups.classic.decision import Decision
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.member import ClassicMember
from tidelog.groups.classic.rebalance import Rebalances
from tidelog.groups.classic.record import group_record
from tidelog.groups.classic.requests import UNKNOWN_MEMBER_ID, JoinRequest, JoinResponse
from tidelog.groups.classic.state import ClassicState
from tidelog.groups.classic.static_join import StaticJoins
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import Group, GroupTable
from tidelog.wire.errors import ErrorCode

# How long a JoinGroup of a new member waits at most. Its client has no heartbeats to show that it is still there.
NEW_MEMBER_JOIN_MS_MAX = 300_000
# Ids given out to members that have not come back with them. Beyond that the oldest is forgotten, and must ask again.
PENDING_MEMBERS_MAX = 10_000
# Of the client's id, which a member id begins with: enough to recognize it, and the whole fits into a record.
CLIENT_ID_LENGTH_MAX = 1_000


class Joins:
    __slots__ = ("_clock", "_environment", "_group_size_max", "_groups", "_new_groups", "_rebalances", "_static")

    def __init__(
        self,
        environment: GroupEnvironment,
        groups: GroupTable,
        rebalances: Rebalances,
        static: StaticJoins,
        new_groups: dict[str, ClassicGroup],
    ) -> None:
        """``new_groups`` are those whose first record is decided; its replay takes them from there."""
        self._environment = environment
        self._clock = environment.clock
        self._group_size_max: int = environment.settings["group.max.size"]
        self._groups = groups
        self._rebalances = rebalances
        self._static = static
        self._new_groups = new_groups

    def join(self, request: JoinRequest, answer: OnDone) -> CoordinatorResult:
        """The response is in the result, or ``answer`` gets it later: when the others have joined."""
        decision = self._rebalances.decision()
        found = self._groups.find(request.group_id)
        is_unknown = request.member_id == UNKNOWN_MEMBER_ID
        if found is not None and not isinstance(found, ClassicGroup) and found.has_members:
            return decision.result(JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        if isinstance(found, ClassicGroup):
            group = found
        elif not is_unknown:
            return decision.result(JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
        elif not (request.protocol_type and request.protocols):
            return decision.result(JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        else:
            group = self._new_group(request.group_id, found, decision)
        if not self._accepts(group, request.member_id):
            return decision.result(self._refuse(group, request.member_id, decision))
        if not group.supports(request.protocol_type, request.protocols):
            return decision.result(JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        if is_unknown:
            return decision.result(self._join_new(group, request, answer, decision))
        return decision.result(self._join_known(group, request, answer, decision))

    def _new_group(self, group_id: str, replaced: Group | None, decision: Decision) -> ClassicGroup:
        """``replaced`` is an empty group of another protocol."""
        if replaced is None:
            self._groups.check_room()
        else:
            decision.records.extend(replaced.tombstones())
        group = ClassicGroup(group_id, self._clock.now_ms())
        decision.records.append(group_record(group, {}))
        self._new_groups[group_id] = group
        decision.on_refused = lambda _: self._drop_new(group)
        return group

    def _drop_new(self, group: ClassicGroup) -> None:
        del self._new_groups[group.group_id]
        self._rebalances.forget(group)
        decision = self._rebalances.decision()
        for member in group.members.values():
            self._rebalances.release(group, member, decision, ErrorCode.UNKNOWN_SERVER_ERROR)
        decision.deliver(None)

    # -- the size of the group -----------------------------------------------------------------------------------------------

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        if group.state is ClassicState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is ClassicState.PREPARING_REBALANCE:
            # Not the members, but those who have joined: if the limit was lowered, those who come last are put out.
            return (member is not None and member.join_answer is not None) or group.joining < self._group_size_max
        return member is not None or len(group.members) < self._group_size_max

    def _refuse(self, group: ClassicGroup, member_id: str, decision: Decision) -> JoinResponse:
        member = group.members.get(member_id)
        if member is not None:
            self._rebalances.put_out(group, member, decision)
        elif member_id in group.pending_members:
            self._rebalances.put_out_pending(group, member_id)
        self._rebalances.complete_if_all_joined(group, decision)
        return JoinResponse(ErrorCode.GROUP_MAX_SIZE_REACHED)

    # -- members that do not know their id -----------------------------------------------------------------------------------

    def _join_new(self, group: ClassicGroup, request: JoinRequest, answer: OnDone, decision: Decision) -> JoinResponse | None:
        instance_id = request.group_instance_id
        if instance_id is not None:
            # A client may have its instance id as long as it likes; a member id must fit into a record.
            member_id = f"{instance_id[:CLIENT_ID_LENGTH_MAX]}-{self._environment.new_id()}"
            existing = group.static_members.get(instance_id)
            if existing is not None:
                self._static.rejoin(group, group.members[existing], member_id, request, answer, decision)
                return None
            self._add(group, member_id, request, answer, decision)
            return None
        member_id = f"{request.client_id[:CLIENT_ID_LENGTH_MAX]}-{self._environment.new_id()}"
        if request.requires_known_member_id:
            self._add_pending(group, member_id, request.session_timeout_ms)
            return JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        self._add(group, member_id, request, answer, decision)
        return None

    def _add_pending(self, group: ClassicGroup, member_id: str, session_timeout_ms: int) -> None:
        if len(group.pending_members) >= PENDING_MEMBERS_MAX:
            self._rebalances.put_out_pending(group, next(iter(group.pending_members)))
        group.pending_members[member_id] = None
        self._rebalances.sessions.expect_pending(group, member_id, session_timeout_ms)

    def _add(self, group: ClassicGroup, member_id: str, request: JoinRequest, answer: OnDone, decision: Decision) -> None:
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
        )
        member.is_new = True
        if group.state is ClassicState.PREPARING_REBALANCE and group.previous_state is ClassicState.EMPTY:
            group.is_new_member_added = True
        group.add(member, request.protocol_type)
        group.wait_for_join(member, answer)
        self._rebalances.sessions.expect(group, member, NEW_MEMBER_JOIN_MS_MAX)
        self._rebalances.prepare_or_complete(group, decision)

    # -- members that know their id ------------------------------------------------------------------------------------------

    def _join_known(self, group: ClassicGroup, request: JoinRequest, answer: OnDone, decision: Decision) -> JoinResponse | None:
        member_id = request.member_id
        if member_id in group.pending_members:
            if request.group_instance_id is not None:
                # No client does this: an id that is pending was given to a dynamic member. Kafka fails in the same way.
                return JoinResponse(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._add(group, member_id, request, answer, decision)
            return None
        error = group.member_error(member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            return JoinResponse(error, member_id)
        member = group.members[member_id]
        is_same = member.protocols == request.protocols
        if group.state is ClassicState.COMPLETING_REBALANCE and is_same:
            # It did not get the answer to its last JoinGroup.
            return self._current_generation(group, member_id)
        if group.state is ClassicState.STABLE and is_same and group.leader_id != member_id:
            return self._current_generation(group, member_id)
        # Also a leader that joins again with nothing new: it has seen topics or partitions come or go.
        self._rejoin(group, member, request, answer, decision)
        return None

    def _rejoin(
        self, group: ClassicGroup, member: ClassicMember, request: JoinRequest, answer: OnDone, decision: Decision
    ) -> None:
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        decision.answer(group.wait_for_join(member, answer), JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self._rebalances.prepare_or_complete(group, decision)

    def _current_generation(self, group: ClassicGroup, member_id: str) -> JoinResponse:
        """To go on with SyncGroup."""
        return JoinResponse(
            ErrorCode.NONE,
            member_id,
            group.generation,
            group.protocol_type,
            group.protocol_name,
            group.leader_id or "",
            members=group.joined_members() if group.leader_id == member_id else (),
        )
