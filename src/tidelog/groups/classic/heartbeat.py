"""Heartbeat: a member lives, and hears whether it must join again."""

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.sessions import Sessions
from tidelog.groups.classic.state import ClassicState
from tidelog.groups.group import GroupTable
from tidelog.wire.errors import ErrorCode


class Heartbeats:
    __slots__ = ("_groups", "_sessions")

    def __init__(self, groups: GroupTable, sessions: Sessions) -> None:
        self._groups = groups
        self._sessions = sessions

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> CoordinatorResult:
        """The response is the error code."""
        group = self._groups.find(group_id)
        if not isinstance(group, ClassicGroup):
            return CoordinatorResult(response=ErrorCode.UNKNOWN_MEMBER_ID)
        error = group.generation_error(member_id, group_instance_id, generation)
        if error is ErrorCode.NONE:
            self._sessions.expect(group, group.members[member_id])
            if group.state is ClassicState.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return CoordinatorResult(response=error)
