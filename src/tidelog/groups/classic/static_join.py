"""A static member (KIP-345) comes back: the same group.instance.id, a new member id. The old one is fenced.

In a stable group nothing else changes: the new member gets the old one's assignment, and the others do not notice. The new id
must be in the log before the member hears it, or a crash would bring back the old one. So the member is replaced by the replay of
its record; until then it is kept in ``ClassicGroup.replacements``.
"""

from tidelog.coordinator.machine import OnDone
from tidelog.groups.classic.decision import Decision
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.member import ClassicMember
from tidelog.groups.classic.rebalance import Rebalances
from tidelog.groups.classic.record import group_record
from tidelog.groups.classic.requests import JoinRequest, JoinResponse
from tidelog.groups.classic.state import ClassicState
from tidelog.groups.classic.votes import select_protocol
from tidelog.wire.errors import ErrorCode


class StaticJoins:
    __slots__ = ("_rebalances",)

    def __init__(self, rebalances: Rebalances) -> None:
        self._rebalances = rebalances

    def rejoin(
        self,
        group: ClassicGroup,
        old: ClassicMember,
        member_id: str,
        request: JoinRequest,
        answer: OnDone,
        decision: Decision,
    ) -> None:
        new = ClassicMember(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            old.assignment,
        )
        if group.state is ClassicState.STABLE:
            others = [member for member in group.members.values() if member is not old]
            if select_protocol([*others, new]) == group.protocol_name:
                self._replace_durably(group, old, new, request, answer, decision)
                return
        self._replace_now(group, old, new, decision)
        group.wait_for_join(new, answer)
        # In CompletingRebalance the leader may assign to the old id already, so all begin anew.
        self._rebalances.prepare_or_complete(group, decision)

    def _replace_now(self, group: ClassicGroup, old: ClassicMember, new: ClassicMember, decision: Decision) -> None:
        decision.answer(group.take_join_answer(old), JoinResponse(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
        self._rebalances.release(group, old, decision, ErrorCode.FENCED_INSTANCE_ID)
        self.replace(group, old, new)

    def replace(self, group: ClassicGroup, old: ClassicMember, new: ClassicMember) -> None:
        self._rebalances.sessions.forget(group.group_id, old.member_id)
        group.replace(old, new)
        self._rebalances.sessions.expect(group, new)

    def _replace_durably(
        self,
        group: ClassicGroup,
        old: ClassicMember,
        new: ClassicMember,
        request: JoinRequest,
        answer: OnDone,
        decision: Decision,
    ) -> None:
        group.replacements[new.member_id] = (old.member_id, new)
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        decision.records.append(group_record(group, assignments, new))
        decision.on_refused = lambda _: self._keep_old(group, new)
        was_leader = group.leader_id == old.member_id
        # An old client that found itself leader would assign, and rebalance the group: it is told that its old self leads.
        is_told = was_leader and request.supports_skipping_assignment
        response = JoinResponse(
            ErrorCode.NONE,
            new.member_id,
            group.generation,
            group.protocol_type,
            group.protocol_name,
            new.member_id if is_told else group.leader_id or "",
            is_told,
            group.joined_members(new) if is_told else (),
        )
        decision.answer(answer, response, new)

    def _keep_old(self, group: ClassicGroup, new: ClassicMember) -> None:
        del group.replacements[new.member_id]
