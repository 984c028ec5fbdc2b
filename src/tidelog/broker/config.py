"""The settings of a broker and of its topics, as typed values.

``BrokerConfig`` holds what the broker was given at its start. ``TopicSettings`` resolves a topic's settings: its own, else the
broker's dynamic ones, else those of ``BrokerConfig``, else Kafka's defaults. An internal topic does not take ``flush.messages``
from the broker. Settings are parsed once per topic and cached until the image changes. A value in the metadata log must never
keep a broker from starting or from following the log, so a value that cannot be parsed counts as not set. ``controller.configs``
checks a value before it gets there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.broker.metadata_log import METADATA_LOG_SETTINGS
from tidelog.config.broker import BROKER, listeners_of
from tidelog.config.cluster import ProcessRole, roles_of
from tidelog.config.definition import inherit, inherit_leniently, parse, read_leniently
from tidelog.config.listeners import ListenerAddress, NamedListener
from tidelog.config.topic import NOT_INHERITED_BY_INTERNAL_TOPICS, TOPIC
from tidelog.log.settings import DirectoryOptions, LogSettings
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.topics import INTERNAL_TOPICS, METADATA_TOPIC


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    data_path: str
    cluster_id: str
    listeners: tuple[NamedListener, ...]
    """The listeners with the ports that were bound, in the order of the setting."""
    texts: Mapping[str, str]
    """The settings that were given, under Kafka's names, as text."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Every broker setting, parsed."""
    topic_defaults: Mapping[str, Any] = field(default_factory=dict)
    """The topic settings that the broker's own settings ask for."""

    @classmethod
    def from_texts(
        cls, texts: Mapping[str, str], *, data_path: str, cluster_id: str, bound: Sequence[ListenerAddress] | None = None
    ) -> "BrokerConfig":
        """``bound`` are the addresses that were bound, one for each listener; None where nothing is bound. Raises InvalidSetting
        when a name or value is wrong."""
        values = parse(BROKER, texts)
        listeners = listeners_of(values)
        if bound is not None:
            listeners = [listener.bound_to(address) for listener, address in zip(listeners, bound, strict=True)]
        return cls(data_path, cluster_id, tuple(listeners), dict(texts), values, inherit(TOPIC, texts))

    @property
    def roles(self) -> frozenset[ProcessRole]:
        return roles_of(self.values)

    @property
    def default_listener(self) -> NamedListener:
        """The first listener for clients; the first of all if the node serves none."""
        return min(self.listeners, key=lambda listener: listener.role)

    @property
    def advertised_listeners(self) -> str:
        """The addresses in force, also if none was set: tools look for them among the settings that were set."""
        return ",".join(f"{listener.name}://{listener.advertised}" for listener in self.listeners)

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

    def allows_unclean_election(self, topic: str) -> bool:
        return bool(self.values(topic)["unclean.leader.election.enable"])

    def is_relaxed(self, topic: str) -> bool:
        return self.log_settings(topic).is_relaxed

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
        if topic in INTERNAL_TOPICS:
            defaults = {name: value for name, value in defaults.items() if name not in NOT_INHERITED_BY_INTERNAL_TOPICS}
        values = read_leniently(TOPIC, image.configs_of(ResourceType.TOPIC, topic), defaults)
        settings = LogSettings.from_config({**values, "producer.id.expiration.ms": config.values["producer.id.expiration.ms"]})
        return values, settings
