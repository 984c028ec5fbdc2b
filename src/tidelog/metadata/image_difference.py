"""The difference between two images, as the delta that leads from the first to the second.

A node that installs a snapshot goes from its image to a later one without the records in between. Whoever follows the image sees
the same delta as if all of those records had been one batch: topics that are gone, topics and partitions that are new or have
changed, and so on. A topic that was deleted and created again under its name is two topics, told apart by their ids.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from tidelog.metadata.image import ClusterImage, ImageDelta
from tidelog.ports.steps import Steps

Key = TypeVar("Key")

# A fraction of a millisecond.
TOPICS_PER_STEP = 50


def image_difference(before: ClusterImage, after: ClusterImage) -> Steps[ImageDelta]:
    """Compare in steps. Neither image may change in the meantime. ``topics_deleted`` holds topics of ``before``, and
    ``topics_created`` topics of ``after``."""
    delta = ImageDelta()
    for number, topic in enumerate(before.topics):
        if after.topics.find_by_id(topic.topic_id) is None:
            delta.note_deleted(topic)
        if number % TOPICS_PER_STEP == 0:
            yield None
    for number, topic in enumerate(after.topics):
        known = before.topics.find_by_id(topic.topic_id)
        if known is None:
            delta.topics_created[topic.topic_id] = topic
        changed = dict.fromkeys(topic.partitions) if known is None else known.differing_partitions(topic)
        if changed:
            delta.partitions_changed[topic.topic_id] = changed
        if number % TOPICS_PER_STEP == 0:
            yield None
    delta.configs_changed.update(_changed_keys(before.configs.freeze(), after.configs.freeze()))
    delta.brokers_changed.update(_changed_keys(before.brokers.freeze(), after.brokers.freeze()))
    delta.features_changed.update(_changed_keys(before.features, after.features))
    if _changed_keys(before.client_quotas.freeze(), after.client_quotas.freeze()):
        delta.note_quotas()
    return delta


def _changed_keys(before: Mapping[Key, object], after: Mapping[Key, object]) -> dict[Key, None]:
    keys: Iterable[Key] = [*after, *(key for key in before if key not in after)]
    return {key: None for key in keys if before.get(key) != after.get(key)}
