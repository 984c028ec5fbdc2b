"""The throttles of a broker's replication: their rates, and the partitions for which they hold, as the settings say.

A rate is a setting of the broker; set while it runs it overrides the one for all brokers, and that the one of its start. Which
partitions are throttled are settings of topics. ``Partitions`` and ``ReplicaManager`` look that up when they begin to lead or to
copy a partition, and again when settings change, so a fetch looks nothing up.
"""

from contextlib import suppress

from tidelog.broker.config import BrokerConfig, TopicSettings
from tidelog.config.broker import BROKER
from tidelog.config.cluster import FOLLOWER_THROTTLED_RATE, LEADER_THROTTLED_RATE
from tidelog.config.topic import EVERY_REPLICA, FOLLOWER_THROTTLED_REPLICAS, LEADER_THROTTLED_REPLICAS
from tidelog.config.types import InvalidSetting, Value
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.ports.clock import Clock
from tidelog.replication.throttle import ReplicationThrottle


class ReplicationThrottles:
    __slots__ = ("_config", "_image", "_settings", "follower", "leader")

    def __init__(self, config: BrokerConfig, image: ClusterImage, settings: TopicSettings, clock: Clock) -> None:
        self._config = config
        self._image = image
        self._settings = settings
        self.leader = ReplicationThrottle(clock)
        """For what this broker sends to followers that are not in sync."""
        self.follower = ReplicationThrottle(clock)
        """For what this broker copies while it is not in sync."""
        self.rates_changed()

    def rates_changed(self) -> None:
        self.leader.change_rate(self._rate(LEADER_THROTTLED_RATE))
        self.follower.change_rate(self._rate(FOLLOWER_THROTTLED_RATE))

    def _rate(self, name: str) -> int:
        for resource in (str(self._config.node_id), ALL_BROKERS):
            text = self._image.configs_of(ResourceType.BROKER, resource).get(name)
            if text is not None:
                with suppress(InvalidSetting):
                    return _number(BROKER.settings[name].read(text))
        return _number(self._config.values[name])

    def of_leader(self, topic: str, partition: int) -> ReplicationThrottle | None:
        return self.leader if self._is_listed(LEADER_THROTTLED_REPLICAS, topic, partition) else None

    def of_follower(self, topic: str, partition: int) -> ReplicationThrottle | None:
        return self.follower if self._is_listed(FOLLOWER_THROTTLED_REPLICAS, topic, partition) else None

    def _is_listed(self, setting: str, topic: str, partition: int) -> bool:
        listed = self._settings.values(topic).get(setting, ())
        return listed == (EVERY_REPLICA,) or f"{partition}:{self._config.node_id}" in listed


def _number(value: Value) -> int:
    assert isinstance(value, int)
    return value
