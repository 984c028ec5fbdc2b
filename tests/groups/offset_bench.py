"""Committed offsets on a shard of their own, with a log in memory and groups that do as a test says."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.groups.shard_bench import ShardBench
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import Group, GroupTable, GroupType
from tidelog.groups.offsets import FetchedOffset, OffsetStore
from tidelog.groups.records import GroupMetadataRecord, OffsetCommitRecord, OffsetCommitValue
from tidelog.wire.errors import ErrorCode
from tidelog.wire.offset_commit import OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic

VERSION = 9
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


class FakeGroup:
    def __init__(self, group_id: str, *, has_members: bool = False, type_: GroupType = GroupType.CLASSIC) -> None:
        self.group_id = group_id
        self.type = type_
        self.state_name = "Empty"
        self.protocol_type = ""
        self.has_members = has_members
        self.member_count = int(has_members)
        self.rebalances = self.rebalance_ms_last = self.rebalance_ms_total = 0
        self.refusal: ApiError | None = None
        self.asked: list[tuple[Any, ...]] = []
        self.subscribed: tuple[str, ...] = ()
        self.empty_ms: int | None = None

    def check_offset_commit(self, member_id: str, group_instance_id: str | None, generation: int, api_version: int) -> None:
        self.asked.append((member_id, group_instance_id, generation, api_version))
        if self.refusal is not None:
            raise self.refusal

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        self.asked.append((member_id, member_epoch))
        if self.refusal is not None:
            raise self.refusal

    def check_deletion(self) -> None:
        raise AssertionError("offsets are deleted without asking this")

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed

    def may_read(self, topic: str) -> bool:
        return topic in self.subscribed

    def empty_since_ms(self) -> int | None:
        return self.empty_ms

    def tombstones(self) -> Sequence[Any]:
        return [GroupMetadataRecord(self.group_id, None)]


class OffsetMachine:
    def __init__(self, environment: GroupEnvironment, make_group: Callable[[str], Group]) -> None:
        self.groups = GroupTable(environment.settings["tidelog.groups.max"])
        self.offsets = OffsetStore(environment, self.groups, make_group)
        self.replayed: list[Any] = []

    def replay(self, record: Any, offset: int, producer_id: int, producer_epoch: int) -> None:
        self.replayed.append(record)
        if isinstance(record, OffsetCommitRecord):
            self.offsets.replay(record, offset, producer_id, producer_epoch)
        else:
            self.groups.remove(record.group)

    def replay_end_transaction(self, producer_id: int, is_commit: bool) -> None:
        self.offsets.replay_end_transaction(producer_id, is_commit)

    def on_loaded(self) -> None:
        self.offsets.on_loaded()

    def on_dropped(self, error: Exception) -> None:
        """Nobody waits."""


class OffsetBench(ShardBench[OffsetMachine]):
    """``topics`` exist from the beginning, with four partitions each."""

    def __init__(self, *topics: str, **settings: Any) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        super().__init__(lambda environment: OffsetMachine(environment, FakeGroup), named)
        for topic in topics:
            self.create_topic(topic)

    @property
    def offsets(self) -> OffsetStore:
        return self.machine.offsets

    def group(self, group_id: str) -> FakeGroup:
        group = self.machine.groups.find(group_id)
        assert isinstance(group, FakeGroup)
        return group

    def add_group(self, group_id: str, **fields: Any) -> FakeGroup:
        group = FakeGroup(group_id, **fields)
        self.machine.groups.put(group)
        return group

    def create_topic(self, name: str, partitions: int = 4, id_: bytes | None = None) -> bytes:
        """A topic that is created again has another id."""
        return super().create_topic(name, partitions, id_ or self.randomness.token(16))

    # -- decisions -----------------------------------------------------------------------------------------------------------

    def decide(self, decide: Callable[[OffsetStore], CoordinatorResult]) -> Any:
        return self.call(lambda machine: decide(machine.offsets))

    def commit(
        self,
        group_id: str = "g",
        topic: str = "orders",
        partition: int = 0,
        offset: int = 1,
        *,
        version: int = VERSION,
        generation: int = -1,
        retention_ms: int = -1,
        metadata: str | None = None,
        leader_epoch: int = -1,
    ) -> ErrorCode:
        """One partition: what became of it."""
        partitions = [OffsetCommitPartition(partition, offset, leader_epoch, metadata)]
        request = OffsetCommitRequest(group_id, generation, "", None, retention_ms, [OffsetCommitTopic(topic, None, partitions)])
        ((_, _, ((_, code),)),) = self.decide(lambda offsets: offsets.commit(request, version))
        assert isinstance(code, ErrorCode)
        return code

    def replay(
        self, group_id: str, topic: str, partition: int, offset: int, producer_id: int = -1, at: int = 0, **value: Any
    ) -> None:
        """As if the record stood in the log at ``at``."""
        record = OffsetCommitRecord(group_id, topic, partition, OffsetCommitValue(offset, **value))
        self.offsets.replay(record, at, producer_id, 0)

    def fetch(self, group_id: str = "g", topic: str = "orders", partition: int = 0, **options: Any) -> FetchedOffset:
        ((_, _, (found,)),) = self.offsets.fetch(group_id, [(topic, [partition])], **options)
        return found

    def offset(self, group_id: str = "g", topic: str = "orders", partition: int = 0) -> int:
        return self.fetch(group_id, topic, partition).offset
