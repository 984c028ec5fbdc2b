"""LeaveGroup: members go, by themselves or put out by an administrator, who knows static members by their group.instance.id."""

from collections.abc import Sequence

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.classic.decision import Decision
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.rebalance import Rebalances
from tidelog.groups.classic.requests import UNKNOWN_MEMBER_ID, LeaveResult, LeavingMember
from tidelog.groups.classic.state import ClassicState
from tidelog.groups.group import GroupTable
from tidelog.wire.errors import ErrorCode


class Leaves:
    __slots__ = ("_groups", "_rebalances")

    def __init__(self, groups: GroupTable, rebalances: Rebalances) -> None:
        self._groups = groups
        self._rebalances = rebalances

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> CoordinatorResult:
        """The response is a LeaveResult for each member. One rebalance for all of them."""
        group = self._groups.find(group_id)
        if not isinstance(group, ClassicGroup):
            return CoordinatorResult(response=[LeaveResult(*member, ErrorCode.UNKNOWN_MEMBER_ID) for member in members])
        decision = self._rebalances.decision()
        results = [LeaveResult(*member, self._leave(group, member, decision)) for member in members]
        if any(result.error is ErrorCode.NONE for result in results):
            if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
                self._rebalances.prepare(group, decision)
            else:
                self._rebalances.complete_if_all_joined(group, decision)
        return decision.result(results)

    def _leave(self, group: ClassicGroup, leaving: LeavingMember, decision: Decision) -> ErrorCode:
        member_id, instance_id = leaving
        if member_id == UNKNOWN_MEMBER_ID:
            member_id = group.static_members.get(instance_id, UNKNOWN_MEMBER_ID) if instance_id is not None else UNKNOWN_MEMBER_ID
        elif member_id in group.pending_members:
            self._rebalances.put_out_pending(group, member_id)
            return ErrorCode.NONE
        error = group.member_error(member_id, instance_id)
        if error is ErrorCode.NONE:
            self._rebalances.put_out(group, group.members[member_id], decision)
        return error
