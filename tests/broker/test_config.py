from collections.abc import Mapping

from tidelog.broker.config import BrokerConfig, TopicSettings
from tidelog.broker.metadata_log import METADATA_LOG_SETTINGS
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ConfigRecord


class World:
    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        config = BrokerConfig.from_texts(
            {"node.id": "1", **(texts or {})}, data_path="/data", cluster_id="c", advertised_host="h", advertised_port=1
        )
        self.image = ClusterImage()
        self.settings = TopicSettings(config, self.image)

    def set(self, resource_type: ResourceType, resource: str, name: str, value: str | None) -> None:
        self.image.replay([ConfigRecord(resource_type, resource, name, value)], 0)

    @property
    def retention_ms(self) -> int:
        return self.settings.log_settings("orders").retention_ms


def test_the_nearest_setting_wins() -> None:
    world = World({"log.retention.ms": "1"})
    assert world.retention_ms == 1
    world.set(ResourceType.BROKER, "", "log.retention.ms", "2")
    assert world.retention_ms == 2
    world.set(ResourceType.BROKER, "2", "log.retention.ms", "22")
    assert world.retention_ms == 2, "another broker's"
    world.set(ResourceType.BROKER, "1", "log.retention.ms", "3")
    assert world.retention_ms == 3
    world.set(ResourceType.TOPIC, "orders", "retention.ms", "4")
    assert world.retention_ms == 4
    assert world.settings.log_settings("other").retention_ms == 3
    world.set(ResourceType.TOPIC, "orders", "retention.ms", None)
    assert world.retention_ms == 3


def test_without_any_kafkas_defaults_hold() -> None:
    world = World()
    assert world.retention_ms == 604_800_000
    assert world.settings.min_insync_replicas("orders") == 1


def test_settings_are_parsed_once_until_something_changes() -> None:
    world = World()
    first = world.settings.values("orders")
    assert world.settings.values("orders") is first
    world.set(ResourceType.TOPIC, "other", "retention.ms", "4")
    assert world.settings.values("orders") is not first


def test_the_metadata_log_has_its_own() -> None:
    assert World({"log.retention.ms": "1"}).settings.log_settings("__cluster_metadata") is METADATA_LOG_SETTINGS


def test_the_broker_names_the_producers_expiration() -> None:
    world = World({"producer.id.expiration.ms": "777"})
    assert world.settings.log_settings("orders").producer_id_expiration_ms == 777


def test_what_makes_no_sense_in_the_metadata_log_does_not_keep_the_rest_from_counting() -> None:
    world = World()
    world.set(ResourceType.BROKER, "", "log.cleaner.max.compaction.lag.ms", "500")
    world.set(ResourceType.BROKER, "1", "log.retention.ms", "soon")
    world.set(ResourceType.TOPIC, "orders", "min.compaction.lag.ms", "1000")
    world.set(ResourceType.TOPIC, "orders", "segment.bytes", "14")
    world.set(ResourceType.TOPIC, "orders", "flush.ms", "7")
    settings = world.settings.log_settings("orders")
    assert (settings.min_compaction_lag_ms, settings.max_compaction_lag_ms) == (1000, 500)
    assert (settings.retention_ms, settings.segment_bytes, settings.flush_ms) == (604_800_000, 1 << 30, 7)
