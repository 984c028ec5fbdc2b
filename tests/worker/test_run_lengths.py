"""Run lengths: what is encoded comes back, within its bytes the lowest runs first, and foreign metadata says nothing."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.worker.run_lengths import PREFIX, Run, decode, encode


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[Run]]:
    committed = draw(st.integers(0, 1 << 40))
    end = committed
    found = []
    # Runs of several sizes: a small one may fit where a large one before it did not.
    number = st.integers(1, 100) | st.integers(1, 1 << 40)
    for gap, length in draw(st.lists(st.tuples(number, number), max_size=60)):
        found.append((end + gap, end + gap + length))
        end += gap + length
    return committed, found


@given(runs())
def test_what_is_encoded_comes_back(case: tuple[int, list[Run]]) -> None:
    committed, found = case
    assert decode(committed, encode(committed, found, 4096)) == found


@given(runs(), st.integers(0, 400))
def test_the_highest_are_dropped_when_there_is_no_room(case: tuple[int, list[Run]], bytes_max: int) -> None:
    committed, found = case
    metadata = encode(committed, found, bytes_max)
    assert len(metadata) <= bytes_max
    kept = decode(committed, metadata)
    assert kept == found[: len(kept)]
    if len(kept) < len(found):
        # The next one would not have fit.
        assert len(encode(committed, found[: len(kept) + 1], 1 << 20)) > bytes_max


def test_a_run_above_one_that_did_not_fit_is_not_kept() -> None:
    far = 1 << 40
    runs = [(far, 2 * far), (2 * far + 5, 2 * far + 6)]
    assert len(encode(0, runs[1:], 100)) < len(encode(0, runs[:1], 100))
    assert encode(0, runs, len(encode(0, runs[1:], 100))) == ""


def test_the_format_is_fixed() -> None:
    assert encode(10, [(11, 12), (300, 301)], 100) == "tidelog:1:AQGgAgE="
    assert decode(10, "tidelog:1:AQGgAgE=") == [(11, 12), (300, 301)]


@given(st.text(max_size=40))
def test_anything_else_says_nothing_or_makes_sense(text: str) -> None:
    for metadata in (text, PREFIX + text):
        found = decode(5, metadata)
        assert all(5 < start < end for start, end in found)


@pytest.mark.parametrize("content", [b"\x01", b"\x00\x01", b"\x01\x00", b"\x80", b"\xff" * 10 + b"\x01\x01"])
def test_damage_says_nothing(content: bytes) -> None:
    assert decode(5, PREFIX + base64.b64encode(content).decode()) == []
    assert decode(5, None) == []
