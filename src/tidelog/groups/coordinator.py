"""One shard of the group coordinator: its groups, of both protocols, and their offsets.

Each part keeps one concept, and this class passes each record to the part that it belongs to. It also answers an administrator's
questions about groups of any type: list, describe, delete.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.classic.group import ClassicGroup, ClassicMember, ClassicState
from tidelog.groups.consumer.protocol import ConsumerGroupProtocol
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import GroupTable
from tidelog.groups.migration.protocol import MigratingClassicProtocol
from tidelog.groups.offsets import OffsetStore
from tidelog.groups.records import GroupMetadataRecord, OffsetCommitRecord
from tidelog.groups.share.group import SHARE_RECORDS
from tidelog.groups.share.protocol import ShareGroupProtocol
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
    """The reason why there is nothing to describe."""


class GroupCoordinator:
    __slots__ = ("classic", "consumer", "environment", "groups", "offsets", "share")

    def __init__(self, environment: GroupEnvironment) -> None:
        self.environment = environment
        self.groups = GroupTable(environment.settings["tidelog.groups.max"])
        self.consumer = ConsumerGroupProtocol(environment, self.groups)
        self.classic = MigratingClassicProtocol(environment, self.groups, self.consumer)
        self.share = ShareGroupProtocol(environment, self.groups)
        self.offsets = OffsetStore(environment, self.groups, self.classic.offsets_only_group)

    # -- the runtime ---------------------------------------------------------------------------------------------------------

    def replay(self, record: Any, offset: int, producer_id: int, producer_epoch: int) -> None:
        kind = type(record)
        if kind is OffsetCommitRecord:
            self.offsets.replay(record, offset, producer_id, producer_epoch)
        elif kind is GroupMetadataRecord:
            self.classic.replay(record)
        elif kind in SHARE_RECORDS:
            self.share.replay(record)
        else:
            self.consumer.replay(record)

    def replay_end_transaction(self, producer_id: int, is_commit: bool) -> None:
        self.offsets.replay_end_transaction(producer_id, is_commit)

    def on_loaded(self) -> None:
        self.classic.on_loaded()
        self.consumer.on_loaded()
        self.share.on_loaded()
        self.offsets.on_loaded()

    def on_dropped(self, error: Exception) -> None:
        """Only classic groups have waiting requests: every KIP-848 heartbeat is answered by its own decision."""
        self.classic.on_dropped(error)
        self.consumer.on_dropped()
        self.share.on_dropped()

    def on_topics_deleted(self) -> None:
        self.offsets.on_topics_deleted()

    # -- administration ------------------------------------------------------------------------------------------------------

    def list_groups(self, states: Sequence[str], types: Sequence[str]) -> list[ListedGroup]:
        """``states`` and ``types`` may be in any case; an empty sequence matches all."""
        state_names = {state.strip().lower() for state in states}
        type_names = {kind.lower() for kind in types}
        return [
            ListedGroup(group.group_id, group.protocol_type, group.state_name, group.type.value)
            for group in self.groups
            if (not state_names or group.state_name.lower() in state_names)
            and (not type_names or group.type.value.lower() in type_names)
        ]

    def describe_group(self, group_id: str) -> DescribedGroup:
        """Describe a classic group; ``ConsumerGroupProtocol.describe`` describes the others."""
        group = self.groups.find(group_id)
        if not isinstance(group, ClassicGroup):
            why = "not found" if group is None else "not a classic group"
            return DescribedGroup(group_id, ClassicState.DEAD.value, missing=f"Group {group_id} is {why}.")
        # The members' metadata is shown only while their assignment is based on it.
        name = group.protocol_name if group.state is ClassicState.STABLE else None
        members = tuple(_described(member, name) for member in group.members.values())
        return DescribedGroup(group_id, group.state_name, group.protocol_type, name or "", members)

    def delete_group(self, group_id: str, offsets_max: int | None = None) -> CoordinatorResult:
        """Delete the group and its offsets in one decision. The response tells whether it is gone: with ``offsets_max`` at most
        that many offsets are deleted, and the group together with the last of them."""
        group = self.groups.find(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_deletion()
        offsets = self.offsets.tombstones(group_id)
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
