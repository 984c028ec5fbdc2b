"""Time-outs of members: of sessions, and of members that do not give up what they should.

A session's deadline moves with every heartbeat; its timer does not. When it fires too early it is set again for the rest, so that
a heartbeat costs one write to a dictionary. A timer that finds its member gone does nothing.

Names of timers differ from those of classic groups: the same member may go over from one to the other.
"""

from collections.abc import Callable

from tidelog.config.groups import SESSION_TIMEOUT
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.consumer.member import ConsumerGroupMember, MemberState
from tidelog.groups.environment import GroupEnvironment

Fence = Callable[[str, str, str], CoordinatorResult]
"""Group id, member id, the reason."""


class MemberTimers:
    __slots__ = ("_environment", "_fence", "_find")

    def __init__(self, environment: GroupEnvironment, find: Callable[[str], ConsumerGroup | None], fence: Fence) -> None:
        self._environment = environment
        self._find = find
        self._fence = fence

    def heard_from(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        """The session begins anew."""
        group_id, member_id, session_ms = group.group_id, member.member_id, self._session_ms(group, member)
        deadline_ms = self._environment.clock.monotonic_ms() + session_ms
        last_ms = group.session_deadlines_ms.get(member_id)
        group.session_deadlines_ms[member_id] = deadline_ms
        # An earlier deadline than the last one: somebody has made the group's sessions shorter.
        is_earlier = last_ms is None or deadline_ms < last_ms
        if is_earlier or ("member session", group_id, member_id) not in self._environment.timers:
            self._schedule_session(group_id, member_id, session_ms)

    def _session_ms(self, group: ConsumerGroup, member: ConsumerGroupMember) -> int:
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self._environment.group_setting(group.group_id, SESSION_TIMEOUT)

    def _schedule_session(self, group_id: str, member_id: str, delay_ms: int) -> None:
        def check() -> CoordinatorResult:
            group = self._find(group_id)
            if group is None or member_id not in group.members:
                return CoordinatorResult()
            remaining_ms = group.session_deadlines_ms.get(member_id, 0) - self._environment.clock.monotonic_ms()
            if remaining_ms > 0:
                self._schedule_session(group_id, member_id, remaining_ms)
                return CoordinatorResult()
            return self._fence(group_id, member_id, "the member session expired")

        self._environment.timers.schedule(("member session", group_id, member_id), delay_ms, check)

    def reconciled(self, group_id: str, member: ConsumerGroupMember) -> None:
        """The member's assignment has changed: there is something to give up, or there is not any more."""
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._cancel("member rebalance", group_id, member.member_id)
            return
        member_id, epoch, timeout_ms = member.member_id, member.member_epoch, member.rebalance_timeout_ms

        def check() -> CoordinatorResult:
            group = self._find(group_id)
            found = None if group is None else group.members.get(member_id)
            if found is None or found.member_epoch != epoch:
                return CoordinatorResult()
            return self._fence(group_id, member_id, f"it failed to transition from epoch {epoch} within {timeout_ms} ms")

        self._environment.timers.schedule(("member rebalance", group_id, member_id), timeout_ms, check)

    def expect_join(self, group_id: str, member: ConsumerGroupMember) -> None:
        """A member of the classic protocol was told to join again; a time that runs already is not prolonged."""
        if ("member join", group_id, member.member_id) not in self._environment.timers:
            self._expect("member join", group_id, member, "the classic member failed to join within the rebalance timeout")

    def expect_sync(self, group_id: str, member: ConsumerGroupMember) -> None:
        """It has joined, and must fetch its assignment."""
        self._cancel("member join", group_id, member.member_id)
        self._expect("member sync", group_id, member, "the member failed to sync within timeout")

    def synced(self, group_id: str, member_id: str) -> None:
        self._cancel("member sync", group_id, member_id)

    def _expect(self, kind: str, group_id: str, member: ConsumerGroupMember, reason: str) -> None:
        member_id = member.member_id
        self._environment.timers.schedule(
            (kind, group_id, member_id), member.rebalance_timeout_ms, lambda: self._fence(group_id, member_id, reason)
        )

    def _cancel(self, kind: str, group_id: str, member_id: str) -> None:
        self._environment.timers.cancel((kind, group_id, member_id))

    def forget(self, group: ConsumerGroup, member_id: str) -> None:
        group.session_deadlines_ms.pop(member_id, None)
        group.unconfirmed.discard(member_id)
        for kind in ("member session", "member rebalance", "member join", "member sync"):
            self._cancel(kind, group.group_id, member_id)
