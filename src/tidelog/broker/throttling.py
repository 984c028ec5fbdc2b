"""Measures what a request uses of its client's quotas, and throttles a client that exceeds one.

As in Kafka since KIP-219, the response goes out at once with its ``throttle_time_ms``, and for that time nothing more is read
from the connection. A client that waits by itself does not notice; one that does not wait is held all the same.

*Produce* is counted when it arrives, so that of several requests sent together the later ones are not even read. *Fetch* is
counted when its records are found; if they are too many, the response is empty and they count as not sent. But a single batch
that exceeds a whole window is sent when the window is empty, since otherwise the client would never make progress (in Kafka it
does not). *Request time* is the time of handling until the response is made; the rest counts towards the next request. *Changes
of metadata* are refused while the client is in debt. API versions that do not know that error make the change, and the client is
throttled afterwards.
"""

from typing import TYPE_CHECKING

from tidelog.broker.client_quotas import ClientQuotas, RateQuota, TokenQuota
from tidelog.controller.errors import ApiError
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.broker.api import RequestContext

# The nanoseconds in one percent of a second.
_PERCENT_NS = 10_000_000


class RequestUsage:
    """The usage of one request. It exists only while somebody has a quota."""

    __slots__ = ("began_ns", "client_id", "counted_ns", "is_handled", "request_bytes", "throttle_time_ms")

    def __init__(self, client_id: str, request_bytes: int, began_ns: int) -> None:
        self.client_id = client_id
        self.request_bytes = request_bytes
        self.began_ns = began_ns
        self.counted_ns = 0
        self.is_handled = False
        self.throttle_time_ms = 0
        """The throttle time for the response."""

    def skip(self, nanoseconds: int) -> None:
        """Do not count this time: the loop did other work."""
        self.began_ns += nanoseconds


class Throttled:
    """How often and how long clients were throttled, for one API and one kind of quota."""

    __slots__ = ("count", "milliseconds")

    def __init__(self) -> None:
        self.count = 0
        self.milliseconds = 0


class Throttling:
    __slots__ = ("by_api_and_key", "quotas")

    def __init__(self, quotas: ClientQuotas) -> None:
        self.quotas = quotas
        self.by_api_and_key: dict[tuple[int, str], Throttled] = {}

    # -- a request's way -----------------------------------------------------------------------------------------------------

    def begin(self, context: "RequestContext", request_bytes: int) -> None:
        context.meter(RequestUsage(context.header.client_id or "", request_bytes, context.session.now_ns()))

    def received(self, context: "RequestContext") -> None:
        """Called when a produce request has arrived."""
        usage, quota = context.usage, self.quotas.produce
        if usage is not None and quota.is_active:
            self._hold(context, quota, quota.record(usage.client_id, usage.request_bytes))

    def answer(self, context: "RequestContext") -> int:
        """Called when the response is about to be made; returns its ``throttle_time_ms``."""
        usage, quota = context.usage, self.quotas.request
        if usage is None:
            return 0
        if quota.is_active:
            self._hold(context, quota, quota.record(usage.client_id, self._new_percent(context)))
        return usage.throttle_time_ms

    def handled(self, context: "RequestContext") -> None:
        """Called when the handler is done, whether it has answered or not."""
        usage, quota = context.usage, self.quotas.request
        if usage is not None:
            if quota.is_active:
                quota.record(usage.client_id, self._new_percent(context))
            usage.is_handled = True

    def metered(self, context: "RequestContext", steps: Steps[None]) -> Steps[None]:
        """The same steps, of which only the time of the steps themselves counts."""
        now_ns = context.session.now_ns
        result = None
        failure: BaseException | None = None
        while True:
            try:
                pause = steps.send(result) if failure is None else steps.throw(failure)
            except StopIteration:
                return
            paused_ns = now_ns()
            result = failure = None
            try:
                result = yield pause
            except Exception as error:
                # What the steps waited for has failed, and it is theirs to handle.
                failure = error
            if context.usage is not None:
                context.usage.skip(now_ns() - paused_ns)

    def _new_percent(self, context: "RequestContext") -> float:
        """The loop time since the last call, in percent of a second. Waiting costs nothing."""
        usage = context.usage
        if usage is None or usage.is_handled:
            return 0.0
        spent_ns = context.session.now_ns() - usage.began_ns
        new_ns, usage.counted_ns = spent_ns - usage.counted_ns, spent_ns
        return new_ns / _PERCENT_NS

    # -- fetch ---------------------------------------------------------------------------------------------------------------

    def fetch_bytes_max(self, context: "RequestContext", bytes_max: int) -> int:
        """Limit a fetch to what its quota could ever allow at once."""
        usage, quota = context.usage, self.quotas.fetch
        value_max = quota.value_max(usage.client_id) if usage is not None and quota.is_active else None
        return bytes_max if value_max is None else min(bytes_max, int(value_max))

    def answer_fetch(self, context: "RequestContext", bytes_read: int) -> int:
        """Returns the throttle time. If it is not 0, the response has to be empty."""
        usage, quota = context.usage, self.quotas.fetch
        if usage is None:
            return 0
        throttle_ms = quota.record(usage.client_id, bytes_read) if quota.is_active else 0
        if throttle_ms and quota.is_alone(usage.client_id, bytes_read):
            throttle_ms = 0
        if throttle_ms:
            self._hold(context, quota, throttle_ms)
        if self.answer(context):
            if quota.is_active:
                quota.record(usage.client_id, -bytes_read)
            return usage.throttle_time_ms
        return 0

    # -- changes of metadata -------------------------------------------------------------------------------------------------

    def mutations(self, context: "RequestContext", strict_since: int) -> "Callable[[int], None] | None":
        """Return a function to call before partitions are created or deleted. It raises when the client's quota does not allow
        that. Returns None when there is no limit."""
        quota = self.quotas.mutation
        if context.usage is None or not quota.is_active:
            return None
        client_id, is_strict = context.usage.client_id, context.header.api_version >= strict_since

        def ask(partitions: int) -> None:
            throttle_ms = quota.throttle_ms(client_id)
            if is_strict and throttle_ms:
                self._hold(context, quota, throttle_ms)
                code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
                raise ApiError(code, f"{quota.key} of this client is used up for {throttle_ms} ms")
            quota.record(client_id, partitions)
            if not is_strict:
                self._hold(context, quota, quota.throttle_ms(client_id))

        return ask

    # -- connections ---------------------------------------------------------------------------------------------------------

    def connection_throttle_ms(self, host: str) -> int:
        """How long a new connection is ignored before it is closed; 0 admits it."""
        quota = self.quotas.connection
        if not quota.is_active:
            return 0
        throttle_ms = quota.record(host, 1)
        if throttle_ms:
            # The connection will be closed, so it does not count.
            quota.record(host, -1)
        return throttle_ms

    def _hold(self, context: "RequestContext", quota: RateQuota | TokenQuota, throttle_ms: int) -> None:
        usage = context.usage
        if not throttle_ms or usage is None:
            return
        usage.throttle_time_ms = max(usage.throttle_time_ms, throttle_ms)
        throttled = self.by_api_and_key.setdefault((context.header.api_key, quota.key), Throttled())
        throttled.count += 1
        throttled.milliseconds += context.session.mute(throttle_ms)
