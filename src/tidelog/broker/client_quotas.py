"""The quotas in force and what each client has used of them, by kind.

==========================  ============================================  ====================
key                         what is counted                               a client is held for
==========================  ============================================  ====================
producer_byte_rate          bytes of produce requests                     as long as it takes
consumer_byte_rate          bytes of records in fetch responses           as long as it takes
request_percentage          percent of the loop's time for its requests   one window at most
controller_mutation_rate    partitions created and deleted                as long as it takes
connection_creation_rate    connections from an address                   one window at most
==========================  ============================================  ====================

A kind for which nobody has a quota costs one check of ``is_active``. Usage is kept in memory only: after a restart everybody
starts from zero, as in Kafka.

A client has the most specific one of Kafka's eight quotas (``find_limit``):

    1. its user and its client id        4. the default user and its client id      7. its client id
    2. its user and the default id       5. both defaults                           8. the default id
    3. its user                          6. the default user

The quota that is found also says who shares it: all clients of a user share the user's quota, and every other quota belongs to
each client alone. A client without a client id has only the quotas of users. Without authentication every user is ANONYMOUS.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidelog.controller.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from tidelog.metadata.client_quotas import CLIENT_ID, IP, USER, ClientQuotasImage, QuotaEntity, quota_entity
from tidelog.ports.clock import Clock

# Milliseconds in a second: rates are per second.
_SECOND_MS = 1_000


class Rate:
    """A rate over a sliding window, as Kafka's quotas measure it.

    It keeps samples of ``window_ms``: at most ``samples_max`` and the current one. A sample begins with the first value after the
    previous one is over, so an idle client leaves a gap and not empty samples. A sample whose last value is older than the whole
    window no longer counts. The total is divided by the time since the oldest sample began, but at least by all samples but one,
    so that a new client is not judged by its first millisecond. A rate whose samples are all too old equals a new one, so
    forgetting it loses nothing."""

    __slots__ = ("_last_ms", "_samples", "_samples_max", "_window_ms")

    def __init__(self, window_ms: int, samples_max: int) -> None:
        self._window_ms = window_ms
        self._samples_max = samples_max
        # The samples, oldest first: [start time, time of the last value, total].
        self._samples: list[list[float]] = []
        self._last_ms = 0

    def record(self, value: float, now_ms: int) -> None:
        self._last_ms = now_ms
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._window_ms:
            newest = samples[-1]
            newest[1] = now_ms
            newest[2] += value
            return
        samples.append([now_ms, now_ms, value])
        if len(samples) > self._samples_max + 1:
            del samples[0]

    def total(self, now_ms: int) -> float:
        """The total of the samples that still count."""
        self._forget(now_ms)
        return sum([sample[2] for sample in self._samples])

    def per_second(self, now_ms: int) -> float:
        return self.total(now_ms) * _SECOND_MS / self._elapsed_ms(now_ms)

    def throttle_ms(self, bound: float, now_ms: int) -> float:
        """How many milliseconds of silence would bring the rate within ``bound``; 0 when it is within already."""
        rate = self.per_second(now_ms)
        return (rate - bound) / bound * self._elapsed_ms(now_ms) if rate > bound else 0.0

    def is_over(self, now_ms: int) -> bool:
        """Whether all samples are too old to count."""
        return now_ms - self._last_ms >= self._window_ms * self._samples_max

    def _forget(self, now_ms: int) -> None:
        age_max = self._window_ms * self._samples_max
        samples = self._samples
        while samples and now_ms - samples[0][1] >= age_max:
            del samples[0]

    def _elapsed_ms(self, now_ms: int) -> float:
        samples = self._samples
        elapsed_ms = now_ms - samples[0][0] if samples else 0
        windows_missing = self._samples_max - 1 - elapsed_ms // self._window_ms
        if windows_missing > 0:
            elapsed_ms += windows_missing * self._window_ms
        # There is one sample, and it has only just begun.
        return max(elapsed_ms, 1)


class TokenBucket:
    """Tokens that arrive at a steady rate, as Kafka meters changes of metadata.

    A bucket is full at the start, so a burst of a whole window is free. A client that takes more than there is goes into debt and
    waits until it is paid. A full bucket equals a new one, so forgetting it loses nothing."""

    __slots__ = ("_filled_ms", "_per_second", "_tokens", "_window_ms")

    def __init__(self, window_ms: int) -> None:
        """``window_ms``: the bucket holds the tokens of this much time."""
        self._window_ms = window_ms
        # None means full, at any rate.
        self._tokens: float | None = None
        self._filled_ms = 0
        self._per_second = 0.0

    def record(self, tokens: float, per_second: float, now_ms: int) -> None:
        self._tokens = self._left(per_second, now_ms) - tokens
        self._filled_ms = now_ms
        self._per_second = per_second

    def throttle_ms(self, per_second: float, now_ms: int) -> float:
        """How many milliseconds it takes until the debt is paid; 0 without debt."""
        left = self._left(per_second, now_ms)
        return -left / per_second * _SECOND_MS if left < 0 else 0.0

    def is_over(self, now_ms: int) -> bool:
        """Whether the bucket is full."""
        return self._left(self._per_second, now_ms) >= self._burst(self._per_second)

    def _left(self, per_second: float, now_ms: int) -> float:
        burst = self._burst(per_second)
        if self._tokens is None:
            return burst
        return min(burst, self._tokens + (now_ms - self._filled_ms) * per_second / _SECOND_MS)

    def _burst(self, per_second: float) -> float:
        return per_second * self._window_ms / _SECOND_MS


ANONYMOUS = "ANONYMOUS"


class Limit(NamedTuple):
    bound: float
    shared_by: tuple[str, str]
    """The user and client id whose usage is counted together; "" stands for any."""


def find_limit(image: ClientQuotasImage, key: str, user: str, client_id: str) -> Limit | None:
    for entity, shared_by in _candidates(user, client_id):
        bound = image.find(entity).get(key)
        if bound is not None:
            return Limit(bound, shared_by)
    return None


def find_address_limit(image: ClientQuotasImage, key: str, host: str) -> Limit | None:
    for name in (host, None):
        bound = image.find(quota_entity([(IP, name)])).get(key)
        if bound is not None:
            return Limit(bound, (host, ""))
    return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, tuple[str, str]]]:
    for user_name in (user, None):
        if client_id:
            yield quota_entity([(USER, user_name), (CLIENT_ID, client_id)]), (user, client_id)
            yield quota_entity([(USER, user_name), (CLIENT_ID, None)]), (user, client_id)
        yield quota_entity([(USER, user_name)]), (user, "")
    if client_id:
        yield quota_entity([(CLIENT_ID, client_id)]), ("", client_id)
        yield quota_entity([(CLIENT_ID, None)]), ("", client_id)


# The maximum for each kind of quota. A rate takes up to 2 KB.
TRACKED_MAX = 2_000
LIMITS_KEPT_MAX = 10_000
NAME_LENGTH_MAX = 256


class Measure(Protocol):
    def is_over(self, now_ms: int) -> bool: ...


Tracked = TypeVar("Tracked", bound=Measure)


class TrackedRates(Generic[Tracked]):
    """The rates of clients that have a quota of one kind: bounded, and forgotten when a client goes quiet.

    Client ids come from outside, so there may be any number of them. The least recently used come first. Rates whose window is
    over are dropped when a new one arrives; if there are still ``TRACKED_MAX``, the least recently used is dropped although it
    counts. Its client starts from zero, which it could also have by choosing another client id. A client id may have 32 KB: only
    the beginning of a very long one is kept, so those with the same beginning share a rate.

    Limits are looked up once per client and cached until the quotas change; those of such long names are looked up each time."""

    __slots__ = ("_limits", "_make", "_rates", "find_limit", "tracked_max")

    def __init__(
        self, make: Callable[[], Tracked], find_limit: Callable[[str], Limit | None], tracked_max: int = TRACKED_MAX
    ) -> None:
        """``find_limit`` takes a client id or an address."""
        self._make = make
        self.find_limit = find_limit
        self.tracked_max = tracked_max
        # Least recently used first.
        self._rates: dict[tuple[str, str], Tracked] = {}
        self._limits: dict[str, Limit | None] = {}

    def __len__(self) -> int:
        return len(self._rates)

    def limits_changed(self) -> None:
        self._limits.clear()

    def limit(self, name: str) -> Limit | None:
        try:
            return self._limits[name]
        except KeyError:
            if len(name) > NAME_LENGTH_MAX:
                return self.find_limit(name)
            if len(self._limits) >= LIMITS_KEPT_MAX:
                self._limits.clear()
            limit = self._limits[name] = self.find_limit(name)
            return limit

    def rate(self, shared_by: tuple[str, str], now_ms: int) -> Tracked:
        rates = self._rates
        user, client_id = shared_by
        if len(client_id) > NAME_LENGTH_MAX:
            shared_by = user, client_id[:NAME_LENGTH_MAX]
        rate = rates.pop(shared_by, None)
        if rate is None:
            rate = self._make()
            self._make_room(now_ms)
        rates[shared_by] = rate
        return rate

    def _make_room(self, now_ms: int) -> None:
        rates = self._rates
        while rates:
            oldest = next(iter(rates))
            if len(rates) < self.tracked_max and not rates[oldest].is_over(now_ms):
                return
            del rates[oldest]


# The protocol's field is an int32. No client waits that long.
THROTTLE_MS_MAX = 2**31 - 1


class QuotaWindow:
    """``quota.window.num`` samples of ``quota.window.size.seconds``."""

    __slots__ = ("sample_ms", "samples_max")

    def __init__(self, samples_max: int, sample_seconds: int) -> None:
        self.samples_max = samples_max
        self.sample_ms = sample_seconds * _SECOND_MS


class RateQuota:
    """One kind of quota on a rate per second."""

    __slots__ = ("_clock", "_image", "_tracked", "_window", "is_active", "key", "throttle_ms_max")

    def __init__(
        self,
        key: str,
        image: ClientQuotasImage,
        clock: Clock,
        window: QuotaWindow,
        throttle_ms_max: int = THROTTLE_MS_MAX,
        *,
        is_of_addresses: bool = False,
    ) -> None:
        self.key = key
        self._image = image
        self._clock = clock
        self._window = window
        self.throttle_ms_max = throttle_ms_max
        find = partial(find_address_limit, image, key) if is_of_addresses else partial(find_limit, image, key, ANONYMOUS)
        self._tracked = TrackedRates(partial(Rate, window.sample_ms, window.samples_max), find)
        self.is_active = False
        """Whether any client has such a quota."""

    def __len__(self) -> int:
        """The number of clients that are tracked."""
        return len(self._tracked)

    def limits_changed(self) -> None:
        self.is_active = any(self.key in quotas for _, quotas in self._image)
        self._tracked.limits_changed()

    def record(self, name: str, value: float) -> int:
        """Count ``value``. Returns for how long the client must be throttled; 0 when it is within its quota."""
        limit = self._tracked.limit(name)
        if limit is None:
            return 0
        now_ms = self._clock.monotonic_ms()
        rate = self._tracked.rate(limit.shared_by, now_ms)
        rate.record(value, now_ms)
        return _whole(rate.throttle_ms(limit.bound, now_ms), self.throttle_ms_max)

    def is_alone(self, name: str, value: float) -> bool:
        """Whether the client's window holds only ``value``, which was just recorded."""
        limit = self._tracked.limit(name)
        if limit is None:
            return True
        now_ms = self._clock.monotonic_ms()
        return self._tracked.rate(limit.shared_by, now_ms).total(now_ms) <= value

    def value_max(self, name: str) -> float | None:
        """The most that an idle client may use at once; None means any amount."""
        limit = self._tracked.limit(name)
        if limit is None:
            return None
        return limit.bound * max(self._window.samples_max - 1, 1) * self._window.sample_ms / _SECOND_MS


