"""The partitions that this broker leads according to the image, each with its log.

A log is created when its partition is first used, or in the background a few at a time, so that a topic with a thousand
partitions does not hold the loop while its directories are created. Nothing is lost by that: a partition without a log has no
records.

The partitions of a deleted topic are closed at once, so that nobody reads or writes them any more. Their logs leave the data
directory a few at a time as well. So does the log of a partition that was moved to other brokers, as soon as the metadata says
that this broker is no longer a replica; if the broker was not running then, at its next start.
"""

from collections import deque
from collections.abc import Callable, Iterator

from tidelog.broker.config import TopicSettings
from tidelog.broker.replication_throttles import ReplicationThrottles
from tidelog.controller.errors import ApiError
from tidelog.log.data_directory import DataDirectory
from tidelog.log.errors import LogOffline, StorageError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.recovery.directory_opening import topic_id_of
from tidelog.log.time_budget import TimeBudget
from tidelog.metadata.image import ClusterImage, ImageDelta
from tidelog.metadata.topics import METADATA_TOPIC, TopicImage
from tidelog.records.topic_partition import TopicPartition
from tidelog.replication.errors import NotLeader
from tidelog.replication.partition import AppendTracker, OnReplicated, Partition
from tidelog.wire.errors import ErrorCode

# A millisecond or two of creating directories and files, or of renaming them.
LOGS_PER_SLICE = 16
# How long to wait before the next attempt if the disk is full, or an earlier log of the same name is still being removed.
CREATE_RETRY_MS = 100


