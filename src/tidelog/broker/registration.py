"""What a broker writes into the metadata log when it starts: who it is, and that it leads its partitions again.

After a crash every partition gets a new leader epoch: on a topic with relaxed durability the crash may have taken records that
readers had seen, and a higher epoch is how their clients find out (KIP-320).
"""

from collections.abc import Iterator

from tidelog.broker.config import BrokerConfig
from tidelog.log.data_directory import DataDirectory
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    Endpoint,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    SupportedFeature,
)
from tidelog.ports.randomness import Randomness

METADATA_VERSION = "metadata.version"
# 4.0-IV3: what the records here are written for.
METADATA_VERSION_LEVEL = 25
LISTENER_NAME = "PLAINTEXT"
PLAINTEXT = 0


def start_records(
    config: BrokerConfig, directory: DataDirectory, image: ClusterImage, randomness: Randomness
) -> Iterator[MetadataRecord]:
    if METADATA_VERSION not in image.features:
        yield FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_LEVEL)
    endpoint = Endpoint(LISTENER_NAME, config.advertised_host, config.advertised_port, PLAINTEXT)
    yield RegisterBrokerRecord(
        broker_id=config.node_id,
        incarnation_id=randomness.token(16),
        # As in Kafka the epoch is the record's own offset, near enough: it only has to rise.
        broker_epoch=image.last_offset + 1,
        end_points=(endpoint,),
        features=(SupportedFeature(METADATA_VERSION, METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL),),
        fenced=False,
        log_dirs=(directory.meta.directory_id,) if directory.meta.directory_id is not None else (),
    )


def restart_records(config: BrokerConfig, image: ClusterImage) -> Iterator[MetadataRecord]:
    """Naming a leader, also the same one again, moves the leader epoch."""
    for topic in image.topics:
        for index, state in topic.partitions.items():
            if state.leader == config.node_id:
                yield PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=config.node_id)
