from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.client_quotas import (
    LIMITS_KEPT_MAX,
    NAME_LENGTH_MAX,
    Limit,
    Rate,
    TokenBucket,
    TrackedRates,
    find_address_limit,
    find_limit,
)
from tidelog.metadata.client_quotas import ClientQuotasImage, quota_entity
from tidelog.metadata.records import ClientQuotaRecord

WINDOW_MS, SAMPLES_MAX = 1_000, 11
T0 = 5_000_000


def make() -> Rate:
    return Rate(WINDOW_MS, SAMPLES_MAX)


def test_one_value_is_spread_over_ten_windows() -> None:
    rate = make()
    rate.record(1_000, T0)
    assert rate.per_second(T0) == 100
    assert rate.per_second(T0 + 500) == pytest.approx(1_000 / 10.5)


def test_over_the_bound_by_half_means_waiting_for_half_a_window() -> None:
    """Kafka's own example: (rate - bound) / bound x window."""
    rate = make()
    rate.record(1_500, T0)
    assert rate.throttle_ms(100, T0) == 5_000
    assert rate.throttle_ms(150, T0) == 0


def test_after_the_wait_the_rate_is_within_the_bound() -> None:
    rate = make()
    rate.record(1_500, T0)
    wait_ms = round(rate.throttle_ms(100, T0))
    assert rate.throttle_ms(100, T0 + wait_ms - 1) >= 0
    # Of the first ten seconds none is counted as passed: the wait is as long as Kafka's, which ends when the value is gone.
    assert rate.throttle_ms(100, T0 + SAMPLES_MAX * WINDOW_MS) == 0


def test_a_window_that_is_full_moves_on_with_time() -> None:
    rate = make()
    for second in range(30):
        rate.record(100, T0 + second * 1_000)
    # Twelve samples, the last of which has just begun.
    assert rate.total(T0 + 29_000) == 1_100
    assert rate.per_second(T0 + 29_000) == pytest.approx(110)
    assert rate.per_second(T0 + 29_999) == pytest.approx(100, rel=0.02)


def test_what_is_older_than_the_window_is_forgotten_sample_by_sample() -> None:
    rate = make()
    rate.record(500, T0)
    rate.record(300, T0 + 4_000)
    assert rate.total(T0 + 10_999) == 800
    assert rate.total(T0 + 11_000) == 300
    assert rate.total(T0 + 15_000) == 0
    assert rate.per_second(T0 + 15_000) == 0


def test_what_is_taken_back_never_was() -> None:
    rate = make()
    rate.record(100, T0)
    before = rate.per_second(T0 + 700)
    rate.record(5_000, T0 + 700)
    rate.record(-5_000, T0 + 700)
    assert rate.per_second(T0 + 700) == before


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 10_000)), min_size=1, max_size=60), st.integers(0, 20_000))
def test_a_rate_that_is_over_is_as_good_as_a_new_one(values: list[tuple[int, int]], rest_ms: int) -> None:
    used, now_ms = make(), T0
    for delay_ms, value in values:
        now_ms += delay_ms
        used.record(value, now_ms)
        assert len(used._samples) <= SAMPLES_MAX + 1
    now_ms += rest_ms
    if used.is_over(now_ms):
        fresh = make()
        for each in (used, fresh):
            each.record(77, now_ms)
        assert used.per_second(now_ms + 10) == fresh.per_second(now_ms + 10)
    else:
        assert rest_ms < WINDOW_MS * SAMPLES_MAX


def test_one_sample_at_its_beginning_divides_by_something() -> None:
    rate = Rate(1_000, 1)
    rate.record(5, T0)
    assert rate.per_second(T0) == 5_000


BUCKET_MS = 11_000


def test_a_burst_of_a_whole_window_is_free_and_then_comes_debt() -> None:
    bucket = TokenBucket(BUCKET_MS)
    bucket.record(55, 5, T0)
    assert bucket.throttle_ms(5, T0) == 0
    bucket.record(10, 5, T0)
    assert bucket.throttle_ms(5, T0) == 2_000
    assert bucket.throttle_ms(5, T0 + 1_500) == pytest.approx(500)
    assert bucket.throttle_ms(5, T0 + 2_000) == 0


def test_it_is_never_more_than_full() -> None:
    bucket = TokenBucket(BUCKET_MS)
    bucket.record(1, 5, T0)
    bucket.record(56, 5, T0 + 1_000_000)
    assert bucket.throttle_ms(5, T0 + 1_000_000) == pytest.approx(200)


def test_it_is_over_when_it_is_full_again_and_not_before() -> None:
    bucket = TokenBucket(BUCKET_MS)
    assert bucket.is_over(T0)
    bucket.record(110, 5, T0)
    assert not bucket.is_over(T0 + BUCKET_MS)
    assert not bucket.is_over(T0 + 21_999)
    assert bucket.is_over(T0 + 22_000)


