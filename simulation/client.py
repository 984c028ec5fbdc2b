"""A client's connection: it sends requests and receives replies, in Kafka's bytes over the simulated network.

It reconnects after a loss, sends ApiVersions first, and checks what every client relies on: replies arrive in the order of the
requests, each once, and within a time. Anything wrong with them is a problem of the history.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from simulation.history import History
from simulation.network import SimulatedNetwork
from simulation.node import HOST, PORT
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.ports.network import Connection
from tidelog.records.batch import read_records
from tidelog.records.errors import RecordError
from tidelog.records.header import HEADER_SIZE, BatchHeader, crc_is_valid, read_header
from tidelog.records.record import Record
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.frames import FrameReader
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

RECONNECT_US = (5_000, 60_000)
# No fault lasts this long, and the broker answers a produce or a fetch when it times out.
ANSWER_US_MAX = 20_000_000
WATCH_US = 5_000_000
FRAME_BYTES_MAX = 8 << 20
API_VERSIONS_VERSIONS = (0, 4)
_pack_size = struct.Struct(">i").pack

# The frame and where the body begins in it; None when the connection was lost before the reply arrived.
OnReply = Callable[[memoryview | None, int], None]


class Environment(NamedTuple):
    """The parts that every client gets."""

    scheduler: Scheduler
    network: SimulatedNetwork
    history: History


class Owner(Protocol):
    def ready(self) -> None:
        """Called when the connection can be used."""
        ...

    def lost(self) -> None:
        """Called when the connection is gone, and everything in flight has been told."""
        ...


class Waiting(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    on_reply: OnReply
    sent_us: int


class ClientConnection:
    def __init__(
        self, name: str, environment: Environment, randomness: SimulatedRandomness, owner: Owner, broker_host: str = HOST
    ) -> None:
        self.name = name
        self._broker_host = broker_host
        self.number = 0
        self.is_ready = False
        self._scheduler, self._network, self._history = environment
        self._randomness = randomness
        self._owner = owner
        self._connection: Connection | None = None
        self._frames = FrameReader(FRAME_BYTES_MAX)
        self._waiting: deque[Waiting] = deque()
        self._correlation_id = 0
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def connect(self) -> None:
        if self._is_closed:
            return
        self.number += 1
        self._frames = FrameReader(FRAME_BYTES_MAX)
        self._connection = self._network.host(self.name).connect(self._broker_host, PORT, self)

    def watch(self) -> None:
        """Check from time to time whether the broker has forgotten a request."""
        if self._is_closed:
            return
        if self._waiting and self._scheduler.now_us - self._waiting[0].sent_us > ANSWER_US_MAX:
            oldest = self._waiting[0]
            self._history.problem("never answered", f"{self.name}: api {oldest.api_key} sent at {oldest.sent_us} us")
            self.drop()
        self._scheduler.schedule(WATCH_US, f"{self.name} watches", self.watch)

    def request(self, api_key: int, version: int, body: bytes, on_reply: OnReply | None) -> None:
        """``on_reply`` is None if no reply is expected."""
        assert self._connection is not None
        self._correlation_id += 1
        frame = request_header(api_key, version, self._correlation_id, self.name) + body
        if on_reply is not None:
            self._waiting.append(Waiting(self._correlation_id, api_key, version, on_reply, self._scheduler.now_us))
        self._connection.send([_pack_size(len(frame)), frame])

    def close(self) -> None:
        """Close the connection for good."""
        self._is_closed = True
        self.drop()

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            self._end()

    # -- the network's endpoint ----------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        version = self._randomness.integer(*API_VERSIONS_VERSIONS)
        fields = {"client_software_name": "simulation", "client_software_version": "1"}

        def greeted(frame: memoryview | None, position: int) -> None:
            if frame is None:
                return
            answer = decode_response(ApiKey.API_VERSIONS, version, frame, position)
            if answer.error_code or not any(api.api_key == ApiKey.FETCH for api in answer.api_keys):
                self._history.problem("bad greeting", f"{self.name}: ApiVersions says {answer}")
            self.is_ready = True
            self._owner.ready()

        self.request(ApiKey.API_VERSIONS, version, encode_request(ApiKey.API_VERSIONS, version, fields), greeted)

    def received(self, connection: Connection, data: bytes) -> None:
        view = memoryview(data)
        while view and connection is self._connection:
            writable = self._frames.writable()
            length = min(len(writable), len(view))
            writable[:length] = view[:length]
            self._frames.received(length)
            view = view[length:]
            while connection is self._connection and (frame := self._frames.next_frame()) is not None:
                self._reply(frame)

    def closed(self, connection: Connection, reason: str) -> None:  # noqa: ARG002 - a lost connection is lost
        if connection is self._connection:
            self._connection = None
            self._end()

    def _reply(self, frame: memoryview) -> None:
        if not self._waiting:
            self._history.problem("reply nobody asked for", f"{self.name}: {len(frame)} bytes")
            self.drop()
            return
        waiting = self._waiting[0]
        try:
            correlation_id, position = parse_response_header(waiting.api_key, waiting.version, frame)
            if correlation_id == waiting.correlation_id:
                self._waiting.popleft()
                waiting.on_reply(frame, position)
                return
            problem = f"reply {correlation_id} came where {waiting.correlation_id} was awaited"
            self._history.problem("reply out of order", f"{self.name}: {problem}")
        except MalformedRequest as error:
            self._history.problem("malformed reply", f"{self.name}: api {waiting.api_key} version {waiting.version}: {error}")
        self.drop()

    def _end(self) -> None:
        self.is_ready = False
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.on_reply(None, 0)
        self._owner.lost()
        if not self._is_closed:
            self._scheduler.schedule(self._randomness.integer(*RECONNECT_US), f"{self.name} connects again", self.connect)


RECORDS_BYTES_MAX = 1 << 20


class FetchedBatch(NamedTuple):
    header: BatchHeader
    records: list[Record]

    def values(self) -> list[tuple[int, str]]:
        """Yield (offset, value without its filler) of each record."""
        return [(record.offset, (record.value or b"").partition(b" ")[0].decode()) for record in self.records]


def fetched_batches(data: memoryview | None) -> Iterator[FetchedBatch]:
    """Raises RecordError when there is something that is not a batch."""
    position = 0
    while data is not None and len(data) - position >= HEADER_SIZE:
        header = read_header(data, position)
        if len(data) - position < header.size:
            return
        if not crc_is_valid(data, position, header):
            raise RecordError(f"the batch at offset {header.base_offset} fails its checksum")
        records = read_records(data, position, header, size_max=RECORDS_BYTES_MAX, count_max=RECORDS_BYTES_MAX)
        yield FetchedBatch(header, list(records))
        position += header.size
