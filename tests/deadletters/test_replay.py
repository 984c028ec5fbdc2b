"""Tests what a replay sends, where it sends it, and its letters per second."""

import pytest

from tests.deadletters.plain import dead_letter
from tidelog.client.errors import InvalidArgument
from tidelog.deadletters.letter import Letter
from tidelog.deadletters.replay import Pacer, to_origin, to_retry_topic


def test_to_the_retry_topic_with_its_story_and_new_attempts() -> None:
    dead = dead_letter(partition=3, key=b"k")
    assert dead.letter is not None
    sent = to_retry_topic(dead, now_ms=77)
    assert sent[:4] == ("orders.email.retry.0", 3, b"k", b"v")
    assert Letter.from_headers(sent.headers) == dead.letter._replace(attempts=0, level=0, due_ms=77, replays=1)
    assert sent.headers[0] == ("a", b"1")
    again = to_retry_topic(dead._replace(letter=dead.letter._replace(replays=1)), now_ms=78)
    assert ("tidelog.replays", b"2") in again.headers


def test_to_the_origin_as_it_came() -> None:
    dead = dead_letter(partition=3, key=b"k")
    assert dead.letter is not None
    moved = dead._replace(letter=dead.letter._replace(partition=5))
    assert to_origin(moved, partitions=6) == ("orders", 5, b"k", b"v", [("a", b"1")])
    assert to_origin(moved, partitions=5).partition is None


def test_no_rate_is_no_wait() -> None:
    pacer = Pacer(None)
    assert [pacer.delay(1000, 5.0) for _ in range(3)] == [0, 0, 0]
    assert pacer.batch_letters(1000) == 1000


def test_each_batch_waits_for_those_before() -> None:
    pacer = Pacer(100)
    assert pacer.batch_letters(1000) == 100
    assert pacer.delay(100, 10.0) == 0
    assert pacer.delay(50, 10.25) == pytest.approx(0.75)
    assert pacer.delay(1, 11.0) == pytest.approx(0.5)


def test_a_pause_does_not_end_in_a_burst() -> None:
    pacer = Pacer(10)
    pacer.delay(10, 0.0)
    assert pacer.delay(10, 100.0) == 0
    assert pacer.delay(10, 100.0) == pytest.approx(1.0)


def test_less_than_one_a_second() -> None:
    pacer = Pacer(0.5)
    assert pacer.batch_letters(1000) == 1
    pacer.delay(1, 0.0)
    assert pacer.delay(1, 0.0) == pytest.approx(2.0)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_is_not_positive(rate: float) -> None:
    with pytest.raises(InvalidArgument, match="letters per second"):
        Pacer(rate)
