"""The settings of a broker and of its topics, as typed values.

``BrokerConfig`` holds what the broker was given at its start. ``TopicSettings`` resolves a topic's settings: its own, else the
broker's dynamic ones, else those of ``BrokerConfig``, else Kafka's defaults. They are parsed once per topic and cached until the
image changes. A value in the metadata log must never keep a broker from starting or from following the log, so a value that
cannot be parsed counts as not set. ``controller.configs`` checks a value before it gets there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.broker.metadata_log import METADATA_LOG_SETTINGS
from tidelog.config.broker import BROKER
from tidelog.config.definition import inherit, inherit_leniently, parse, read_leniently
from tidelog.config.topic import TOPIC
from tidelog.log.settings import DirectoryOptions, LogSettings
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.topics import METADATA_TOPIC


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    data_path: str
    cluster_id: str
    advertised_host: str
    advertised_port: int
    texts: Mapping[str, str]
    """The settings that were given, under Kafka's names, as text."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Every broker setting, parsed."""
    topic_defaults: Mapping[str, Any] = field(default_factory=dict)
    """The topic settings that the broker's own settings ask for."""

    @classmethod
    def from_texts(
        cls, texts: Mapping[str, str], *, data_path: str, cluster_id: str, advertised_host: str, advertised_port: int
    ) -> "BrokerConfig":
        """Raises InvalidSetting when a name or value is wrong."""
        return cls(
            data_path, cluster_id, advertised_host, advertised_port, dict(texts), parse(BROKER, texts), inherit(TOPIC, texts)
        )

    @property
    def node_id(self) -> int:
        return int(self.values["node.id"])

    @property
    def fetch_bytes_max(self) -> int:
        return int(self.values["fetch.max.bytes"])

    @property
    def directory_options(self) -> DirectoryOptions:
        return DirectoryOptions.from_config(self.values)


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
