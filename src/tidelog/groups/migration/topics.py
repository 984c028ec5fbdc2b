"""Partitions by topic name, as the classic protocol has them, and by topic id, as KIP-848 does; without what does not exist."""

from collections.abc import Mapping, Sequence

from tidelog.metadata.image import ClusterImage


def by_topic_id(partitions: Mapping[str, Sequence[int]], image: ClusterImage) -> dict[bytes, tuple[int, ...]]:
    found = {}
    for name in sorted(partitions):
        topic = image.topic(name)
        indexes = () if topic is None else tuple(index for index in partitions[name] if index in topic.partitions)
        if topic is not None and indexes:
            found[topic.topic_id] = indexes
    return found


def by_topic_name(partitions: Mapping[bytes, Sequence[int]], image: ClusterImage) -> dict[str, Sequence[int]]:
    topics = [(image.topic_by_id(topic_id), indexes) for topic_id, indexes in partitions.items()]
    return {topic.name: indexes for topic, indexes in topics if topic is not None}
