"""The share coordinator as the rest of the broker sees it: states of share partitions, by key, with callbacks.

The coordinator of a key is the leader of the partition of ``__share_group_state`` that Kafka would choose for it. The topic is
created when a state is first initialized.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.coordinator.machine import OnDone
from tidelog.log.data_directory import DataDirectory
from tidelog.metadata.topics import TopicImage
from tidelog.queues.records import SharePartitionKey
from tidelog.queues.share_coordinator import ShareCoordinator, ShareStateWrite

Shares = CoordinatorService[ShareCoordinator]


def coordinator_key(key: SharePartitionKey) -> str:
    """The key by which FindCoordinator finds it: group, topic id and partition."""
    topic_id = urlsafe_b64encode(key.topic_id).decode().rstrip("=")
    return f"{key.group_id}:{topic_id}:{key.partition}"


class ShareStates:
    __slots__ = ("_directory", "_settings", "service")

    def __init__(self, service: Shares, directory: DataDirectory, settings: Any) -> None:
        self.service = service
        self._directory = directory
        self._settings = settings

    # -- states --------------------------------------------------------------------------------------------------------------

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, on_done: OnDone) -> None:
        def begin(topic: TopicImage | None, error: Exception | None) -> None:
            if topic is None:
                on_done(None, error)
            else:
                self._write(key, lambda machine: machine.initialize(key, state_epoch, start_offset), on_done)

        self.service.with_topic(begin)

    def read(self, key: SharePartitionKey, leader_epoch: int, on_done: OnDone) -> None:
        """``on_done`` gets a ShareState."""
        self._write(key, lambda machine: machine.read(key, leader_epoch), on_done)

    def write(self, key: SharePartitionKey, change: ShareStateWrite, on_done: OnDone) -> None:
        self._write(key, lambda machine: machine.write(key, change), on_done)

    def delete(self, key: SharePartitionKey, on_done: OnDone) -> None:
        if self.service.topic is None:
            on_done(None, None)
        else:
            self._write(key, lambda machine: machine.delete(key), on_done)

    def summary(self, key: SharePartitionKey, on_done: OnDone) -> None:
        """``on_done`` gets a ShareStateSummary."""
        self.service.read(coordinator_key(key), lambda machine: machine.summary(key), on_done)

    def _write(self, key: SharePartitionKey, decide: Callable[[ShareCoordinator], Any], on_done: OnDone) -> None:
        self.service.write(coordinator_key(key), decide, on_done)

    # -- housekeeping --------------------------------------------------------------------------------------------------------

    def delete_topics(self, topic_ids: frozenset[bytes]) -> None:
        """Topics were deleted: their states go with them."""
        for shard in self.service.runtime:
            shard.write(lambda machine: machine.delete_topics(topic_ids))

    def snapshot_cold(self) -> None:
        age_ms = self._settings["share.coordinator.cold.partition.snapshot.interval.ms"]
        for shard in self.service.runtime:
            shard.write(lambda machine: machine.snapshot_cold(age_ms))

    def prune(self) -> None:
        """Delete what later records have made redundant. Everything before the offset is durable, as what replaces it is."""
        for shard in self.service.runtime:
            shard.read(lambda machine: machine.redundant_offset(), self._pruner(shard.name))

    def _pruner(self, name: str) -> OnDone:
        def found(offset: int | None, error: Exception | None) -> None:
            topic, _, index = name.rpartition("-")
            log = self._directory.logs.get((topic, int(index)))
            if error is None and offset is not None and log is not None and log.log_start_offset < offset:
                self._directory.delete_records(log, min(offset, log.high_watermark), _ignore)

        return found


def _ignore(error: BaseException | None) -> None:
    """What could not be deleted now is deleted the next time."""
