"""The classic protocol of one shard: JoinGroup, SyncGroup, Heartbeat and LeaveGroup in, decisions out, and their replay.

**JoinGroup**: a member wants to be in the next generation. A dynamic member that does not know its id is given one, and joins
with it (version 4 and later): otherwise a client that gives up and retries would leave a member behind each time.

A **static member** (KIP-345) comes back with the same group.instance.id and a new member id; the old id is fenced. In a stable
group nothing else changes: the new member gets the old one's assignment, and the others do not notice. The new id must be in the
log before the member learns it, or a crash would bring back the old one. So the replay of its record replaces the member; until
then the successor is kept in ``ClassicGroup.replacements``.

**SyncGroup**: the leader hands in the assignment, and all others wait for it. The assignment is the group's record. Members get
it when that is committed, and not before: the partitions that they begin to read are theirs after a crash as well.

**Replay** has two cases. While the shard is being loaded, a record is all that is known, and the group is built from it; so is a
group that moves here from the other protocol later. Otherwise a record is the end of a decision on a group that is ahead of its
log: the record takes effect (the group exists or is gone, an assignment holds, a static member has a new id), and all soft state
stays as it is.
"""

from collections.abc import Sequence
from functools import partial

from tidelog.config.groups import METADATA_BYTES_MAX, METADATA_BYTES_TOTAL_MAX
from tidelog.controller.errors import ApiError
from tidelog.coordinator.errors import DecisionTooLarge
from tidelog.coordinator.machine import CoordinatorResult, OnDone
from tidelog.groups.classic.group import (
    ClassicGroup,
    ClassicMember,
    ClassicState,
    group_record,
    load_group,
    metadata_size,
    select_protocol,
)
from tidelog.groups.classic.rebalance import ClassicDecision, ClassicRebalances
from tidelog.groups.classic.requests import (
    UNKNOWN_MEMBER_ID,
    JoinRequest,
    JoinResponse,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import Group, GroupTable, GroupType
from tidelog.groups.records import GroupMetadataRecord, GroupMetadataValue
from tidelog.wire.errors import ErrorCode

# How long a JoinGroup of a new member waits at most. Its client sends no heartbeats to show that it is still alive.
NEW_MEMBER_JOIN_MS_MAX = 300_000
# The maximum number of ids that were given to members that have not used them yet. Beyond it the oldest is forgotten, and its
# member must ask again.
PENDING_MEMBERS_MAX = 10_000
# A member id begins with this much of the client's id: enough to recognize it, and the whole id fits into a record.
CLIENT_ID_LENGTH_MAX = 1_000


class ClassicGroupProtocol:
    __slots__ = ("_environment", "_group_size_max", "_groups", "_is_loaded", "_metadata_bytes_max", "_new_groups", "rebalances")

    def __init__(self, environment: GroupEnvironment, groups: GroupTable) -> None:
        self._environment = environment
        self._group_size_max: int = environment.settings["group.max.size"]
        self._metadata_bytes_max: int = environment.settings[METADATA_BYTES_MAX]
        self._groups = groups
        # Groups whose first record is decided; its replay takes them from here.
        self._new_groups: dict[str, ClassicGroup] = {}
        self.rebalances = ClassicRebalances(environment, groups)
        self._is_loaded = False

    # -- JoinGroup -----------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, answer: OnDone) -> CoordinatorResult:
        """The response is in the result, or ``answer`` gets it later, when the others have joined."""
        decision = self.rebalances.decision()
        found = self._groups.find(request.group_id)
        is_unknown = request.member_id == UNKNOWN_MEMBER_ID
        is_taken = found is not None and (found.has_members or found.type is GroupType.SHARE)
        if is_taken and not isinstance(found, ClassicGroup):
            return decision.result(JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        # Before anything is decided.
        self._check_metadata(found if isinstance(found, ClassicGroup) else None, request)
        if isinstance(found, ClassicGroup):
            group = found
        elif not is_unknown:
            return decision.result(JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
        elif not (request.protocol_type and request.protocols):
            return decision.result(JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        else:
            group = self._new_group(request.group_id, found, decision)
        if not self._has_room(group, request.member_id):
            return decision.result(self._refuse(group, request.member_id, decision))
        if not group.supports(request.protocol_type, request.protocols):
            return decision.result(JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        if is_unknown:
            return decision.result(self._join_new(group, request, answer, decision))
        return decision.result(self._join_known(group, request, answer, decision))

    def _new_group(self, group_id: str, replaced: Group | None, decision: ClassicDecision) -> ClassicGroup:
        """``replaced`` is an empty group of another protocol."""
        if replaced is None:
            self._groups.check_room()
        else:
            decision.records.extend(replaced.tombstones())
        group = ClassicGroup(group_id, self._environment.clock.now_ms(), self._environment.metadata_budget)
        decision.records.append(group_record(group, {}))
        self._new_groups[group_id] = group
        decision.if_refused(lambda _: self._drop_new(group))
        return group

    def _drop_new(self, group: ClassicGroup) -> None:
        del self._new_groups[group.group_id]
        self._release_all(group, ErrorCode.UNKNOWN_SERVER_ERROR)
        group.release_metadata()

    def _release_all(self, group: ClassicGroup, error: ErrorCode) -> None:
        self.rebalances.forget(group)
        decision = self.rebalances.decision()
        for member in group.members.values():
            self.rebalances.release(group, member, decision, error)
        decision.deliver(None)

    def _check_metadata(self, group: ClassicGroup | None, request: JoinRequest) -> None:
        """Raises ApiError if the member's metadata would be more than a group, or all groups together, may hold."""
        member = group.members.get(request.member_id) if group is not None else None
        added = metadata_size(request.protocols) - (metadata_size(member.protocols) if member is not None else 0)
        held = group.metadata_bytes if group is not None else 0
        if added > 0 and held + added > self._metadata_bytes_max:
            message = f"the metadata of its members would exceed {METADATA_BYTES_MAX} = {self._metadata_bytes_max}"
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        if added > 0 and not self._environment.metadata_budget.has_room(added):
            message = f"the groups of this broker hold as much metadata as {METADATA_BYTES_TOTAL_MAX} allows"
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)

    def _check_assignments(self, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        """The same for what the leader assigns. Nobody holds anything for those who are not members."""
        held = sum([len(member.assignment) for member in group.members.values()])
        added = sum([len(assignments.get(member_id, b"")) for member_id in group.members]) - held
        if added > 0 and group.metadata_bytes + added > self._metadata_bytes_max:
            message = f"the assignments of its members would exceed {METADATA_BYTES_MAX} = {self._metadata_bytes_max}"
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        if added > 0 and not self._environment.metadata_budget.has_room(added):
            message = f"the groups of this broker hold as much as {METADATA_BYTES_TOTAL_MAX} allows"
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        if group.state is ClassicState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is ClassicState.PREPARING_REBALANCE:
            # Count the members that have joined, not all members: if the limit was lowered, the last to join are removed.
            return (member is not None and member.join_answer is not None) or group.joining < self._group_size_max
        return member is not None or len(group.members) < self._group_size_max

    def _refuse(self, group: ClassicGroup, member_id: str, decision: ClassicDecision) -> JoinResponse:
        member = group.members.get(member_id)
        if member is not None:
            self.rebalances.remove(group, member, decision)
        elif member_id in group.pending_members:
            self.rebalances.remove_pending(group, member_id)
        self.rebalances.complete_if_all_joined(group, decision)
        return JoinResponse(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _join_new(
        self, group: ClassicGroup, request: JoinRequest, answer: OnDone, decision: ClassicDecision
    ) -> JoinResponse | None:
        """Let a member join that does not know its id."""
        instance_id = request.group_instance_id
        # A client may choose ids of any length; a member id must fit into a record.
        prefix = request.client_id if instance_id is None else instance_id
        member_id = f"{prefix[:CLIENT_ID_LENGTH_MAX]}-{self._environment.new_id()}"
        if instance_id is not None:
            if instance_id in group.static_members:
                self._rejoin_static(group, _member_of(request, member_id), request, answer, decision)
                return None
        elif request.requires_known_member_id:
            self._add_pending(group, member_id, request.session_timeout_ms)
            return JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        self._add(group, member_id, request, answer, decision)
        return None

    def _add_pending(self, group: ClassicGroup, member_id: str, session_timeout_ms: int) -> None:
        if len(group.pending_members) >= PENDING_MEMBERS_MAX:
            self.rebalances.remove_pending(group, next(iter(group.pending_members)))
        group.pending_members[member_id] = None
        self.rebalances.sessions.expect_pending(group, member_id, session_timeout_ms)

    def _add(self, group: ClassicGroup, member_id: str, request: JoinRequest, answer: OnDone, decision: ClassicDecision) -> None:
        member = _member_of(request, member_id, is_new=True)
        if group.state is ClassicState.PREPARING_REBALANCE and group.previous_state is ClassicState.EMPTY:
            group.note_new_member()
        group.add(member, request.protocol_type)
        group.wait_for_join(member, answer)
        self.rebalances.sessions.expect(group, member, NEW_MEMBER_JOIN_MS_MAX)
        self.rebalances.prepare_or_complete(group, decision)

    def _join_known(
        self, group: ClassicGroup, request: JoinRequest, answer: OnDone, decision: ClassicDecision
    ) -> JoinResponse | None:
        """Let a member join that knows its id."""
        member_id = request.member_id
        if member_id in group.pending_members:
            if request.group_instance_id is not None:
                # No client does this: a pending id was given to a dynamic member. Kafka fails in the same way.
                return JoinResponse(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._add(group, member_id, request, answer, decision)
            return None
        error = group.member_error(member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            return JoinResponse(error, member_id)
        member = group.members[member_id]
        is_same = member.protocols == request.protocols
        if group.state is ClassicState.COMPLETING_REBALANCE and is_same:
            # The member did not get the answer to its last JoinGroup.
            return _current_generation(group, member_id)
        if group.state is ClassicState.STABLE and is_same and group.leader_id != member_id:
            return _current_generation(group, member_id)
        # This includes a leader that joins again without changes: it has seen topics or partitions appear or disappear.
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        decision.answer(group.wait_for_join(member, answer), JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member_id))
        self.rebalances.prepare_or_complete(group, decision)
        return None

    # -- static members that come back ---------------------------------------------------------------------------------------

    def _rejoin_static(
        self, group: ClassicGroup, new: ClassicMember, request: JoinRequest, answer: OnDone, decision: ClassicDecision
    ) -> None:
        old = group.members[group.static_members[request.group_instance_id or ""]]
        group.inherit_assignment(old, new)
        if group.state is ClassicState.STABLE:
            others = [member for member in group.members.values() if member is not old]
            if select_protocol([*others, new]) == group.protocol_name:
                response = self._replace_durably(group, old, new, request, decision)
                decision.answer(answer, response, new)
                return
        decision.answer(group.take_join_answer(old), JoinResponse(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
        self.rebalances.release(group, old, decision, ErrorCode.FENCED_INSTANCE_ID)
        self._replace(group, old, new)
        group.wait_for_join(new, answer)
        # In CompletingRebalance the leader may already assign to the old id, so all members start over.
        self.rebalances.prepare_or_complete(group, decision)

    def _replace_durably(
        self, group: ClassicGroup, old: ClassicMember, new: ClassicMember, request: JoinRequest, decision: ClassicDecision
    ) -> JoinResponse:
        group.prepare_replacement(old, new)
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        decision.records.append(group_record(group, assignments, new))
        decision.if_refused(lambda _: group.withdraw_replacement(new))
        # An old client that found itself leader would assign, and rebalance the group: it is told that its old id leads.
        leads_knowingly = group.leader_id == old.member_id and request.supports_skipping_assignment
        return JoinResponse(
            ErrorCode.NONE,
            new.member_id,
            group.generation,
            group.protocol_type,
            group.protocol_name,
            new.member_id if leads_knowingly else group.leader_id or "",
            leads_knowingly,
            group.joined_members(new) if leads_knowingly else (),
        )

    def _replace(self, group: ClassicGroup, old: ClassicMember, new: ClassicMember) -> None:
        self.rebalances.sessions.forget(group.group_id, old.member_id)
        group.replace(old, new)
        self.rebalances.sessions.expect(group, new)

    # -- SyncGroup -----------------------------------------------------------------------------------------------------------

    def sync(self, request: SyncRequest, answer: OnDone) -> CoordinatorResult:
        """The response is in the result, or ``answer`` gets it later, when the assignment is committed."""
        group = self._groups.find(request.group_id)
        if not isinstance(group, ClassicGroup):
            return CoordinatorResult(response=SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        error = _sync_error(group, request)
        if error is not ErrorCode.NONE:
            return CoordinatorResult(response=SyncResponse(error))
        if group.leader_id == request.member_id and group.state is not ClassicState.STABLE:
            self._check_assignments(group, request.assignments)
        self.rebalances.note_sync(group, request.member_id)
        member = group.members[request.member_id]
        if group.state is ClassicState.STABLE:
            return CoordinatorResult(response=_assigned(group, member.assignment))
        decision = self.rebalances.decision()
        decision.answer(group.wait_for_sync(member, answer), SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        if group.leader_id == request.member_id:
            self._assign(group, request.assignments, decision)
        return decision.result()

    def _assign(self, group: ClassicGroup, assignments: dict[str, bytes], decision: ClassicDecision) -> None:
        """Write the assignment. The replay of its record makes the group stable."""
        decision.records.append(group_record(group, assignments))
        decision.if_refused(partial(self._assignment_refused, group))
        for member in group.members.values():
            response = _assigned(group, assignments.get(member.member_id, b""))
            decision.answer(group.take_sync_answer(member), response, member)
            self.rebalances.sessions.expect(group, member)

    def _assignment_refused(self, group: ClassicGroup, error: DecisionTooLarge) -> None:
        self._environment.report("group_metadata_too_large", {"group": group.group_id, "error": str(error)})
        self.rebalances.reset_assignment(group)

    # -- Heartbeat -----------------------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> CoordinatorResult:
        """The response is the error code."""
        group = self._groups.find(group_id)
        if not isinstance(group, ClassicGroup):
            return CoordinatorResult(response=ErrorCode.UNKNOWN_MEMBER_ID)
        error = group.generation_error(member_id, group_instance_id, generation)
        if error is ErrorCode.NONE:
            self.rebalances.sessions.expect(group, group.members[member_id])
            if group.state is ClassicState.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return CoordinatorResult(response=error)

    # -- LeaveGroup ----------------------------------------------------------------------------------------------------------

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> CoordinatorResult:
        """The response is a LeaveResult for each member. There is one rebalance for all of them."""
        group = self._groups.find(group_id)
        if not isinstance(group, ClassicGroup):
            return CoordinatorResult(response=[LeaveResult(*member, ErrorCode.UNKNOWN_MEMBER_ID) for member in members])
        decision = self.rebalances.decision()
        results = [LeaveResult(*member, self._leave(group, member, decision)) for member in members]
        if any(result.error is ErrorCode.NONE for result in results):
            if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
                self.rebalances.prepare(group, decision)
            else:
                self.rebalances.complete_if_all_joined(group, decision)
        return decision.result(results)

    def _leave(self, group: ClassicGroup, leaving: LeavingMember, decision: ClassicDecision) -> ErrorCode:
        member_id, instance_id = leaving
        if member_id == UNKNOWN_MEMBER_ID:
            # An administrator removes a static member by its group.instance.id alone.
            member_id = group.static_members.get(instance_id, UNKNOWN_MEMBER_ID) if instance_id is not None else UNKNOWN_MEMBER_ID
        elif member_id in group.pending_members:
            self.rebalances.remove_pending(group, member_id)
            return ErrorCode.NONE
        error = group.member_error(member_id, instance_id)
        if error is ErrorCode.NONE:
            self.rebalances.remove(group, group.members[member_id], decision)
        return error

    # -- the log -------------------------------------------------------------------------------------------------------------

    def replay(self, record: GroupMetadataRecord) -> None:
        group = self._groups.find(record.group)
        if record.value is None:
            if isinstance(group, ClassicGroup):
                self._groups.remove(group.group_id)
                self._release_all(group, ErrorCode.REBALANCE_IN_PROGRESS)
                group.release_metadata()
            return
        new = self._new_groups.pop(record.group, None)
        if new is not None:
            self._groups.put(new)
        elif not self._is_loaded:
            self._groups.put(self._load(record.group, record.value))
        elif isinstance(group, ClassicGroup):
            self._take_effect(group, record.value)
        else:
            # The group has moved here from the other protocol.
            loaded = self._load(record.group, record.value)
            self._groups.put(loaded)
            self._start_sessions(loaded)

    def _load(self, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        earlier = self._groups.find(group_id)
        if isinstance(earlier, ClassicGroup):
            earlier.release_metadata()
        return load_group(group_id, value, self._environment.metadata_budget)

    def _take_effect(self, group: ClassicGroup, value: GroupMetadataValue) -> None:
        for written in value.members:
            replacement = group.replacements.pop(written.member_id, None)
            if replacement is not None:
                old_id, new = replacement
                self._replace(group, group.members[old_id], new)
            group.assign(written.member_id, written.assignment)
        if group.state is ClassicState.COMPLETING_REBALANCE:
            clock = self._environment.clock
            group.move_to(ClassicState.STABLE, clock.now_ms(), clock.monotonic_ms())

    def _start_sessions(self, group: ClassicGroup) -> None:
        for member in group.members.values():
            self.rebalances.sessions.expect(group, member)

    def offsets_only_group(self, group_id: str) -> Group:
        """Return the group that a committed offset belongs to, and create it empty if it does not exist. The replay of offsets
        calls this."""
        group = self._groups.find(group_id)
        if group is None:
            group = ClassicGroup(group_id, self._environment.clock.now_ms(), self._environment.metadata_budget)
            self._groups.put(group)
        return group

    # -- the life of the shard -----------------------------------------------------------------------------------------------

    def on_loaded(self) -> None:
        self._is_loaded = True
        for group in self._groups:
            if not isinstance(group, ClassicGroup):
                continue
            self._start_sessions(group)
            if len(group.members) > self._group_size_max:
                # The limit was lowered. All members join again, and the last to arrive are refused.
                decision = self.rebalances.decision()
                self.rebalances.prepare(group, decision)
                decision.deliver(None)

    def on_dropped(self, error: Exception) -> None:
        """Answer every waiting request with the error. A decision that is being committed answers its own requests."""
        for group in [*self._groups, *self._new_groups.values()]:
            if not isinstance(group, ClassicGroup):
                continue
            for member in group.members.values():
                for answer in (group.take_join_answer(member), group.take_sync_answer(member)):
                    if answer is not None:
                        answer(None, error)
            group.release_metadata()


def _member_of(request: JoinRequest, member_id: str, *, is_new: bool = False) -> ClassicMember:
    return ClassicMember(
        member_id,
        request.group_instance_id,
        request.client_id,
        request.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocols,
        is_new=is_new,
    )


def _current_generation(group: ClassicGroup, member_id: str) -> JoinResponse:
    """The response for a member that continues with SyncGroup."""
    return JoinResponse(
        ErrorCode.NONE,
        member_id,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        group.leader_id or "",
        members=group.joined_members() if group.leader_id == member_id else (),
    )


def _sync_error(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    error = group.generation_error(request.member_id, request.group_instance_id, request.generation)
    if error is not ErrorCode.NONE:
        return error
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is ClassicState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(theirs: str | None, ours: str | None) -> bool:
    """Whether both sides name a value and the values differ. Clients before version 5 do not send one."""
    return theirs is not None and ours is not None and theirs != ours


def _assigned(group: ClassicGroup, assignment: bytes) -> SyncResponse:
    return SyncResponse(ErrorCode.NONE, group.protocol_type, group.protocol_name, assignment)
