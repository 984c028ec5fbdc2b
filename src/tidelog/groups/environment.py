"""What every part of the group coordinator is given: time, chance, the cluster's topics, settings, time-outs."""

from collections.abc import Callable, Mapping
from typing import Any

from tidelog.coordinator.shard_timers import ShardTimers
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

    def new_id(self) -> str:
        """For a member: in the form of a UUID, because that is what everybody expects to see."""
        text = self.randomness.token(16).hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
