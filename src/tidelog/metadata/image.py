"""The image: the cluster's metadata, as replayed from the committed records.

``replay`` is the only way to change it, live and at a start alike; everything else reads. It takes a whole batch and returns what
changed (``ImageDelta``). ``version`` grows with every batch that changed something, so a cache made from the image is valid while
the version stays the same.

Records between BeginTransaction and EndTransaction are held back until the end, and AbortTransaction drops them: a reader of the
image sees all of them or none.

An image can be frozen: ``freeze`` returns it as it is now, for a snapshot that is written while the image goes on. ``become``
replaces the whole content by that of another image, which was read from a snapshot; whoever holds the image, or a part of it,
sees the new content, and gets the difference as a delta (``metadata.image_difference``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.metadata.brokers import BrokerImage, BrokersImage
from tidelog.metadata.client_quotas import ClientQuotasImage, QuotaEntity
from tidelog.metadata.configs import ConfigsImage, Resource
from tidelog.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    InconsistentRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from tidelog.metadata.topics import FrozenTopic, TopicImage, TopicsImage


@dataclass(slots=True)
class ImageDelta:
    """The changes of a replayed batch, so that a broker looks at those and not at the whole image. Topics are named by their ids.
    Dictionaries serve as ordered sets: the order in which a broker acts must not depend on hashes."""

    topics_created: dict[bytes, TopicImage] = field(default_factory=dict)
    topics_deleted: dict[bytes, TopicImage] = field(default_factory=dict)
    """The deleted topics as they were before."""
    partitions_changed: dict[bytes, dict[int, None]] = field(default_factory=dict)
    """Created or changed partitions, including those of new topics but not those of deleted ones."""
    configs_changed: dict[Resource, None] = field(default_factory=dict)
    brokers_changed: dict[int, None] = field(default_factory=dict)
    features_changed: dict[str, None] = field(default_factory=dict)
    quotas_changed: bool = False

    @property
    def is_empty(self) -> bool:
        return not (
            self.topics_created
            or self.topics_deleted
            or self.partitions_changed
            or self.configs_changed
            or self.brokers_changed
            or self.features_changed
            or self.quotas_changed
        )

    def note_quotas(self) -> None:
        self.quotas_changed = True

    def note_partition(self, topic: TopicImage, partition: int) -> None:
        self.partitions_changed.setdefault(topic.topic_id, {})[partition] = None

    def note_deleted(self, topic: TopicImage) -> None:
        """Note a deletion. A topic that was created and deleted within the batch was never visible."""
        self.partitions_changed.pop(topic.topic_id, None)
        if self.topics_created.pop(topic.topic_id, None) is None:
            self.topics_deleted[topic.topic_id] = topic


class FrozenImage(NamedTuple):
    """The content of an image at one offset. It shares what did not change since, and never changes itself."""

    features: Mapping[str, int]
    brokers: Mapping[int, BrokerImage]
    controllers: Mapping[int, RegisterControllerRecord]
    topics: Sequence[FrozenTopic]
    configs: Mapping[Resource, Mapping[str, str]]
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]]
    next_producer_id: int


class ClusterImage:
    __slots__ = (
        "_open_transaction",
        "brokers",
        "client_quotas",
        "configs",
        "controllers",
        "features",
        "last_offset",
        "next_producer_id",
        "topics",
        "version",
    )

    def __init__(self) -> None:
        self.topics = TopicsImage()
        self.configs = ConfigsImage()
        self.client_quotas = ClientQuotasImage()
        self.brokers = BrokersImage()
        self.features: dict[str, int] = {}
        """Finalized features and their levels."""
        self.controllers: dict[int, RegisterControllerRecord] = {}
        self.next_producer_id = 0
        """The first id of the next block to allocate to a broker."""
        self.last_offset = -1
        """The offset of the last replayed record."""
        self.version = 0
        self._open_transaction: list[MetadataRecord] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no record was replayed, as in a new cluster."""
        return self.last_offset < 0

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was begun and not ended; the next leader must abort it."""
        return self._open_transaction is not None

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.find(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self.topics.find_by_id(topic_id)

    def configs_of(self, resource_type: int, resource_name: str) -> Mapping[str, str]:
        return self.configs.find(resource_type, resource_name)

    def freeze(self) -> "FrozenImage":
        assert self._open_transaction is None, "what a transaction holds back is not part of the image"
        return FrozenImage(
            features=dict(self.features),
            brokers=self.brokers.freeze(),
            controllers=dict(self.controllers),
            topics=self.topics.freeze(),
            configs=self.configs.freeze(),
            client_quotas=self.client_quotas.freeze(),
            next_producer_id=self.next_producer_id,
        )

    def become(self, other: "ClusterImage") -> None:
        """Take over the content of ``other``, which is not used any more."""
        self.topics.become(other.topics)
        self.configs.become(other.configs)
        self.client_quotas.become(other.client_quotas)
        self.brokers.become(other.brokers)
        self.features.clear()
        self.features.update(other.features)
        self.controllers.clear()
        self.controllers.update(other.controllers)
        self.next_producer_id = other.next_producer_id
        self.last_offset = other.last_offset
        self._open_transaction = other._open_transaction
        self.version += 1

    def replay(self, records: Iterable[MetadataRecord], last_offset: int) -> ImageDelta:
        """Apply a committed batch. ``InconsistentRecord`` leaves the image unusable: the records of the log contradict each
        other."""
        delta = ImageDelta()
        for record in records:
            self._replay(record, delta)
        self.last_offset = last_offset
        if not delta.is_empty:
            self.version += 1
        return delta

    def _replay(self, record: MetadataRecord, delta: ImageDelta) -> None:
        kind = type(record)
        if kind is BeginTransactionRecord:
            if self._open_transaction is not None:
                raise InconsistentRecord("a transaction begins within another one")
            self._open_transaction = []
        elif kind is EndTransactionRecord or kind is AbortTransactionRecord:
            if self._open_transaction is None:
                raise InconsistentRecord(f"{kind.__name__} without a transaction")
            pending, self._open_transaction = self._open_transaction, None
            if kind is EndTransactionRecord:
                for waiting in pending:
                    _REPLAY[type(waiting)](self, waiting, delta)
        elif self._open_transaction is not None:
            self._open_transaction.append(record)
        else:
            _REPLAY[kind](self, record, delta)


def _create_topic(image: ClusterImage, record: TopicRecord, delta: ImageDelta) -> None:
    topic = image.topics.create(record)
    delta.topics_created[topic.topic_id] = topic


def _remove_topic(image: ClusterImage, record: RemoveTopicRecord, delta: ImageDelta) -> None:
    topic = image.topics.remove(record)
    image.configs.forget_topic(topic.name)
    delta.note_deleted(topic)


def _set_partition(image: ClusterImage, record: PartitionRecord, delta: ImageDelta) -> None:
    delta.note_partition(image.topics.set_partition(record), record.partition_id)


def _change_partition(image: ClusterImage, record: PartitionChangeRecord, delta: ImageDelta) -> None:
    delta.note_partition(image.topics.change_partition(record), record.partition_id)


def _change_config(image: ClusterImage, record: ConfigRecord, delta: ImageDelta) -> None:
    delta.configs_changed[image.configs.change(record)] = None


def _change_quota(image: ClusterImage, record: ClientQuotaRecord, delta: ImageDelta) -> None:
    image.client_quotas.change(record)
    delta.note_quotas()


def _register_broker(image: ClusterImage, record: RegisterBrokerRecord, delta: ImageDelta) -> None:
    image.brokers.register(record)
    delta.brokers_changed[record.broker_id] = None


def _unregister_broker(image: ClusterImage, record: UnregisterBrokerRecord, delta: ImageDelta) -> None:
    image.brokers.unregister(record)
    delta.brokers_changed[record.broker_id] = None


def _fence_broker(image: ClusterImage, record: FenceBrokerRecord | UnfenceBrokerRecord, delta: ImageDelta) -> None:
    image.brokers.fence(record)
    delta.brokers_changed[record.id] = None


def _change_broker(image: ClusterImage, record: BrokerRegistrationChangeRecord, delta: ImageDelta) -> None:
    image.brokers.change(record)
    delta.brokers_changed[record.broker_id] = None


def _set_feature(image: ClusterImage, record: FeatureLevelRecord, delta: ImageDelta) -> None:
    if record.feature_level == 0:
        image.features.pop(record.name, None)
    else:
        image.features[record.name] = record.feature_level
    delta.features_changed[record.name] = None


def _set_producer_ids(image: ClusterImage, record: ProducerIdsRecord, delta: ImageDelta) -> None:  # noqa: ARG001 - one signature for all
    image.next_producer_id = record.next_producer_id


def _register_controller(image: ClusterImage, record: RegisterControllerRecord, delta: ImageDelta) -> None:  # noqa: ARG001 - as above
    image.controllers[record.controller_id] = record


def _do_nothing(image: ClusterImage, record: NoOpRecord, delta: ImageDelta) -> None:
    """Kafka's controller writes these so that brokers see the offset move."""


# Each function takes its own kind of record, so the type of the second argument cannot be more precise here.
_REPLAY: dict[type, Callable[..., None]] = {
    TopicRecord: _create_topic,
    RemoveTopicRecord: _remove_topic,
    PartitionRecord: _set_partition,
    PartitionChangeRecord: _change_partition,
    ConfigRecord: _change_config,
    ClientQuotaRecord: _change_quota,
    RegisterBrokerRecord: _register_broker,
    UnregisterBrokerRecord: _unregister_broker,
    FenceBrokerRecord: _fence_broker,
    UnfenceBrokerRecord: _fence_broker,
    BrokerRegistrationChangeRecord: _change_broker,
    FeatureLevelRecord: _set_feature,
    ProducerIdsRecord: _set_producer_ids,
    RegisterControllerRecord: _register_controller,
    NoOpRecord: _do_nothing,
}
