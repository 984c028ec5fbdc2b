"""What a broker writes into the metadata log when it starts: who it is, and that it leads its partitions again.

After a crash every partition gets a new leader epoch: on a topic with relaxed durability the crash may have taken records that
readers had seen, and a higher epoch is how their clients find out (KIP-320).
"""

from collections.abc import Iterator

from tidelog.broker.config import BrokerConfig
from tidelog.controller.election import leadership_of_returning_broker
from tidelog.log.data_directory import DataDirectory
from tidelog.metadata.features import FIRST_LEVELS, METADATA_VERSION, SUPPORTED_FEATURES
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    AbortTransactionRecord,
    BrokerEndpoint,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    SupportedFeature,
)
from tidelog.ports.randomness import Randomness

LISTENER_NAME = "PLAINTEXT"
PLAINTEXT = 0


def start_records(
    config: BrokerConfig, directory: DataDirectory, image: ClusterImage, randomness: Randomness
) -> Iterator[MetadataRecord]:
    if image.in_transaction:
        yield AbortTransactionRecord("the broker was started again")
    if METADATA_VERSION not in image.features:
        for name, level in FIRST_LEVELS.items():
            yield FeatureLevelRecord(name=name, feature_level=level)
    endpoint = BrokerEndpoint(LISTENER_NAME, config.advertised_host, config.advertised_port, PLAINTEXT)
    yield RegisterBrokerRecord(
        broker_id=config.node_id,
        incarnation_id=randomness.token(16),
        # As in Kafka the epoch is the record's own offset, near enough: it only has to rise.
        broker_epoch=image.last_offset + 1,
        end_points=(endpoint,),
        features=tuple(SupportedFeature(name, low, high) for name, (low, high) in SUPPORTED_FEATURES.items()),
        fenced=False,
        log_dirs=(directory.meta.directory_id,) if directory.meta.directory_id is not None else (),
    )
    yield from leadership_of_returning_broker(image, config.node_id, renew=not directory.was_stopped_cleanly)
