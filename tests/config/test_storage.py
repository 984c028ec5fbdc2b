"""The storage engine's broker settings, and the topic settings' broker-wide defaults among them."""

import pytest

from tidelog.config.definition import parse
from tidelog.config.storage import STORAGE
from tidelog.config.topic import TOPIC
from tidelog.config.types import InvalidSetting


def test_defaults() -> None:
    values = parse(STORAGE, {})
    assert values["log.cleaner.dedupe.buffer.size"] == 134_217_728
    assert values["log.cleaner.io.max.bytes.per.second"] == 1.7976931348623157e308
    assert values["log.cleaner.backoff.ms"] == 15_000
    assert values["log.retention.check.interval.ms"] == 300_000
    assert values["producer.id.expiration.ms"] == 86_400_000
    assert values["tidelog.recovery.point.interval.bytes"] == 67_108_864
    assert values["log.cleaner.delete.retention.ms"] == 86_400_000
    assert values["log.cleaner.min.cleanable.ratio"] == 0.5
    assert values["log.retention.hours"] is None


def test_every_default_is_a_value_that_the_setting_takes() -> None:
    for setting in STORAGE.settings.values():
        assert setting.default is None or setting.allowed is None or setting.allowed.accepts(setting.default), setting.name


def test_every_setting_is_documented() -> None:
    for setting in STORAGE.settings.values():
        assert setting.documentation.endswith("."), setting.name


def test_every_topic_settings_synonym_is_a_broker_setting() -> None:
    for setting in TOPIC.settings.values():
        for synonym in setting.synonyms:
            assert synonym.name in STORAGE.settings


def test_refuses_an_unknown_name_with_the_nearest() -> None:
    with pytest.raises(InvalidSetting, match=r"did you mean log\.cleaner\.dedupe\.buffer\.size\?$"):
        parse(STORAGE, {"log.cleaner.dedup.buffer.size": "1"})


def test_each_compaction_needs_memory_for_its_keys() -> None:
    assert parse(STORAGE, {"log.cleaner.threads": "4", "log.cleaner.dedupe.buffer.size": "4194304"})["log.cleaner.threads"] == 4
    with pytest.raises(InvalidSetting, match=r"=4194303: expected at least 1048576 for each of the 4 log\.cleaner\.threads"):
        parse(STORAGE, {"log.cleaner.threads": "4", "log.cleaner.dedupe.buffer.size": "4194303"})
