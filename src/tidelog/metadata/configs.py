"""Dynamic settings by resource: those of a topic, of a group, of a broker, and of all brokers (name "")."""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType

from tidelog.metadata.records import ConfigRecord

NO_CONFIGS: Mapping[str, str] = MappingProxyType({})
ALL_BROKERS = ""


class ResourceType(IntEnum):
    """Kafka's numbers for the resources that can have settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


Resource = tuple[int, str]


class ConfigsImage:
    __slots__ = ("_by_resource",)

    def __init__(self) -> None:
        self._by_resource: dict[Resource, dict[str, str]] = {}

    def find(self, resource_type: int, resource_name: str) -> Mapping[str, str]:
        return self._by_resource.get((resource_type, resource_name), NO_CONFIGS)

    def resources(self) -> Iterator[Resource]:
        """The resources that have settings of their own."""
        return iter(self._by_resource)

    def freeze(self) -> Mapping[Resource, Mapping[str, str]]:
        """All settings as they are now."""
        return dict(self._by_resource)

    # -- replay, called by the image only ------------------------------------------------------------------------------------

    def change(self, record: ConfigRecord) -> Resource:
        resource = record.resource_type, record.resource_name
        # A frozen view may hold the settings of a resource, so they are replaced and never changed.
        configs = dict(self._by_resource.get(resource, {}))
        if record.value is not None:
            configs[record.name] = record.value
        else:
            configs.pop(record.name, None)
        if configs:
            self._by_resource[resource] = configs
        else:
            self._by_resource.pop(resource, None)
        return resource

    def become(self, other: "ConfigsImage") -> None:
        """Take over the settings of ``other``, which is not used any more."""
        self._by_resource = other._by_resource

    def forget_topic(self, name: str) -> None:
        """Remove a topic's settings: a later topic of the same name starts without them."""
        self._by_resource.pop((ResourceType.TOPIC, name), None)
