"""The quotas in force and what each client has used of them, by kind.

==========================  ============================================  ====================
key                         what is counted                               a client is held for
==========================  ============================================  ====================
producer_byte_rate          bytes of produce requests                     as long as it takes
consumer_byte_rate          bytes of records in fetch responses           as long as it takes
request_percentage          percent of the loop's time for its requests   one window at most
controller_mutation_rate    partitions created and deleted                as long as it takes
connection_creation_rate    connections of an address                     one window at most
==========================  ============================================  ====================

A kind that nobody has a quota of costs one look at ``is_active``. What was used is in memory only: after a restart everybody
starts anew, as in Kafka.
"""

from functools import partial

from tidelog.broker.quotas.limits import ANONYMOUS, find_address_limit, find_limit
from tidelog.broker.quotas.rate import Rate
from tidelog.broker.quotas.token_bucket import TokenBucket
from tidelog.broker.quotas.tracked import TrackedRates
from tidelog.controller.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from tidelog.metadata.client_quotas import ClientQuotasImage
from tidelog.ports.clock import Clock

# The protocol's field is an int32. Nobody waits for so long.
THROTTLE_MS_MAX = 2**31 - 1
_SECOND_MS = 1_000


class QuotaWindow:
    """``quota.window.num`` samples of ``quota.window.size.seconds``."""

    __slots__ = ("sample_ms", "samples_max")

    def __init__(self, samples_max: int, sample_seconds: int) -> None:
        self.samples_max = samples_max
        self.sample_ms = sample_seconds * _SECOND_MS


class RateQuota:
    """One kind of quota on something per second."""

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
        """Somebody has such a quota."""

    def __len__(self) -> int:
        """How many clients are followed."""
        return len(self._tracked)

    def limits_changed(self) -> None:
        self.is_active = any(self.key in quotas for _, quotas in self._image)
        self._tracked.limits_changed()

    def record(self, name: str, value: float) -> int:
        """Count it; for how long the client is to be held for it, 0 when it is within its quota."""
        limit = self._tracked.limit(name)
        if limit is None:
            return 0
        now_ms = self._clock.monotonic_ms()
        rate = self._tracked.rate(limit.shared_by, now_ms)
        rate.record(value, now_ms)
        return _whole(rate.throttle_ms(limit.bound, now_ms), self.throttle_ms_max)

    def is_alone(self, name: str, value: float) -> bool:
        """Nothing but ``value``, which was just recorded, is in the client's window."""
        limit = self._tracked.limit(name)
        if limit is None:
            return True
        now_ms = self._clock.monotonic_ms()
        return self._tracked.rate(limit.shared_by, now_ms).total(now_ms) <= value

    def value_max(self, name: str) -> float | None:
        """What a client that rested may have at once; None: any."""
        limit = self._tracked.limit(name)
        if limit is None:
            return None
        return limit.bound * max(self._window.samples_max - 1, 1) * self._window.sample_ms / _SECOND_MS


class TokenQuota:
    """One kind of quota with bursts."""

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
        """For how long the client has to wait before it may have more."""
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
    """At least one if there is any: zero says that the client is within its quota. Of a tiny quota it may be infinite."""
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
        """Requests have to be counted."""
        self.limits_changed()

    def limits_changed(self) -> None:
        """The image has others than before."""
        for quota in (self.produce, self.fetch, self.request, self.mutation, self.connection):
            quota.limits_changed()
        self.is_active = self.produce.is_active or self.fetch.is_active or self.request.is_active or self.mutation.is_active

    def tracked(self) -> dict[str, int]:
        """How many clients are followed, by kind."""
        return {quota.key: len(quota) for quota in (self.produce, self.fetch, self.request, self.mutation, self.connection)}