class TokenQuota:
    """One kind of quota that allows bursts."""

    __slots__ = ("_clock", "_image", "_tracked", "is_active", "key")

    def __init__(self, key: str, image: ClientQuotasImage, clock: Clock, window: QuotaWindow) -> None:
        self.key = key
        self._image = image
        self._clock = clock
        burst_ms = window.sample_ms * window.samples_max
        self._tracked = TrackedRates(partial(TokenBucket, burst_ms), partial(find_limit, image, key, ANONYMOUS))
        self.is_active = False

    def __len__(self) -> int:
        return len(self._tracked)

    def limits_changed(self) -> None:
        self.is_active = any(self.key in quotas for _, quotas in self._image)
        self._tracked.limits_changed()

    def throttle_ms(self, name: str) -> int:
        """How long the client has to wait before it may make more changes."""
        limit = self._tracked.limit(name)
        if limit is None:
            return 0
        now_ms = self._clock.monotonic_ms()
        return _whole(self._tracked.rate(limit.shared_by, now_ms).throttle_ms(limit.bound, now_ms), THROTTLE_MS_MAX)

    def record(self, name: str, value: float) -> None:
        limit = self._tracked.limit(name)
        if limit is not None:
            now_ms = self._clock.monotonic_ms()
            self._tracked.rate(limit.shared_by, now_ms).record(value, limit.bound, now_ms)


