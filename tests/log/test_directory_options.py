"""The directory's settings are those of the broker's configuration, under its names and with its defaults."""

from dataclasses import fields, replace

from tidelog.config.definition import parse
from tidelog.config.storage import STORAGE
from tidelog.log.directory_options import _FIELD_BY_NAME, DirectoryOptions


def test_the_defaults_are_those_of_the_configuration() -> None:
    configured = DirectoryOptions.from_config(parse(STORAGE, {}))
    # Kafka's default is the largest number there is, ours says what it means.
    assert configured.cleaner_bytes_per_second_max > 1e300
    assert replace(configured, cleaner_bytes_per_second_max=float("inf")) == DirectoryOptions()
    assert DirectoryOptions.from_config({}) == DirectoryOptions()


def test_every_field_has_a_name_that_the_configuration_knows() -> None:
    assert set(_FIELD_BY_NAME.values()) == {field.name for field in fields(DirectoryOptions)}
    assert set(_FIELD_BY_NAME) <= set(STORAGE.settings)


def test_a_setting_arrives() -> None:
    options = DirectoryOptions.from_config(parse(STORAGE, {"log.retention.check.interval.ms": "77"}))
    assert options.retention_check_interval_ms == 77
