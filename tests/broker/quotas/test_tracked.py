from functools import partial

from tidelog.broker.quotas.limits import Limit
from tidelog.broker.quotas.rate import Rate
from tidelog.broker.quotas.tracked import LIMITS_KEPT_MAX, NAME_LENGTH_MAX, TrackedRates

T0 = 1_000_000


def make(tracked_max: int = 3) -> TrackedRates[Rate]:
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
    tracked = make()
    tracked.rate(("", "a"), T0).record(5, T0)
    assert tracked.rate(("", "a"), T0).total(T0) == 5
    assert tracked.rate(("me", "a"), T0).total(T0) == 0


def test_who_is_silent_for_a_window_is_forgotten_when_another_comes() -> None:
    tracked = make(100)
    for name in "abc":
        tracked.rate(("", name), T0).record(1, T0)
    tracked.rate(("", "a"), T0 + 5_000).record(1, T0 + 5_000)
    tracked.rate(("", "d"), T0 + 11_000)
    assert list(tracked._rates) == [("", "a"), ("", "d")]


def test_beyond_the_bound_the_least_recently_used_goes() -> None:
    tracked = make(3)
    for name in "abc":
        tracked.rate(("", name), T0).record(1, T0)
    tracked.rate(("", "a"), T0)
    tracked.rate(("", "d"), T0)
    assert list(tracked._rates) == [("", "c"), ("", "a"), ("", "d")]
    assert len(tracked) == 3


def test_of_long_names_only_the_beginning_is_kept() -> None:
    """Two thousand rates and ten thousand limits with 32 KB of a name each would be 400 MB."""
    tracked = make()
    usual, long = "a" * NAME_LENGTH_MAX, "b" * 30_000
    for name in (usual, long, long + "c"):
        limit = tracked.limit(name)
        assert limit is not None
        assert limit.shared_by == ("", name)
        tracked.rate(limit.shared_by, T0).record(1, T0)
    assert list(tracked._limits) == [usual]
    assert list(tracked._rates) == [("", usual), ("", "b" * NAME_LENGTH_MAX)]
    assert tracked.rate(("", long), T0).total(T0) == 2
