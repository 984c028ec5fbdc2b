"""The classic protocol for groups of both types. A group's type decides which protocol serves a request, and groups can change
type.

A consumer group that has members serves requests of the classic protocol as requests of its own members. All other groups are
left to the classic protocol.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult, OnDone
from tidelog.groups.classic.group import ClassicGroup, ClassicState
from tidelog.groups.classic.protocol import ClassicGroupProtocol
from tidelog.groups.classic.requests import JoinRequest, LeavingMember, SyncRequest
from tidelog.groups.consumer.group import ConsumerGroup, ConsumerGroupMember
from tidelog.groups.consumer.protocol import ConsumerGroupProtocol
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import Group, GroupTable
from tidelog.groups.migration.classic_members import ClassicMembers
from tidelog.groups.migration.conversion import downgrade_records, upgraded_group
from tidelog.wire.errors import ErrorCode


class MigratingClassicProtocol(ClassicGroupProtocol):
    __slots__ = ("_consumer", "_members")

    def __init__(self, environment: GroupEnvironment, groups: GroupTable, consumer: ConsumerGroupProtocol) -> None:
        super().__init__(environment, groups)
        self._consumer = consumer
        self._members = ClassicMembers(environment, consumer)
        consumer.migrate_with(self)

    # -- requests of the classic protocol ------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, answer: OnDone) -> CoordinatorResult:
        group = self._live_consumer_group(request.group_id)
        if group is None:
            return super().join(request, answer)
        result = self._members.join(group, request)
        if result.records:
            self._after_join(group, request)
        return result

    def sync(self, request: SyncRequest, answer: OnDone) -> CoordinatorResult:
        group = self._live_consumer_group(request.group_id)
        return super().sync(request, answer) if group is None else self._members.sync(group, request)

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> CoordinatorResult:
        group = self._live_consumer_group(group_id)
        if group is None:
            return super().heartbeat(group_id, member_id, group_instance_id, generation)
        return self._members.heartbeat(group, member_id, group_instance_id, generation)

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> CoordinatorResult:
        group = self._live_consumer_group(group_id)
        return super().leave(group_id, members) if group is None else self._members.leave(group, members)

    def _live_consumer_group(self, group_id: str) -> ConsumerGroup | None:
        group = self._groups.find(group_id)
        return group if isinstance(group, ConsumerGroup) and group.members else None

    # -- groups that change their type ---------------------------------------------------------------------------------------

    def upgrade(self, group: Group, records: list[Any]) -> ConsumerGroup:
        if not isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")
        upgraded = upgraded_group(group, self._environment, records)
        for member in upgraded.members.values():
            self._consumer.timers.heard_from(upgraded, member)
        self._environment.report("group_upgraded", {"group": group.group_id, "members": len(group.members)})
        return upgraded

    def downgrade(self, group: ConsumerGroup, leaving: Iterable[ConsumerGroupMember]) -> list[Any] | None:
        """The replay of the records starts the members' sessions; the rebalance has to wait for that."""
        records = downgrade_records(group, leaving, self._environment)
        if records is not None:
            for member_id in group.members:
                self._consumer.timers.forget(group, member_id)
            group_id = group.group_id
            self._environment.timers.schedule(("downgrade", group_id), 0, lambda: self._begin_rebalance(group_id))
            self._environment.report("group_downgraded", {"group": group_id})
        return records

    def _begin_rebalance(self, group_id: str) -> CoordinatorResult:
        decision = self.rebalances.decision()
        group = self._groups.find(group_id)
        if isinstance(group, ClassicGroup) and group.state is ClassicState.STABLE:
            self.rebalances.prepare(group, decision)
        return decision.result()

    def _after_join(self, group: ConsumerGroup, request: JoinRequest) -> None:
        """A static member that returns with the classic protocol may have replaced the last one with KIP-848."""
        others = [member for member in group.members.values() if member.instance_id != request.group_instance_id]
        if request.group_instance_id is not None and all(member.classic is not None for member in others):
            group_id = group.group_id
            self._environment.timers.schedule(("downgrade", group_id), 0, lambda: self._downgrade_due(group_id))

    def _downgrade_due(self, group_id: str) -> CoordinatorResult:
        group = self._live_consumer_group(group_id)
        return CoordinatorResult((group and self.downgrade(group, ())) or ())
