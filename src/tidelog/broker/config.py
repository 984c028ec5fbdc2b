"""What a broker is told at its start, as typed values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.config.broker import BROKER
from tidelog.config.definition import inherit, parse
from tidelog.config.topic import TOPIC
from tidelog.log.settings import DirectoryOptions


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
        """InvalidSetting when a name or value is wrong."""
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
