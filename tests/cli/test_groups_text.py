"""Durations and assignments as text."""

import math

import pytest

from tidelog.cli.groups_text import assignment_text, duration


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
def test_durations(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected


def test_assignments() -> None:
    assert assignment_text((("orders", 0), ("orders", 11), ("returns", 3))) == "orders(0,11), returns(3)"
    assert assignment_text(()) == "-"
