"""What an administrator asks of groups of any kind: list, describe, delete."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.member import ClassicMember
from tidelog.groups.classic.state import ClassicState
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import GroupTable
from tidelog.groups.offsets import OffsetStore
from tidelog.wire.errors import ErrorCode


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


class DescribedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()
    missing: str | None = None
    """Why there is nothing to describe."""


class GroupAdmin:
    __slots__ = ("_groups", "_offsets")

    def __init__(self, environment: GroupEnvironment, groups: GroupTable, offsets: OffsetStore) -> None:  # noqa: ARG002 -- as every part
        self._groups = groups
        self._offsets = offsets

    def list(self, states: Sequence[str], types: Sequence[str]) -> list[ListedGroup]:
        """``states`` and ``types`` in any case; none of them means all."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        return [
            ListedGroup(group.group_id, group.protocol_type, group.state_name, group.type.value)
            for group in self._groups
            if (not wanted_states or group.state_name.lower() in wanted_states)
            and (not wanted_types or group.type.value.lower() in wanted_types)
        ]

    def describe(self, group_id: str) -> DescribedGroup:
        """Classic groups only; others have a description of their own."""
        group = self._groups.find(group_id)
        if not isinstance(group, ClassicGroup):
            why = "not found" if group is None else "not a classic group"
            return DescribedGroup(group_id, ClassicState.DEAD.value, missing=f"Group {group_id} is {why}.")
        # What members said of themselves is shown only while it is what their assignment was made of.
        name = group.protocol_name if group.state is ClassicState.STABLE else None
        members = tuple(_described(member, name) for member in group.members.values())
        return DescribedGroup(group_id, group.state_name, group.protocol_type, name or "", members)

    def delete(self, group_id: str, offsets_max: int | None = None) -> CoordinatorResult:
        """The group and its offsets, at once. The response is whether it is gone: with ``offsets_max`` only so many offsets go,
        and the group with the last of them."""
        group = self._groups.find(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_deletion()
        offsets = self._offsets.tombstones(group_id)
        if offsets_max is not None and len(offsets) > offsets_max:
            return CoordinatorResult(list(islice(offsets, offsets_max)), False)
        return CoordinatorResult([*offsets, *group.tombstones()], True)


def _described(member: ClassicMember, protocol_name: str | None) -> DescribedMember:
    return DescribedMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.metadata(protocol_name),
        member.assignment,
    )
