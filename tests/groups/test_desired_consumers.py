"""How many consumers: the decision by itself, and that a group under an even load comes to rest."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.groups.desired_consumers import Desired, DesiredRules, DesiredState, GroupLoad, desired_consumers

RULES = DesiredRules(target_lag_seconds=30, partitions=12)
NEW = DesiredState()


def decide(load: GroupLoad, rules: DesiredRules = RULES, state: DesiredState = NEW, now: float = 0.0) -> Desired:
    return desired_consumers(load, rules, state, now)


def load(consumers: int, unread: int, lag: float | None, consumed: float | None, produced: float | None) -> GroupLoad:
    return GroupLoad(consumers, unread, lag, consumed, produced)


@pytest.mark.parametrize(
    ("given_load", "rules", "expected"),
    [
        # 2 read 100/s each, 300/s come: 3 keep up, and of the 30,000 unread 21,000 are too many: 175/s more for two minutes.
        (load(2, 30_000, 100, 200, 300), RULES, 5),
        # They catch up by themselves: 12,000 - 3,000 within 120 s take 75/s more than 100/s.
        (load(2, 12_000, 100, 200, 100), RULES, 2),
        (load(2, 100, 29, 200, 300), RULES, 2),
        (load(2, 0, 0, 200, 200), RULES, 2),
        # More than there are partitions, or than is allowed, would be idle.
        (load(2, 10**9, 100, 200, 300), RULES, 12),
        (load(2, 10**9, 100, 200, 300), RULES._replace(consumers_max=7), 7),
        (load(20, 10**9, 100, 200, 300), RULES, 12),
        # What one reads is not known: twice as many.
        (load(3, 10_000, 100, None, None), RULES, 6),
        (load(3, 10_000, None, 0, 5), RULES, 6),
        # The age is not known: by the time that reading takes.
        (load(3, 10_000, None, 100, 100), RULES, 5),
        (load(3, 1_000, None, 100, 100), RULES, 3),
        # Nobody reads.
        (load(0, 5, 1, 0, 1), RULES._replace(consumers_min=0), 1),
        (load(0, 5, 100, 0, 1), RULES._replace(consumers_min=0), 1),
        (load(0, 0, 0, 0, 1), RULES._replace(consumers_min=0), 0),
        (load(0, 0, 0, 0, 1), RULES, 1),
        (load(1, 0, 0, 0, 0), RULES._replace(consumers_min=3), 3),
        (load(1, 0, 0, 0, 0), RULES._replace(consumers_min=3, partitions=2), 2),
    ],
)
def test_one_measurement(given_load: GroupLoad, rules: DesiredRules, expected: int) -> None:
    assert decide(given_load, rules).consumers == expected


def test_a_step_down_waits_for_a_calm_time() -> None:
    calm = load(4, 10, 1, 100, 100)
    first = decide(calm)
    assert (first.consumers, first.state.calm_since) == (4, 0.0)
    assert decide(calm, state=first.state, now=299).consumers == 4
    assert decide(calm, state=first.state, now=300).consumers == 3


def test_the_calm_begins_again_after_a_break_and_after_a_step() -> None:
    calm = load(4, 10, 1, 100, 100)
    state = decide(calm).state
    state = decide(load(4, 10, 16, 100, 100), state=state, now=200).state
    assert state.calm_since is None
    state = decide(calm, state=state, now=210).state
    assert decide(calm, state=state, now=500).consumers == 4
    stepped = decide(calm, state=state, now=510)
    assert stepped.consumers == 3
    fewer = decide(load(3, 10, 1, 100, 100), state=stepped.state, now=520)
    assert (fewer.consumers, fewer.state.calm_since) == (3, 520)


def test_no_step_down_to_where_it_was_too_slow() -> None:
    state = DesiredState(consumer_rate=100, calm_since=0, consumers=4)
    assert decide(load(4, 0, 0, 250, 250), state=state, now=1000).consumers == 4
    assert decide(load(4, 0, 0, 240, 240), state=state, now=1000).consumers == 3


def test_to_none_only_where_that_is_allowed() -> None:
    state = DesiredState(calm_since=0, consumers=2)
    idle = load(2, 0, 0, 0, 0)
    assert decide(idle, RULES._replace(consumers_min=0), state, 1000).consumers == 0
    assert decide(idle, RULES._replace(consumers_min=0), state, 10).consumers == 2
    assert decide(idle, RULES, state, 1000).consumers == 1


def test_rates_of_before_a_change_teach_nothing() -> None:
    state = decide(load(2, 30_000, 100, 200, 300)).state
    assert state.consumer_rate == 100
    # Five now; the 200/s are still those of two.
    after = decide(load(5, 30_000, 100, 200, 300), state=state, now=10)
    assert (after.state.consumer_rate, after.consumers) == (100, 5)
    later = decide(load(5, 30_000, 100, 400, 300), state=after.state, now=40)
    assert later.state.consumer_rate == 80


def test_a_slow_time_is_forgotten() -> None:
    slow = DesiredState(consumer_rate=1.0, consumers=4)
    assert decide(load(4, 0, 0, 400, 400), state=slow).state.consumer_rate is None
    assert decide(load(4, 0, 0, 4.4, 4.4), state=slow).state.consumer_rate == pytest.approx(1.1)


loads = st.builds(
    GroupLoad,
    st.integers(0, 50),
    st.integers(0, 10**9),
    st.none() | st.floats(0, 1e6),
    st.none() | st.floats(0, 1e6),
    st.none() | st.floats(0, 1e6),
)
states = st.builds(
    DesiredState,
    st.none() | st.floats(0.001, 1e6),
    st.none() | st.floats(0, 1e6),
    st.none() | st.integers(0, 50),
    st.none() | st.floats(0, 1e6),
)
some_rules = st.builds(
    DesiredRules,
    st.floats(0.1, 1e4),
    st.integers(1, 100),
    st.integers(0, 20),
    st.none() | st.integers(1, 100),
    st.floats(1, 1e4),
)


@given(loads, some_rules, states, st.floats(0, 1e6))
def test_within_its_bounds(given_load: GroupLoad, rules: DesiredRules, state: DesiredState, now: float) -> None:
    desired = desired_consumers(given_load, rules, state, now)
    most = min(rules.partitions, rules.consumers_max or rules.partitions)
    assert min(rules.consumers_min, most) <= desired.consumers <= most
    if given_load.unread:
        assert desired.consumers >= 1
    if desired.consumers < min(given_load.consumers, most):
        assert not given_load.unread or (given_load.lag_seconds or 0) <= rules.target_lag_seconds
    assert desired.reason


@given(loads, some_rules, states, st.integers(1, 10**9))
def test_more_lag_never_asks_for_fewer(given_load: GroupLoad, rules: DesiredRules, state: DesiredState, more: int) -> None:
    behind = given_load._replace(lag_seconds=rules.target_lag_seconds + 1, unread=given_load.unread + 1)
    further = behind._replace(lag_seconds=rules.target_lag_seconds + 2, unread=behind.unread + more)
    first = desired_consumers(behind, rules, state, 0.0)
    assert desired_consumers(further, rules, state, 0.0).consumers >= first.consumers


@settings(max_examples=60)
@given(
    produced=st.floats(1, 2000),
    capacity=st.floats(10, 200),
    consumers=st.integers(1, 40),
    noise=st.lists(st.floats(0.95, 1.05), min_size=17, max_size=17),
)
def test_an_even_load_comes_to_rest(produced: float, capacity: float, consumers: int, noise: list[float]) -> None:
    """A group whose consumers read ``capacity`` each, asked every 15 s for six hours: it keeps up if that is possible at all, and
    does not swing."""
    rules = DesiredRules(target_lag_seconds=30, partitions=40)
    state, unread, history = NEW, 0.0, []
    for step in range(1440):
        before = unread
        unread = max(0.0, unread + (produced - capacity * consumers) * 15)
        consumed = max(0.0, produced - (unread - before) / 15)
        wobble = noise[step % 17]
        seen = GroupLoad(consumers, int(unread), unread / produced, consumed * wobble, produced * wobble)
        desired = desired_consumers(seen, rules, state, step * 15.0)
        state = desired.state
        history.append(desired.consumers)
        consumers = desired.consumers
    turns = [later for earlier, later in pairwise(history) if earlier != later]
    rises = sum(1 for earlier, later in pairwise(history) if later > earlier)
    last = history[-480:]
    assert len(set(last)) <= 2, last
    assert rises <= 6, turns
    if produced * 1.1 < capacity * 40:
        assert unread / produced <= 31