def _whole(milliseconds: float, milliseconds_max: int) -> int:
    """Round up to at least one, because zero means that the client is within its quota. A tiny quota may give infinity."""
    return max(round(min(milliseconds, milliseconds_max)), 1) if milliseconds > 0 else 0


class ClientQuotas:
    __slots__ = ("connection", "fetch", "is_active", "mutation", "produce", "request")

    def __init__(self, image: ClientQuotasImage, clock: Clock, window: QuotaWindow, mutation_window: QuotaWindow) -> None:
        self.produce = RateQuota(PRODUCER_BYTE_RATE, image, clock, window)
        self.fetch = RateQuota(CONSUMER_BYTE_RATE, image, clock, window)
        self.request = RateQuota(REQUEST_PERCENTAGE, image, clock, window, window.sample_ms)
        self.mutation = TokenQuota(CONTROLLER_MUTATION_RATE, image, clock, mutation_window)
        self.connection = RateQuota(CONNECTION_CREATION_RATE, image, clock, window, window.sample_ms, is_of_addresses=True)
        self.is_active = False
        """Whether requests have to be counted."""
        self.limits_changed()

    def limits_changed(self) -> None:
        """Called when the quotas in the image have changed."""
        for quota in (self.produce, self.fetch, self.request, self.mutation, self.connection):
            quota.limits_changed()
        self.is_active = self.produce.is_active or self.fetch.is_active or self.request.is_active or self.mutation.is_active

    def tracked(self) -> dict[str, int]:
        """The number of clients that are tracked, by kind."""
        return {quota.key: len(quota) for quota in (self.produce, self.fetch, self.request, self.mutation, self.connection)}
