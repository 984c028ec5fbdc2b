"""An API of the protocol: its key, its versions, its handler, and its response to a failure.

A handler gets a ``RequestContext`` and the decoded request. It answers with ``context.reply``, now or later, exactly once. An
exception that it raises, or passes to ``context.fail`` later, becomes an error response in one place, the session, through
``Api.failure``.

No handler holds the event loop for more than a few milliseconds. Most need a few microseconds for each element of a request, and
``Api.elements_max`` bounds the elements. A handler that may need more returns a generator that yields where it may pause
(``WorkSlices``), and answers with ``reply_in_slices``; a callback passes such a generator to ``continue_in_slices``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.error_mapping import error_code_of
from tidelog.config.listeners import ListenerRole
from tidelog.controller.decision_queue import Decide
from tidelog.controller.errors import ApiError
from tidelog.ports.disk import Buffer
from tidelog.ports.steps import Steps
from tidelog.raft.errors import NotQuorumLeader
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import RecordsPart
from tidelog.wire.messages import Direction, encode_response, encode_response_in_slices, field_in_any_version
from tidelog.wire.protocol import RequestHeader, response_header

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode
    from tidelog.broker.request_metrics import RequestTiming
    from tidelog.broker.session import ClientSession
    from tidelog.broker.throttling import RequestUsage
    from tidelog.broker.timers import Timer


# A response is a list of these: bytes to send, and slices of segment files to send without reading them.
Part = Buffer | RecordsPart
Fields = Mapping[str, Any]

# How long a decision may take when the client gave no timeout: some clients send 0 and mean "the default".
DECISION_MS_MAX = 30_000
# The array elements in one request, for handlers that treat them in one go: some five microseconds each.
ELEMENTS_MAX = 5_000
# What a decoded element takes in memory, with what its handler and its response take.
DECODED_ELEMENT_BYTES = 700
# The same for each byte of the frame, at most: an element takes three bytes there, for an empty name, an empty array, and no
# tagged fields.
DECODED_BYTES_PER_BYTE_MAX = 240
# The limit of the wait of a large fetch. It holds memory that other large requests may wait for.
LARGE_WAIT_MS_MAX = 1_000
# A handler that works in slices pauses after this many things that take a few microseconds each.
ITEMS_PER_STEP = 64


class RequestContext:
    """One request, from its arrival until it is answered. It is also the place of its answer in the order of the answers."""

    __slots__ = ("_frame", "api", "broker", "header", "request", "response", "session", "timing", "usage")

    is_large = False
    """Whether the request came in a large frame, so that its handler has to work in slices."""

    def __init__(
        self, broker: "BrokerNode", session: "ClientSession", api: "Api", header: RequestHeader, timing: "RequestTiming | None"
    ) -> None:
        self.broker = broker
        self.session = session
        self.api = api
        self.header = header
        self.request: Any = None
        # The bytes of a request that another controller may have to answer.
        self._frame: bytes | None = None
        self.response: list[Part] | None = None
        """The parts of the answer; None until there is one, and empty when the client expects none."""
        self.timing = timing
        """None when this request is not timed."""
        self.usage: RequestUsage | None = None
        """The request's use of its client's quotas; None while no client has a quota."""

    @property
    def is_answered(self) -> bool:
        return self.response is not None

    def handle(self, request: Any, frame: memoryview) -> Steps[None] | None:
        """Returns the rest of the work, if it has to be done in slices."""
        self.request = request
        if self.api.is_forwarded:
            if self.session.listener.role is not ListenerRole.CONTROLLER:
                self._frame = bytes(frame)
            if not self.broker.controller.is_active:
                self.ask_elsewhere(NotQuorumLeader(f"node {self.broker.config.node_id} is not the active controller"))
                return None
        return self.api.handle(self, request)

    def ask_elsewhere(self, error: Exception) -> None:
        """This node is not the active controller, and nothing was decided: let another node answer, or say so."""
        frame, self._frame = self._frame, None
        if frame is not None:
            timeout_ms = getattr(self.request, "timeout_ms", 0)
            self.broker.forwarding.forward(self, frame, timeout_ms if timeout_ms > 0 else DECISION_MS_MAX)
        elif self.session.on_not_controller is not None:
            self.session.on_not_controller()
        else:
            self.fail(error)

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
            fields = self._with_throttle_time(fields)
        self.reply_parts([encode_response(header.api_key, header.api_version, fields)])

    def _with_throttle_time(self, fields: Fields) -> Fields:
        throttle_time_ms = self.throttle_time_ms()
        # DescribeQuorum and WriteTxnMarkers have no such field; their clients are throttled all the same.
        if field_in_any_version(self.header.api_key, Direction.RESPONSE, (), "throttle_time_ms") is None:
            return fields
        return {**fields, "throttle_time_ms": throttle_time_ms}

    def reply_in_slices(self, fields: Fields) -> Steps[None]:
        """Answer like ``reply``, when the response may be large."""
        header = self.header
        self.broker.request_metrics.count_errors_in(header.api_key, fields)
        if self.usage is not None:
            fields = self._with_throttle_time(fields)
        body = yield from encode_response_in_slices(header.api_key, header.api_version, fields)
        self.reply_parts([body])

    def continue_in_slices(self, steps: Steps[None]) -> None:
        """Go on with a long answer from within a callback. An exception fails the request."""
        if not self.session.is_closed:
            self.session.run_in_slices(self, steps)

    def throttle_time_ms(self) -> int:
        """The throttle time for a response that the handler encodes itself; ``reply`` adds it automatically. Call it once."""
        return 0 if self.usage is None else self.broker.throttling.answer(self)

    def reply_parts(self, body: list[Part]) -> None:
        """Answer with an encoded body."""
        header = self.header
        self.answer([response_header(header.api_key, header.api_version, header.correlation_id), *body])

    def reply_as_forwarded(self, response: bytes) -> None:
        """Answer with the response of the active controller, header included."""
        if self.usage is not None:
            self.broker.throttling.answer(self)
        self.answer([response])

    def reply_nothing(self) -> None:
        """acks=0: the client expects no answer."""
        self.answer([])

    def answer(self, response: list[Part]) -> None:
        """Store the whole response; the session sends it after those to all earlier requests."""
        assert self.response is None, "a request is answered once"
        self.response = response
        session = self.session
        if self.timing is not None:
            self.timing.answered(session.now_ns())
        session.send_ready()

    def return_memory(self) -> None:
        """Return the memory that a large request was admitted with, before it waits for something that may need it."""

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
        pending = _PendingDecision(self, answer, otherwise)
        self.broker.controller.submit(decide, pending.decided, pending.is_wanted)
        if not self.is_answered:
            pending.limit(timeout_ms if timeout_ms > 0 else DECISION_MS_MAX)


class _PendingDecision:
    """A change of metadata whose request waits until it is committed, or until its time is up."""

    __slots__ = ("_answer", "_context", "_is_being_answered", "_otherwise", "_timer")

    def __init__(
        self, context: RequestContext, answer: Callable[[Any], Fields], otherwise: Callable[[Exception], Fields] | None
    ) -> None:
        self._context = context
        self._answer = answer
        self._otherwise = otherwise
        # The answer to a large request is encoded in slices.
        self._is_being_answered = False
        self._timer: Timer | None = None

    def limit(self, timeout_ms: int) -> None:
        if self._is_being_answered:
            return
        context = self._context
        self._timer = context.broker.timers.schedule(timeout_ms, self._time_out)
        context.session.add_delayed(self._timer)

    def is_wanted(self) -> bool:
        """A client that has disconnected or timed out no longer wants the decision."""
        return not (self._context.is_answered or self._context.session.is_closed)

    def decided(self, response: Any, error: Exception | None) -> None:
        context = self._context
        if context.is_answered:
            return  # The decision came too late.
        if self._timer is not None:
            self._timer.cancel()
            context.session.remove_delayed(self._timer)
        if error is not None:
            self._failed(error)
        elif context.is_large:
            self._is_being_answered = True
            context.continue_in_slices(self._answer_in_slices(response))
        else:
            context.reply_later(partial(self._answer, response))

    def _answer_in_slices(self, response: Any) -> Steps[None]:
        fields = self._answer(response)
        yield
        yield from self._context.reply_in_slices(fields)

    def _failed(self, error: Exception) -> None:
        if self._otherwise is not None:
            self._context.reply_later(partial(self._otherwise, error))
        elif isinstance(error, NotQuorumLeader):
            self._context.ask_elsewhere(error)
        else:
            self._context.fail(error)

    def _time_out(self) -> None:
        if self._timer is not None:
            self._context.session.remove_delayed(self._timer)
        self._failed(ApiError(ErrorCode.REQUEST_TIMED_OUT, "not committed in time; the change may still happen"))


# Whoever may talk to brokers: clients, and other brokers.
BROKER_LISTENERS = frozenset((ListenerRole.CLIENT, ListenerRole.INTER_BROKER))
# An API about metadata that a controller answers itself as well, so that tools may ask controllers directly.
ALL_LISTENERS = frozenset(ListenerRole)


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    versions: tuple[int, int]
    handle: Callable[[RequestContext, Any], Steps[None] | None]
    """Returns None, or the rest of its work as a generator that yields where it may pause."""
    failure: Callable[[Any, ErrorCode, str], Fields] | None = None
    """The fields of a response when the whole request failed; None means just ``error_code`` and ``error_message``."""
    decode: Callable[[RequestHeader, memoryview], Any] | None = None
    """Our own codec; None means kio's."""
    decode_in_slices: Callable[[RequestHeader, memoryview], Steps[Any]] | None = None
    """The same for large requests, if it may take long."""
    waits_for_others: bool = False
    """Whether its answer waits for requests of other clients. Those must not wait for the memory that this one holds, so it is
    handled at once; it has few elements."""
    has_records: bool = False
    """Whether requests carry records: then most large ones are as cheap as small ones, and ``decode`` tells which are not."""
    count_elements: Callable[[Any], int] | None = None
    """Count the array elements of a request that ``decode`` returned; None if it has none."""
    decoded_bytes_per_byte_max: int = DECODED_BYTES_PER_BYTE_MAX
    """The bound on what a decoded request takes in memory, for each byte of its frame."""
    elements_max: int = ELEMENTS_MAX
    """The limit of array elements in a request. A request with more ends the connection, like any request that is malformed."""
    unsupported: Callable[[RequestContext], None] | None = None
    """How a version that is not served is answered; None ends the connection, as in Kafka."""
    listeners: frozenset[ListenerRole] = BROKER_LISTENERS
    """The kinds of listeners that serve it."""
    is_forwarded: bool = False
    """Whether the active controller answers it: another node forwards it there."""
    is_repeatable: bool = False
    """Whether a forwarded request whose answer was lost may be sent again: doing it twice is the same as doing it once."""
    advertised_versions: tuple[int, int] | None = None
    """The advertised versions, if they differ from the served ones: older librdkafka wants to see Produce 0."""


