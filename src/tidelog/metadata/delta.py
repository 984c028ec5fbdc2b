"""What a replayed batch changed, so that a broker looks at that only and not at the whole image."""

from dataclasses import dataclass, field

from tidelog.metadata.configs import Resource
from tidelog.metadata.topics import TopicImage


@dataclass(slots=True)
class ImageDelta:
    """Dictionaries for their order: what a broker does first must not depend on hashes. The keys are topic ids."""

    topics_created: dict[bytes, TopicImage] = field(default_factory=dict)
    topics_deleted: dict[bytes, TopicImage] = field(default_factory=dict)
    """As they were when they were deleted."""
    partitions_changed: dict[bytes, dict[int, None]] = field(default_factory=dict)
    """Created or changed, those of new topics among them; not those of deleted topics."""
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
        """A topic that came and went within the batch was never seen by anyone."""
        self.partitions_changed.pop(topic.topic_id, None)
        if self.topics_created.pop(topic.topic_id, None) is None:
            self.topics_deleted[topic.topic_id] = topic
