"""Requests to the active controller, wherever it is: in this process, or at another node's listener for controllers.

There are two kinds. The broker's own requests (registration, heartbeats, blocks of producer ids) go to the controller as they
are. What a client asked of this broker, and what the broker asks in a client's name, is forwarded in an Envelope (KIP-590), so
that the controller decides as if the client had asked it. In this process both are handled by a session of their own, so they
take the same way through the same handlers.

A request ends exactly once. While no controller is known, it waits. When a controller says that it is not active, or the request
never left this node, it is sent again, to whoever is active then. When it was sent and got no answer, it may have been carried
out: then it is sent again only if it is ``is_repeatable``, that is, if doing it twice is the same as doing it once. Otherwise it
fails with OutcomeUnknown, which a client sees as REQUEST_TIMED_OUT. A request that has waited past its deadline fails as well.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.api import Part, RequestContext
from tidelog.broker.peer_channel import PeerChannel, PeerError, PeerOptions, PeerRequest, UnsupportedByPeer
from tidelog.broker.session import FORWARDED, IN_PROCESS, ClientSession
from tidelog.broker.timers import Timer
from tidelog.controller.errors import ApiError
from tidelog.ports.network import Network
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header, response_header

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

RETRY_MS = 50
# How much longer than the controller itself this node waits for its answer.
ANSWER_MARGIN_MS = 1_000
ENVELOPE_VERSION = 0


class OutcomeUnknown(ApiError):
    """The request may or may not have been carried out."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class ControllerRequest:
    """A request on its way. ``on_answer`` takes the response's header and body."""

    __slots__ = (
        "_timer",
        "api_key",
        "body",
        "client_host",
        "deadline_ms",
        "header",
        "is_over",
        "is_repeatable",
        "on_answer",
        "on_failure",
        "session",
        "version",
    )

    def __init__(
        self,
        api_key: int,
        version: int,
        frame: tuple[bytes, bytes],
        on_answer: Callable[[bytes], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """``frame`` is the header and the body of the request."""
        self.api_key = api_key
        self.version = version
        self.header, self.body = frame
        self.on_answer = on_answer
        self.on_failure = on_failure
        self.client_host: str | None = None
        """The client in whose name this is asked; None for the broker's own requests, which need no envelope."""
        self.is_repeatable = True
        self.deadline_ms = 0
        self.is_over = False
        self.session: ClientSession | None = None
        self._timer: Timer | None = None

    def set_timer(self, timer: Timer) -> None:
        self._timer = timer

    def end(self) -> bool:
        """Returns whether the request has not ended before."""
        was_over, self.is_over = self.is_over, True
        if self._timer is not None:
            self._timer.cancel()
        if self.session is not None:
            self.session.closed()
            self.session = None
        return not was_over

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        self.end()


class ControllerChannel:
    """One conversation with the controller. Answers come in the order of the requests, so heartbeats have a channel of their own
    and do not wait behind decisions."""

    def __init__(self, node: "BrokerNode", network: Network, name: str) -> None:
        self._node = node
        self._network = network
        self._name = name
        self._peer: PeerChannel | None = None
        self._peer_address: tuple[str, int] | None = None
        # Requests that wait until a controller is known, in the order in which they came.
        self._waiting: dict[ControllerRequest, None] = {}

    # -- what callers do -----------------------------------------------------------------------------------------------------

    def request(
        self,
        api: tuple[int, int],
        fields: Mapping[str, object],
        on_reply: Callable[[DecodedMessage], None],
        on_failure: Callable[[Exception], None],
        timeout_ms: int,
        client: tuple[str, str] | None = None,
    ) -> ControllerRequest:
        """Ask for something that may be repeated; ``api`` is its key and version. ``client`` is the id and the host of the client
        in whose name the broker asks, and whose quotas apply."""
        api_key, version = api
        client_id = f"broker-{self._node.config.node_id}" if client is None else client[0]
        frame = request_header(api_key, version, 0, client_id), encode_request(api_key, version, fields)

        def answered(response: bytes) -> None:
            on_reply(_decode(api_key, version, response))

        request = ControllerRequest(api_key, version, frame, answered, on_failure)
        request.client_host = client[1] if client is not None else None
        self._begin(request, timeout_ms)
        return request

    def forward(self, context: RequestContext, frame: bytes, timeout_ms: int) -> None:
        """Let the active controller answer a client's request. If that is this node after all, it is handled here."""
        header = context.header

        def answered(response: bytes) -> None:
            context.session.remove_delayed(request)
            context.reply_as_forwarded(response)

        def failed(error: Exception) -> None:
            context.session.remove_delayed(request)
            context.fail(error)

        request = ControllerRequest(header.api_key, header.api_version, (b"", frame), answered, failed)
        request.client_host = context.session.client_host
        request.is_repeatable = context.api.is_repeatable
        context.session.add_delayed(request)
        self._begin(request, timeout_ms)

    def controller_changed(self) -> None:
        """Another node leads, or nobody: what waits for the old controller is in vain."""
        address = self._node.quorum.leader_address
        if self._node.controller.is_active or (address is not None and address != self._peer_address):
            self._close_peer()
        waiting, self._waiting = self._waiting, {}
        for request in waiting:
            self._send(request)

    def close(self) -> None:
        self._close_peer()
        waiting, self._waiting = self._waiting, {}
        for request in waiting:
            request.end()

    # -- on the way ----------------------------------------------------------------------------------------------------------

    def _begin(self, request: ControllerRequest, timeout_ms: int) -> None:
        request.deadline_ms = self._node.clock.monotonic_ms() + timeout_ms
        request.set_timer(self._node.timers.schedule(timeout_ms + ANSWER_MARGIN_MS, partial(self._time_out, request)))
        self._send(request)

    def _time_out(self, request: ControllerRequest) -> None:
        self._waiting.pop(request, None)
        if request.end():
            request.on_failure(OutcomeUnknown("the active controller did not answer in time; the change may still happen"))

    def _send(self, request: ControllerRequest) -> None:
        if request.is_over:
            return
        node = self._node
        if node.controller.is_active:
            self._handle_here(request)
            return
        address = node.quorum.leader_address
        if address is None:
            self._waiting[request] = None
            return
        if self._peer is None:
            self._peer = PeerChannel(self._network, node.timers, *address, PeerOptions(f"{self._name}-{node.config.node_id}"))
            self._peer_address = address
        self._peer.send(self._peer_request(request))

    def _peer_request(self, request: ControllerRequest) -> PeerRequest:
        now_ms = self._node.clock.monotonic_ms()
        timeout_ms = max(1, request.deadline_ms - now_ms + ANSWER_MARGIN_MS)
        failed = partial(self._failed, request)
        if request.client_host is None:
            versions, body = (request.version, request.version), request.body
            return PeerRequest(request.api_key, versions, lambda _: body, partial(self._replied, request), failed, timeout_ms)
        envelope = {
            "request_data": request.header + request.body,
            "request_principal": None,
            "client_host_address": request.client_host.encode(),
        }
        return PeerRequest(
            ApiKey.ENVELOPE,
            (ENVELOPE_VERSION, ENVELOPE_VERSION),
            lambda version: encode_request(ApiKey.ENVELOPE, version, envelope),
            partial(self._envelope_replied, request),
            failed,
            timeout_ms,
        )

    def _handle_here(self, request: ControllerRequest) -> None:
        """Handle the request in this process, in a session of its own that ends with it."""
        refused = partial(self._retry_later, request)

        def sent(parts: list[Part]) -> None:
            self._answer(request, b"".join([bytes(part) for part in parts]))  # type: ignore[arg-type]  # only bytes

        def closed(reason: str) -> None:
            if request.end():
                request.on_failure(ApiError(ErrorCode.INVALID_REQUEST, reason))

        listener = IN_PROCESS if request.client_host is None else FORWARDED
        session = request.session = self._node.inner_session(request.client_host or "", sent, closed, listener, refused)
        session.receive(memoryview(request.header + request.body))

    def _replied(self, request: ControllerRequest, version: int, body: memoryview) -> None:
        try:
            response = decode_response(request.api_key, version, body)
        except MalformedRequest as error:
            self._failed(request, PeerError(f"the controller answered nonsense: {error}", was_sent=True))
            return
        # A response with an error for each of its parts has none for the whole.
        if getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER:
            self._retry_later(request)
        else:
            self._answer(request, response_header(request.api_key, version, 0) + bytes(body))

    def _envelope_replied(self, request: ControllerRequest, version: int, body: memoryview) -> None:
        try:
            response = decode_response(ApiKey.ENVELOPE, version, body)
        except MalformedRequest as error:
            self._failed(request, PeerError(f"the controller answered nonsense: {error}", was_sent=True))
            return
        if response.error_code == ErrorCode.NOT_CONTROLLER:
            self._retry_later(request)
        elif response.error_code == ErrorCode.NONE and response.response_data is not None:
            self._answer(request, bytes(response.response_data))
        elif request.end():
            code = ErrorCode(response.error_code)
            request.on_failure(ApiError(code, f"the active controller refused the request: {code.message}"))

    def _answer(self, request: ControllerRequest, response: bytes) -> None:
        if request.end():
            request.on_answer(response)

    def _failed(self, request: ControllerRequest, error: PeerError) -> None:
        if isinstance(error, UnsupportedByPeer):
            if request.end():
                request.on_failure(ApiError(ErrorCode.UNSUPPORTED_VERSION, str(error)))
        elif error.was_sent and not request.is_repeatable:
            if request.end():
                request.on_failure(OutcomeUnknown(f"the active controller did not answer ({error}); the change may still happen"))
        else:
            self._retry_later(request)

    def _retry_later(self, request: ControllerRequest) -> None:
        if request.session is not None:
            request.session.closed()
            request.session = None
        if request.is_over:
            return
        if self._node.clock.monotonic_ms() >= request.deadline_ms:
            self._time_out(request)
        else:
            self._waiting[request] = None
            self._node.timers.schedule(RETRY_MS, self._retry_waiting)

    def _retry_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for request in waiting:
            self._send(request)

    def _close_peer(self) -> None:
        peer, self._peer, self._peer_address = self._peer, None, None
        if peer is not None:
            peer.close()


def _decode(api_key: int, version: int, response: bytes) -> DecodedMessage:
    frame = memoryview(response)
    _, position = parse_response_header(api_key, version, frame)
    return decode_response(api_key, version, frame, position)
