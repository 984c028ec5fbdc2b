"""Settings turn text into a complete dictionary, or refuse it with the setting, the value and what is allowed."""

from collections.abc import Mapping

import pytest

from tidelog.config.definition import (
    HOUR_MS,
    AnyOf,
    AtLeast,
    Between,
    Definitions,
    OneOf,
    Setting,
    Synonym,
    broker_settings,
    inherit,
    parse,
)
from tidelog.config.types import InvalidSetting, SettingType, Value

SIZE = Setting("size.bytes", SettingType.INT, 100, "How large.", AtLeast(10), (Synonym("log.size.bytes"),))
RATIO = Setting("ratio", SettingType.DOUBLE, 0.5, "How much.", Between(0, 1))
CODEC = Setting("codec", SettingType.STRING, "none", "Which one.", OneOf(("none", "zstd")))
POLICY = Setting("policy", SettingType.LIST, ("delete",), "What to do.", AnyOf(("compact", "delete")))
SECRET = Setting("secret", SettingType.PASSWORD, None, "A password.", OneOf(()))
AGE = Setting(
    "age.ms", SettingType.LONG, HOUR_MS, "How old.", AtLeast(-1), (Synonym("log.age.ms"), Synonym("log.age.hours", HOUR_MS))
)


def check_size_against_age(values: Mapping[str, Value]) -> None:
    if values["size.bytes"] == values["age.ms"]:
        raise InvalidSetting("size.bytes", str(values["size.bytes"]), "expected other than age.ms")


DEFINITIONS = Definitions((SIZE, RATIO, CODEC, POLICY, SECRET, AGE), (check_size_against_age,))


def test_defaults_are_filled_in() -> None:
    assert parse(DEFINITIONS, {}) == {
        "size.bytes": 100,
        "ratio": 0.5,
        "codec": "none",
        "policy": ("delete",),
        "secret": None,
        "age.ms": HOUR_MS,
    }


def test_text_wins_over_the_callers_defaults_and_these_over_our_own() -> None:
    values = parse(DEFINITIONS, {"size.bytes": "11"}, {"size.bytes": 12, "ratio": 0.25})
    assert values["size.bytes"] == 11
    assert values["ratio"] == 0.25
    assert values["codec"] == "none"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("size.bytes", "9", "size.bytes=9: expected at least 10"),
        ("size.bytes", "x", "size.bytes=x: expected a whole number"),
        ("ratio", "1.01", "ratio=1.01: expected 0 to 1"),
        ("ratio", "-0.01", "ratio=-0.01: expected 0 to 1"),
        ("codec", "gzip", "codec=gzip: expected one of none, zstd"),
        ("policy", "compact,keep", "policy=compact,keep: expected a list of any of compact, delete"),
        ("secret", "hunter2", "secret=[hidden]: expected one of "),
        ("sise.bytes", "10", "sise.bytes: there is no such setting; did you mean size.bytes?"),
        ("zzz", "10", "zzz: there is no such setting"),
        ("size.bytes", str(HOUR_MS), f"size.bytes={HOUR_MS}: expected other than age.ms"),
    ],
)
def test_refuses_with_the_reason(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse(DEFINITIONS, {name: text})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "text"), [("size.bytes", "10"), ("ratio", "0"), ("ratio", "1"), ("policy", ""), ("age.ms", "-1")]
)
def test_bounds_are_inclusive(name: str, text: str) -> None:
    assert name in parse(DEFINITIONS, {name: text})


def test_a_boolean_is_not_a_number_in_range_by_accident() -> None:
    assert not OneOf(("true",)).accepts(True)
    assert not AnyOf(("a",)).accepts("a")


def test_broker_settings_are_derived_from_the_synonyms() -> None:
    derived = {setting.name: setting for setting in broker_settings(DEFINITIONS)}
    assert list(derived) == ["log.size.bytes", "log.age.ms", "log.age.hours"]
    assert derived["log.size.bytes"].default == 100
    assert derived["log.size.bytes"].allowed == AtLeast(10)
    assert derived["log.age.ms"].default == HOUR_MS
    assert derived["log.age.hours"].default is None
    assert derived["log.age.hours"].type is SettingType.INT
    assert derived["log.age.hours"].documentation == "The default of the topic setting age.ms in hours. How old."


def test_the_first_synonym_that_is_set_gives_the_topic_default() -> None:
    assert inherit(DEFINITIONS, {}) == {}
    assert inherit(DEFINITIONS, {"log.age.hours": "2", "log.age.ms": "5", "log.size.bytes": "77"}) == {
        "age.ms": 5,
        "size.bytes": 77,
    }
    assert inherit(DEFINITIONS, {"log.age.hours": "2"}) == {"age.ms": 2 * HOUR_MS}


def test_without_end_is_the_same_in_every_unit() -> None:
    assert inherit(DEFINITIONS, {"log.age.hours": "-1"}) == {"age.ms": -1}


def test_an_inherited_value_is_checked_under_the_name_it_was_given() -> None:
    with pytest.raises(InvalidSetting, match=r"^log\.age\.hours=-2: expected at least -1$"):
        inherit(DEFINITIONS, {"log.age.hours": "-2"})


def test_a_setting_defined_twice_is_a_programming_error() -> None:
    with pytest.raises(AssertionError, match="ratio is defined twice"):
        Definitions((RATIO, RATIO))
