"""Moments and durations: as users write them, and as commands show them."""

import math
from datetime import timedelta

import pytest

from tidelog.cli.errors import CommandFailed
from tidelog.cli.times import duration_text, read_duration, read_timestamp


def test_timestamps() -> None:
    assert read_timestamp("1700000000000") == 1_700_000_000_000
    assert read_timestamp("2026-01-15T13:00:00+01:00") == 1_768_478_400_000
    with pytest.raises(CommandFailed):
        read_timestamp("-1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT1H30M", timedelta(hours=1, minutes=30)),
        ("P7D", timedelta(days=7)),
        ("P1DT2H", timedelta(days=1, hours=2)),
        ("P2W", timedelta(weeks=2)),
        ("PT0.5S", timedelta(milliseconds=500)),
        ("PT0S", timedelta(0)),
        ("90m", timedelta(minutes=90)),
        ("30s", timedelta(seconds=30)),
        (" 2h ", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
    ],
)
def test_durations_as_users_write_them(text: str, expected: timedelta) -> None:
    assert read_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1", "h", "-1h", "-P1D", "1h30m", "P1Y", "P1H", "P999999999D", "9" * 400 + "d", "\uff11h"]
)
def test_texts_that_are_not_durations(text: str) -> None:
    with pytest.raises(CommandFailed, match="--by-duration"):
        read_duration(text)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "-"),
        (math.inf, "never"),
        (0.0, "0.0s"),
        (0.44, "0.4s"),
        (9.94, "9.9s"),
        (10, "10s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (125, "2m 5s"),
        (3600, "1h"),
        (3660, "1h 1m"),
        (7199, "1h 59m"),
        (604_790, "6d 23h"),
        (86_400, "1d"),
    ],
)
def test_durations_as_commands_show_them(seconds: float | None, expected: str) -> None:
    assert duration_text(seconds) == expected
