"""The topics and partitions of the image.

A topic can be found by name and by id. The state of a partition is immutable: a change makes a new one, so that a holder can
compare them. Every change increments the partition epoch, and naming a leader, even the same one again, increments the leader
epoch.

A frozen view of the topics (``freeze``) shares their dictionaries of partitions. A topic that changes later gets a dictionary of
its own first, so the view stays as it was, and freezing ten thousand partitions costs next to nothing.

In metrics '.' and '_' look the same, so Kafka does not allow two names that differ only in these; ``name_like`` finds the other.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog.metadata.records import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    NO_RECOVERY_STATE_CHANGE,
    BrokerIds,
    Ids,
    InconsistentRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

METADATA_TOPIC = "__cluster_metadata"
# The brokers themselves write these topics; clients may read and describe them.
GROUPS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATES_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset((GROUPS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATES_TOPIC))


@dataclass(frozen=True, slots=True)
class PartitionImage:
    replicas: BrokerIds
    """The replicas in order of preference: the first is the preferred leader."""
    isr: BrokerIds
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    leader_recovery_state: int = 0
    removing_replicas: BrokerIds = ()
    adding_replicas: BrokerIds = ()
    directories: Ids = ()
    eligible_leader_replicas: BrokerIds = ()
    last_known_elr: BrokerIds = ()


class TopicImage:
    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: dict[int, PartitionImage] = {}

    def differing_partitions(self, other: "TopicImage") -> dict[int, None]:
        """The partitions of ``other`` that this topic does not have, or has in another state."""
        mine = self.partitions
        return {index: None for index, state in other.partitions.items() if mine.get(index) != state}

    def __repr__(self) -> str:
        return f"<TopicImage {self.name} {self.topic_id.hex()} with {len(self.partitions)} partitions>"

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


def unified(name: str) -> str:
    """The name with every '.' replaced by '_'."""
    return name.replace(".", "_")


class FrozenTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionImage]


class TopicsImage:
    __slots__ = ("_by_id", "_by_name", "_by_unified_name", "_frozen_ids", "version")

    def __init__(self) -> None:
        self.version = 0
        """This grows when topics are created, extended or deleted, so that a scan of many topics can be skipped until then."""
        self._by_name: dict[str, TopicImage] = {}
        self._by_id: dict[bytes, TopicImage] = {}
        self._by_unified_name: dict[str, str] = {}
        # The topics whose partitions a frozen view may share.
        self._frozen_ids: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[TopicImage]:
        """Iterate over the topics in the order of their creation."""
        return iter(self._by_name.values())

    def find(self, name: str) -> TopicImage | None:
        return self._by_name.get(name)

    def find_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self._by_id.get(topic_id)

    def name_like(self, name: str) -> str | None:
        """The name of a topic that equals ``name`` but for '.' and '_'."""
        return self._by_unified_name.get(unified(name))

    def freeze(self) -> Sequence[FrozenTopic]:
        """The topics as they are now, whatever happens to them later."""
        self._frozen_ids = set(self._by_id)
        return [FrozenTopic(topic.name, topic.topic_id, topic.partitions) for topic in self._by_name.values()]

    # -- replay, called by the image only ------------------------------------------------------------------------------------

    def become(self, other: "TopicsImage") -> None:
        """Take over the topics of ``other``, which is not used any more. A topic that was here before stays the same object."""
        for topic_id, topic in other._by_id.items():
            known = self._by_id.get(topic_id)
            if known is not None:
                known.partitions = topic.partitions
                other._by_id[topic_id] = other._by_name[topic.name] = known
        self._by_id, self._by_name, self._by_unified_name = other._by_id, other._by_name, other._by_unified_name
        self._frozen_ids = set()
        self.version += 1

    def _unshare(self, topic: TopicImage) -> None:
        if topic.topic_id in self._frozen_ids:
            self._frozen_ids.discard(topic.topic_id)
            topic.partitions = dict(topic.partitions)

    def create(self, record: TopicRecord) -> TopicImage:
        if record.name in self._by_name or record.topic_id in self._by_id:
            raise InconsistentRecord(f"topic {record.name} ({record.topic_id.hex()}) is created twice")
        topic = TopicImage(record.name, record.topic_id)
        self._by_name[record.name] = topic
        self._by_id[record.topic_id] = topic
        self._by_unified_name[unified(record.name)] = record.name
        self.version += 1
        return topic

    def remove(self, record: RemoveTopicRecord) -> TopicImage:
        topic = self._get(record.topic_id)
        del self._by_id[topic.topic_id]
        del self._by_name[topic.name]
        if self._by_unified_name[unified(topic.name)] == topic.name:
            del self._by_unified_name[unified(topic.name)]
        self.version += 1
        return topic

    def set_partition(self, record: PartitionRecord) -> TopicImage:
        topic = self._get(record.topic_id)
        self.version += 1
        self._unshare(topic)
        topic.partitions[record.partition_id] = PartitionImage(
            replicas=record.replicas,
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            leader_recovery_state=record.leader_recovery_state,
            removing_replicas=record.removing_replicas,
            adding_replicas=record.adding_replicas,
            directories=record.directories,
            eligible_leader_replicas=record.eligible_leader_replicas or (),
            last_known_elr=record.last_known_elr or (),
        )
        return topic

    def change_partition(self, record: PartitionChangeRecord) -> TopicImage:
        topic = self._get(record.topic_id)
        partition = topic.partitions.get(record.partition_id)
        if partition is None:
            raise InconsistentRecord(f"partition {record.partition_id} of topic {topic.name} changes, but was never created")
        self._unshare(topic)
        topic.partitions[record.partition_id] = changed_partition(partition, record)
        return topic

    def _get(self, topic_id: bytes) -> TopicImage:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise InconsistentRecord(f"a record of topic {topic_id.hex()}, which does not exist")
        return topic


def changed_partition(partition: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    """The partition after the change."""
    changes: dict[str, Any] = {"partition_epoch": partition.partition_epoch + 1}
    for name in _NULL_MEANS_UNCHANGED:
        value = getattr(record, name)
        if value is not None:
            changes[name] = value
    if record.leader != NO_LEADER_CHANGE:
        changes["leader"] = record.leader
        changes["leader_epoch"] = partition.leader_epoch + 1
    if record.leader_recovery_state != NO_RECOVERY_STATE_CHANGE:
        changes["leader_recovery_state"] = record.leader_recovery_state
    return dataclasses.replace(partition, **changes)


_NULL_MEANS_UNCHANGED = (
    "replicas",
    "isr",
    "removing_replicas",
    "adding_replicas",
    "directories",
    "eligible_leader_replicas",
    "last_known_elr",
)
