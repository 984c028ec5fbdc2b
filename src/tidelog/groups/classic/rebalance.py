"""Rebalances of classic groups: from the first member that wants one to the generation that all members learn of.

    Empty or Stable --prepare--> PreparingRebalance --complete_join--> CompletingRebalance --the leader's SyncGroup--> Stable

PreparingRebalance ends when all members have joined again, or after the longest of their rebalance time-outs. A member that has
not joined by then is removed; a static member is removed only when its session ends. The first rebalance of an empty group waits
for group.initial.rebalance.delay.ms instead, and again while new members arrive. CompletingRebalance has the same limit: a member
that has not sent SyncGroup by then is removed, and the others start another rebalance.

Sessions: a member that sends nothing for its session time-out is removed. A heartbeat only moves the member's deadline; the
member's timer checks it when it fires, and rearms itself for what is left. That costs one timer per session time-out instead of
one per heartbeat.
"""

from collections.abc import Callable
from typing import Any

from tidelog.coordinator.errors import DecisionTooLarge
from tidelog.coordinator.machine import CoordinatorResult, OnDone
from tidelog.groups.classic.group import ClassicGroup, ClassicMember, ClassicState, group_record
from tidelog.groups.classic.requests import JoinResponse, SyncResponse
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import GroupTable
from tidelog.ports.clock import Clock
from tidelog.wire.errors import ErrorCode


class ClassicDecision:
    """One decision on a classic group: the records that it writes, and the answers that it gives.

    An answer is taken from its member when it is decided, and given when the records, and all before them, are committed. So each
    is given exactly once: by its decision or, as long as no decision has taken it, when the shard is dropped.
    """

    __slots__ = ("_answers", "_clock", "_on_refused", "records")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.records: list[Any] = []
        self._on_refused: Callable[[DecisionTooLarge], None] | None = None
        self._answers: list[tuple[OnDone, Any, ClassicMember | None]] = []

    def if_refused(self, undo: Callable[[DecisionTooLarge], None]) -> None:
        """Call ``undo`` when the records do not fit into a batch: then nothing was written, and nothing replayed."""
        self._on_refused = undo

    def answer(self, answer: OnDone | None, response: Any, member: ClassicMember | None = None) -> None:
        """Answer ``member`` when the decision is committed. It waits until then, and its session continues from there. Without an
        ``answer`` nobody waits."""
        if answer is not None:
            self._answers.append((answer, response, member))
            if member is not None:
                member.answer_decided()

    def result(self, response: Any = None) -> CoordinatorResult:
        """``response`` is for the request itself, unless it waits or is among the answers."""
        return CoordinatorResult(self.records, response, self.deliver if self._answers or self._on_refused else None)

    def deliver(self, error: Exception | None) -> None:
        answers, self._answers = self._answers, []
        is_refused = isinstance(error, DecisionTooLarge)
        for answer, response, member in answers:
            if member is not None:
                member.answer_given(self._clock.monotonic_ms())
            if is_refused:
                # As in Kafka: a record that is too large for the log is the broker's error, not the client's.
                answer(type(response)(ErrorCode.UNKNOWN_SERVER_ERROR), None)
            else:
                answer(None if error is not None else response, error)
        if isinstance(error, DecisionTooLarge) and self._on_refused is not None:
            self._on_refused(error)


OnExpired = Callable[[ClassicGroup, ClassicMember], CoordinatorResult]
OnPendingExpired = Callable[[ClassicGroup, str], CoordinatorResult]


