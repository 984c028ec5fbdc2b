from tidelog.metadata.configs import ConfigsImage, ResourceType
from tidelog.metadata.records import ConfigRecord


def test_settings_are_set_replaced_and_removed() -> None:
    configs = ConfigsImage()
    resource = configs.change(ConfigRecord(ResourceType.TOPIC, "orders", "retention.ms", "5"))
    assert resource == (ResourceType.TOPIC, "orders")
    configs.change(ConfigRecord(ResourceType.TOPIC, "orders", "retention.ms", "6"))
    configs.change(ConfigRecord(ResourceType.TOPIC, "orders", "flush.ms", "7"))
    assert configs.find(ResourceType.TOPIC, "orders") == {"retention.ms": "6", "flush.ms": "7"}
    configs.change(ConfigRecord(ResourceType.TOPIC, "orders", "flush.ms", None))
    assert configs.find(ResourceType.TOPIC, "orders") == {"retention.ms": "6"}


def test_a_resource_without_settings_is_not_listed() -> None:
    configs = ConfigsImage()
    configs.change(ConfigRecord(ResourceType.TOPIC, "orders", "retention.ms", None))
    configs.change(ConfigRecord(ResourceType.BROKER, "", "retention.ms", "1"))
    configs.change(ConfigRecord(ResourceType.BROKER, "1", "retention.ms", "1"))
    assert list(configs.resources()) == [(4, ""), (4, "1")]
    configs.change(ConfigRecord(ResourceType.BROKER, "", "retention.ms", None))
    assert list(configs.resources()) == [(4, "1")]


def test_a_topic_and_a_broker_of_one_name_are_two_resources() -> None:
    configs = ConfigsImage()
    configs.change(ConfigRecord(ResourceType.TOPIC, "1", "retention.ms", "5"))
    configs.change(ConfigRecord(ResourceType.BROKER, "1", "log.retention.ms", "6"))
    configs.forget_topic("1")
    assert configs.find(ResourceType.TOPIC, "1") == {}
    assert configs.find(ResourceType.BROKER, "1") == {"log.retention.ms": "6"}
