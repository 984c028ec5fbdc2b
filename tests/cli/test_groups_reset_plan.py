"""Where a reset goes, and what its file says, from numbers and lines."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_facts import Span
from tidelog.cli.groups_reset_plan import bounded, read_csv, read_duration, read_topics, shifted

ORDERS = ("orders", 3)


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**63 - 1), st.none() | st.integers(0, 2**62))
def test_an_offset_is_within_the_log(start: int, more: int, wanted: int, before: int | None) -> None:
    reset = bounded(ORDERS, before, wanted, Span(start, start + more))
    assert start <= reset.after <= start + more
    assert (reset.after == wanted) == (reset.note == "")
    assert reset.before == before


def test_notes() -> None:
    assert bounded(ORDERS, None, 3, Span(5, 9)).note == "3 is below the start"
    assert bounded(ORDERS, None, 10, Span(5, 9)).note == "10 is beyond the end"
    assert bounded(ORDERS, None, 9, Span(5, 9)).note == ""


def test_a_shift() -> None:
    assert shifted(ORDERS, 7, -1, Span(5, 9)).after == 6
    with pytest.raises(CommandFailed, match="orders-3 has no committed offset"):
        shifted(ORDERS, None, -1, Span(5, 9))


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
def test_durations(text: str, expected: timedelta) -> None:
    assert read_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1", "h", "-1h", "-P1D", "1h30m", "P1Y", "P1H", "P999999999D", "9" * 400 + "d", "\uff11h"]
)
def test_no_durations(text: str) -> None:
    with pytest.raises(CommandFailed, match="--by-duration"):
        read_duration(text)


def test_topics() -> None:
    counts = {"orders": 3, "with:colon": 1}
    assert read_topics(["orders"], counts) == [("orders", 0), ("orders", 1), ("orders", 2)]
    assert read_topics(["orders:2,0", "orders:2"], counts) == [("orders", 0), ("orders", 2)]
    for wrong in ("orders:", "orders:x", "orders:-1", "orders:3", "nothing", ":1"):
        with pytest.raises(CommandFailed):
            read_topics([wrong], counts)


def test_files() -> None:
    assert read_csv("f", ["orders,0,5", "", '"orders",1,0'], "billing") == {("orders", 0): 5, ("orders", 1): 0}
    assert read_csv("f", ["billing,orders,0,5", "other,orders,0,9"], "billing") == {("orders", 0): 5}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["orders,0"], "f, line 1: expected topic,partition,offset"),
        (["orders,0,5", "a,b,c,d,e"], "f, line 2: expected topic,partition,offset"),
        (["orders,zero,5"], "f, line 1: expected whole numbers"),
        (["orders,0,-5"], "f, line 1: expected whole numbers"),
        (["orders,0,5", "orders,0,6"], "f, line 2: orders-0 is there twice"),
        ([], "f says nothing of group billing"),
        (["other,orders,0,5"], "f says nothing of group billing, only of other"),
    ],
)
def test_files_that_make_no_sense(lines: list[str], message: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        read_csv("f", lines, "billing")
    assert str(caught.value).startswith(message)
