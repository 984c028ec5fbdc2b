"""The offsets that groups have committed, by group, topic and partition: how they are committed, fetched, deleted and expired.

Only ``replay`` and ``replay_end_transaction`` change them; the rest decides or reads. A value carries the id of its topic, so an
offset of a deleted topic is never mistaken for one of its successor of the same name; the sweep removes it. An offset for an
unknown group creates a group that only holds offsets, live and in replay alike: such a group has no record but its offsets.

**Transactions** (``PendingOffsets``): a producer's offsets are pending until its marker arrives. Several transactions may be open
on one partition; the commit that stands last in the log wins, whichever marker comes first. So a commit that takes effect
supersedes the pending ones before it: those stay, because the partition is unstable until their markers arrive, but without a
value to apply.

**The sweep** (``OffsetSweep``) removes what nobody needs any more: offsets of deleted topics, offsets past their retention,
groups that are left with nothing. Retention (``offsets.retention.minutes``) counts for topics that no member reads. In a group
with members it counts from the commit; in one without, from the moment the last one left, or from the commit if that is later. An
offset with its own expiry follows that. Retention is checked
every ``offsets.retention.check.interval.ms``, first after one interval, so that a group that was down for longer than the
retention has this long to come back. Deleted topics are looked for when topics are deleted, and after a load, because the shard
may have been elsewhere at that time. A pass goes through the groups in slices, each a separate decision, so nobody waits long and
every batch is small.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import Group, GroupTable, GroupType
from tidelog.groups.records import NO_TIMESTAMP_MS, OffsetCommitRecord, OffsetCommitValue
from tidelog.metadata.topics import TopicImage
from tidelog.records.topic_partition import TopicPartition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.offset_commit import NO_RETENTION_TIME_MS, OffsetCommitRequest, OffsetCommitTopic, OffsetCommitTopicResult
from tidelog.wire.primitives import ZERO_UUID

NO_ERROR = ErrorCode.NONE
UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NO_OFFSET = -1
TIMESTAMP_MS_MAX = 2**63 - 1
# A string in the key of a record has a length of 16 bits.
KEY_STRING_BYTES_MAX = 2**15 - 1
# From this version of OffsetCommit on an unknown group is GROUP_ID_NOT_FOUND; older clients expect ILLEGAL_GENERATION.
GROUP_ID_NOT_FOUND_SINCE = 9
MS_PER_MINUTE = 60_000
# A slice ends after this many offsets, about a millisecond, or this many bytes of tombstones, well below the size of a batch. A
# topic is examined in one go.
SLICE_OFFSETS = 5_000
SLICE_BYTES = 32 << 10
# The size of a tombstone without its names, which take at most three bytes a character in UTF-8.
TOMBSTONE_BYTES = 64
CHARACTER_BYTES_MAX = 3
# Examining a group without offsets counts as this many.
GROUP_OFFSETS = 5

EXPIRY_TIMER = "offset expiry"
SLICE_TIMER = "offset sweep"


class PendingOffset(NamedTuple):
    group: str
    topic: str
    partition: int
    record_offset: int
    """The offset of its record in the log."""
    value: OffsetCommitValue | None
    """None once a later commit supersedes it."""


class PendingOffsets:
    __slots__ = ("_by_group", "_by_producer")

    def __init__(self) -> None:
        # Maps a producer id to the offsets that wait for its marker.
        self._by_producer: dict[int, dict[tuple[str, str, int], PendingOffset]] = {}
        # Maps group, then (topic, partition), to the producers whose transactions are open on it.
        self._by_group: dict[str, dict[TopicPartition, dict[int, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def has_group(self, group: str) -> bool:
        return group in self._by_group

    def has(self, group: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._by_group.get(group, ())

    def partitions_of(self, group: str) -> list[TopicPartition]:
        return list(self._by_group.get(group, ()))

    def groups(self) -> Iterator[str]:
        return iter(self._by_group)

    def topics_of(self, group: str) -> list[str]:
        return list(dict.fromkeys(topic for topic, _ in self._by_group.get(group, ())))

    def values_of(self, group: str, topic: str) -> list[tuple[int, OffsetCommitValue]]:
        """Return (partition, value) of the pending offsets of a topic."""
        return [
            (partition, pending.value)
            for (name, partition), producers in self._by_group.get(group, {}).items()
            if name == topic
            for producer_id in producers
            if (pending := self._by_producer[producer_id][group, topic, partition]).value is not None
        ]

    def add(self, producer_id: int, pending: PendingOffset) -> None:
        group, topic, partition = pending[:3]
        self._by_producer.setdefault(producer_id, {})[group, topic, partition] = pending
        self._by_group.setdefault(group, {}).setdefault((topic, partition), {})[producer_id] = None

    def supersede(self, group: str, topic: str, partition: int, record_offset: int) -> None:
        """Called when a commit at ``record_offset`` has taken effect."""
        for producer_id in self._by_group.get(group, {}).get((topic, partition), ()):
            offsets = self._by_producer[producer_id]
            pending = offsets[group, topic, partition]
            if pending.record_offset < record_offset:
                offsets[group, topic, partition] = pending._replace(value=None)

    def remove(self, group: str, topic: str, partition: int) -> None:
        """Apply a tombstone: nothing is pending any more."""
        for producer_id in list(self._by_group.get(group, {}).get((topic, partition), ())):
            offsets = self._by_producer[producer_id]
            del offsets[group, topic, partition]
            if not offsets:
                del self._by_producer[producer_id]
            self._close(group, topic, partition, producer_id)

    def end(self, producer_id: int) -> list[PendingOffset]:
        """End the transaction. Returns its pending offsets in the order of the commits."""
        offsets = self._by_producer.pop(producer_id, {})
        for group, topic, partition in offsets:
            self._close(group, topic, partition, producer_id)
        return list(offsets.values())

    def _close(self, group: str, topic: str, partition: int, producer_id: int) -> None:
        partitions = self._by_group[group]
        producers = partitions[topic, partition]
        del producers[producer_id]
        if not producers:
            del partitions[topic, partition]
            if not partitions:
                del self._by_group[group]


OffsetsByTopic = Mapping[str, Mapping[int, OffsetCommitValue]]
# The constructor that NamedTuple generates is Python code; every commit creates several tuples, so they use tuple's own.
_new_tuple = tuple.__new__


class FetchedOffset(NamedTuple):
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = NO_ERROR


class FetchedOffsetTopic(NamedTuple):
    name: str
    topic_id: bytes
    """Zeros when no topic of this name exists."""
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
        """``make_group`` creates a group that only holds offsets."""
        self._environment = environment
        self._image = environment.image
        self._now_ms = environment.clock.now_ms
        self._metadata_length_max: int = environment.settings["offset.metadata.max.bytes"]
        self._groups = groups
        self._make_group = make_group
        self._by_group: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}
        self.pending = PendingOffsets()
        self._sweep = OffsetSweep(environment, groups, self)
        # This lets all offsets of a topic share one object for its id.
        self._topic_ids: dict[bytes, bytes] = {}
        self.count = 0
        """The number of offsets."""
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

    # -- queries -------------------------------------------------------------------------------------------------------------

    def of_group(self, group_id: str) -> OffsetsByTopic:
        """The offsets that the group has committed. Read them at once; do not keep the mapping."""
        return self._by_group.get(group_id, {})

    def is_of_deleted_topic(self, topic: str, topic_id: bytes) -> bool:
        """Whether the offset's topic was deleted. The image has every topic that an offset could have been committed for: it is
        at least as new as the record, because this broker has led the shard since a later metadata record. A topic that it does
        not have was deleted."""
        if topic_id == ZERO_UUID:
            return self._image.topic(topic) is None
        return self._image.topic_by_id(topic_id) is None

    def forget_topic_ids(self) -> None:
        """Drop the shared ids. They only save memory, and those of deleted topics must not stay forever."""
        self._topic_ids.clear()

    # -- commit --------------------------------------------------------------------------------------------------------------

    def commit(self, request: OffsetCommitRequest, api_version: int, is_transactional: bool = False) -> CoordinatorResult:
        """The response is a list of OffsetCommitTopicResult. A commit that the group refuses is refused for every partition that
        exists. A transactional one need not name its member: the transaction is fenced by other means."""
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
        if is_transactional and _names_no_member(request) and group.type is not GroupType.SHARE:
            return
        group.check_offset_commit(member_id, group_instance_id, generation, api_version)
        if isinstance(group, ClassicGroup):
            member = group.members.get(member_id)
            if member is not None:
                member.keep_alive(self._environment.clock.monotonic_ms())
        elif isinstance(group, ConsumerGroup):
            for _, topic, partition, value in records:
                topic_id = ZERO_UUID if value is None else value.topic_id
                group.check_partition_commit(member_id, generation, topic_id, topic, partition)

    def _check_new_group(self, group_id: str, generation: int, api_version: int) -> None:
        """Check a commit for a group that does not exist. A client that names a generation believes that the group has members. A
        client that does not only stores offsets, and replay creates the group."""
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
    ) -> list[FetchedOffsetTopic]:
        """Return the offsets of the given topics and partitions or, for None, all that the group has committed. A group that does
        not exist has no offsets. Raises ApiError when the member may not read."""
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
            fetched.append(FetchedOffsetTopic(topic, topic_id, results))
        return fetched

    # -- delete --------------------------------------------------------------------------------------------------------------

    def delete(self, group_id: str, topics: Sequence[tuple[str, Sequence[int]]]) -> CoordinatorResult:
        """Decide on OffsetDelete. The response is a list of (topic, list of (partition, code)). Raises ApiError when the group
        refuses."""
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
            # Nobody knows which topics its members read, so all of its offsets may be in use.
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members")
        return group

    def tombstones(self, group_id: str) -> list[OffsetCommitRecord]:
        """Tombstones for all offsets of a group that is deleted, including pending ones."""
        partitions = {
            (topic, partition): None for topic, partitions in self.of_group(group_id).items() for partition in partitions
        }
        partitions.update(dict.fromkeys(self.pending.partitions_of(group_id)))
        return [OffsetCommitRecord(group_id, topic, partition, None) for topic, partition in partitions]

    # -- the sweep -----------------------------------------------------------------------------------------------------------

    def on_loaded(self) -> None:
        self._sweep.start()

    def on_topics_deleted(self) -> None:
        """Remove the offsets of topics that were deleted."""
        self._sweep.remove_deleted_topics()


def _names_no_member(request: OffsetCommitRequest) -> bool:
    return request.generation_id_or_member_epoch < 0 and not request.member_id and request.group_instance_id is None


def _is_of_another_topic(committed_id: bytes, topic_id: bytes) -> bool:
    return committed_id != topic_id and committed_id != ZERO_UUID and topic_id != ZERO_UUID


def _refused(results: list[OffsetCommitTopicResult], code: ErrorCode) -> list[OffsetCommitTopicResult]:
    """The refusal of every partition. Partitions that do not exist keep their own error."""
    unknown = (UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    return [
        topic._replace(
            partitions=[(partition, error if error in unknown else code) for partition, error in topic.partitions],
        )
        for topic in results
    ]


class OffsetSweep:
    __slots__ = (
        "_environment",
        "_expires",
        "_groups",
        "_groups_left",
        "_next_expires",
        "_offsets",
        "_topics_left",
        "expirations",
    )

    def __init__(self, environment: GroupEnvironment, groups: GroupTable, offsets: "OffsetStore") -> None:
        self._environment = environment
        self._groups = groups
        self._offsets = offsets
        self._groups_left: deque[str] = deque()
        # The topics left in the first of these groups, once the sweep has begun it.
        self._topics_left: list[str] | None = None
        self._expires = False
        # Whether the pass after this one expires offsets; None if no pass follows.
        self._next_expires: bool | None = None
        self.expirations = 0
        """The number of offsets that were removed because they were too old."""

    def start(self) -> None:
        self._schedule_expiry()
        self.remove_deleted_topics()

    def remove_deleted_topics(self) -> None:
        self._request(False)

    def _schedule_expiry(self) -> None:
        interval_ms: int = self._environment.settings["offsets.retention.check.interval.ms"]
        self._environment.timers.schedule(EXPIRY_TIMER, interval_ms, self._expire)

    def _expire(self) -> CoordinatorResult:
        self._schedule_expiry()
        self._request(True)
        return CoordinatorResult()

    def _request(self, expires: bool) -> None:
        """Request a pass. It follows the current one, because restarting that each time might never end."""
        if self._groups_left:
            self._next_expires = expires or bool(self._next_expires)
            return
        self._expires = expires
        self._groups_left = deque(group.group_id for group in self._groups)
        if self._groups_left:
            self._environment.timers.schedule(SLICE_TIMER, 0, self._slice)

    def _slice(self) -> CoordinatorResult:
        sweep = _SweepSlice()
        while self._groups_left and not sweep.is_full:
            self._advance(sweep)
        if self._groups_left:
            self._environment.timers.schedule(SLICE_TIMER, 0, self._slice)
        else:
            self._offsets.forget_topic_ids()
            if self._next_expires is not None:
                expires, self._next_expires = self._next_expires, None
                self._request(expires)
        return CoordinatorResult(sweep.records)

    def _advance(self, sweep: "_SweepSlice") -> None:
        """Sweep one topic of the first group, or finish the group."""
        group_id = self._groups_left[0]
        group = self._groups.find(group_id)
        if group is None:
            self._next_group()
            return
        if self._topics_left is None:
            topics = [*self._offsets.of_group(group_id), *self._offsets.pending.topics_of(group_id)]
            self._topics_left = list(dict.fromkeys(topics))
            sweep.begin_group()
        if self._topics_left:
            if self._sweep_topic(group, self._topics_left[-1], sweep):
                self._topics_left.pop()
            return
        left = sum(map(len, self._offsets.of_group(group_id).values())) - sweep.group_tombstones
        if self._expires and left == 0 and not group.has_members and not self._offsets.pending.has_group(group_id):
            sweep.add_all(group.tombstones(), group_id)
        self._next_group()

    def _next_group(self) -> None:
        self._groups_left.popleft()
        self._topics_left = None

    def _sweep_topic(self, group: Group, topic: str, sweep: "_SweepSlice") -> bool:
        """Returns False when the slice was full before the topic was done. The next slice starts the topic over, without what is
        gone by then."""
        group_id = group.group_id
        offsets = self._offsets
        committed = offsets.of_group(group_id).get(topic, {})
        sweep.look_at(len(committed))
        empty_since_ms = group.empty_since_ms() or 0
        can_expire = self._expires and any(self._is_expired(value, empty_since_ms) for value in committed.values())
        if can_expire and group.has_members:
            sweep.look_at(group.member_count)
            can_expire = not group.may_read(topic)
        for partition, value in committed.items():
            if sweep.is_full_of_bytes:
                return False
            if offsets.is_of_deleted_topic(topic, value.topic_id):
                sweep.add_tombstone(group_id, topic, partition)
            elif can_expire and self._is_expired(value, empty_since_ms) and not offsets.pending.has(group_id, topic, partition):
                self.expirations += 1
                sweep.add_tombstone(group_id, topic, partition)
        for partition, value in offsets.pending.values_of(group_id, topic):
            if partition not in committed and offsets.is_of_deleted_topic(topic, value.topic_id):
                sweep.add_all([OffsetCommitRecord(group_id, topic, partition, None)], group_id)
        return True

    def _is_expired(self, value: OffsetCommitValue, empty_since_ms: int) -> bool:
        now_ms = self._environment.clock.now_ms()
        if value.expire_timestamp != NO_TIMESTAMP_MS:
            return now_ms >= value.expire_timestamp
        retention_minutes: int = self._environment.settings["offsets.retention.minutes"]
        return now_ms - max(value.commit_timestamp, empty_since_ms) >= retention_minutes * MS_PER_MINUTE


class _SweepSlice:
    __slots__ = ("_bytes", "_looked_at", "group_tombstones", "records")

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.group_tombstones = 0
        """The number of tombstones of the current group in this slice, which are replayed only after it."""
        self._bytes = 0
        self._looked_at = 0

    @property
    def is_full(self) -> bool:
        return self._looked_at >= SLICE_OFFSETS or self.is_full_of_bytes

    @property
    def is_full_of_bytes(self) -> bool:
        return self._bytes >= SLICE_BYTES

    def look_at(self, offsets: int) -> None:
        self._looked_at += offsets

    def begin_group(self) -> None:
        self.group_tombstones = 0
        self._looked_at += GROUP_OFFSETS

    def add_tombstone(self, group_id: str, topic: str, partition: int) -> None:
        """Add the tombstone of a committed offset."""
        self.records.append(OffsetCommitRecord(group_id, topic, partition, None))
        self.group_tombstones += 1
        self._bytes += TOMBSTONE_BYTES + CHARACTER_BYTES_MAX * (len(group_id) + len(topic))

    def add_all(self, records: Any, group_id: str) -> None:
        self.records += records
        self._bytes += len(records) * (TOMBSTONE_BYTES + CHARACTER_BYTES_MAX * len(group_id))
