"""SyncGroup: the leader hands in the assignment, everybody else waits for it.

The assignment is the group's record. Members hear of it when that is committed, and not before: what they begin to read then is
theirs after a crash as well.
"""

from tidelog.coordinator.errors import DecisionTooLarge
from tidelog.coordinator.machine import CoordinatorResult, OnDone
from tidelog.groups.classic.decision import Decision
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.rebalance import Rebalances
from tidelog.groups.classic.record import group_record
from tidelog.groups.classic.requests import SyncRequest, SyncResponse
from tidelog.groups.classic.state import ClassicState
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import GroupTable
from tidelog.wire.errors import ErrorCode


class Syncs:
    __slots__ = ("_groups", "_rebalances", "_report")

    def __init__(self, environment: GroupEnvironment, groups: GroupTable, rebalances: Rebalances) -> None:
        self._groups = groups
        self._rebalances = rebalances
        self._report = environment.report

    def sync(self, request: SyncRequest, answer: OnDone) -> CoordinatorResult:
        """The response is in the result, or ``answer`` gets it later: when the assignment is committed."""
        group = self._groups.find(request.group_id)
        if not isinstance(group, ClassicGroup):
            return CoordinatorResult(response=SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        error = _error(group, request)
        if error is not ErrorCode.NONE:
            return CoordinatorResult(response=SyncResponse(error))
        self._rebalances.note_sync(group, request.member_id)
        if group.state is ClassicState.STABLE:
            return CoordinatorResult(response=_assigned(group, group.members[request.member_id].assignment))
        decision = self._rebalances.decision()
        member = group.members[request.member_id]
        # An earlier one of the same member: its client has given that up and asked again.
        decision.answer(group.take_sync_answer(member), SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_answer = answer
        if group.leader_id == request.member_id:
            self._assign(group, request.assignments, decision)
        return decision.result()

    def _assign(self, group: ClassicGroup, assignments: dict[str, bytes], decision: Decision) -> None:
        """Its replay makes the group stable (``ClassicProtocol.replay``)."""
        decision.records.append(group_record(group, assignments))
        decision.on_refused = lambda error: self._reset(group, error)
        for member in group.members.values():
            response = _assigned(group, assignments.get(member.member_id, b""))
            decision.answer(group.take_sync_answer(member), response, member)
            self._rebalances.sessions.expect(group, member)

    def _reset(self, group: ClassicGroup, error: DecisionTooLarge) -> None:
        self._report("group_metadata_too_large", {"group": group.group_id, "error": str(error)})
        self._rebalances.reset_assignment(group)


def _error(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    error = group.generation_error(request.member_id, request.group_instance_id, request.generation)
    if error is not ErrorCode.NONE:
        return error
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is ClassicState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(theirs: str | None, ours: str | None) -> bool:
    """Before version 5 clients do not say."""
    return theirs is not None and ours is not None and theirs != ours


def _assigned(group: ClassicGroup, assignment: bytes) -> SyncResponse:
    return SyncResponse(ErrorCode.NONE, group.protocol_type, group.protocol_name, assignment)
