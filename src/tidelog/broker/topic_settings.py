"""The settings in force for a topic: its own, else the broker's dynamic ones, else those of the broker's start, else Kafka's
defaults.

Parsed once per topic and kept until something changes. What stands in the metadata log must never keep a broker from starting or
from following the log: a value that cannot be read counts as not set. Who changes a setting is told what is wrong with it,
before it gets there (``controller.config_validation``).
"""

from collections.abc import Mapping
from typing import Any

from tidelog.broker.config import BrokerConfig
from tidelog.broker.metadata_log import METADATA_LOG_SETTINGS
from tidelog.config.definition import inherit_leniently, read_leniently
from tidelog.config.topic import TOPIC
from tidelog.log.settings import LogSettings
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.topics import METADATA_TOPIC


class TopicSettings:
    __slots__ = ("_config", "_image", "_kept", "_version")

    def __init__(self, config: BrokerConfig, image: ClusterImage) -> None:
        self._config = config
        self._image = image
        self._kept: dict[str, tuple[Mapping[str, Any], LogSettings]] = {}
        self._version = -1

    def values(self, topic: str) -> Mapping[str, Any]:
        """Every topic setting, parsed, under Kafka's names."""
        return self._find(topic)[0]

    def log_settings(self, topic: str) -> LogSettings:
        return self._find(topic)[1]

    def min_insync_replicas(self, topic: str) -> int:
        return int(self.values(topic)["min.insync.replicas"])

    def _find(self, topic: str) -> tuple[Mapping[str, Any], LogSettings]:
        if self._version != self._image.version:
            self._kept.clear()
            self._version = self._image.version
        found = self._kept.get(topic)
        if found is None:
            found = self._kept[topic] = self._resolve(topic)
        return found

    def _resolve(self, topic: str) -> tuple[Mapping[str, Any], LogSettings]:
        if topic == METADATA_TOPIC:
            return {}, METADATA_LOG_SETTINGS
        image, config = self._image, self._config
        dynamic = {
            **image.configs_of(ResourceType.BROKER, ALL_BROKERS),
            **image.configs_of(ResourceType.BROKER, str(config.node_id)),
        }
        defaults = {**config.topic_defaults, **inherit_leniently(TOPIC, dynamic)}
        values = read_leniently(TOPIC, image.configs_of(ResourceType.TOPIC, topic), defaults)
        settings = LogSettings.from_config({**values, "producer.id.expiration.ms": config.values["producer.id.expiration.ms"]})
        return values, settings