class Pace:
    """Counts things that take a few microseconds each, and says when it is time to pause."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def is_pause_due(self) -> bool:
        self._count += 1
        return not self._count % ITEMS_PER_STEP


def count_topics_and_partitions(request: Any) -> int:
    """For ``Api.count_elements``."""
    topics = request.topics
    count = len(topics)
    for topic in topics:
        count += len(topic.partitions)
    return count


def in_steps(items: Iterable[Any], make: Callable[[Any], Any], pace: Pace | None = None) -> Steps[list[Any]]:
    """Return what ``make`` makes of each item, as a list, with a pause after every few of them. Loops in loops share a pace."""
    pace = pace or Pace()
    made = []
    for item in items:
        made.append(make(item))
        if pace.is_pause_due():
            yield
    return made


def free_in_slices(root: Any) -> Steps[None]:
    """Free a large message, decoded or to be encoded, that nobody needs any more. To free all of it at once takes as long as many
    steps. Its lists are emptied, so they must belong to nobody else."""
    pace = Pace()
    arrays = _lists_in(root, 0)
    while arrays:
        array = arrays[-1]
        if array:
            arrays += _lists_in(array.pop(), ITEMS_PER_STEP)
        else:
            arrays.pop()
        if pace.is_pause_due():
            yield


def _lists_in(value: Any, longer_than: int) -> list[list[Any]]:
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return [field for field in fields.values() if isinstance(field, list) and len(field) > longer_than]


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
