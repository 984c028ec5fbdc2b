import pytest

from tests.controller.cluster import STATIC, new_image, set_configs
from tidelog.config.broker import BROKER
from tidelog.config.definition import Setting
from tidelog.config.topic import TOPIC
from tidelog.config.types import Password, SettingType, Value
from tidelog.controller.config_sources import (
    DYNAMIC_BROKER_SETTINGS,
    ConfigSource,
    ConfigSynonym,
    DescribedConfig,
    StaticConfig,
    describe_broker,
    describe_group,
    describe_topic,
    inherited_values,
    show,
)
from tidelog.controller.errors import ApiError
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode

LAYERED = StaticConfig(1, {"log.retention.ms": "4", "log.retention.hours": "1"})


def layered() -> ClusterImage:
    image = new_image(orders=1)
    set_configs(image, ResourceType.TOPIC, "orders", retention_ms="1")
    set_configs(image, ResourceType.BROKER, "1", log_retention_ms="2")
    return set_configs(image, ResourceType.BROKER, ALL_BROKERS, log_retention_ms="3")


def of_topic(image: ClusterImage, static: StaticConfig, name: str) -> DescribedConfig:
    (config,) = describe_topic(image, static, "orders", [name])
    return config


def test_all_synonyms_in_their_order() -> None:
    config = of_topic(layered(), LAYERED, "retention.ms")
    assert (config.value, config.source) == ("1", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert config.synonyms == (
        ConfigSynonym("retention.ms", "1", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ConfigSynonym("log.retention.ms", "2", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ConfigSynonym("log.retention.ms", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ConfigSynonym("log.retention.ms", "4", ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym("log.retention.hours", "1", ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym("log.retention.ms", "604800000", ConfigSource.DEFAULT_CONFIG),
    )
    assert (config.type, config.read_only, config.is_sensitive) == (SettingType.LONG, False, False)
    assert config.documentation == TOPIC.settings["retention.ms"].documentation


def test_an_internal_topic_is_not_relaxed_by_the_brokers_default() -> None:
    image = new_image(orders=1, __consumer_offsets=1)
    static = StaticConfig(1, {"log.flush.interval.messages": "1000"})
    assert of_topic(image, static, "flush.messages").value == "1000"
    (config,) = describe_topic(image, static, "__consumer_offsets", ["flush.messages"])
    assert (config.value, config.source) == ("1", ConfigSource.DEFAULT_CONFIG)


def test_a_larger_unit_becomes_the_topics_own() -> None:
    config = of_topic(new_image(orders=1), StaticConfig(1, {"log.retention.hours": "2"}), "retention.ms")
    assert (config.value, config.source) == ("7200000", ConfigSource.STATIC_BROKER_CONFIG)
    assert config.synonyms[0] == ConfigSynonym("log.retention.hours", "2", ConfigSource.STATIC_BROKER_CONFIG)


def test_what_is_described_is_what_is_in_force() -> None:
    image, static = layered(), LAYERED
    assert inherited_values(image, static)["retention.ms"] == 2
    assert inherited_values(new_image(), static)["retention.ms"] == 4
    assert inherited_values(new_image(), STATIC) == {}


def test_defaults_and_their_spelling() -> None:
    configs = {config.name: config for config in describe_topic(new_image(orders=1), STATIC, "orders")}
    assert set(configs) == set(TOPIC.settings)
    assert {config.source for config in configs.values()} == {ConfigSource.DEFAULT_CONFIG}
    assert configs["cleanup.policy"].value == "delete"
    assert configs["min.cleanable.dirty.ratio"].value == "0.5"
    assert configs["unclean.leader.election.enable"].value == "false"


def test_names_that_are_no_settings_are_left_out() -> None:
    image = new_image(orders=1)
    described = describe_topic(image, STATIC, "orders", ["nothing", "segment.bytes", "num.partitions"])
    assert [config.name for config in described] == ["segment.bytes"]
    assert describe_topic(image, STATIC, "orders", []) == []


def test_a_topic_that_is_not_there() -> None:
    with pytest.raises(ApiError) as refused:
        describe_topic(new_image(), STATIC, "orders")
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_broker_describes_itself() -> None:
    image = set_configs(new_image(), ResourceType.BROKER, "1", log_retention_ms="2")
    configs = {config.name: config for config in describe_broker(image, StaticConfig(1, {"num.partitions": "3"}), "1")}
    assert set(configs) == set(BROKER.settings)
    partitions = configs["num.partitions"]
    assert (partitions.value, partitions.source, partitions.read_only) == ("3", ConfigSource.STATIC_BROKER_CONFIG, True)
    assert [synonym.value for synonym in partitions.synonyms] == ["3", "1"]
    retention = configs["log.retention.ms"]
    assert (retention.value, retention.source, retention.read_only) == ("2", ConfigSource.DYNAMIC_BROKER_CONFIG, False)
    assert configs["log.retention.hours"].value is None
    assert configs["log.retention.hours"].read_only


def test_all_brokers_have_only_what_was_set_for_all() -> None:
    image = set_configs(new_image(), ResourceType.BROKER, ALL_BROKERS, log_retention_ms="2")
    (config,) = describe_broker(image, StaticConfig(1, {"log.retention.ms": "9"}), ALL_BROKERS)
    assert (config.name, config.value) == ("log.retention.ms", "2")
    assert config.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


@pytest.mark.parametrize("broker", ["2", "one", "01"])
def test_another_broker_is_refused(broker: str) -> None:
    with pytest.raises(ApiError, match="this is broker 1") as refused:
        describe_broker(new_image(), STATIC, broker)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_value_that_this_release_does_not_take_is_shown_as_it_is() -> None:
    image = set_configs(new_image(orders=1), ResourceType.TOPIC, "orders", compression_type="brotli")
    assert of_topic(image, STATIC, "compression.type").value == "brotli"


def test_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Setting("ssl.keystore.password", SettingType.PASSWORD, None, "A secret.")
    monkeypatch.setitem(BROKER.settings, secret.name, secret)
    (config,) = describe_broker(new_image(), StaticConfig(1, {secret.name: "hunter2"}), "1", [secret.name])
    assert (config.value, config.is_sensitive) == (None, True)
    assert "hunter2" not in repr(config)


def test_what_can_change_while_a_broker_runs() -> None:
    assert "log.retention.ms" in DYNAMIC_BROKER_SETTINGS
    assert "message.max.bytes" in DYNAMIC_BROKER_SETTINGS
    assert not {"log.retention.hours", "node.id", "num.partitions"} & DYNAMIC_BROKER_SETTINGS


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        ((), ""),
        (("compact", "delete"), "compact,delete"),
        ("text", "text"),
        (Password("x"), None),
    ],
)
def test_values_are_shown_as_kafka_prints_them(value: Value, shown: str | None) -> None:
    assert show(value) == shown


def test_a_groups_settings_are_its_own_or_the_brokers() -> None:
    static = StaticConfig(1, {"group.consumer.heartbeat.interval.ms": "4000"})
    image = set_configs(new_image(), ResourceType.GROUP, "billing", consumer_session_timeout_ms="50000")
    names = ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]
    session, heartbeat = describe_group(image, static, "billing", names)
    assert (session.name, session.value, session.source) == ("consumer.session.timeout.ms", "50000", ConfigSource.GROUP_CONFIG)
    assert session.synonyms == (
        ConfigSynonym("consumer.session.timeout.ms", "50000", ConfigSource.GROUP_CONFIG),
        ConfigSynonym("group.consumer.session.timeout.ms", "45000", ConfigSource.DEFAULT_CONFIG),
    )
    assert (heartbeat.value, heartbeat.source) == ("4000", ConfigSource.STATIC_BROKER_CONFIG)
    (default,) = describe_group(image, STATIC, "unheard of", ["consumer.heartbeat.interval.ms"])
    assert (default.value, default.source) == ("5000", ConfigSource.DEFAULT_CONFIG)


def test_there_are_no_settings_of_all_groups() -> None:
    with pytest.raises(ApiError) as raised:
        describe_group(new_image(), STATIC, "")
    assert raised.value.code is ErrorCode.INVALID_REQUEST
