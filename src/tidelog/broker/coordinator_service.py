"""A coordinator on this broker: its internal topic, which is created when it is first needed, and its shards.

Every partition of the topic that the broker leads is a shard. Shards are loaded soon after the start, a few at a time, or at once
when a request needs one. A shard that is not available affects only the groups or ids that belong to it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic

from tidelog.broker.partitions import Partitions
from tidelog.controller.errors import ApiError
from tidelog.controller.topics import NewTopic
from tidelog.coordinator.errors import CoordinatorError, CoordinatorNotAvailable, NotCoordinator
from tidelog.coordinator.machine import CoordinatorResult, MachineType, OnCommitted, OnDone, Scheduler
from tidelog.coordinator.runtime import CoordinatorRuntime, partition_for
from tidelog.coordinator.shard import NO_PRODUCER, Producer, Shard
from tidelog.log.append_check import AppendOrigin
from tidelog.log.errors import LogOffline, StorageError
from tidelog.log.reading import Isolation, LogSlice, read
from tidelog.metadata.image import ClusterImage, ImageDelta
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.ports.disk import Buffer
from tidelog.replication.errors import NotLeader
from tidelog.replication.partition import Partition

# Each opens or creates a log: about a millisecond in all.
SHARDS_PER_SLICE = 8
# A log that could not be opened, for example because the disk is full, is retried after this time.
RETRY_MS = 1_000

OnTopic = Callable[[TopicImage | None, Exception | None], None]
CreateTopic = Callable[[NewTopic, Callable[[Exception | None], None]], None]


class CoordinatorService(Generic[MachineType]):
    def __init__(
        self,
        runtime: CoordinatorRuntime[MachineType],
        new_topic: NewTopic,
        *,
        node_id: int,
        image: ClusterImage,
        partitions: Partitions,
        scheduler: Scheduler,
        create_topic: CreateTopic,
    ) -> None:
        """``create_topic`` lets the controller decide, and calls back when the topic exists."""
        self.runtime = runtime
        self._topic_name = runtime.topic
        self._new_topic = new_topic
        self._node_id = node_id
        self._image = image
        self._partitions = partitions
        self._scheduler = scheduler
        self._create_topic = create_topic
        self._waiting_for_topic: list[OnTopic] = []
        self._to_take_over: deque[int] = deque()
        self._is_taking_over = False
        # Partitions whose log was not available when the broker tried to take them over.
        self._unavailable: set[int] = set()
        # The leader epoch in which each shard was taken over.
        self._leader_epochs: dict[int, int] = {}

    @property
    def untried_count(self) -> int:
        """The number of partitions led here whose load has not been tried yet."""
        return sum(1 for index in self._to_take_over if index not in self._unavailable)

    @property
    def unavailable_count(self) -> int:
        """The number of partitions that were not available when last tried, and are being retried."""
        return len(self._unavailable)

    # -- the topic -----------------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> TopicImage | None:
        return self._image.topics.find(self._topic_name)

    def with_topic(self, on_topic: OnTopic) -> None:
        """Call back with the topic, which is created if it does not exist."""
        topic = self.topic
        if topic is not None:
            on_topic(topic, None)
            return
        self._waiting_for_topic.append(on_topic)
        if len(self._waiting_for_topic) == 1:
            self._create_topic(self._new_topic, self._created)

    def _created(self, error: Exception | None) -> None:
        waiting, self._waiting_for_topic = self._waiting_for_topic, []
        topic = self.topic
        if topic is None and error is None:
            error = CoordinatorNotAvailable(f"{self.runtime.topic} was not created")
        for on_topic in waiting:
            on_topic(topic, None if topic is not None else error)

    def locate(self, topic: TopicImage, key: str) -> PartitionImage:
        """Return the partition whose leader coordinates ``key``."""
        return topic.partitions[partition_for(key, len(topic.partitions))]

    # -- requests ------------------------------------------------------------------------------------------------------------

    def write(
        self,
        key: str,
        decide: Callable[[MachineType], CoordinatorResult],
        on_done: OnDone,
        producer: Producer = NO_PRODUCER,
    ) -> None:
        """Decide on the shard that is responsible for ``key``; see ``Shard.write``."""
        try:
            shard = self.shard_of(key)
        except Exception as error:
            on_done(None, error)
        else:
            shard.write(decide, on_done, producer)

    def read(self, key: str, query: Callable[[MachineType], Any], on_done: OnDone) -> None:
        try:
            shard = self.shard_of(key)
        except Exception as error:
            on_done(None, error)
        else:
            shard.read(query, on_done)

    def shard_of(self, key: str) -> Shard[MachineType]:
        topic = self._image.topics.find(self._topic_name)
        if topic is None:
            raise NotCoordinator(f"{self._topic_name} does not exist yet: call FindCoordinator first")
        index = partition_for(key, len(topic.partitions))
        return self.runtime.find(index) or self._take_over(index)

    def shard(self, index: int) -> Shard[MachineType]:
        return self.runtime.find(index) or self._take_over(index)

    def shards(self) -> Mapping[int, Shard[MachineType] | None]:
        """All shards that this broker leads, loaded or being loaded; None for one that is not available."""
        topic = self.topic
        if topic is None:
            return {}
        led = [index for index, partition in sorted(topic.partitions.items()) if partition.leader == self._node_id]
        return {index: self._find_or_take_over(index) for index in led}

    def _find_or_take_over(self, index: int) -> Shard[MachineType] | None:
        try:
            return self.shard(index)
        except CoordinatorError:
            return None

    def _take_over(self, index: int) -> Shard[MachineType]:
        name = self.runtime.topic
        try:
            partition = self._partitions.find(name, None, index)
        except NotLeader as error:
            if self._is_led_here(index):
                # Its log is still being truncated, as its last leader asked. Nobody may ask for the shard after that, and open
                # transactions wait for it.
                raise CoordinatorNotAvailable(str(error)) from error
            raise NotCoordinator(str(error)) from error
        except (ApiError, StorageError, LogOffline) as error:
            raise CoordinatorNotAvailable(f"{name}-{index}: {error}") from error
        self._leader_epochs[index] = partition.leader_epoch
        return self.runtime.take_over(index, PartitionShardLog(partition))

    def _is_led_here(self, index: int) -> bool:
        topic = self.topic
        state = topic.partitions.get(index) if topic is not None else None
        return state is not None and state.leader == self._node_id

    # -- changes of leadership -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take over the shards that are led here, now that the image is complete."""
        topic = self.topic
        if topic is not None:
            self._note(topic, topic.partitions)

    def apply(self, delta: ImageDelta) -> None:
        name = self.runtime.topic
        for topic in delta.topics_deleted.values():
            if topic.name == name:
                for index in topic.partitions:
                    self.runtime.release(index, NotCoordinator(f"{name} was deleted"))
        for topic_id, indexes in delta.partitions_changed.items():
            changed = self._image.topic_by_id(topic_id)
            if changed is not None and changed.name == name:
                self._note(changed, indexes)

    def _note(self, topic: TopicImage, indexes: Mapping[int, object]) -> None:
        for index in indexes:
            state = topic.partitions[index]
            if state.leader != self._node_id:
                self.runtime.release(index, NotCoordinator(f"{topic.name}-{index} is led elsewhere"))
                continue
            if self._leader_epochs.get(index) != state.leader_epoch:
                # Another broker may have led, and decided, in between: only the log knows.
                self.runtime.release(index, NotCoordinator(f"{topic.name}-{index} has begun another leader epoch"))
            self._to_take_over.append(index)
        if self._to_take_over and not self._is_taking_over:
            self._is_taking_over = True
            self._scheduler.schedule(0, self._take_over_some)

    def _take_over_some(self) -> None:
        delay_ms = 0
        for _ in range(min(SHARDS_PER_SLICE, len(self._to_take_over))):
            index = self._to_take_over.popleft()
            self._unavailable.discard(index)
            if self.runtime.find(index) is not None:
                continue
            try:
                self._take_over(index)
            except NotCoordinator:
                continue
            except CoordinatorNotAvailable:
                self._to_take_over.append(index)
                self._unavailable.add(index)
                delay_ms = RETRY_MS
        if self._to_take_over:
            self._scheduler.schedule(delay_ms, self._take_over_some)
        else:
            self._is_taking_over = False


class PartitionShardLog:
    """``tidelog.coordinator.machine.ShardLog`` on a partition that this broker leads."""

    __slots__ = ("partition",)

    def __init__(self, partition: Partition) -> None:
        self.partition = partition

    @property
    def start_offset(self) -> int:
        return self.partition.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.partition.log.log_end_offset

    @property
    def committed_offset(self) -> int:
        return self.partition.log.high_watermark

    @property
    def batch_bytes_max(self) -> int:
        return self.partition.log.settings.message_bytes_max

    def append(self, batch: Buffer) -> int:
        partition = self.partition
        partition.check_open()
        return partition.append(batch, True, AppendOrigin.COORDINATOR).first_offset

    def wait_committed(self, end_offset: int, on_committed: OnCommitted) -> None:
        partition = self.partition
        if partition.closed_by is not None:
            on_committed(partition.closed_by)
        else:
            partition.wait_replicated(end_offset, on_committed)

    def read(self, offset: int, bytes_max: int) -> LogSlice | None:
        self.partition.check_open()
        return read(self.partition.log, offset, bytes_max, Isolation.LOG_END).records
