"""Text becomes a value of its type, or an error that says what the type takes."""

from collections.abc import Callable

import pytest

from tidelog.config.types import (
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
    READERS,
    InvalidSetting,
    Password,
    SettingType,
    Unreadable,
    Value,
    read_boolean,
    read_double,
    read_int,
    read_list,
    read_long,
    read_password,
    read_string,
)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (read_boolean, "true", True),
        (read_boolean, " False ", False),
        (read_int, "0", 0),
        (read_int, " -12 ", -12),
        (read_int, "+7", 7),
        (read_int, str(INT_MAX), INT_MAX),
        (read_int, str(INT_MIN), INT_MIN),
        (read_long, str(LONG_MAX), LONG_MAX),
        (read_long, str(LONG_MIN), LONG_MIN),
        (read_double, "0.5", 0.5),
        (read_double, ".5", 0.5),
        (read_double, "1.7976931348623157E308", 1.7976931348623157e308),
        (read_double, "-3", -3.0),
        (read_string, " zstd ", "zstd"),
        (read_list, "", ()),
        (read_list, "compact, delete", ("compact", "delete")),
    ],
)
def test_reads(read: Callable[[str], Value], text: str, value: Value) -> None:
    result = read(text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("read", "text", "reason"),
    [
        (read_boolean, "yes", "expected true or false"),
        (read_boolean, "", "expected true or false"),
        (read_int, "", "expected a whole number"),
        (read_int, "1_000", "expected a whole number"),
        (read_int, "1.0", "expected a whole number"),
        (read_int, "\u0663", "expected a whole number"),
        (read_int, "9" * 5000, "expected a whole number"),
        (read_int, str(INT_MAX + 1), f"expected a whole number from {INT_MIN} to {INT_MAX}"),
        (read_int, str(INT_MIN - 1), f"expected a whole number from {INT_MIN} to {INT_MAX}"),
        (read_long, str(LONG_MAX + 1), f"expected a whole number from {LONG_MIN} to {LONG_MAX}"),
        (read_double, "nan", "expected a finite decimal number such as 0.5"),
        (read_double, "inf", "expected a finite decimal number such as 0.5"),
        (read_double, "1e999", "expected a finite decimal number such as 0.5"),
        (read_double, "1_0", "expected a finite decimal number such as 0.5"),
        (read_list, "compact,,delete", "expected items separated by single commas"),
        (read_list, "compact,", "expected items separated by single commas"),
        (read_list, "compact,compact", "expected each item once"),
    ],
)
def test_refuses(read: Callable[[str], Value], text: str, reason: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(text)
    assert str(caught.value) == reason


def test_every_type_has_a_reader() -> None:
    assert set(READERS) == set(SettingType)


def test_a_password_keeps_blanks_and_does_not_show() -> None:
    password = read_password(" secret ")
    assert password.reveal() == " secret "
    assert "secret" not in f"{password} {password!r}"
    assert password == Password(" secret ")
    assert hash(password) == hash(Password(" secret "))
    assert password != Password("other")


def test_the_error_names_setting_value_and_reason() -> None:
    error = InvalidSetting("segment.bytes", "12", "expected at least 1048576")
    assert str(error) == "segment.bytes=12: expected at least 1048576"
    assert (error.name, error.value, error.reason) == ("segment.bytes", "12", "expected at least 1048576")
    assert str(InvalidSetting("segment.byte", None, "there is no such setting")) == "segment.byte: there is no such setting"
