"""Removes throttles of replication when the moves that they were for have ended.

Kafka's tool sets them for a reassignment and removes them when somebody calls it with ``--verify`` afterwards; a throttle that
nobody removes slows down the next recovery. Here the decision that ends a partition's move (it is complete, cancelled, or needs
no copy) also removes the partition from the topic's lists of throttled replicas, in the same batch of the metadata log. When that
empties the last list of the cluster, the rates that were set for single brokers go as well. So no crash leaves a throttle behind.

A list that says ``*`` and rates for all brokers were set by an operator for other ends, and stay.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from tidelog.config.cluster import FOLLOWER_THROTTLED_RATE, LEADER_THROTTLED_RATE
from tidelog.config.topic import FOLLOWER_THROTTLED_REPLICAS, LEADER_THROTTLED_REPLICAS
from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.election import replicas_of
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ConfigRecord, PartitionChangeRecord, RemoveTopicRecord
from tidelog.metadata.topics import changed_partition

Response = TypeVar("Response")

_LISTS = (LEADER_THROTTLED_REPLICAS, FOLLOWER_THROTTLED_REPLICAS)
_RATES = (LEADER_THROTTLED_RATE, FOLLOWER_THROTTLED_RATE)


def with_ended_throttles_removed(image: ClusterImage, result: ControllerResult[Response]) -> ControllerResult[Response]:
    """The same decision, with what it means for throttles."""
    ended: dict[str, set[int]] = {}
    deleted: set[str] = set()
    changes: dict[tuple[int, str], dict[str, str | None]] = {}
    for record in result.records:
        if isinstance(record, PartitionChangeRecord) and record.replicas is not None:
            topic = image.topic_by_id(record.topic_id)
            before = topic.partitions.get(record.partition_id) if topic is not None else None
            if topic is not None and before is not None and not replicas_of(changed_partition(before, record)).is_moving:
                ended.setdefault(topic.name, set()).add(record.partition_id)
        elif isinstance(record, RemoveTopicRecord):
            topic = image.topic_by_id(record.topic_id)
            if topic is not None:
                deleted.add(topic.name)
        elif isinstance(record, ConfigRecord):
            changes.setdefault((record.resource_type, record.resource_name), {})[record.name] = record.value
    if not ended and not deleted:
        return result
    lists = _Texts(image, changes)
    added: list[ConfigRecord] = []
    had_throttle = False
    for name, partitions in ended.items():
        for setting in _LISTS:
            listed = lists.find(ResourceType.TOPIC, name, setting)
            kept = ",".join(entry for entry in listed.split(",") if not _is_of(entry, partitions))
            if kept != listed:
                had_throttle = True
                added.append(ConfigRecord(ResourceType.TOPIC, name, setting, kept or None))
                changes.setdefault((ResourceType.TOPIC, name), {})[setting] = kept or None
    for name in deleted:
        had_throttle = had_throttle or any(lists.find(ResourceType.TOPIC, name, setting) for setting in _LISTS)
        changes[ResourceType.TOPIC, name] = dict.fromkeys(_LISTS)
    if had_throttle and not any(lists.all_of(ResourceType.TOPIC, setting) for setting in _LISTS):
        added += [
            ConfigRecord(ResourceType.BROKER, name, setting, None)
            for setting in _RATES
            for name in lists.all_of(ResourceType.BROKER, setting)
            if name != ALL_BROKERS
        ]
    return replace(result, records=[*result.records, *added]) if added else result


def _is_of(entry: str, partitions: set[int]) -> bool:
    index = entry.partition(":")[0].strip()
    return index.isascii() and index.isdigit() and int(index) in partitions


class _Texts:
    """Settings as they will be once the changes are replayed."""

    def __init__(self, image: ClusterImage, changes: Mapping[tuple[int, str], Mapping[str, str | None]]) -> None:
        self._image = image
        self._changes = changes

    def find(self, kind: ResourceType, name: str, setting: str) -> str:
        changed = self._changes.get((kind, name), {})
        text = changed[setting] if setting in changed else self._image.configs_of(kind, name).get(setting)
        return text or ""

    def all_of(self, kind: ResourceType, setting: str) -> list[str]:
        """The names of the resources of this kind that have the setting."""
        return sorted(name for name in set(self._names(kind)) if self.find(kind, name, setting))

    def _names(self, kind: ResourceType) -> Iterator[str]:
        for found, name in (*self._image.configs.resources(), *self._changes):
            if found == kind:
                yield name
