"""What every part of the group coordinator is given: time, chance, the cluster's topics, settings, time-outs."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tidelog.config.groups import GROUP, broker_setting_of
from tidelog.config.types import InvalidSetting
from tidelog.coordinator.shard_timers import ShardTimers
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.ports.clock import Clock
from tidelog.ports.randomness import Randomness


class GroupEnvironment:
    """``settings`` are the broker's, parsed, under Kafka's names. ``report`` tells the operator what happened."""

    __slots__ = ("clock", "image", "randomness", "report", "settings", "timers")

    def __init__(
        self,
        clock: Clock,
        randomness: Randomness,
        image: ClusterImage,
        settings: Mapping[str, Any],
        timers: ShardTimers,
        report: Callable[[str, dict[str, object]], None],
    ) -> None:
        self.clock = clock
        self.randomness = randomness
        self.image = image
        self.settings = settings
        self.timers = timers
        self.report = report

    def group_setting(self, group_id: str, name: str) -> int:
        """The group's own, else the broker's. What cannot be read, perhaps of another release, counts as not set."""
        text = self.image.configs_of(ResourceType.GROUP, group_id).get(name)
        value: Any = self.settings[broker_setting_of(name)]
        if text is not None:
            with suppress(InvalidSetting):
                value = GROUP.settings[name].read(text)
        return int(value)

    def new_id(self) -> str:
        """For a member: in the form of a UUID, because that is what everybody expects to see."""
        text = self.randomness.token(16).hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
