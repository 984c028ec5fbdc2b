import pytest

from tests.controller.cluster import STATIC, new_image, replay, set_configs, topic_id
from tidelog.controller.config_sources import StaticConfig
from tidelog.controller.configs import (
    AlterOperation,
    ConfigChange,
    ResourceAlteration,
    ResourceChanges,
    alter_configs,
    incremental_alter_configs,
)
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ConfigRecord, PartitionChangeRecord
from tidelog.wire.errors import ErrorCode

SET, DELETE, APPEND, SUBTRACT = AlterOperation
TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER


def on_topic(*changes: ConfigChange) -> ResourceChanges:
    return ResourceChanges(TOPIC, "orders", changes)


def on_broker(*changes: ConfigChange, name: str = ALL_BROKERS) -> ResourceChanges:
    return ResourceChanges(BROKER, name, changes)


def with_settings() -> ClusterImage:
    return set_configs(new_image(orders=1), TOPIC, "orders", retention_ms="5", cleanup_policy="compact")


def changed(image: ClusterImage, *changes: ConfigChange, static: StaticConfig = STATIC) -> dict[str, str]:
    result = incremental_alter_configs(image, static, [on_topic(*changes)])
    assert [(alteration.error, alteration.message) for alteration in result.response] == [(ErrorCode.NONE, None)]
    return dict(replay(image, result.records).configs_of(TOPIC, "orders"))


def test_single_settings_are_set_and_deleted() -> None:
    texts = changed(with_settings(), ConfigChange("retention.ms", None, DELETE), ConfigChange("flush.ms", "7", SET))
    assert texts == {"cleanup.policy": "compact", "flush.ms": "7"}


def test_legacy_alter_replaces_all() -> None:
    image = with_settings()
    result = alter_configs(image, STATIC, [on_topic(ConfigChange("flush.ms", "7"), ConfigChange("retention.ms", "5"))])
    assert result.response == [ResourceAlteration(TOPIC, "orders")]
    assert result.records == [
        ConfigRecord(TOPIC, "orders", "cleanup.policy", None),
        ConfigRecord(TOPIC, "orders", "flush.ms", "7"),
    ]
    assert replay(image, result.records).configs_of(TOPIC, "orders") == {"retention.ms": "5", "flush.ms": "7"}


def test_what_does_not_change_is_not_written() -> None:
    result = incremental_alter_configs(
        with_settings(), STATIC, [on_topic(ConfigChange("retention.ms", "5"), ConfigChange("flush.ms", None, DELETE))]
    )
    assert result.records == []
    assert result.response == [ResourceAlteration(TOPIC, "orders")]


@pytest.mark.parametrize(
    ("operation", "value", "expected"),
    [
        (APPEND, "delete", "compact,delete"),
        (APPEND, " delete , compact ", "compact,delete"),
        (APPEND, "compact", "compact"),
        (SUBTRACT, "compact", ""),
        (SUBTRACT, "delete", "compact"),
    ],
)
def test_items_are_added_to_a_list_and_taken_away(operation: AlterOperation, value: str, expected: str) -> None:
    assert changed(with_settings(), ConfigChange("cleanup.policy", value, operation))["cleanup.policy"] == expected


def test_a_list_that_was_not_set_starts_from_the_value_in_force() -> None:
    image = new_image(orders=1)
    append = ConfigChange("cleanup.policy", "compact", APPEND)
    assert changed(image, append) == {"cleanup.policy": "delete,compact"}
    subtract = ConfigChange("cleanup.policy", "delete", SUBTRACT)
    static = StaticConfig(1, {"log.cleanup.policy": "compact,delete"})
    assert changed(new_image(orders=1), subtract, static=static) == {"cleanup.policy": "compact"}


def test_lists_of_brokers() -> None:
    image = new_image()
    change = on_broker(ConfigChange("log.cleanup.policy", "compact", APPEND), name="1")
    assert incremental_alter_configs(image, STATIC, [change]).records == [
        ConfigRecord(BROKER, "1", "log.cleanup.policy", "delete,compact")
    ]
    static = StaticConfig(1, {"log.cleanup.policy": "compact"})
    assert incremental_alter_configs(image, static, [change]).records == [
        ConfigRecord(BROKER, "1", "log.cleanup.policy", "compact")
    ]


