"""An image as records: what a snapshot of the metadata holds (KIP-630).

Replaying them into an empty image gives an equal one. Features come first, because they say which versions the other records
have; a topic comes before its partitions.
"""

from collections.abc import Iterator

from tidelog.metadata.brokers import BrokerImage
from tidelog.metadata.features import METADATA_VERSION
from tidelog.metadata.image import FrozenImage
from tidelog.metadata.records import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from tidelog.metadata.topics import PartitionImage

# Kafka's snapshots do not say which broker got the last block of producer ids.
NO_BROKER = -1


def image_records(image: FrozenImage) -> Iterator[MetadataRecord]:
    for name, level in sorted(image.features.items(), key=lambda feature: feature[0] != METADATA_VERSION):
        yield FeatureLevelRecord(name, level)
    for broker in image.brokers.values():
        yield _broker_record(broker)
    yield from image.controllers.values()
    for topic in image.topics:
        yield TopicRecord(topic.name, topic.topic_id)
        for index, partition in topic.partitions.items():
            yield _partition_record(topic.topic_id, index, partition)
    for (resource_type, resource_name), configs in image.configs.items():
        for name, value in configs.items():
            yield ConfigRecord(resource_type, resource_name, name, value)
    for entity, quotas in image.client_quotas.items():
        for key, quota in quotas.items():
            yield ClientQuotaRecord(entity, key, quota)
    if image.next_producer_id:
        yield ProducerIdsRecord(NO_BROKER, NO_BROKER, image.next_producer_id)


def _broker_record(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        end_points=broker.end_points,
        features=broker.features,
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs,
    )


def _partition_record(topic_id: bytes, index: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=partition.directories,
        # As Kafka does: no replica in either list is the same as no list.
        eligible_leader_replicas=partition.eligible_leader_replicas or None,
        last_known_elr=partition.last_known_elr or None,
    )
