"""The settings, ports and callbacks that the broker hands to every part of the group coordinator."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tidelog.config.groups import GROUP, broker_setting_of
from tidelog.config.types import InvalidSetting
from tidelog.coordinator.machine import ShardTimers
from tidelog.groups.group import MetadataBudget
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.ports.clock import Clock
from tidelog.ports.randomness import Randomness


@dataclass(frozen=True, slots=True)
class GroupEnvironment:
    clock: Clock
    randomness: Randomness
    image: ClusterImage
    settings: Mapping[str, Any]
    """The broker's settings, parsed, under Kafka's names."""
    timers: ShardTimers
    report: Callable[[str, dict[str, object]], None]
    """Reports an event to the operator."""
    metadata_budget: MetadataBudget
    """Shared by all shards of the broker."""

    def group_setting(self, group_id: str, name: str) -> int:
        """The group's own value, or else the broker's. A value that cannot be parsed, perhaps written by another release, is
        ignored."""
        text = self.image.configs_of(ResourceType.GROUP, group_id).get(name)
        value: Any = self.settings[broker_setting_of(name)]
        if text is not None:
            with suppress(InvalidSetting):
                value = GROUP.settings[name].read(text)
        return int(value)

    def new_id(self) -> str:
        """Return a new member id in the form of a UUID, which is what users expect to see."""
        text = self.randomness.token(16).hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
