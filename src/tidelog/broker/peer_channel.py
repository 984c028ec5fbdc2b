"""Requests to another node of the cluster: one connection, replies matched by correlation id, everything bounded.

A channel connects when the first request is sent. It begins with ApiVersions, and then sends each request in the newest version
that both nodes have. Replies of one connection come in the order of the requests, so a request that waits at the other end (a
fetch) holds up those behind it: every kind of conversation has a channel of its own, as in Kafka.

A request ends exactly once, with ``on_reply`` or with ``on_failure``, and never from within ``send``. Nothing is sent twice: only
the caller knows whether a request may be repeated. A request that gets no reply in time ends its connection, and with it every
other request on it: they wait behind it. After a failure the channel waits before it connects again, for longer each time, and
refuses requests until then with the reason of the failure. So a caller may retry as often as it likes.

``PeerUnreachable.is_refused`` says that the other machine answered and nothing listens there: its process has ended. The quorum
and the fencing of brokers act on that sooner than on silence.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from tidelog.broker.timers import Timer, Timers
from tidelog.ports.network import CONNECTION_REFUSED, Connection, Network
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.frames import FrameReader, InvalidFrame
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.primitives import INT32
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

_API_VERSIONS_VERSION = 3
SOFTWARE_NAME = "tidelog"
_CORRELATION_ID_MAX = 2**31 - 1


class PeerError(Exception):
    """A request to another node got no reply. If it ``was_sent``, the other node may have handled it, or may still do so."""

    def __init__(self, message: str, *, was_sent: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class PeerUnreachable(PeerError):
    """The connection could not be made, or it ended before the reply."""

    def __init__(self, message: str, is_refused: bool = False, *, was_sent: bool = False) -> None:
        super().__init__(message, was_sent=was_sent)
        self.is_refused = is_refused


class PeerTimedOut(PeerError):
    """No reply came in time."""


class PeerBusy(PeerError):
    """Too many requests to this node are waiting already. This one was not sent."""


class UnsupportedByPeer(PeerError):
    """The other node lacks the API, or all of our versions of it. The request was not sent."""


class PeerRequest(NamedTuple):
    api_key: int
    versions: tuple[int, int]
    encode: Callable[[int], bytes]
    """Makes the body for a version."""
    on_reply: Callable[[int, memoryview], None]
    """Takes the version and the body of the reply, which is overwritten as soon as this returns."""
    on_failure: Callable[[PeerError], None]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class PeerOptions:
    client_id: str
    requests_max: int = 100
    """How many requests may wait for a connection or a reply. A node that does not answer must not fill our memory."""
    connect_ms_max: int = 2_000
    """How long connecting may take, with ApiVersions. Machines of one cluster are near each other."""
    backoff_ms_min: int = 50
    """How long the channel waits after the first failure; ``reconnect.backoff.ms`` in Kafka."""
    backoff_ms_max: int = 1_000
    """How long it waits after many failures. A node that returns is noticed within a second."""
    frame_bytes_max: int = 100 << 20


class ChannelState(IntEnum):
    IDLE = 0
    """There is no connection, because nobody has asked for one, or the last one ended while nothing waited for it."""
    CONNECTING = 1
    """The connection is being made, or has not answered ApiVersions yet."""
    READY = 2
    BACKING_OFF = 3
    """The last attempt failed, and the next one has to wait."""
    CLOSED = 4


class _SentRequest(NamedTuple):
    request: PeerRequest
    version: int
    timer: Timer


class PeerChannel:
    __slots__ = (
        "_backoff_ms",
        "_connection",
        "_correlation_id",
        "_failing_count",
        "_failure",
        "_frames",
        "_host",
        "_network",
        "_options",
        "_port",
        "_sent",
        "_timer",
        "_timers",
        "_versions",
        "_waiting",
        "state",
    )

    def __init__(self, network: Network, timers: Timers, host: str, port: int, options: PeerOptions) -> None:
        self._network = network
        self._timers = timers
        self._host = host
        self._port = port
        self._options = options
        self.state = ChannelState.IDLE
        self._connection: Connection | None = None
        # The deadline of connecting, or the end of backing off.
        self._timer: Timer | None = None
        self._frames = FrameReader(options.frame_bytes_max)
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        # Requests that wait for the connection, with the timers of their deadlines, oldest first.
        self._waiting: deque[tuple[PeerRequest, Timer]] = deque()
        # Requests that wait for their replies, by correlation id, oldest first.
        self._sent: dict[int, _SentRequest] = {}
        # Requests whose failure has not been reported yet.
        self._failing_count = 0
        self._backoff_ms = options.backoff_ms_min
        self._failure = PeerUnreachable(f"{self.address} has not been connected to")

    @property
    def address(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    @property
    def pending_count(self) -> int:
        """The number of requests that have not ended."""
        return len(self._waiting) + len(self._sent) + self._failing_count

    # -- what callers do -----------------------------------------------------------------------------------------------------

    def send(self, request: PeerRequest) -> None:
        if self.state is ChannelState.BACKING_OFF or self.state is ChannelState.CLOSED:
            self._fail_later(request, self._failure)
        elif self.pending_count >= self._options.requests_max:
            busy = PeerBusy(f"{self._options.requests_max} requests to {self.address} are waiting already")
            self._fail_later(request, busy)
        elif self.state is ChannelState.READY:
            self._transmit(request, self._timers.schedule(request.timeout_ms, self._time_out))
        else:
            self._waiting.append((request, self._timers.schedule(request.timeout_ms, self._time_out)))
            if self.state is ChannelState.IDLE:
                self._connect()

    def move_to(self, host: str, port: int) -> None:
        """The node has another address. Requests that wait for a reply from the old one fail."""
        if (host, port) != (self._host, self._port):
            moved = PeerUnreachable(f"{self.address} has moved to {host}:{port}")
            self._host, self._port = host, port
            self._backoff_ms = self._options.backoff_ms_min
            if self.state is not ChannelState.CLOSED:
                self._disconnect(ChannelState.IDLE, moved)

    def close(self) -> None:
        """End the connection. Requests that have not ended fail, and so does every later one."""
        self._disconnect(ChannelState.CLOSED, PeerUnreachable(f"the connection to {self.address} was closed"))

    # -- connecting ----------------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self.state = ChannelState.CONNECTING
        self._frames = FrameReader(self._options.frame_bytes_max)
        self._connection = self._network.connect(self._host, self._port, self)
        self._timer = self._timers.schedule(self._options.connect_ms_max, self._connect_timed_out)

    def _connect_timed_out(self) -> None:
        self._lost(PeerUnreachable(f"{self.address} did not accept a connection within {self._options.connect_ms_max} ms"))

    def opened(self, connection: Connection) -> None:
        if connection is self._connection:
            fields = {"client_software_name": SOFTWARE_NAME, "client_software_version": "1"}
            self._write(ApiKey.API_VERSIONS, _API_VERSIONS_VERSION, encode_request(ApiKey.API_VERSIONS, 3, fields))

    def _take_versions(self, frame: memoryview) -> None:
        _, position = parse_response_header(ApiKey.API_VERSIONS, _API_VERSIONS_VERSION, frame)
        response = decode_response(ApiKey.API_VERSIONS, _API_VERSIONS_VERSION, frame, position)
        if response.error_code != ErrorCode.NONE:
            self._lost(PeerUnreachable(f"{self.address} refused ApiVersions with error {response.error_code}"))
            return
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        self._cancel_timer()
        self.state = ChannelState.READY
        self._backoff_ms = self._options.backoff_ms_min
        waiting, self._waiting = self._waiting, deque()
        for request, timer in waiting:
            self._transmit(request, timer)

    # -- requests and replies ------------------------------------------------------------------------------------------------

    def _transmit(self, request: PeerRequest, timer: Timer) -> None:
        theirs = self._versions.get(request.api_key)
        version = -1 if theirs is None else min(request.versions[1], theirs[1])
        if theirs is None or version < max(request.versions[0], theirs[0]):
            timer.cancel()
            name = ApiKey(request.api_key).name
            lacks = f"{name} is not served" if theirs is None else f"{name} is served in versions {theirs[0]} to {theirs[1]}"
            ours = f"this node needs {request.versions[0]} to {request.versions[1]}"
            self._fail_later(request, UnsupportedByPeer(f"{self.address}: {lacks}, {ours}"))
            return
        correlation_id = self._write(request.api_key, version, request.encode(version))
        self._sent[correlation_id] = _SentRequest(request, version, timer)

    def _write(self, api_key: int, version: int, body: bytes) -> int:
        assert self._connection is not None, "a request is written to a connection"
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_ID_MAX
        header = request_header(api_key, version, self._correlation_id, self._options.client_id)
        self._connection.send([INT32.pack(len(header) + len(body)), header, body])
        return self._correlation_id

    def received(self, connection: Connection, data: bytes) -> None:
        view = memoryview(data)
        frames = self._frames
        try:
            while connection is self._connection:
                frame = frames.next_frame()
                if frame is not None:
                    self._take_frame(frame)
                elif view:
                    writable = frames.writable()
                    length = min(len(writable), len(view))
                    writable[:length] = view[:length]
                    frames.received(length)
                    view = view[length:]
                else:
                    return
        except (InvalidFrame, MalformedRequest) as error:
            self._lost(PeerUnreachable(f"{self.address} sent something that is not a reply: {error}"))

    def _take_frame(self, frame: memoryview) -> None:
        if self.state is ChannelState.CONNECTING:
            self._take_versions(frame)
            return
        if len(frame) < INT32.size:
            raise MalformedRequest(f"a reply of {len(frame)} bytes")
        sent = self._sent.pop(INT32.unpack_from(frame)[0], None)
        if sent is None:
            raise MalformedRequest("a reply to a request that was not sent")
        sent.timer.cancel()
        _, position = parse_response_header(sent.request.api_key, sent.version, frame)
        sent.request.on_reply(sent.version, frame[position:])

    # -- failures ------------------------------------------------------------------------------------------------------------

    def closed(self, connection: Connection, reason: str) -> None:
        if connection is self._connection:
            self._connection = None
            self._lost(PeerUnreachable(f"{self.address}: {reason}", is_refused=reason == CONNECTION_REFUSED))

    def _time_out(self) -> None:
        """The deadline of a request has passed: its timer has no action any more."""
        waiting, self._waiting = self._waiting, deque()
        for request, timer in waiting:
            if timer.action is None:
                self._fail_later(request, PeerTimedOut(f"{self.address} could not be connected to in time"))
            else:
                self._waiting.append((request, timer))
        overdue = [correlation_id for correlation_id, sent in self._sent.items() if sent.timer.action is None]
        for correlation_id in overdue:
            error = PeerTimedOut(f"{self.address} did not answer in time", was_sent=True)
            self._fail_later(self._sent.pop(correlation_id).request, error)
        if overdue:
            self._lost(PeerUnreachable(f"{self.address} did not answer another request in time"))

    def _lost(self, error: PeerUnreachable) -> None:
        self._disconnect(ChannelState.BACKING_OFF, error)
        self._timer = self._timers.schedule(self._backoff_ms, self._end_backoff)
        self._backoff_ms = min(2 * self._backoff_ms, self._options.backoff_ms_max)

    def _end_backoff(self) -> None:
        self._timer = None
        self.state = ChannelState.IDLE

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _disconnect(self, state: ChannelState, error: PeerUnreachable) -> None:
        self.state = state
        self._failure = error
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._cancel_timer()
        waiting, self._waiting = self._waiting, deque()
        sent, self._sent = self._sent, {}
        lost = PeerUnreachable(str(error), error.is_refused, was_sent=True)
        for each in sent.values():
            each.timer.cancel()
            self._fail_later(each.request, lost)
        for request, timer in waiting:
            timer.cancel()
            self._fail_later(request, error)

    def _fail_later(self, request: PeerRequest, error: PeerError) -> None:
        self._failing_count += 1
        self._timers.schedule(0, partial(self._fail, request, error))

    def _fail(self, request: PeerRequest, error: PeerError) -> None:
        self._failing_count -= 1
        request.on_failure(error)
