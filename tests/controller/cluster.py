"""A cluster image for the tests of decisions: brokers, topics, settings; and what a decision's records make of it."""

from collections.abc import Sequence

from simulation.randomness import SimulatedRandomness
from tidelog.controller.config_sources import StaticConfig
from tidelog.controller.topics import TopicRules
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    decode_record,
    encode_record,
)

STATIC = StaticConfig(1, {})
RULES = TopicRules()
DIRECTORY = b"d" * 16


def randomness() -> SimulatedRandomness:
    return SimulatedRandomness(7)


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")[:16]


def new_image(brokers: Sequence[int] = (1,), fenced: Sequence[int] = (), **topics: int) -> ClusterImage:
    """``topics``: name and number of partitions, all led by the first broker."""
    image = ClusterImage()
    records: list[MetadataRecord] = [
        RegisterBrokerRecord(broker, fenced=broker in fenced, log_dirs=(DIRECTORY,)) for broker in brokers
    ]
    for name, partitions in topics.items():
        records.append(TopicRecord(name, topic_id(name)))
        records += [
            PartitionRecord(index, topic_id(name), tuple(brokers), tuple(brokers), leader=brokers[0], leader_epoch=0)
            for index in range(partitions)
        ]
    image.replay(records, 0)
    return image


def replay(image: ClusterImage, records: Sequence[MetadataRecord]) -> ClusterImage:
    """By way of the bytes, so that nothing is decided that cannot be written down."""
    image.replay([decode_record(encode_record(record))[0] for record in records], image.last_offset + len(records))
    return image


def set_configs(image: ClusterImage, kind: ResourceType, name: str, **texts: str) -> ClusterImage:
    return replay(image, [ConfigRecord(kind, name, setting.replace("_", "."), text) for setting, text in texts.items()])
