"""The classic protocol of one shard: requests in, decisions out, and the replay of GroupMetadata records.

Replay has two cases. While the shard is loaded a record is all that is known: the group is made from it. Afterwards it is the end
of a decision of our own on a group that is ahead of its log: the record takes effect (the group is there, or gone; an assignment
holds; a static member has a new id), and whatever is soft stays as it is.
"""

from collections.abc import Sequence

from tidelog.coordinator.machine import CoordinatorResult, OnDone
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.heartbeat import Heartbeats
from tidelog.groups.classic.join import Joins
from tidelog.groups.classic.leave import Leaves
from tidelog.groups.classic.rebalance import Rebalances
from tidelog.groups.classic.record import load_group
from tidelog.groups.classic.requests import JoinRequest, LeavingMember, SyncRequest
from tidelog.groups.classic.state import ClassicState
from tidelog.groups.classic.static_join import StaticJoins
from tidelog.groups.classic.sync import Syncs
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import Group, GroupTable
from tidelog.groups.records import GroupMetadataRecord, GroupMetadataValue
from tidelog.wire.errors import ErrorCode


class ClassicProtocol:
    __slots__ = (
        "_clock",
        "_group_size_max",
        "_groups",
        "_heartbeats",
        "_is_loaded",
        "_joins",
        "_leaves",
        "_new_groups",
        "_static",
        "_syncs",
        "rebalance",
    )

    def __init__(self, environment: GroupEnvironment, groups: GroupTable) -> None:
        self._clock = environment.clock
        self._group_size_max: int = environment.settings["group.max.size"]
        self._groups = groups
        self._new_groups: dict[str, ClassicGroup] = {}
        self.rebalance = Rebalances(environment, groups)
        """For those who move groups here from another protocol, and back."""
        self._static = StaticJoins(self.rebalance)
        self._joins = Joins(environment, groups, self.rebalance, self._static, self._new_groups)
        self._syncs = Syncs(environment, groups, self.rebalance)
        self._heartbeats = Heartbeats(groups, self.rebalance.sessions)
        self._leaves = Leaves(groups, self.rebalance)
        self._is_loaded = False

    @property
    def rebalances(self) -> int:
        """Begun since the shard was loaded, in all groups."""
        return self.rebalance.count

    # -- requests ------------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, answer: OnDone) -> CoordinatorResult:
        return self._joins.join(request, answer)

    def sync(self, request: SyncRequest, answer: OnDone) -> CoordinatorResult:
        return self._syncs.sync(request, answer)

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> CoordinatorResult:
        return self._heartbeats.heartbeat(group_id, member_id, group_instance_id, generation)

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> CoordinatorResult:
        return self._leaves.leave(group_id, members)

    # -- the log -------------------------------------------------------------------------------------------------------------

    def replay(self, record: GroupMetadataRecord) -> None:
        group = self._groups.find(record.group)
        if record.value is None:
            if isinstance(group, ClassicGroup):
                self._remove(group)
            return
        new = self._new_groups.pop(record.group, None)
        if new is not None:
            self._groups.put(new)
        elif not self._is_loaded:
            self._groups.put(load_group(record.group, record.value))
        elif isinstance(group, ClassicGroup):
            self._take_effect(group, record.value)
        else:
            # The group has moved here from another protocol.
            self._start(load_group(record.group, record.value))

    def _take_effect(self, group: ClassicGroup, value: GroupMetadataValue) -> None:
        for written in value.members:
            replacement = group.replacements.pop(written.member_id, None)
            if replacement is not None:
                old_id, new = replacement
                self._static.replace(group, group.members[old_id], new)
            group.members[written.member_id].assignment = written.assignment
        if group.state is ClassicState.COMPLETING_REBALANCE:
            group.move_to(ClassicState.STABLE, self._clock.now_ms(), self._clock.monotonic_ms())

    def _remove(self, group: ClassicGroup) -> None:
        self._groups.remove(group.group_id)
        self.rebalance.forget(group)
        decision = self.rebalance.decision()
        for member in group.members.values():
            self.rebalance.release(group, member, decision, ErrorCode.REBALANCE_IN_PROGRESS)
        decision.deliver(None)

    def _start(self, group: ClassicGroup) -> None:
        self._groups.put(group)
        for member in group.members.values():
            self.rebalance.sessions.expect(group, member)

    def offsets_only_group(self, group_id: str) -> Group:
        """The group that a committed offset belongs to, made empty when there is none. Called by the replay of offsets."""
        group = self._groups.find(group_id)
        if group is None:
            group = ClassicGroup(group_id, self._clock.now_ms())
            self._groups.put(group)
        return group

    # -- the life of the shard -----------------------------------------------------------------------------------------------

    def on_loaded(self) -> None:
        self._is_loaded = True
        for group in self._groups:
            if not isinstance(group, ClassicGroup):
                continue
            for member in group.members.values():
                self.rebalance.sessions.expect(group, member)
            if len(group.members) > self._group_size_max:
                # The limit was lowered. All join again, and those who come last are refused.
                decision = self.rebalance.decision()
                self.rebalance.prepare(group, decision)
                decision.deliver(None)

    def on_dropped(self, error: Exception) -> None:
        """Everybody who waits is told; what is in a decision on its way is told by that."""
        for group in [*self._groups, *self._new_groups.values()]:
            if not isinstance(group, ClassicGroup):
                continue
            for member in group.members.values():
                for answer in (group.take_join_answer(member), group.take_sync_answer(member)):
                    if answer is not None:
                        answer(None, error)