class Partitions:
    __slots__ = (
        "_by_name",
        "_directory",
        "_image",
        "_node_id",
        "_report",
        "_settings",
        "_throttles",
        "_to_create",
        "_to_delete",
        "appends",
    )

    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        directory: DataDirectory,
        settings: TopicSettings,
        throttles: ReplicationThrottles,
        report: Callable[[str, dict[str, object]], None],
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._directory = directory
        self._settings = settings
        self._throttles = throttles
        self._report = report
        self.appends = AppendTracker()
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._to_create: deque[TopicPartition] = deque()
        # The logs of deleted topics and of partitions that were moved away, in that order.
        self._to_delete: dict[PartitionLog, None] = {}

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    def find(self, name: str | None, topic_id: bytes | None, index: int) -> Partition:
        """Find a partition by the topic's name, or by its id when there is no name. Raises ApiError, NotLeader or LogOffline."""
        if name is None:
            topic = self._image.topic_by_id(topic_id or b"")
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            name = topic.name
        partitions = self._by_name.get(name)
        if partitions is not None:
            partition = partitions.get(index)
            if partition is not None:
                return partition
        return self._open(name, index)

    def find_copy(self, name: str | None, topic_id: bytes | None, index: int) -> PartitionLog | None:
        """The log of a partition that another broker leads; None if this broker has none that it follows with."""
        topic = self._image.topic(name) if name is not None else self._image.topic_by_id(topic_id or b"")
        state = topic.partitions.get(index) if topic is not None else None
        if topic is None or state is None or self._node_id not in state.replicas or state.leader == self._node_id:
            return None
        log = self._directory.logs.get((topic.name, index))
        return log if log is not None and log.topic_id == topic.topic_id and not log.is_truncating else None

    def _open(self, name: str, index: int) -> Partition:
        topic = self._image.topic(name)
        state = topic.partitions.get(index) if topic is not None else None
        if topic is None or state is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{index} does not exist")
        if state.leader != self._node_id:
            raise NotLeader(f"{name}-{index} is led by broker {state.leader}")
        log = self._log_of(topic, index)
        if log.is_truncating:
            raise NotLeader(f"{name}-{index} is still being truncated, as its last leader asked")
        partition = Partition(topic, index, log, self._settings.min_insync_replicas(name), self.appends)
        partition.change_throttle(self._throttles.of_leader(name, index))
        self._by_name.setdefault(name, {})[index] = partition
        return partition

    def log_of_replica(self, topic: TopicImage, index: int) -> PartitionLog:
        """The log of a partition that another broker leads; it is created if it does not exist. Raises LogOffline or
        StorageError."""
        return self._log_of(topic, index)

    def _log_of(self, topic: TopicImage, index: int) -> PartitionLog:
        key = (topic.name, index)
        reason = self._directory.offline.get(key)
        if reason is not None:
            raise LogOffline(f"{topic.name}-{index}", reason)
        log = self._directory.logs.get(key)
        if log is not None and (log in self._to_delete or log.topic_id != topic.topic_id):
            self._delete(log) if log in self._to_delete else self._retire(log)
            log = None
        if log is None:
            log = self._directory.create(topic.name, index, topic.topic_id, self._settings.log_settings(topic.name))
        return log

    def wait_durable(self, partition: Partition, on_durable: OnReplicated) -> None:
        """Call back once everything that was appended is on the disk, even if the topic asks for less."""
        log = partition.log
        self._directory.commit.wait(log, log.log_end_offset, on_durable)

    # -- following the image -------------------------------------------------------------------------------------------------

    def take_over_logs(self) -> None:
        """At a start, give logs the settings of their topics. A log without a topic is left over from a deletion that a crash
        interrupted, or its metadata was lost. Empty logs are deleted and others are set aside, because records are never deleted
        on a guess."""
        for log in list(self._directory.logs.values()):
            topic = self._image.topic(log.topic)
            if log.topic == METADATA_TOPIC:
                continue
            if topic is not None and topic.topic_id == log.topic_id and self._is_moved_away(topic, log.partition):
                self._to_delete[log] = None
            elif topic is not None and topic.topic_id == log.topic_id:
                log.change_settings(self._settings.log_settings(log.topic))
            else:
                self._report("stray_log", {"partition": log.name, "records": log.log_end_offset - log.log_start_offset})
                self._retire(log)
        self._take_over_missing()
        for key in list(self._directory.offline):
            topic = self._image.topic(key[0])
            if topic is None or topic_id_of(self._directory.disk, self._directory.path, key) not in (None, topic.topic_id):
                # The log is damaged and its topic was deleted. It would block any later topic of that name forever.
                self._report("stray_log", {"partition": f"{key[0]}-{key[1]}", "records": "unknown"})
                self._take_out_offline(key, "stray")

    def _take_over_missing(self) -> None:
        """A replica whose directory was removed must not lead with an empty log, which its followers would copy. Where there are
        no other replicas, the records are gone, and the partition begins again."""
        for key, topic_id in list(self._directory.missing.items()):
            topic = self._image.topic(key[0])
            state = topic.partitions.get(key[1]) if topic is not None else None
            if topic is None or state is None or topic.topic_id != topic_id or self._node_id not in state.replicas:
                self._directory.forget_missing(key)
            elif len(state.replicas) > 1:
                self._directory.take_missing_offline(key)
            else:
                self._report("log_missing", {"partition": f"{key[0]}-{key[1]}", "directory": self._directory.path})

    def note_all_missing(self) -> None:
        for topic in self._image.topics:
            self._to_create.extend((topic.name, index) for index in topic.partitions)

    def apply(self, delta: ImageDelta) -> None:
        for topic in delta.topics_deleted.values():
            self._drop(topic)
        for topic_id, indexes in delta.partitions_changed.items():
            changed = self._image.topic_by_id(topic_id)
            if changed is not None:
                for index in indexes:
                    self._change(changed, index)

    def _drop(self, topic: TopicImage) -> None:
        error = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name} was deleted")
        partitions = self._by_name.pop(topic.name, {})
        for index in topic.partitions:
            log = self._directory.logs.get((topic.name, index))
            partition = partitions.get(index)
            if log is not None and log.topic_id == topic.topic_id:
                self._to_delete[log] = None
            elif (topic.name, index) in self._directory.offline:
                self._take_out_offline((topic.name, index), "delete")
            if partition is not None:
                partition.close(error)

    def _delete(self, log: PartitionLog) -> None:
        del self._to_delete[log]
        self._take_out(log, self._directory.delete)

    def _retire(self, log: PartitionLog) -> None:
        """Take a log out of use because the image does not know its topic."""
        has_records = log.log_end_offset > log.log_start_offset
        self._take_out(log, self._directory.set_aside if has_records else self._directory.delete)

    def _take_out(self, log: PartitionLog, way_out: Callable[[PartitionLog], None]) -> None:
        """Take a log out of use. If it cannot be removed from the disk, the next start tries again."""
        try:
            way_out(log)
        except OSError as error:
            self._report("log_not_deleted", {"partition": log.name, "error": str(error)})

    def _take_out_offline(self, key: TopicPartition, state: str) -> None:
        try:
            self._directory.retire_offline(key, state)
        except OSError as error:
            self._report("log_not_deleted", {"partition": f"{key[0]}-{key[1]}", "error": str(error)})

    def discard_damaged(self, name: str, index: int) -> None:
        """Delete a log that could not be opened, because it will be copied from its leader again."""
        self._take_out_offline((name, index), "delete")

    def _change(self, topic: TopicImage, index: int) -> None:
        partition = self._by_name.get(topic.name, {}).get(index)
        state = topic.partitions[index]
        if self._is_moved_away(topic, index):
            self._note_moved_away(topic, index)
        elif partition is None:
            self._to_create.append((topic.name, index))
        if partition is None:
            return
        if state.leader == self._node_id and state.leader_epoch == partition.leader_epoch:
            partition.follow(state, self._settings.min_insync_replicas(topic.name))
            return
        # Even if this broker leads again, another one may have led in between.
        del self._by_name[topic.name][index]
        partition.close(NotLeader(f"{topic.name}-{index} is led by broker {state.leader} in epoch {state.leader_epoch}"))
        if state.leader == self._node_id:
            self._to_create.append((topic.name, index))

    def _is_moved_away(self, topic: TopicImage, index: int) -> bool:
        """Whether the metadata has the partition, and names only other brokers as its replicas."""
        state = topic.partitions.get(index)
        return state is not None and self._node_id not in state.replicas

    def _note_moved_away(self, topic: TopicImage, index: int) -> None:
        key = (topic.name, index)
        log = self._directory.logs.get(key)
        if log is not None and log.topic_id == topic.topic_id:
            self._to_delete[log] = None
        elif key in self._directory.offline:
            self._take_out_offline(key, "delete")

    def settings_changed(self, name: str) -> None:
        topic = self._image.topic(name)
        if topic is None:
            return
        settings, min_insync = self._settings.log_settings(name), self._settings.min_insync_replicas(name)
        opened = self._by_name.get(name, {})
        for index in topic.partitions:
            log = self._directory.logs.get((name, index))
            if log is None:
                continue
            log.change_settings(settings)
            if log.is_dirty:
                # The log may have been relaxed before and be waiting for a later sync than the new settings require.
                self._directory.commit.note_dirty(log)
            partition = opened.get(index)
            if partition is not None:
                partition.change_min_insync_replicas(min_insync)
                partition.change_throttle(self._throttles.of_leader(name, index))

    def create_some(self) -> int | None:
        """Open or create a few of the missing logs. Returns the milliseconds until the next call; None when all logs exist."""
        work = TimeBudget(self._directory.clock, LOGS_PER_SLICE)
        while self._to_create and not work.is_over:
            work.spend()
            name, index = self._to_create.popleft()
            try:
                self.find(name, None, index)
            except (ApiError, NotLeader, LogOffline):
                continue  # The partition was deleted, is led elsewhere, or is damaged: a request for it gets the reason.
            except StorageError as error:
                self._to_create.append((name, index))
                self._report("partition_not_created", {"partition": f"{name}-{index}", "error": str(error)})
                return CREATE_RETRY_MS
        return 0 if self._to_create else None

    def delete_some(self) -> bool:
        """Take a few logs of deleted topics out of the data directory; returns whether there are more."""
        work = TimeBudget(self._directory.clock, LOGS_PER_SLICE)
        while self._to_delete and not work.is_over:
            work.spend()
            self._delete(next(iter(self._to_delete)))
        return bool(self._to_delete)

    def delete_all(self) -> None:
        """Delete them all before the broker stops, because the next start would not know that these logs have to go."""
        while self.delete_some():
            pass