class MemberSessions:
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
        """Require a sign of life from the member within ``timeout_ms``, by default its session time-out."""
        now_ms = self._clock.monotonic_ms()
        if member.expect_within(now_ms, member.session_timeout_ms if timeout_ms is None else timeout_ms):
            self._arm(group.group_id, member, now_ms)

    def expect_pending(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        """Require a member that was given an id to join with it within ``timeout_ms``."""
        group_id = group.group_id
        self._timers.schedule(_name(group_id, member_id), timeout_ms, lambda: self._pending_due(group_id, member_id))

    def forget(self, group_id: str, member_id: str) -> None:
        self._timers.cancel(_name(group_id, member_id))

    def _arm(self, group_id: str, member: ClassicMember, now_ms: int) -> None:
        member_id = member.member_id
        member.timer_armed()
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
            # Its answer begins a new session; until then only the timer has to keep running.
            member.expect_within(now_ms, member.session_timeout_ms)
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


class ClassicRebalances:
    __slots__ = ("_clock", "_groups", "_initial_delay_ms", "_timers", "count", "sessions")

    def __init__(self, environment: GroupEnvironment, groups: GroupTable) -> None:
        self._clock = environment.clock
        self._timers = environment.timers
        self._initial_delay_ms: int = environment.settings["group.initial.rebalance.delay.ms"]
        self._groups = groups
        self.sessions = MemberSessions(environment, groups, self._session_expired, self._pending_expired)
        self.count = 0
        """Rebalances begun, in all groups."""

    def decision(self) -> ClassicDecision:
        return ClassicDecision(self._clock)

    # -- the join phase ------------------------------------------------------------------------------------------------------

    def prepare_or_complete(self, group: ClassicGroup, decision: ClassicDecision) -> None:
        """Start a rebalance, because a change needs a new generation."""
        if group.state is ClassicState.PREPARING_REBALANCE:
            self.complete_if_all_joined(group, decision)
        else:
            self.prepare(group, decision)

    def prepare(self, group: ClassicGroup, decision: ClassicDecision) -> None:
        if group.state is ClassicState.COMPLETING_REBALANCE:
            self._tell_waiting_for_sync(group, decision)
        self._stop_waiting_for_sync(group)
        is_initial = group.state is ClassicState.EMPTY
        group.move_to(ClassicState.PREPARING_REBALANCE, self._clock.now_ms(), self._clock.monotonic_ms())
        self.count += 1
        if is_initial:
            group.take_new_member_added()
            remaining_ms = max(0, group.rebalance_timeout_ms - self._initial_delay_ms)
            self._wait_for_first(group.group_id, self._initial_delay_ms, remaining_ms)
        elif group.has_all_joined:
            self._complete_join(group, decision)
        else:
            self._wait_for_joins(group)

    def complete_if_all_joined(self, group: ClassicGroup, decision: ClassicDecision) -> None:
        """Complete the join phase if all have joined. The initial rebalance is left to its timer, because more members may
        arrive."""
        is_preparing = group.state is ClassicState.PREPARING_REBALANCE
        if is_preparing and group.previous_state is not ClassicState.EMPTY and group.has_all_joined:
            self._complete_join(group, decision)

    def _wait_for_joins(self, group: ClassicGroup) -> None:
        group_id = group.group_id
        self._timers.schedule(("classic join", group_id), group.rebalance_timeout_ms, lambda: self._join_due(group_id))

    def _join_due(self, group_id: str) -> CoordinatorResult:
        decision = self.decision()
        group = self._groups.find(group_id)
        if isinstance(group, ClassicGroup) and group.state is ClassicState.PREPARING_REBALANCE:
            self._complete_join(group, decision)
        return decision.result()

    def _wait_for_first(self, group_id: str, delay_ms: int, remaining_ms: int) -> None:
        self._timers.schedule(("classic join", group_id), delay_ms, lambda: self._first_due(group_id, delay_ms, remaining_ms))

    def _first_due(self, group_id: str, delay_ms: int, remaining_ms: int) -> CoordinatorResult:
        decision = self.decision()
        group = self._groups.find(group_id)
        if not isinstance(group, ClassicGroup) or group.state is not ClassicState.PREPARING_REBALANCE:
            return decision.result()
        if remaining_ms > 0 and group.take_new_member_added():
            self._wait_for_first(group_id, min(self._initial_delay_ms, remaining_ms), max(0, remaining_ms - delay_ms))
        else:
            self._complete_join(group, decision)
        return decision.result()

    def _complete_join(self, group: ClassicGroup, decision: ClassicDecision) -> None:
        """Begin the next generation with the members that have joined, and static members that may still return."""
        self._timers.cancel(("classic join", group.group_id))
        for member in list(group.members.values()):
            if member.join_answer is None and not member.is_static:
                self.remove(group, member, decision)
        if group.members and not group.elect_joined_leader():
            # Only static members are left, and none of them has joined: their sessions decide whether they are still alive.
            self._wait_for_joins(group)
            return
        group.begin_generation(self._clock.now_ms(), self._clock.monotonic_ms())
        if not group.members:
            decision.records.append(group_record(group, {}))
            return
        leader_id = group.leader_id or ""
        joined = group.joined_members()
        for member in group.members.values():
            response = JoinResponse(
                ErrorCode.NONE,
                member.member_id,
                group.generation,
                group.protocol_type,
                group.protocol_name,
                leader_id,
                members=joined if member.member_id == leader_id else (),
            )
            decision.answer(group.take_join_answer(member), response, member)
            member.has_joined()
            self.sessions.expect(group, member)
            group.pending_sync[member.member_id] = None
        group_id = group.group_id
        self._timers.schedule(("classic sync", group_id), group.rebalance_timeout_ms, lambda: self._sync_due(group_id))

    # -- the sync phase ------------------------------------------------------------------------------------------------------

    def note_sync(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.pop(member_id, None)
        if not group.pending_sync:
            self._timers.cancel(("classic sync", group.group_id))

    def reset_assignment(self, group: ClassicGroup) -> None:
        """Discard the leader's assignment, which could not be written: no member has one, and all must join again."""
        group.clear_assignments()
        decision = self.decision()
        self.prepare(group, decision)
        assert not decision.records, "a group with members writes only what they were assigned"
        decision.deliver(None)

    def _stop_waiting_for_sync(self, group: ClassicGroup) -> None:
        group.pending_sync.clear()
        self._timers.cancel(("classic sync", group.group_id))

    def _tell_waiting_for_sync(self, group: ClassicGroup, decision: ClassicDecision) -> None:
        group.clear_assignments()
        for member in group.members.values():
            answer = group.take_sync_answer(member)
            if answer is not None:
                decision.answer(answer, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS), member)
                self.sessions.expect(group, member)

    def _sync_due(self, group_id: str) -> CoordinatorResult:
        decision = self.decision()
        group = self._groups.find(group_id)
        if not isinstance(group, ClassicGroup) or not group.pending_sync:
            return decision.result()
        for member_id in list(group.pending_sync):
            self.remove(group, group.members[member_id], decision)
        self.prepare(group, decision)
        return decision.result()

    # -- members that leave --------------------------------------------------------------------------------------------------

    def remove(self, group: ClassicGroup, member: ClassicMember, decision: ClassicDecision) -> None:
        """Remove a member. Its waiting requests are answered, so that it joins again if its client is still alive."""
        self.sessions.forget(group.group_id, member.member_id)
        self.release(group, member, decision, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member)

    def release(self, group: ClassicGroup, member: ClassicMember, decision: ClassicDecision, error: ErrorCode) -> None:
        """Answer the member's waiting requests with an error."""
        decision.answer(group.take_join_answer(member), JoinResponse(error))
        decision.answer(group.take_sync_answer(member), SyncResponse(error))

    def remove_pending(self, group: ClassicGroup, member_id: str) -> None:
        self.sessions.forget(group.group_id, member_id)
        del group.pending_members[member_id]

    def _session_expired(self, group: ClassicGroup, member: ClassicMember) -> CoordinatorResult:
        decision = self.decision()
        self.remove(group, member, decision)
        self.after_removal(group, decision)
        return decision.result()

    def _pending_expired(self, group: ClassicGroup, member_id: str) -> CoordinatorResult:
        decision = self.decision()
        self.remove_pending(group, member_id)
        self.after_pending_removal(group, decision)
        return decision.result()

    def after_removal(self, group: ClassicGroup, decision: ClassicDecision) -> None:
        if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            self.prepare(group, decision)
        else:
            self.after_pending_removal(group, decision)

    def after_pending_removal(self, group: ClassicGroup, decision: ClassicDecision) -> None:
        """Complete the join phase if the others waited only for this member."""
        if group.state is ClassicState.PREPARING_REBALANCE and group.has_all_joined:
            self._complete_join(group, decision)

    def forget(self, group: ClassicGroup) -> None:
        """Cancel the timers of a group that is gone."""
        self._timers.cancel(("classic join", group.group_id))
        self._timers.cancel(("classic sync", group.group_id))
        for member_id in [*group.members, *group.pending_members]:
            self.sessions.forget(group.group_id, member_id)