KEY = "producer_byte_rate"
# Most specific first, as Kafka documents it; and who shares it.
PRECEDENCE: list[tuple[dict[str, str | None], tuple[str, str]]] = [
    ({"user": "me", "client-id": "a"}, ("me", "a")),
    ({"user": "me", "client-id": None}, ("me", "a")),
    ({"user": "me"}, ("me", "")),
    ({"user": None, "client-id": "a"}, ("me", "a")),
    ({"user": None, "client-id": None}, ("me", "a")),
    ({"user": None}, ("me", "")),
    ({"client-id": "a"}, ("", "a")),
    ({"client-id": None}, ("", "a")),
]


def image_of(*quotas: tuple[dict[str, str | None], float], key: str = KEY) -> ClientQuotasImage:
    image = ClientQuotasImage()
    for entity, value in quotas:
        image.change(ClientQuotaRecord(quota_entity(entity.items()), key, value))
    return image


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_most_specific_one_wins(first: int) -> None:
    quotas = [(entity, float(number)) for number, (entity, _) in enumerate(PRECEDENCE) if number >= first]
    others: list[tuple[dict[str, str | None], float]] = [({"user": "you", "client-id": "a"}, 99.0), ({"client-id": "b"}, 99.0)]
    image = image_of(*reversed(quotas), *others)
    assert find_limit(image, KEY, "me", "a") == Limit(float(first), PRECEDENCE[first][1])


def test_only_the_key_that_is_asked_for_counts() -> None:
    image = image_of(({"client-id": "a"}, 1.0), key="consumer_byte_rate")
    image.change(ClientQuotaRecord(quota_entity([("client-id", None)]), KEY, 2.0))
    assert find_limit(image, KEY, "me", "a") == Limit(2.0, ("", "a"))
    assert find_limit(image_of(), KEY, "me", "a") is None


def test_without_a_client_id_there_are_only_quotas_of_users() -> None:
    image = image_of(({"client-id": None}, 1.0), ({"user": "me", "client-id": None}, 2.0))
    assert find_limit(image, KEY, "me", "") is None
    image = image_of(({"client-id": None}, 1.0), ({"user": None}, 3.0))
    assert find_limit(image, KEY, "me", "") == Limit(3.0, ("me", ""))


def test_an_address_has_its_own_or_the_default() -> None:
    image = image_of(({"ip": "10.0.0.1"}, 1.0), ({"ip": None}, 2.0))
    assert find_address_limit(image, KEY, "10.0.0.1") == Limit(1.0, ("10.0.0.1", ""))
    assert find_address_limit(image, KEY, "10.0.0.2") == Limit(2.0, ("10.0.0.2", ""))
    assert find_address_limit(image_of(), KEY, "10.0.0.2") is None


def make_tracked(tracked_max: int = 3) -> TrackedRates[Rate]:
    return TrackedRates(partial(Rate, 1_000, 11), lambda name: Limit(1.0, ("", name)) if name else None, tracked_max)


def test_limits_are_looked_up_once_until_they_change_and_not_kept_without_end() -> None:
    asked: list[str] = []

    def find(name: str) -> Limit | None:
        asked.append(name)
        return None

    tracked = TrackedRates(partial(Rate, 1_000, 11), find)
    assert tracked.limit("a") is None
    assert tracked.limit("a") is None
    assert asked == ["a"]
    tracked.limits_changed()
    tracked.limit("a")
    assert asked == ["a", "a"]
    for number in range(3 * LIMITS_KEPT_MAX):
        tracked.limit(str(number))
        assert len(tracked._limits) <= LIMITS_KEPT_MAX


def test_the_same_client_has_the_same_rate() -> None:
    tracked = make_tracked()
    tracked.rate(("", "a"), T0).record(5, T0)
    assert tracked.rate(("", "a"), T0).total(T0) == 5
    assert tracked.rate(("me", "a"), T0).total(T0) == 0


def test_who_is_silent_for_a_window_is_forgotten_when_another_comes() -> None:
    tracked = make_tracked(100)
    for name in "abc":
        tracked.rate(("", name), T0).record(1, T0)
    tracked.rate(("", "a"), T0 + 5_000).record(1, T0 + 5_000)
    tracked.rate(("", "d"), T0 + 11_000)
    assert list(tracked._rates) == [("", "a"), ("", "d")]


def test_beyond_the_bound_the_least_recently_used_goes() -> None:
    tracked = make_tracked(3)
    for name in "abc":
        tracked.rate(("", name), T0).record(1, T0)
    tracked.rate(("", "a"), T0)
    tracked.rate(("", "d"), T0)
    assert list(tracked._rates) == [("", "c"), ("", "a"), ("", "d")]
    assert len(tracked) == 3


def test_of_long_names_only_the_beginning_is_kept() -> None:
    """Two thousand rates and ten thousand limits with 32 KB of a name each would be 400 MB."""
    tracked = make_tracked()
    usual, long = "a" * NAME_LENGTH_MAX, "b" * 30_000
    for name in (usual, long, long + "c"):
        limit = tracked.limit(name)
        assert limit is not None
        assert limit.shared_by == ("", name)
        tracked.rate(limit.shared_by, T0).record(1, T0)
    assert list(tracked._limits) == [usual]
    assert list(tracked._rates) == [("", usual), ("", "b" * NAME_LENGTH_MAX)]
    assert tracked.rate(("", long), T0).total(T0) == 2
