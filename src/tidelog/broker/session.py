"""One client's connection, without the socket: frames in, replies out in the order of the requests.

Requests are handled as they arrive and may be answered in any order; a reply waits in its slot until all slots before it are
filled. The server reads only while ``wants_reading``: a client that sends more than it may have in flight is slowed down, not
buffered.

A request that cannot be decoded, or whose API or version is not served, ends the connection, as in Kafka. Every other fault is
answered with an error code.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.api import Part, RequestContext
from tidelog.broker.request_metrics import RequestTiming
from tidelog.coordinator.machine import Cancellable
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.messages import decode_request
from tidelog.wire.protocol import parse_request_header

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode
    from tidelog.broker.timers import Timer

# Kafka's clients have at most five unanswered produce requests; anything far beyond is a flood.
IN_FLIGHT_REQUESTS_MAX = 100


def _send_nowhere(response: list[Part]) -> None:
    """Stands in for ``send`` when the connection is gone."""


def _close_nothing(reason: str) -> None:
    """Stands in for ``close`` when the connection is gone."""


def resume_nothing() -> None:
    """Stands in for ``resume`` when the connection is gone, or when the server never stops reading."""


class ReplySlot:
    """The position of one reply in the order of replies."""

    __slots__ = ("_session", "parts", "timing")

    def __init__(self, session: "ClientSession", timing: RequestTiming | None) -> None:
        self._session = session
        self.timing = timing
        self.parts: list[Part] | None = None

    def fill(self, parts: list[Part]) -> None:
        assert self.parts is None, "a request is answered once"
        self.parts = parts
        session = self._session
        if self.timing is not None:
            self.timing.answered(session.now_ns())
        session.send_ready()


class ClientSession:
    __slots__ = (
        "_broker",
        "_close",
        "_delayed",
        "_muted_until_ms",
        "_pending",
        "_quotas",
        "_resume",
        "_send",
        "_timings",
        "_unmute_timer",
        "client_host",
        "id",
        "is_closed",
        "is_muted",
        "now_ns",
    )

    def __init__(
        self,
        broker: "BrokerNode",
        identifier: int,
        client_host: str,
        send: Callable[[list[Part]], None],
        close: Callable[[str], None],
        resume: Callable[[], None] = resume_nothing,
    ) -> None:
        """``send`` takes one whole response. ``close`` ends the connection and takes the reason for the log. ``resume`` reports
        that ``wants_reading`` may have become true without an answer."""
        self._broker = broker
        self.id = identifier
        self.client_host = client_host
        self._send = send
        self._close = close
        self._resume = resume
        self._quotas = broker.throttling.quotas
        self.is_muted = False
        self._muted_until_ms = 0
        self._unmute_timer: Timer | None = None
        self._pending: deque[ReplySlot] = deque()
        # Requests that wait for something, and are cancelled with the connection.
        self._delayed: dict[Cancellable, None] = {}
        self.is_closed = False
        self.now_ns = broker.clock.monotonic_ns
        self._timings = broker.request_metrics.timings

    @property
    def wants_reading(self) -> bool:
        return len(self._pending) < IN_FLIGHT_REQUESTS_MAX and not self.is_muted

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def receive(self, frame: memoryview, received_ns: int = 0) -> None:
        """Handle one request. The frame's bytes may be overwritten as soon as this returns. ``received_ns`` is when they arrived,
        by the monotonic clock, or 0 if the caller does not know."""
        if self.is_closed:
            return
        try:
            header = parse_request_header(frame)
        except MalformedRequest as error:
            self.end(f"malformed request header: {error}")
            return
        api = self._broker.apis.get(header.api_key)
        if api is None:
            self.end(f"unknown api key {header.api_key}")
            return
        timings = self._timings[header.api_key]
        timings.count += 1
        timing = None if timings.count & timings.untimed_mask else timings.begin(received_ns, self.now_ns())
        slot = ReplySlot(self, timing)
        self._pending.append(slot)
        context = RequestContext(self._broker, self, api, header, slot)
        if self._quotas.is_active:
            self._broker.throttling.begin(context, len(frame))
        if not api.versions[0] <= header.api_version <= api.versions[1]:
            if api.unsupported is not None:
                api.unsupported(context)
            else:
                self.end(f"{api.name} version {header.api_version} is not served, only {api.versions[0]} to {api.versions[1]}")
            return
        try:
            request = api.decode(header, frame) if api.decode is not None else decode_request(header, frame)
        except MalformedRequest as error:
            self.end(f"malformed {api.name} request, version {header.api_version}: {error}")
            return
        try:
            context.handle(request)
        except Exception as error:
            self.fail(context, error)
        if timing is not None:
            timing.handled(self.now_ns(), is_answered=slot.parts is not None)
        if context.usage is not None:
            self._broker.throttling.handled(context)

    def fail(self, context: RequestContext, error: Exception) -> None:
        """Answer with an error code. This is the one place where an exception becomes one."""
        api = context.api
        code, message = context.code_of(error)
        if context.is_answered:
            return
        try:
            if api.failure is not None:
                context.reply(api.failure(context.request, code, message))
            else:
                context.reply({"error_code": code, "error_message": message})
        except Exception as second:
            self._broker.report_unexpected(api.name, second)
            self.end(f"{api.name} failed, and the error could not be encoded")

    def send_ready(self) -> None:
        """Send every answer that no longer has an unanswered request before it."""
        pending = self._pending
        while pending and pending[0].parts is not None:
            parts = pending.popleft().parts
            if parts and not self.is_closed:
                self._send(parts)

    def mute(self, milliseconds: int) -> int:
        """Read nothing from the client for this long. Returns by how many milliseconds this extends an earlier mute."""
        if self.is_closed:
            return 0
        now_ms = self._broker.clock.monotonic_ms()
        before_ms, until_ms = max(self._muted_until_ms, now_ms), now_ms + milliseconds
        if until_ms <= before_ms:
            return 0
        self._forget_mute()
        self._muted_until_ms = until_ms
        self.is_muted = True
        self._unmute_timer = self._broker.timers.schedule(milliseconds, self._unmute)
        self.add_delayed(self._unmute_timer)
        return until_ms - before_ms

    def _unmute(self) -> None:
        self._forget_mute()
        self.is_muted = False
        self._resume()

    def _forget_mute(self) -> None:
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self.remove_delayed(self._unmute_timer)
            self._unmute_timer = None

    def resume(self) -> None:
        """Tell the server that a request was answered without a response, which it does not notice by itself."""
        self._resume()

    def add_delayed(self, work: Cancellable) -> None:
        self._delayed[work] = None

    def remove_delayed(self, work: Cancellable) -> None:
        self._delayed.pop(work, None)

    def closed(self) -> None:
        """Called when the connection is gone; responses to requests in progress are dropped."""
        self.is_closed = True
        # The connection refers to its session. Without this, the two would wait for the cycle collector, which seldom runs.
        # The same holds for requests that will never be answered: their slots refer to the session.
        self._send, self._close, self._resume = _send_nowhere, _close_nothing, resume_nothing
        self._pending.clear()
        delayed, self._delayed = self._delayed, {}
        for work in delayed:
            work.cancel()

    def end(self, reason: str) -> None:
        """Drop the connection."""
        if not self.is_closed:
            self.is_closed = True
            self._close(reason)
