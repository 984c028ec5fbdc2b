"""One client's connection, without the socket: frames in, replies out in the order of the requests.

Requests are handled as they arrive and may be answered in any order; an answer waits until all earlier requests have been
answered. The server reads only while ``wants_reading``: a client that sends more than it may have in flight is slowed down, not
buffered. Work that must take effect before another request is handled holds the session (``hold``): validating the batches of a
produce request, work that is done in slices, and the delay that a quota imposes.

A request that cannot be decoded, or whose API or version is not served, ends the connection, as in Kafka. Every other fault is
answered with an error code.

A small request is decoded and handled at once. The work for a large one (``LargeRequest``), and for a small one with a long
answer, is done in slices (``WorkSlices``).
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from tidelog.broker.api import DECODED_ELEMENT_BYTES, Api, Part, RequestContext
from tidelog.broker.refused_batches import RefusedBatches
from tidelog.broker.request_metrics import RequestTiming
from tidelog.config.listeners import ListenerAddress, ListenerRole, NamedListener
from tidelog.coordinator.machine import Cancellable
from tidelog.ports.steps import Steps
from tidelog.wire.errors import MalformedRequest, TooLongForOneTurn
from tidelog.wire.messages import decode_request_in_slices, request_reader
from tidelog.wire.primitives import Reader
from tidelog.wire.protocol import RequestHeader, parse_request_header

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode
    from tidelog.broker.timers import Timer
    from tidelog.broker.work_slices import SlicedWork

# Kafka's clients have at most five unanswered produce requests; anything far beyond is a flood.
IN_FLIGHT_REQUESTS_MAX = 100
# A request in a larger frame is decoded in slices. The smallest elements take two bytes, so a smaller frame holds at most a few
# thousand elements, which take ten milliseconds.
SMALL_FRAME_BYTES_MAX = 4096
# The limit for a request without records: a quarter of a million partitions with everything that can be said about them. Kafka
# has one limit for all (``socket.request.max.bytes``), but a client that reaches this one is not a Kafka client.
LARGE_FRAME_BYTES_MAX = 16 << 20
_NOWHERE = ListenerAddress("", 0)
# The listeners of requests that come from within: those that another broker forwarded for a client, and this broker's own.
FORWARDED = NamedListener("FORWARDED", ListenerRole.CONTROLLER, _NOWHERE, _NOWHERE)
IN_PROCESS = NamedListener("IN_PROCESS", ListenerRole.CONTROLLER, _NOWHERE, _NOWHERE)

OnWorkEnd = Callable[[RequestContext], None]


def _send_nowhere(response: list[Part]) -> None:
    """Stands in for ``send`` when the connection is gone."""


def _close_nothing(reason: str) -> None:
    """Stands in for ``close`` when the connection is gone."""


def resume_nothing() -> None:
    """Stands in for ``resume`` when the connection is gone, or when the server never stops reading."""


class LargeRequest(RequestContext):
    """A request in a large frame, which also holds memory.

    It waits as bytes until ``WorkSlices`` admits it, is then decoded and handled in slices, and returns its memory when it is
    answered or its connection is gone."""

    __slots__ = ("_holds_memory", "_holds_session", "_undecoded", "decoded_bytes", "is_cancelled")

    is_large = True

    def __init__(
        self,
        broker: "BrokerNode",
        session: "ClientSession",
        api: Api,
        header: RequestHeader,
        timing: RequestTiming | None,
        frame: memoryview,
        decoded_bytes: int,
    ) -> None:
        super().__init__(broker, session, api, header, timing)
        self._undecoded: bytes | None = bytes(frame)
        self._holds_memory = False
        self._holds_session = False
        self.decoded_bytes = decoded_bytes
        self.is_cancelled = False

    def start(self) -> None:
        self.session.add_delayed(self)
        self.broker.work_slices.admit(self)
        if self._undecoded is not None:
            # It waits for memory. No later request of the connection may overtake it.
            self._holds_session = True
            self.session.hold()

    def begin(self) -> None:
        """Called when there is memory for the decoded request."""
        frame, self._undecoded = self._undecoded, None
        if frame is not None:
            self._holds_memory = True
            if not self.session.is_closed:
                self.session.handle_large(self, memoryview(frame))
            if self._holds_session:
                self._holds_session = False
                self.session.release()

    def answer(self, response: list[Part]) -> None:
        self.session.remove_delayed(self)
        super().answer(response)
        self.return_memory()

    def cancel(self) -> None:
        self.is_cancelled = True
        self.return_memory()

    def return_memory(self) -> None:
        self._undecoded = None
        if self._holds_memory:
            self._holds_memory = False
            self.broker.work_slices.release(self)


class _SlicedRequest:
    """A request whose work is done in slices. Its session is held until the work has ended."""

    __slots__ = ("_context", "_on_end", "_session", "_work")

    def __init__(self, session: "ClientSession", context: RequestContext, on_end: OnWorkEnd | None) -> None:
        self._session = session
        self._context = context
        self._on_end = on_end
        # None while the first slice runs, which is within ``receive``.
        self._work: SlicedWork | None = None

    def note_work(self, work: "SlicedWork") -> None:
        if not work.is_over:
            self._work = work
            self._session.add_delayed(work)

    def ended(self, error: Exception | None) -> None:
        session, context = self._session, self._context
        work, self._work = self._work, None
        if work is not None:
            session.remove_delayed(work)
        if error is not None:
            session.fail(context, error)
        if self._on_end is not None:
            self._on_end(context)
        session.release()


class ClientSession:
    __slots__ = (
        "_broker",
        "_close",
        "_delayed",
        "_hold_count",
        "_muted_until_ms",
        "_pending",
        "_quotas",
        "_resume",
        "_send",
        "_timings",
        "_unmute_timer",
        "_watches",
        "apis",
        "client_host",
        "client_software",
        "id",
        "is_closed",
        "listener",
        "now_ns",
        "on_not_controller",
        "refused_batches",
    )

    def __init__(
        self,
        broker: "BrokerNode",
        identifier: int,
        client_host: str,
        send: Callable[[list[Part]], None],
        close: Callable[[str], None],
        resume: Callable[[], None] = resume_nothing,
        listener: NamedListener | None = None,
    ) -> None:
        """``send`` takes one whole response. ``close`` ends the connection and takes the reason for the log. ``resume`` reports
        that ``wants_reading`` may have become true without an answer. ``listener`` is the one that the client connected to; None
        means the default one."""
        self._broker = broker
        self.id = identifier
        self.client_host = client_host
        self.listener = listener if listener is not None else broker.config.default_listener
        self.apis = broker.tables[self.listener.role]
        self.client_software = ("", "")
        """Name and version, as far as the client has told them."""
        self._send = send
        self._close = close
        self._resume = resume
        self._quotas = broker.throttling.quotas
        # How many pieces of work must take effect before another request is handled.
        self._hold_count = 0
        self._muted_until_ms = 0
        self._unmute_timer: Timer | None = None
        # The requests that have no answer yet, or whose answer has to wait for those of earlier ones.
        self._pending: deque[RequestContext] = deque()
        # Requests that wait for something, and are cancelled with the connection.
        self._delayed: dict[Cancellable, None] = {}
        # Those who want to know when the connection ends, by who they are.
        self._watches: dict[Hashable, Callable[[], None]] = {}
        self.on_not_controller: Callable[[], None] | None = None
        """What to do, instead of answering, if this node turns out not to be the active controller: whoever sent the request
        sends it to another one."""
        self.refused_batches: RefusedBatches | None = None
        """None until a batch of an idempotent producer is refused."""
        self.is_closed = False
        self.now_ns = broker.clock.monotonic_ns
        self._timings = broker.request_metrics.timings

    @property
    def wants_reading(self) -> bool:
        return not self._hold_count and len(self._pending) < IN_FLIGHT_REQUESTS_MAX

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def receive(self, frame: memoryview, received_ns: int = 0) -> int:
        """Handle one request. The frame's bytes may be overwritten as soon as this returns. ``received_ns`` is when they arrived,
        by the monotonic clock, or 0 if the caller does not know. Returns about how many bytes of memory the request takes until
        it is answered."""
        if self.is_closed:
            return 0
        try:
            header = parse_request_header(frame)
        except MalformedRequest as error:
            self.end(f"malformed request header: {error}")
            return 0
        api = self.apis.get(header.api_key)
        if api is None:
            self.end(f"unknown api key {header.api_key}")
            return 0
        timings = self._timings[header.api_key]
        timings.count += 1
        timing = None if timings.count & timings.untimed_mask else timings.begin(received_ns, self.now_ns())
        size = len(frame)
        if size > (LARGE_FRAME_BYTES_MAX if api.waits_for_others else SMALL_FRAME_BYTES_MAX) and not api.has_records:
            return self._receive_large(api, header, timing, frame)
        context = RequestContext(self._broker, self, api, header, timing)
        self._pending.append(context)
        if self._quotas.is_active:
            self._broker.throttling.begin(context, size)
        if not api.versions[0] <= header.api_version <= api.versions[1]:
            self._refuse_version(context)
            return size
        held_bytes = size
        try:
            if api.decode is not None:
                request = api.decode(header, frame)
            else:
                reader = Reader(frame, header.body_position, api.elements_max)
                request = request_reader(header)(reader)
                held_bytes += (api.elements_max - reader.elements_left) * DECODED_ELEMENT_BYTES
        except MalformedRequest as error:
            self._refuse_malformed(context, error)
            return size
        except TooLongForOneTurn:
            self._pending.pop()
            return self._receive_large(api, header, timing, frame)
        try:
            work = context.handle(request, frame)
        except Exception as error:
            self.fail(context, error)
            work = None
        if work is None:
            self._handled(context)
        else:
            self.run_in_slices(context, work, self._handled)
        if api.count_elements is not None and context.response is None:
            held_bytes += api.count_elements(request) * DECODED_ELEMENT_BYTES
        return held_bytes

    def _handled(self, context: RequestContext) -> None:
        if context.timing is not None:
            context.timing.handled(self.now_ns(), is_answered=context.is_answered)
        if context.usage is not None:
            self._broker.throttling.handled(context)

    def _refuse_version(self, context: RequestContext) -> None:
        api = context.api
        if api.unsupported is not None:
            api.unsupported(context)
        else:
            version, (lowest, highest) = context.header.api_version, api.versions
            self.end(f"{api.name} version {version} is not served, only {lowest} to {highest}")

    def _refuse_malformed(self, context: RequestContext, error: MalformedRequest) -> None:
        self.end(f"malformed {context.api.name} request, version {context.header.api_version}: {error}")

    def _receive_large(self, api: Api, header: RequestHeader, timing: RequestTiming | None, frame: memoryview) -> int:
        size = len(frame)
        if size > LARGE_FRAME_BYTES_MAX and not api.has_records:
            self.end(f"a {api.name} request of {size} bytes, and at most {LARGE_FRAME_BYTES_MAX} are allowed")
            return 0
        decoded_bytes = size + min(size * api.decoded_bytes_per_byte_max, api.elements_max * DECODED_ELEMENT_BYTES)
        context = LargeRequest(self._broker, self, api, header, timing, frame, decoded_bytes)
        self._pending.append(context)
        if self._quotas.is_active:
            self._broker.throttling.begin(context, size)
        if not api.versions[0] <= header.api_version <= api.versions[1]:
            self._refuse_version(context)
        else:
            context.start()
        return decoded_bytes

    def hold(self) -> None:
        """Handle no further request until ``release``, because some work must take effect first. Holds add up."""
        self._hold_count += 1

    def release(self) -> None:
        self._hold_count -= 1
        if not self._hold_count:
            self._resume()

    def handle_large(self, context: RequestContext, frame: memoryview) -> None:
        """Decode and handle a large request in slices. Its bytes stay as they are."""
        self.run_in_slices(context, self._large_steps(context, frame), self._handled)

    def _large_steps(self, context: RequestContext, frame: memoryview) -> Steps[None]:
        api, header = context.api, context.header
        try:
            if api.decode_in_slices is not None:
                request = yield from api.decode_in_slices(header, frame)
            elif api.decode is not None:
                request = api.decode(header, frame)
            else:
                request = yield from decode_request_in_slices(header, frame, api.elements_max)
        except MalformedRequest as error:
            self._refuse_malformed(context, error)
            return
        yield
        work = context.handle(request, frame)
        if work is not None:
            yield from work

    def run_in_slices(self, context: RequestContext, steps: Steps[None], on_end: OnWorkEnd | None = None) -> None:
        """Do the work of a request in slices. Until it has ended, the session wants no other request; if the connection goes
        away, it is cancelled. Most work ends with its first step, and then it costs nothing more."""
        slices = self._broker.work_slices
        if context.usage is not None:
            steps = self._broker.throttling.metered(context, steps)
        pause = None
        if slices.is_idle:
            try:
                pause = next(steps)
            except Exception as error:
                if not isinstance(error, StopIteration):
                    self.fail(context, error)
                if on_end is not None:
                    on_end(context)
                return

        self.hold()
        request = _SlicedRequest(self, context, on_end)
        request.note_work(slices.run(steps, request.ended, pause))

    def identify(self, software_name: str, software_version: str) -> None:
        self.client_software = (software_name, software_version)

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
        while pending:
            response = pending[0].response
            if response is None:
                return
            pending.popleft()
            if response and not self.is_closed:
                self._send(response)

    def mute(self, milliseconds: int) -> int:
        """Read nothing from the client for this long. Returns by how many milliseconds this extends an earlier mute."""
        if self.is_closed:
            return 0
        now_ms = self._broker.clock.monotonic_ms()
        before_ms, until_ms = max(self._muted_until_ms, now_ms), now_ms + milliseconds
        if until_ms <= before_ms:
            return 0
        self._muted_until_ms = until_ms
        if self._unmute_timer is None:
            self.hold()
        else:
            self._unmute_timer.cancel()
            self.remove_delayed(self._unmute_timer)
        self._unmute_timer = self._broker.timers.schedule(milliseconds, self._unmute)
        self.add_delayed(self._unmute_timer)
        return until_ms - before_ms

    def _unmute(self) -> None:
        if self._unmute_timer is not None:
            self.remove_delayed(self._unmute_timer)
            self._unmute_timer = None
            self.release()

    def resume(self) -> None:
        """Tell the server that a request was answered without a response, which it does not notice by itself."""
        self._resume()

    def remember_refused_batches(self) -> RefusedBatches:
        """Batches of idempotent producers that are refused have to be remembered from now on."""
        if self.refused_batches is None:
            self.refused_batches = RefusedBatches()
        return self.refused_batches

    def add_delayed(self, work: Cancellable) -> None:
        """Cancel ``work`` with the connection."""
        self._delayed[work] = None

    def remove_delayed(self, work: Cancellable) -> None:
        self._delayed.pop(work, None)

    def watch(self, who: Hashable, on_closed: Callable[[], None]) -> None:
        """Call back once when the connection ends."""
        self._watches[who] = on_closed

    def when_not_controller(self, call: Callable[[], None]) -> None:
        self.on_not_controller = call

    def closed(self) -> None:
        """Called when the connection is gone; responses to requests in progress are dropped."""
        self.is_closed = True
        # The connection refers to its session. Without this, the two would wait for the cycle collector, which seldom runs.
        # The same holds for requests that will never be answered: they refer to the session.
        self._send, self._close, self._resume = _send_nowhere, _close_nothing, resume_nothing
        self._pending.clear()
        self.on_not_controller = None
        self.refused_batches = None
        delayed, self._delayed = self._delayed, {}
        for work in delayed:
            work.cancel()
        watches, self._watches = self._watches, {}
        for on_closed in watches.values():
            on_closed()

    def end(self, reason: str) -> None:
        """Drop the connection."""
        if not self.is_closed:
            self.is_closed = True
            self._close(reason)
