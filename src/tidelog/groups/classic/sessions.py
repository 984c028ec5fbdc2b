"""Session time-outs: a member that is not heard of for that long is put out of its group.

A heartbeat only moves the member's deadline. The member's timer looks at it when it is due, and arms itself for what is left: it
costs one timer per session time-out and not one per heartbeat.
"""

from collections.abc import Callable

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.member import ClassicMember
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import GroupTable

OnExpired = Callable[[ClassicGroup, ClassicMember], CoordinatorResult]
OnPendingExpired = Callable[[ClassicGroup, str], CoordinatorResult]


class Sessions:
    __slots__ = ("_clock", "_groups", "_on_expired", "_on_pending_expired", "_timers")

    def __init__(
        self, environment: GroupEnvironment, groups: GroupTable, on_expired: OnExpired, on_pending_expired: OnPendingExpired
    ) -> None:
        self._clock = environment.clock
        self._timers = environment.timers
        self._groups = groups
        self._on_expired = on_expired
        self._on_pending_expired = on_pending_expired

    def expect(self, group: ClassicGroup, member: ClassicMember, timeout_ms: int | None = None) -> None:
        """The member must be heard of again within ``timeout_ms``; None: its session time-out."""
        now_ms = self._clock.monotonic_ms()
        member.deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        # A member has its timer from its first session until it is removed.
        if not member.timer_ms or member.timer_ms > member.deadline_ms:
            self._arm(group.group_id, member, now_ms)

    def expect_pending(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        """A member that was given an id must join with it."""
        group_id = group.group_id
        self._timers.schedule(_name(group_id, member_id), timeout_ms, lambda: self._pending_due(group_id, member_id))

    def forget(self, group_id: str, member_id: str) -> None:
        self._timers.cancel(_name(group_id, member_id))

    def _arm(self, group_id: str, member: ClassicMember, now_ms: int) -> None:
        member_id = member.member_id
        member.timer_ms = member.deadline_ms
        self._timers.schedule(
            _name(group_id, member_id), member.deadline_ms - now_ms, lambda: self._member_due(group_id, member_id)
        )

    def _member_due(self, group_id: str, member_id: str) -> CoordinatorResult:
        group = self._groups.find(group_id)
        member = group.members.get(member_id) if isinstance(group, ClassicGroup) else None
        if not isinstance(group, ClassicGroup) or member is None:
            return CoordinatorResult()
        now_ms = self._clock.monotonic_ms()
        if member.is_waiting:
            # Its answer begins a new session; meanwhile the timer only has to stay.
            member.deadline_ms = now_ms + member.session_timeout_ms
        if member.deadline_ms > now_ms:
            self._arm(group_id, member, now_ms)
            return CoordinatorResult()
        return self._on_expired(group, member)

    def _pending_due(self, group_id: str, member_id: str) -> CoordinatorResult:
        group = self._groups.find(group_id)
        if isinstance(group, ClassicGroup) and member_id in group.pending_members:
            return self._on_pending_expired(group, member_id)
        return CoordinatorResult()


def _name(group_id: str, member_id: str) -> tuple[str, str, str]:
    return ("classic session", group_id, member_id)
