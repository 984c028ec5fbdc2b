"""The offsets that groups have committed, by group, topic and partition.

Only ``replay`` and ``replay_end_transaction`` change them; the rest decides or reads. A value carries the id of its topic, so an
offset of a topic that was deleted is never taken for one of its successor by the same name; the sweep removes it.

An offset for a group that nobody knows makes one that only holds offsets, live and in replay alike: there is no record of such a
group but its offsets.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import Group, GroupTable, GroupType
from tidelog.groups.offsets.pending import PendingOffset, PendingOffsets
from tidelog.groups.offsets.sweep import OffsetSweep
from tidelog.groups.records import NO_TIMESTAMP_MS, OffsetCommitRecord, OffsetCommitValue
from tidelog.metadata.topics import TopicImage
from tidelog.wire.errors import ErrorCode
from tidelog.wire.offset_commit import NO_RETENTION_TIME_MS, OffsetCommitRequest, OffsetCommitTopic, OffsetCommitTopicResult
from tidelog.wire.primitives import ZERO_UUID

NO_ERROR = ErrorCode.NONE
UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NO_OFFSET = -1
TIMESTAMP_MS_MAX = 2**63 - 1
# A string in the key of a record has a length of 16 bits.
KEY_STRING_BYTES_MAX = 2**15 - 1
# From this version of OffsetCommit on an unknown group is GROUP_ID_NOT_FOUND; clients of before expect ILLEGAL_GENERATION.
GROUP_ID_NOT_FOUND_SINCE = 9

OffsetsByTopic = Mapping[str, Mapping[int, OffsetCommitValue]]
# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and every commit makes several.
_new_tuple = tuple.__new__


class FetchedOffset(NamedTuple):
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = NO_ERROR


class FetchedTopic(NamedTuple):
    name: str
    topic_id: bytes
    """Zero when no topic of this name exists."""
    partitions: list[FetchedOffset]


class OffsetStore:
    __slots__ = (
        "_by_group",
        "_environment",
        "_groups",
        "_image",
        "_make_group",
        "_metadata_length_max",
        "_now_ms",
        "_sweep",
        "_topic_ids",
        "commits",
        "count",
        "deletions",
        "pending",
    )

    def __init__(self, environment: GroupEnvironment, groups: GroupTable, make_group: Callable[[str], Group]) -> None:
        """``make_group`` makes a group that only holds offsets."""
        self._environment = environment
        self._image = environment.image
        self._now_ms = environment.clock.now_ms
        self._metadata_length_max: int = environment.settings["offset.metadata.max.bytes"]
        self._groups = groups
        self._make_group = make_group
        self._by_group: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}
        self.pending = PendingOffsets()
        self._sweep = OffsetSweep(environment, groups, self)
        # One object per id instead of one per offset.
        self._topic_ids: dict[bytes, bytes] = {}
        self.count = 0
        """How many offsets there are."""
        self.commits = 0
        self.deletions = 0

    @property
    def expirations(self) -> int:
        return self._sweep.expirations

    # -- replay --------------------------------------------------------------------------------------------------------------

    def replay(self, record: OffsetCommitRecord, offset: int, producer_id: int, producer_epoch: int) -> None:  # noqa: ARG002 - a machine's signature
        group_id, topic, partition, value = record
        if value is None:
            self._remove(group_id, topic, partition)
            self.pending.remove(group_id, topic, partition)
            return
        if self._groups.find(group_id) is None:
            self._groups.put(self._make_group(group_id))
        if producer_id >= 0:
            self.pending.add(producer_id, PendingOffset(group_id, topic, partition, offset, value))
        else:
            self._put(group_id, topic, partition, value)
            if self.pending:
                self.pending.supersede(group_id, topic, partition, offset)

    def replay_end_transaction(self, producer_id: int, is_commit: bool) -> None:
        for group_id, topic, partition, record_offset, value in self.pending.end(producer_id):
            if is_commit and value is not None:
                self._put(group_id, topic, partition, value)
                self.pending.supersede(group_id, topic, partition, record_offset)

    def _put(self, group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> None:
        topics = self._by_group.get(group_id)
        if topics is None:
            topics = self._by_group[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        if partition not in partitions:
            self.count += 1
        topic_id = value.topic_id
        known_id = self._topic_ids.setdefault(topic_id, topic_id)
        partitions[partition] = value if known_id is topic_id else _new_tuple(OffsetCommitValue, (*value[:5], known_id))

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._by_group.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is None:
            return
        self.count -= 1
        if not partitions:
            del topics[topic]
            if not topics:
                del self._by_group[group_id]

    # -- what is there -------------------------------------------------------------------------------------------------------

    def of_group(self, group_id: str) -> OffsetsByTopic:
        """What the group has committed; to be read at once, not kept."""
        return self._by_group.get(group_id, {})

    def is_of_deleted_topic(self, topic: str, topic_id: bytes) -> bool:
        """The image has every topic that an offset could have been committed for: it is at least as new as the record, for this
        broker has led the shard since a metadata record that came after it. What it does not have was deleted."""
        if topic_id == ZERO_UUID:
            return self._image.topic(topic) is None
        return self._image.topic_by_id(topic_id) is None

    def forget_topic_ids(self) -> None:
        """They are only there to share memory; those of deleted topics must not stay for ever."""
        self._topic_ids.clear()

    # -- commit --------------------------------------------------------------------------------------------------------------

    def commit(self, request: OffsetCommitRequest, api_version: int, is_transactional: bool = False) -> CoordinatorResult:
        """The response is a list of OffsetCommitTopicResult. A commit that the group refuses is refused for every partition that
        there is. A transactional one need not say of which member it is: the transaction's own fences count."""
        group_id, _, _, _, retention_time_ms, topics = request
        now_ms = self._now_ms()
        expire_ms = NO_TIMESTAMP_MS
        if retention_time_ms != NO_RETENTION_TIME_MS:
            expire_ms = min(max(now_ms + retention_time_ms, 0), TIMESTAMP_MS_MAX)
        metadata_length_max = self._metadata_length_max
        records: list[OffsetCommitRecord] = []
        results: list[OffsetCommitTopicResult] = []
        is_any_known = False
        for topic in topics:
            found, code = self._find_topic(topic)
            partition_results: list[tuple[int, ErrorCode]] = []
            for partition, offset, leader_epoch, metadata in topic[2]:
                if found is None:
                    partition_results.append((partition, code))
                elif partition not in found.partitions:
                    partition_results.append((partition, UNKNOWN_TOPIC_OR_PARTITION))
                else:
                    is_any_known = True
                    if metadata and len(metadata) > metadata_length_max:
                        partition_results.append((partition, ErrorCode.OFFSET_METADATA_TOO_LARGE))
                        continue
                    partition_results.append((partition, NO_ERROR))
                    value = _new_tuple(
                        OffsetCommitValue, (offset, leader_epoch, metadata or "", now_ms, expire_ms, found.topic_id)
                    )
                    records.append(_new_tuple(OffsetCommitRecord, (group_id, found.name, partition, value)))
            results.append(_new_tuple(OffsetCommitTopicResult, (topic[0], topic[1], partition_results)))
        if is_any_known:
            try:
                self._check_commit(request, api_version, records, is_transactional)
            except ApiError as refusal:
                return CoordinatorResult(response=_refused(results, refusal.code))
        self.commits += len(records)
        return _new_tuple(CoordinatorResult, (records, results, None, None))

    def _find_topic(self, topic: OffsetCommitTopic) -> tuple[TopicImage | None, ErrorCode]:
        name, topic_id, _ = topic
        if topic_id is not None:
            return self._image.topic_by_id(topic_id), ErrorCode.UNKNOWN_TOPIC_ID
        return self._image.topic(name or ""), UNKNOWN_TOPIC_OR_PARTITION

    def _check_commit(
        self, request: OffsetCommitRequest, api_version: int, records: list[OffsetCommitRecord], is_transactional: bool
    ) -> None:
        group_id, generation, member_id, group_instance_id, _, _ = request
        group = self._groups.find(group_id)
        if group is None:
            self._check_new_group(group_id, generation, api_version)
            return
        if is_transactional and _names_no_member(request):
            return
        group.check_offset_commit(member_id, group_instance_id, generation, api_version)
        if isinstance(group, ClassicGroup):
            member = group.members.get(member_id)
            if member is not None:
                # A commit is a sign of life.
                alive_until_ms = self._environment.clock.monotonic_ms() + member.session_timeout_ms
                member.deadline_ms = max(member.deadline_ms, alive_until_ms)
        elif isinstance(group, ConsumerGroup):
            for _, topic, partition, value in records:
                topic_id = ZERO_UUID if value is None else value.topic_id
                group.check_partition_commit(member_id, generation, topic_id, topic, partition)

    def _check_new_group(self, group_id: str, generation: int, api_version: int) -> None:
        """Who names a generation believes the group to have members; who does not only keeps offsets: replay makes the group."""
        if generation >= 0:
            code = ErrorCode.GROUP_ID_NOT_FOUND if api_version >= GROUP_ID_NOT_FOUND_SINCE else ErrorCode.ILLEGAL_GENERATION
            raise ApiError(code, f"group {group_id} does not exist")
        if len(group_id.encode()) > KEY_STRING_BYTES_MAX:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, f"a group id has at most {KEY_STRING_BYTES_MAX} bytes")
        self._groups.check_room()

    # -- fetch ---------------------------------------------------------------------------------------------------------------

    def fetch(
        self,
        group_id: str,
        topics: Sequence[tuple[str, Sequence[int]]] | None,
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
        require_stable: bool = False,
    ) -> list[FetchedTopic]:
        """Of the topics and partitions named, or, for None, of all that the group has committed. ApiError when the member may not
        read. Of a group that does not exist nothing is committed."""
        group = self._groups.find(group_id)
        if group is not None:
            group.check_offset_fetch(member_id, member_epoch)
        offsets = self.of_group(group_id)
        is_unstable = self.pending.has if require_stable and self.pending.has_group(group_id) else None
        if topics is None:
            topics = [(topic, list(partitions)) for topic, partitions in offsets.items()]
        fetched = []
        for topic, partitions in topics:
            found = self._image.topic(topic)
            topic_id = ZERO_UUID if found is None else found.topic_id
            committed = offsets.get(topic, {})
            results = []
            for partition in partitions:
                value = committed.get(partition)
                if is_unstable is not None and is_unstable(group_id, topic, partition):
                    results.append(FetchedOffset(partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT))
                elif value is None or _is_of_another_topic(value.topic_id, topic_id):
                    results.append(FetchedOffset(partition))
                else:
                    results.append(FetchedOffset(partition, value.offset, value.leader_epoch, value.metadata))
            fetched.append(FetchedTopic(topic, topic_id, results))
        return fetched

    # -- delete --------------------------------------------------------------------------------------------------------------

    def delete(self, group_id: str, topics: Sequence[tuple[str, Sequence[int]]]) -> CoordinatorResult:
        """OffsetDelete. The response is a list of (topic, list of (partition, code)); ApiError when the group refuses."""
        known = {topic: found.partitions for topic, _ in topics if (found := self._image.topic(topic)) is not None}
        group = None
        if any(partition in known.get(topic, ()) for topic, partitions in topics for partition in partitions):
            group = self._check_deletion(group_id)
        records: list[OffsetCommitRecord] = []
        results = []
        for topic, partitions in topics:
            is_subscribed = group is not None and group.is_subscribed_to(topic)
            committed = self.of_group(group_id).get(topic, {})
            codes = []
            for partition in partitions:
                code = NO_ERROR
                if partition not in known.get(topic, ()):
                    code = UNKNOWN_TOPIC_OR_PARTITION
                elif is_subscribed:
                    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif partition in committed or self.pending.has(group_id, topic, partition):
                    records.append(OffsetCommitRecord(group_id, topic, partition, None))
                codes.append((partition, code))
            results.append((topic, codes))
        self.deletions += len(records)
        return CoordinatorResult(records, results)

    def _check_deletion(self, group_id: str) -> Group:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        group = self._groups.find(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} does not exist")
        if group.type is GroupType.CLASSIC and group.has_members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            # What its members read nobody knows, so no offset of it is known to be unused.
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members")
        return group

    def tombstones(self, group_id: str) -> list[OffsetCommitRecord]:
        """For all offsets of a group that is deleted, pending ones too."""
        partitions = {
            (topic, partition): None for topic, partitions in self.of_group(group_id).items() for partition in partitions
        }
        partitions.update(dict.fromkeys(self.pending.partitions_of(group_id)))
        return [OffsetCommitRecord(group_id, topic, partition, None) for topic, partition in partitions]

    # -- the sweep -----------------------------------------------------------------------------------------------------------

    def on_loaded(self) -> None:
        self._sweep.start()

    def on_topics_deleted(self) -> None:
        """The image has lost topics: their offsets go too."""
        self._sweep.remove_deleted_topics()


def _names_no_member(request: OffsetCommitRequest) -> bool:
    return request.generation_id_or_member_epoch < 0 and not request.member_id and request.group_instance_id is None


def _is_of_another_topic(committed_id: bytes, topic_id: bytes) -> bool:
    return committed_id != topic_id and committed_id != ZERO_UUID and topic_id != ZERO_UUID


def _refused(results: list[OffsetCommitTopicResult], code: ErrorCode) -> list[OffsetCommitTopicResult]:
    """Partitions that do not exist keep saying so."""
    unknown = (UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    return [
        topic._replace(
            partitions=[(partition, error if error in unknown else code) for partition, error in topic.partitions],
        )
        for topic in results
    ]