@pytest.mark.parametrize(
    ("resource", "code", "words"),
    [
        (ResourceChanges(TOPIC, "none", ()), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none"),
        (ResourceChanges(BROKER, "2", ()), ErrorCode.BROKER_ID_NOT_REGISTERED, "broker 2"),
        (ResourceChanges(BROKER, "one", ()), ErrorCode.INVALID_REQUEST, "not the id"),
        (ResourceChanges(ResourceType.BROKER_LOGGER, "1", ()), ErrorCode.INVALID_REQUEST, "type 8"),
        (ResourceChanges(0, "1", ()), ErrorCode.INVALID_REQUEST, "type 0"),
        (on_topic(ConfigChange("retention.mss", "5")), ErrorCode.INVALID_CONFIG, "did you mean retention.ms"),
        (on_topic(ConfigChange("retention.ms", "soon")), ErrorCode.INVALID_CONFIG, "whole number"),
        (on_topic(ConfigChange("retention.ms", None)), ErrorCode.INVALID_REQUEST, "null"),
        (on_topic(ConfigChange("a", "1"), ConfigChange("a", "2")), ErrorCode.INVALID_REQUEST, "twice"),
        (on_topic(ConfigChange("retention.ms", "5", 4)), ErrorCode.INVALID_REQUEST, "operation 4"),
        (on_topic(ConfigChange("retention.ms", "5", APPEND)), ErrorCode.INVALID_CONFIG, "APPEND is for lists"),
        (on_topic(ConfigChange("nothing", "5", SUBTRACT)), ErrorCode.INVALID_CONFIG, "SUBTRACT is for lists"),
        (on_topic(ConfigChange("cleanup.policy", None, APPEND)), ErrorCode.INVALID_REQUEST, "null"),
        (on_topic(ConfigChange("cleanup.policy", "burn", APPEND)), ErrorCode.INVALID_CONFIG, "any of compact, delete"),
        (on_topic(ConfigChange("min.compaction.lag.ms", "11")), ErrorCode.INVALID_CONFIG, "which is 10"),
        (on_broker(ConfigChange("log.retention.mss", "5")), ErrorCode.INVALID_CONFIG, "did you mean"),
        (on_broker(ConfigChange("log.retention.ms", "-5")), ErrorCode.INVALID_CONFIG, "at least -1"),
        (on_broker(ConfigChange("node.id", "5")), ErrorCode.INVALID_REQUEST, "while the broker runs"),
        (on_broker(ConfigChange("log.retention.hours", "5")), ErrorCode.INVALID_REQUEST, "while the broker runs"),
        (on_broker(ConfigChange("log.cleaner.max.compaction.lag.ms", "2")), ErrorCode.INVALID_CONFIG, "which is 2"),
    ],
)
def test_what_is_refused_and_why(resource: ResourceChanges, code: ErrorCode, words: str) -> None:
    image = set_configs(new_image(orders=1), TOPIC, "orders", max_compaction_lag_ms="10")
    static = StaticConfig(1, {"log.cleaner.min.compaction.lag.ms": "3"})
    result = incremental_alter_configs(image, static, [resource])
    assert result.records == []
    assert [alteration.error for alteration in result.response] == [code], result.response
    assert words in (result.response[0].message or "")


def test_one_refused_resource_does_not_stop_the_others_and_duplicates_are_refused() -> None:
    good, bad = on_broker(ConfigChange("log.retention.ms", "5")), on_topic(ConfigChange("x", "5"))
    twice = on_broker(name="1")
    result = alter_configs(new_image(orders=1), STATIC, [bad, good, twice, twice])
    assert [(alteration.resource_name, alteration.error) for alteration in result.response] == [
        ("orders", ErrorCode.INVALID_CONFIG),
        ("", ErrorCode.NONE),
        ("1", ErrorCode.INVALID_REQUEST),
    ]
    assert result.records == [ConfigRecord(BROKER, "", "log.retention.ms", "5")]


def test_validate_only_answers_the_same_and_writes_nothing() -> None:
    image = with_settings()
    resources = [on_topic(ConfigChange("flush.ms", "7")), on_broker(ConfigChange("x", "5"))]
    for alter in (alter_configs, incremental_alter_configs):
        only = alter(image, STATIC, resources, validate_only=True)
        assert only.records == []
        assert only.response == alter(image, STATIC, resources).response


def test_settings_of_another_release_do_not_stand_in_the_way() -> None:
    image = new_image(orders=1)
    of_topic = ConfigRecord(TOPIC, "orders", "internal.segment.bytes", "9")
    replay(image, [of_topic, ConfigRecord(BROKER, "1", "background.threads", "9")])
    assert changed(image, ConfigChange("flush.ms", "7")) == {"internal.segment.bytes": "9", "flush.ms": "7"}
    assert changed(image, ConfigChange("internal.segment.bytes", None, DELETE)) == {"flush.ms": "7"}
    change = on_broker(ConfigChange("log.retention.ms", "5"), ConfigChange("background.threads", None, DELETE), name="1")
    result = incremental_alter_configs(image, STATIC, [change])
    assert result.response == [ResourceAlteration(BROKER, "1")]
    assert replay(image, result.records).configs_of(BROKER, "1") == {"log.retention.ms": "5"}


def test_a_brokers_setting_must_go_together_with_those_of_the_topics() -> None:
    image = set_configs(new_image(orders=1, other=1), TOPIC, "orders", min_compaction_lag_ms="1000")
    for name in (ALL_BROKERS, str(STATIC.node_id)):
        change = on_broker(ConfigChange("log.cleaner.max.compaction.lag.ms", "500"), name=name)
        result = incremental_alter_configs(image, STATIC, [change])
        (refused,) = result.response
        assert refused.error is ErrorCode.INVALID_CONFIG
        assert refused.message is not None
        assert "topic orders" in refused.message
        assert result.records == []
    fine = incremental_alter_configs(image, STATIC, [on_broker(ConfigChange("log.cleaner.max.compaction.lag.ms", "1000"))])
    assert [alteration.error for alteration in fine.response] == [ErrorCode.NONE]


def test_a_topic_that_made_no_sense_before_does_not_stop_a_brokers_setting() -> None:
    image = set_configs(new_image(orders=1), TOPIC, "orders", min_compaction_lag_ms="1000", max_compaction_lag_ms="1")
    result = incremental_alter_configs(image, STATIC, [on_broker(ConfigChange("log.retention.ms", "500"))])
    assert [alteration.error for alteration in result.response] == [ErrorCode.NONE]


def on_group(*changes: ConfigChange, name: str = "billing") -> ResourceChanges:
    return ResourceChanges(ResourceType.GROUP, name, changes)


def test_a_group_has_settings_of_its_own() -> None:
    image = new_image()
    result = incremental_alter_configs(image, STATIC, [on_group(ConfigChange("consumer.session.timeout.ms", "50000"))])
    assert result.response == [ResourceAlteration(ResourceType.GROUP, "billing")]
    assert replay(image, result.records).configs_of(ResourceType.GROUP, "billing") == {"consumer.session.timeout.ms": "50000"}
    result = alter_configs(image, STATIC, [on_group(ConfigChange("consumer.heartbeat.interval.ms", "6000"))])
    assert replay(image, result.records).configs_of(ResourceType.GROUP, "billing") == {"consumer.heartbeat.interval.ms": "6000"}


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("", ConfigChange("consumer.session.timeout.ms", "50000"), ErrorCode.INVALID_REQUEST),
        ("billing", ConfigChange("retention.ms", "50000"), ErrorCode.INVALID_CONFIG),
        ("billing", ConfigChange("consumer.session.timeout.ms", "0"), ErrorCode.INVALID_CONFIG),
        ("billing", ConfigChange("consumer.session.timeout.ms", "50000", APPEND), ErrorCode.INVALID_CONFIG),
        # Not less than the broker's time-out of sessions, which counts for this group too.
        ("billing", ConfigChange("consumer.heartbeat.interval.ms", "45000"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_settings_of_groups_are_checked(name: str, change: ConfigChange, error: ErrorCode) -> None:
    result = incremental_alter_configs(new_image(), STATIC, [on_group(change, name=name)])
    assert [alteration.error for alteration in result.response] == [error]
    assert result.records == []


def test_settings_of_groups_are_checked_against_the_brokers() -> None:
    static = StaticConfig(1, {"group.consumer.session.timeout.ms": "60000"})
    result = incremental_alter_configs(new_image(), static, [on_group(ConfigChange("consumer.heartbeat.interval.ms", "45000"))])
    assert result.response == [ResourceAlteration(ResourceType.GROUP, "billing")]


@pytest.mark.parametrize(
    ("kind", "name", "minimum", "eligible"),
    [
        (ResourceType.TOPIC, "orders", "1", ()),
        (ResourceType.TOPIC, "orders", "2", (2,)),
        (ResourceType.TOPIC, "orders", "3", (2,)),
        (ResourceType.BROKER, "", "1", (2,)),
    ],
)
def test_a_smaller_minimum_ends_eligibility_in_the_same_batch(
    kind: ResourceType, name: str, minimum: str, eligible: tuple[int, ...]
) -> None:
    """The topic's own minimum is 2, so that of all brokers does not count."""
    image = set_configs(new_image((1, 2, 3), orders=1), ResourceType.TOPIC, "orders", min_insync_replicas="2")
    replay(image, [PartitionChangeRecord(0, topic_id("orders"), isr=(1,), leader=1, eligible_leader_replicas=(2,))])
    change = ResourceChanges(kind, name, (ConfigChange("min.insync.replicas", minimum),))
    replay(image, incremental_alter_configs(image, STATIC, [change]).records)
    topic = image.topic("orders")
    assert topic is not None
    assert topic.partitions[0].eligible_leader_replicas == eligible


@pytest.mark.parametrize("setting", ["min.insync.replicas", "log.flush.interval.messages"])
def test_what_elections_depend_on_is_the_same_on_all_brokers(setting: str) -> None:
    """A leader that needed fewer replicas than the controller believes would acknowledge what an eligible replica lacks."""
    image = new_image((1, 2), orders=1)
    change = ConfigChange(setting, "1")
    result = incremental_alter_configs(image, STATIC, [on_broker(change, name="2")])
    assert (result.records, result.response[0].error) == ([], ErrorCode.INVALID_CONFIG)
    assert "the same on all brokers" in (result.response[0].message or "")
    assert incremental_alter_configs(image, STATIC, [on_broker(change)]).response[0].error is ErrorCode.NONE
    # It may be taken back where an earlier release has accepted it, and a lone broker is all brokers.
    replay(image, [ConfigRecord(BROKER, "2", setting, "1")])
    result = incremental_alter_configs(image, STATIC, [on_broker(ConfigChange(setting, None, DELETE), name="2")])
    assert [record.value for record in result.records if isinstance(record, ConfigRecord)] == [None]
    assert incremental_alter_configs(new_image(), STATIC, [on_broker(change, name="1")]).response[0].error is ErrorCode.NONE
