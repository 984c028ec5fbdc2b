"""Computes how many consumers a group needs: a signal for an autoscaler that does not flap.

    needed rate = what is produced + what is unread beyond the target, read within the catch-up time
    needed consumers = needed rate / what one consumer reads

The rate of one consumer is learned while the group is behind its target, because then its consumers are fully busy. A group that
keeps up reads at the rate of production, which does not show how much more it could read. Only when its consumers read far more
than the learned rate is that rate forgotten: they were slow for a while.

Hysteresis, so that the answer does not go up and down with every measurement:

    up      when the lag is above the target and the present consumers would not catch up in time
    down    one at a time, after the lag was below half of the target for ``stable_seconds`` without interruption, and only if
            the remaining consumers would be at most ``UTILIZATION_MAX`` busy, as far as is known
    else    unchanged; also for ``warm_up_seconds`` after a change, while the measured rates are still those from before it

The result is at least ``consumers_min``, at most one per partition (more would be idle) and at most ``consumers_max``. If the
minimum is 0, a group without work goes down to 0, and one unread message brings the first consumer back.

The function is pure: what must be remembered between two calls is the ``DesiredState`` that goes in and comes out. Times are
seconds of any monotonic clock.
"""

import math
from typing import NamedTuple

# A step down must leave this much room, or the next small rise would be a step up again.
UTILIZATION_MAX = 0.8
# Below this share of the target the lag counts as low.
CALM_SHARE = 0.5
# Without a measured rate the number at most doubles at a time, because the rate of one consumer is not known yet.
GROWTH_MAX = 2
# Rates are measurements: a need that exceeds a whole number by less than this does not ask for one more consumer.
ROUNDING = 0.01
# A bound for groups that hardly read at all, whose need is arbitrarily large.
COUNT_MAX = 1_000_000


class DesiredState(NamedTuple):
    consumer_rate: float | None = None
    """The messages per second that one busy consumer reads; None until that was observed."""
    calm_since: float | None = None
    """The time since which the lag has been low; None while it is not."""
    consumers: int | None = None
    """The number of consumers at the last call."""
    changed_at: float | None = None


class DesiredRules(NamedTuple):
    target_lag_seconds: float
    partitions: int
    consumers_min: int = 1
    consumers_max: int | None = None
    catch_up_seconds: float = 120.0
    stable_seconds: float = 300.0
    warm_up_seconds: float = 30.0

    @property
    def most(self) -> int:
        return self.partitions if self.consumers_max is None else min(self.partitions, self.consumers_max)

    @property
    def least(self) -> int:
        return min(self.consumers_min, self.most)


class GroupLoad(NamedTuple):
    """The load of all partitions together. ``lag_seconds`` is that of the worst partition; None when it is not known."""

    consumers: int
    unread: int
    lag_seconds: float | None
    consumed_per_second: float | None
    produced_per_second: float | None


class Desired(NamedTuple):
    consumers: int
    reason: str
    state: DesiredState


def desired_consumers(load: GroupLoad, rules: DesiredRules, state: DesiredState, now: float) -> Desired:
    lag_seconds = _lag_seconds(load)
    is_behind = lag_seconds > rules.target_lag_seconds
    is_calm = lag_seconds <= rules.target_lag_seconds * CALM_SHARE
    is_changed = state.consumers is not None and state.consumers != load.consumers
    changed_at = now if is_changed else state.changed_at
    is_warmed_up = changed_at is None or now - changed_at >= rules.warm_up_seconds
    calm_since = None
    if is_calm:
        # Every step starts a new wait: the lag must also be low with the remaining consumers.
        calm_since = now if state.calm_since is None or is_changed else state.calm_since
    rate = _consumer_rate(load, state.consumer_rate, is_behind) if is_warmed_up else state.consumer_rate
    state = DesiredState(rate, calm_since, load.consumers, changed_at)
    if is_behind:
        needed, reason = _when_behind(load, rules, rate, lag_seconds, is_warmed_up)
    elif not load.consumers:
        needed, reason = (1, "there are unread messages") if load.unread else (0, "nothing is unread")
    else:
        needed, reason = _when_within_target(load, rules, state, now)
    bounded = max(min(needed, rules.most), rules.least)
    if bounded != needed:
        reason += f"; between {rules.least} and {rules.most} are allowed"
    return Desired(bounded, reason, state)


def _lag_seconds(load: GroupLoad) -> float:
    """The measured age, or else the time that the group needs to read what is unread."""
    if not load.unread:
        return 0.0
    if load.lag_seconds is not None:
        return load.lag_seconds
    return load.unread / load.consumed_per_second if load.consumed_per_second else math.inf


def _consumer_rate(load: GroupLoad, known: float | None, is_behind: bool) -> float | None:
    if not load.consumers or not load.consumed_per_second:
        return known
    share = load.consumed_per_second / load.consumers
    if is_behind:
        return share
    if known is None or share > known / UTILIZATION_MAX:
        return None
    return max(known, share)


def _when_behind(
    load: GroupLoad, rules: DesiredRules, rate: float | None, lag_seconds: float, is_warmed_up: bool
) -> tuple[int, str]:
    current = load.consumers
    if not rate or load.produced_per_second is None:
        if not is_warmed_up and current:
            return current, "the number of consumers has just changed, and their rate is not known yet"
        return max(1, current * GROWTH_MAX), "the lag is above the target, and what one consumer reads is not known yet"
    produced = load.produced_per_second
    excess = max(0.0, load.unread - produced * rules.target_lag_seconds)
    needed = produced + excess / rules.catch_up_seconds
    count = max(1, math.ceil(min(needed / rate, COUNT_MAX) - ROUNDING))
    behind = "the lag is above the target" if math.isinf(lag_seconds) else f"the lag is {lag_seconds:.0f} s"
    if count <= current:
        return current, f"{behind}, and {current} will catch up within {rules.catch_up_seconds:.0f} s"
    return count, f"{behind}, and {needed:.0f} messages/s take {count} consumers that read {rate:.0f}/s each"


def _when_within_target(load: GroupLoad, rules: DesiredRules, state: DesiredState, now: float) -> tuple[int, str]:
    current, produced = load.consumers, load.produced_per_second
    if state.calm_since is None:
        return current, "the lag is within the target"
    calm_seconds = now - state.calm_since
    is_idle = not load.unread and not produced
    fewer = 0 if is_idle and rules.consumers_min == 0 else max(current - 1, rules.consumers_min, 1)
    if fewer >= current:
        return current, "the lag is low"
    if calm_seconds < rules.stable_seconds:
        return current, f"the lag has been low for {calm_seconds:.0f} s; a step down waits for {rules.stable_seconds:.0f} s"
    rate = state.consumer_rate
    if fewer and produced and rate and produced > fewer * rate * UTILIZATION_MAX:
        return current, f"the lag is low, but {fewer} might not keep up with {produced:.0f} messages/s"
    return fewer, f"the lag has been low for {calm_seconds:.0f} s"
