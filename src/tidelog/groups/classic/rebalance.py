"""Rebalances: from the first member that wants one to the generation that all hear of.

    Empty or Stable --prepare--> PreparingRebalance --complete_join--> CompletingRebalance --the leader's SyncGroup--> Stable

PreparingRebalance ends when all members have joined again, or after the longest rebalance time-out of them; who has not joined by
then is put out (a static member only when its session ends). The first rebalance of an empty group waits for
group.initial.rebalance.delay.ms instead, again and again while new members come. CompletingRebalance has the same limit: who has
not sent SyncGroup by then is put out, and the rest begins anew.
"""

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.classic.decision import Decision
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.member import ClassicMember
from tidelog.groups.classic.record import group_record
from tidelog.groups.classic.requests import JoinResponse, SyncResponse
from tidelog.groups.classic.sessions import Sessions
from tidelog.groups.classic.state import ClassicState
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import GroupTable
from tidelog.wire.errors import ErrorCode


class Rebalances:
    __slots__ = ("_clock", "_groups", "_initial_delay_ms", "_timers", "count", "sessions")

    def __init__(self, environment: GroupEnvironment, groups: GroupTable) -> None:
        self._clock = environment.clock
        self._timers = environment.timers
        self._initial_delay_ms: int = environment.settings["group.initial.rebalance.delay.ms"]
        self._groups = groups
        self.sessions = Sessions(environment, groups, self._session_expired, self._pending_expired)
        self.count = 0
        """Begun, in all groups."""

    def decision(self) -> Decision:
        return Decision(self._clock)

    # -- the join phase ------------------------------------------------------------------------------------------------------

    def prepare_or_complete(self, group: ClassicGroup, decision: Decision) -> None:
        """Something has changed that needs a new generation."""
        if group.state is ClassicState.PREPARING_REBALANCE:
            self.complete_if_all_joined(group, decision)
        else:
            self.prepare(group, decision)

    def prepare(self, group: ClassicGroup, decision: Decision) -> None:
        if group.state is ClassicState.COMPLETING_REBALANCE:
            self._tell_waiting_for_sync(group, decision)
        self._stop_waiting_for_sync(group)
        is_initial = group.state is ClassicState.EMPTY
        group.move_to(ClassicState.PREPARING_REBALANCE, self._clock.now_ms(), self._clock.monotonic_ms())
        self.count += 1
        if is_initial:
            group.is_new_member_added = False
            remaining_ms = max(0, group.rebalance_timeout_ms - self._initial_delay_ms)
            self._wait_for_first(group.group_id, self._initial_delay_ms, remaining_ms)
        elif group.has_all_joined:
            self._complete_join(group, decision)
        else:
            self._wait_for_joins(group)

    def complete_if_all_joined(self, group: ClassicGroup, decision: Decision) -> None:
        """The initial rebalance is left to its timer: more members may come."""
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
        if group.is_new_member_added and remaining_ms > 0:
            group.is_new_member_added = False
            self._wait_for_first(group_id, min(self._initial_delay_ms, remaining_ms), max(0, remaining_ms - delay_ms))
        else:
            self._complete_join(group, decision)
        return decision.result()

    def _complete_join(self, group: ClassicGroup, decision: Decision) -> None:
        """The next generation: those who have joined, and static members who may still come back."""
        self._timers.cancel(("classic join", group.group_id))
        for member in list(group.members.values()):
            if member.join_answer is None and not member.is_static:
                self.put_out(group, member, decision)
        if group.members and not group.elect_joined_leader():
            # Static members only, and none has joined: their sessions decide whether they are still there.
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
            member.is_new = False
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
        """The leader's assignment could not be written: nobody has one, and all must join again."""
        for member in group.members.values():
            member.assignment = b""
        decision = self.decision()
        self.prepare(group, decision)
        assert not decision.records, "a group with members writes only what they were assigned"
        decision.deliver(None)

    def _stop_waiting_for_sync(self, group: ClassicGroup) -> None:
        group.pending_sync.clear()
        self._timers.cancel(("classic sync", group.group_id))

    def _tell_waiting_for_sync(self, group: ClassicGroup, decision: Decision) -> None:
        for member in group.members.values():
            member.assignment = b""
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
            self.put_out(group, group.members[member_id], decision)
        self.prepare(group, decision)
        return decision.result()

    # -- members that go -----------------------------------------------------------------------------------------------------

    def put_out(self, group: ClassicGroup, member: ClassicMember, decision: Decision) -> None:
        """Remove a member. What it waits for is answered: if its client still lives, it joins again."""
        self.sessions.forget(group.group_id, member.member_id)
        self.release(group, member, decision, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member)

    def release(self, group: ClassicGroup, member: ClassicMember, decision: Decision, error: ErrorCode) -> None:
        """Answer what the member waits for with an error."""
        decision.answer(group.take_join_answer(member), JoinResponse(error))
        decision.answer(group.take_sync_answer(member), SyncResponse(error))

    def put_out_pending(self, group: ClassicGroup, member_id: str) -> None:
        self.sessions.forget(group.group_id, member_id)
        del group.pending_members[member_id]

    def _session_expired(self, group: ClassicGroup, member: ClassicMember) -> CoordinatorResult:
        decision = self.decision()
        self.put_out(group, member, decision)
        self.after_removal(group, decision)
        return decision.result()

    def _pending_expired(self, group: ClassicGroup, member_id: str) -> CoordinatorResult:
        decision = self.decision()
        self.put_out_pending(group, member_id)
        self.after_pending_removal(group, decision)
        return decision.result()

    def after_removal(self, group: ClassicGroup, decision: Decision) -> None:
        if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            self.prepare(group, decision)
        else:
            self.after_pending_removal(group, decision)

    def after_pending_removal(self, group: ClassicGroup, decision: Decision) -> None:
        """Perhaps the others waited for nobody else."""
        if group.state is ClassicState.PREPARING_REBALANCE and group.has_all_joined:
            self._complete_join(group, decision)

    def forget(self, group: ClassicGroup) -> None:
        """The group is gone, and its time-outs with it."""
        self._timers.cancel(("classic join", group.group_id))
        self._timers.cancel(("classic sync", group.group_id))
        for member_id in [*group.members, *group.pending_members]:
            self.sessions.forget(group.group_id, member_id)
