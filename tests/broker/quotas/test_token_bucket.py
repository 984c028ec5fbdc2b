import pytest

from tidelog.broker.quotas.token_bucket import TokenBucket

WINDOW_MS = 11_000
T0 = 5_000_000


def test_a_burst_of_a_whole_window_is_free_and_then_comes_debt() -> None:
    bucket = TokenBucket(WINDOW_MS)
    bucket.record(55, 5, T0)
    assert bucket.throttle_ms(5, T0) == 0
    bucket.record(10, 5, T0)
    assert bucket.throttle_ms(5, T0) == 2_000
    assert bucket.throttle_ms(5, T0 + 1_500) == pytest.approx(500)
    assert bucket.throttle_ms(5, T0 + 2_000) == 0


def test_it_is_never_more_than_full() -> None:
    bucket = TokenBucket(WINDOW_MS)
    bucket.record(1, 5, T0)
    bucket.record(56, 5, T0 + 1_000_000)
    assert bucket.throttle_ms(5, T0 + 1_000_000) == pytest.approx(200)


def test_it_is_over_when_it_is_full_again_and_not_before() -> None:
    bucket = TokenBucket(WINDOW_MS)
    assert bucket.is_over(T0)
    bucket.record(110, 5, T0)
    assert not bucket.is_over(T0 + WINDOW_MS)
    assert not bucket.is_over(T0 + 21_999)
    assert bucket.is_over(T0 + 22_000)
