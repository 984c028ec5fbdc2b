"""The state machine of one shard of the group coordinator: its groups, of both protocols, and their offsets.

Each part keeps one concept; this only sends each record to the part that it belongs to.
"""

from typing import Any

from tidelog.groups.admin import GroupAdmin
from tidelog.groups.consumer.protocol import ConsumerProtocol
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import GroupTable
from tidelog.groups.migration.protocol import MigratingClassicProtocol
from tidelog.groups.offsets import OffsetStore
from tidelog.groups.records import GroupMetadataRecord, OffsetCommitRecord


class GroupMachine:
    __slots__ = ("admin", "classic", "consumer", "environment", "groups", "offsets")

    def __init__(self, environment: GroupEnvironment) -> None:
        self.environment = environment
        self.groups = GroupTable(environment.settings["tidelog.groups.max"])
        self.consumer = ConsumerProtocol(environment, self.groups)
        self.classic = MigratingClassicProtocol(environment, self.groups, self.consumer)
        self.offsets = OffsetStore(environment, self.groups, self.classic.offsets_only_group)
        self.admin = GroupAdmin(environment, self.groups, self.offsets)

    def replay(self, record: Any, offset: int, producer_id: int, producer_epoch: int) -> None:
        kind = type(record)
        if kind is OffsetCommitRecord:
            self.offsets.replay(record, offset, producer_id, producer_epoch)
        elif kind is GroupMetadataRecord:
            self.classic.replay(record)
        else:
            self.consumer.replay(record)

    def replay_end_transaction(self, producer_id: int, is_commit: bool) -> None:
        self.offsets.replay_end_transaction(producer_id, is_commit)

    def on_loaded(self) -> None:
        self.classic.on_loaded()
        self.consumer.on_loaded()
        self.offsets.on_loaded()

    def on_dropped(self, error: Exception) -> None:
        self.classic.on_dropped(error)
        self.consumer.on_dropped(error)

    def on_topics_deleted(self) -> None:
        self.offsets.on_topics_deleted()
