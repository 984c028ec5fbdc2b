"""Letters per second."""

import pytest

from tidelog.client.errors import InvalidArgument
from tidelog.deadletters.pacing import Pacer


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
def test_a_rate_that_is_none(rate: float) -> None:
    with pytest.raises(InvalidArgument, match="letters per second"):
        Pacer(rate)
