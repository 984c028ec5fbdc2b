"""An API of the protocol: its key, its versions, its handler, and its response to a failure.

A handler gets a ``RequestContext`` and the decoded request. It answers with ``context.reply``, now or later, exactly once. An
exception that it raises, or passes to ``context.fail`` later, becomes an error response in one place, the session, through
``Api.failure``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.broker.error_mapping import error_code_of
from tidelog.controller.decision_queue import Decide
from tidelog.controller.errors import ApiError
from tidelog.ports.disk import Buffer
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import RecordsPart
from tidelog.wire.messages import encode_response
from tidelog.wire.protocol import RequestHeader, response_header

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode
    from tidelog.broker.request_metrics import RequestTiming
    from tidelog.broker.session import ClientSession, ReplySlot
    from tidelog.broker.throttling import RequestUsage
    from tidelog.broker.timers import Timer


# A response is a list of these: bytes to send, and slices of segment files to send without reading them.
Part = Buffer | RecordsPart
Fields = Mapping[str, Any]

# How long a decision may take when the client gave no timeout: some clients send 0 and mean "the default".
DECISION_MS_MAX = 30_000


class RequestContext:
    __slots__ = ("_slot", "api", "broker", "header", "request", "session", "timing", "usage")

    def __init__(
        self, broker: "BrokerNode", session: "ClientSession", api: "Api", header: RequestHeader, slot: "ReplySlot"
    ) -> None:
        self.broker = broker
        self.session = session
        self.api = api
        self.header = header
        self.request: Any = None
        self._slot = slot
        self.timing: RequestTiming | None = slot.timing
        """None when this request is not timed."""
        self.usage: RequestUsage | None = None
        """The request's use of its client's quotas; None while no client has a quota."""

    @property
    def is_answered(self) -> bool:
        return self._slot.parts is not None

    def handle(self, request: Any) -> None:
        self.request = request
        self.api.handle(self, request)

    def meter(self, usage: "RequestUsage") -> None:
        """Count the request against its client's quotas from here on."""
        self.usage = usage

    def count_error(self, code: ErrorCode) -> None:
        """Count an error in a response that the handler encodes itself; ``reply`` counts errors automatically."""
        self.broker.request_metrics.count_error(self.header.api_key, code)

    def reply(self, fields: Fields) -> None:
        """Answer with the response's fields, in snake case. Fields that the request's version lacks are left out."""
        header = self.header
        self.broker.request_metrics.count_errors_in(header.api_key, fields)
        if self.usage is not None:
            fields = {**fields, "throttle_time_ms": self.throttle_time_ms()}
        self.reply_parts([encode_response(header.api_key, header.api_version, fields)])

    def throttle_time_ms(self) -> int:
        """The throttle time for a response that the handler encodes itself; ``reply`` adds it automatically. Call it once."""
        return 0 if self.usage is None else self.broker.throttling.answer(self)

    def reply_parts(self, body: list[Part]) -> None:
        """Answer with an encoded body."""
        header = self.header
        self._slot.fill([response_header(header.api_key, header.api_version, header.correlation_id), *body])

    def reply_nothing(self) -> None:
        """acks=0: the client expects no answer."""
        self._slot.fill([])

    def fail(self, error: Exception) -> None:
        """Answer that the request as a whole failed."""
        self.session.fail(self, error)

    def code_of(self, error: Exception) -> tuple[ErrorCode, str]:
        """Return the code and the message for an error in one item of a request. An unexpected error is also reported."""
        code, message = error_code_of(error)
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            self.broker.report_unexpected(self.api.name, error)
        return code, message

    def reply_later(self, make: Callable[[], Fields]) -> None:
        """Answer from within a callback, where an exception raised by ``make`` would not reach the session."""
        try:
            self.reply(make())
        except Exception as error:
            self.fail(error)

    def decide(
        self,
        decide: Decide,
        answer: Callable[[Any], Fields],
        timeout_ms: int = 0,
        otherwise: Callable[[Exception], Fields] | None = None,
    ) -> None:
        """Change metadata: ``answer`` makes the response from the decision once it is committed and the image has it.

        After ``timeout_ms`` the client gets REQUEST_TIMED_OUT, though the change may still happen. ``otherwise`` makes the
        response to a failure; if it is None, a failure is answered like any other."""
        timer: Timer | None = None

        def failed(error: Exception) -> None:
            if otherwise is not None:
                self.reply_later(lambda: otherwise(error))
            else:
                self.fail(error)

        def decided(response: Any, error: Exception | None) -> None:
            if self.is_answered:
                return  # The decision came too late.
            if timer is not None:
                timer.cancel()
                self.session.remove_delayed(timer)
            if error is not None:
                failed(error)
            else:
                self.reply_later(lambda: answer(response))

        def time_out() -> None:
            if timer is not None:
                self.session.remove_delayed(timer)
            failed(ApiError(ErrorCode.REQUEST_TIMED_OUT, "not committed in time; the change may still happen"))

        # A client that has disconnected or timed out no longer wants the decision.
        self.broker.decisions.submit(decide, decided, lambda: not (self.is_answered or self.session.is_closed))
        if not self.is_answered:
            timer = self.broker.timers.schedule(timeout_ms if timeout_ms > 0 else DECISION_MS_MAX, time_out)
            self.session.add_delayed(timer)


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    versions: tuple[int, int]
    handle: Callable[[RequestContext, Any], None]
    failure: Callable[[Any, ErrorCode, str], Fields] | None = None
    """The fields of a response when the whole request failed; None means just ``error_code`` and ``error_message``."""
    decode: Callable[[RequestHeader, memoryview], Any] | None = None
    """Our own codec; None means kio's."""
    unsupported: Callable[[RequestContext], None] | None = None
    """How a version that is not served is answered; None ends the connection, as in Kafka."""
    advertised_versions: tuple[int, int] | None = None
    """The advertised versions, if they differ from the served ones: older librdkafka wants to see Produce 0."""


class ResultCollector:
    """Collects several results into one response, in the order of the questions, when the last one has arrived."""

    __slots__ = ("_missing", "_on_all", "_results")

    def __init__(self, count: int, on_all: Callable[[Sequence[Any]], None]) -> None:
        """If there are no questions, the answer is sent immediately."""
        self._results: list[Any] = [None] * count
        self._missing = count
        self._on_all = on_all
        if not count:
            on_all(self._results)

    def put(self, index: int, result: Any) -> None:
        """Store one result. Call this once for each index."""
        self._results[index] = result
        self._missing -= 1
        if not self._missing:
            self._on_all(self._results)
