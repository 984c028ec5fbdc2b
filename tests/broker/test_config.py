from collections.abc import Mapping

from tidelog.broker.config import BrokerConfig, TopicSettings
from tidelog.broker.metadata_log import METADATA_LOG_SETTINGS
from tidelog.broker.metadata_quorum import raft_config
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ConfigRecord
from tidelog.metadata.topics import INTERNAL_TOPICS
from tidelog.raft.quorum import RaftConfig
from tidelog.raft.voters import VoterEndpoint


class World:
    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        config = BrokerConfig.from_texts({"node.id": "1", **(texts or {})}, data_path="/data", cluster_id="c")
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


def test_only_its_own_setting_relaxes_an_internal_topic() -> None:
    world = World({"log.flush.interval.messages": "1000", "log.flush.interval.ms": "7"})
    world.set(ResourceType.BROKER, "", "log.flush.interval.messages", "2000")
    assert world.settings.log_settings("orders").flush_messages == 2000
    for internal in INTERNAL_TOPICS:
        settings = world.settings.log_settings(internal)
        assert (settings.flush_messages, settings.is_relaxed, settings.flush_ms) == (1, False, 7)
        world.set(ResourceType.TOPIC, internal, "flush.messages", "5")
        assert world.settings.log_settings(internal).is_relaxed


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


# -- the quorum --------------------------------------------------------------------------------------------------------------

_CLUSTER = {
    "node.id": "1",
    "listeners": "PLAINTEXT://a:9092,INTERNAL://a:9093,CONTROLLER://a:9094",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "controller.listener.names": "CONTROLLER",
}


def quorum_of(texts: dict[str, str]) -> RaftConfig:
    return raft_config(BrokerConfig.from_texts(texts, data_path="/data", cluster_id="c"), b"d" * 16)


def test_a_node_without_a_quorum_is_its_only_voter() -> None:
    quorum = quorum_of({"node.id": "7"})
    assert quorum.static_voters.ids == (7,)
    assert quorum.bootstrap_servers == ()


def test_voters_of_the_settings() -> None:
    quorum = quorum_of(
        {**_CLUSTER, "controller.quorum.voters": "1@a:9094,2@b:9094", "controller.quorum.fetch.timeout.ms": "1500"}
    )
    assert quorum.static_voters.ids == (1, 2)
    assert quorum.static_voters.voters[1].endpoints == (VoterEndpoint("CONTROLLER", "b", 9094),)
    assert quorum.endpoints == (VoterEndpoint("CONTROLLER", "a", 9094),)
    assert quorum.bootstrap_servers == (("b", 9094),)
    assert quorum.fetch_timeout_ms == 1_500
    assert quorum.directory_id == b"d" * 16


def test_voters_that_stand_in_the_log_are_asked_for() -> None:
    quorum = quorum_of({**_CLUSTER, "controller.quorum.bootstrap.servers": "b:9094,c:9094"})
    assert quorum.static_voters.ids == ()
    assert quorum.bootstrap_servers == (("b", 9094), ("c", 9094))
