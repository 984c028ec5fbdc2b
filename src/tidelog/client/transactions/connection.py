"""One connection to one broker: a request, its answer, the next request.

It begins with ApiVersions, by which each later request gets the newest version that both sides have. A request has a deadline,
and after any failure in between the connection is closed: a late answer must not be taken for that of the next request.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.client.transactions.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    InvalidAnswer,
    RequestTimedOut,
    SecurityRequired,
    UnsupportedByBroker,
)
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import DecodedMessage, Fields, decode_response, encode_request
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

# First and last version that this client speaks. All are there since Kafka 3.0, which brought ListTransactions.
VERSIONS = {
    ApiKey.API_VERSIONS: (3, 3),
    # Up to 11 partitions are added to a transaction by a request of its own, from 12 on by the broker.
    ApiKey.PRODUCE: (9, 11),
    ApiKey.FETCH: (4, 17),
    ApiKey.LIST_OFFSETS: (2, 10),
    ApiKey.METADATA: (9, 13),
    ApiKey.FIND_COORDINATOR: (4, 6),
    ApiKey.INIT_PRODUCER_ID: (4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (3, 3),
    # Up to 4 the producer keeps its epoch, so that (id, epoch) says which transaction was ended, and asking again is harmless.
    ApiKey.END_TXN: (3, 4),
    ApiKey.DESCRIBE_CONFIGS: (4, 4),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
}
# As large as a broker's own frames may be by default (socket.request.max.bytes).
ANSWER_BYTES_MAX = 100 << 20
CLIENT_NAME = "tidelog"

_SIZE = struct.Struct(">i")
# A TLS record of type alert: what a TLS listener says to a greeting in plaintext.
_TLS_ALERT = b"\x15\x03"
_WANTS_SECURITY = "it may want TLS or SASL, and these calls speak plaintext only"


class Connection:
    def __init__(self, host: str, port: int, client_id: str, connect_seconds_max: float, request_seconds_max: float) -> None:
        self.address = f"{host}:{port}"
        self._client_id = client_id
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._has_answered = False
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_seconds_max)
        except (OSError, UnicodeError) as error:  # A host name that cannot be encoded is the latter.
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise BrokerUnreachable(f"no broker answers at {self.address}: {reason}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(request_seconds_max)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def version_of(self, api: ApiKey, version_min: int = 0) -> int:
        first, last = VERSIONS[api]
        first = max(first, version_min)
        theirs = self._versions.get(api)
        if theirs is None:
            raise UnsupportedByBroker(f"the broker at {self.address} does not have {api.name}")
        if max(first, theirs[0]) > min(last, theirs[1]):
            raise UnsupportedByBroker(
                f"the broker at {self.address} has {api.name} v{theirs[0]} to v{theirs[1]}, and this takes v{first} to v{last}"
            )
        return min(last, theirs[1])

    def request(self, api: ApiKey, fields: Fields, seconds_max: float, version_min: int = 0) -> DecodedMessage:
        """``version_min``: the first one that has all of ``fields``; a field that a version lacks is not sent."""
        version = self.version_of(api, version_min)
        try:
            frame = self._exchange(api, version, fields, seconds_max)
        except ConnectionLost as error:
            if self._has_answered:
                raise
            # Whoever wants SASL answers ApiVersions without it, and nothing else.
            raise SecurityRequired(f"{error}: {_WANTS_SECURITY}") from error
        self._has_answered = True
        return self._decode(api, version, frame)

    def _greet(self, seconds_max: float) -> None:
        api, version = ApiKey.API_VERSIONS, VERSIONS[ApiKey.API_VERSIONS][1]
        hello = {"client_software_name": CLIENT_NAME, "client_software_version": "1"}
        try:
            frame = self._exchange(api, version, hello, seconds_max)
        except ConnectionLost as error:
            raise SecurityRequired(f"{error}: {_WANTS_SECURITY}") from error
        # A broker that does not have the version answers in version 0, whose first field is the same.
        position = _SIZE.size
        code = int.from_bytes(frame[position : position + 2], "big", signed=True)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            raise UnsupportedByBroker(f"the broker at {self.address} is older than Kafka 2.4")
        answer = self._decode(api, version, frame)
        if answer.error_code:
            raise BrokerError(answer.error_code, f"the broker at {self.address} refused ApiVersions")
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def send(self, api: ApiKey, version: int, body: bytes, seconds_max: float) -> None:
        """For codecs of their own; ``receive`` must come before anything else is sent."""
        self._correlation_id += 1
        message = request_header(api, version, self._correlation_id, self._client_id) + body
        with self._closed_on_failure(api, seconds_max):
            self._socket.settimeout(seconds_max)
            self._socket.sendall(_SIZE.pack(len(message)) + message)

    def receive(self, api: ApiKey, version: int, seconds_max: float) -> tuple[memoryview, int]:
        """The answer to what was sent: its frame, and where the body begins in it."""
        frame = self._receive_frame(api, time.monotonic() + seconds_max, seconds_max)
        return frame, self._body_position(api, version, frame)

    def _exchange(self, api: ApiKey, version: int, fields: Fields, seconds_max: float) -> memoryview:
        deadline = time.monotonic() + seconds_max
        self.send(api, version, encode_request(api, version, fields), seconds_max)
        return self._receive_frame(api, deadline, seconds_max)

    def _receive_frame(self, api: ApiKey, deadline: float, seconds_max: float) -> memoryview:
        with self._closed_on_failure(api, seconds_max):
            size = self._receive(_SIZE.size, deadline)
            return self._receive(self._checked(size), deadline)

    @contextmanager
    def _closed_on_failure(self, api: ApiKey, seconds_max: float) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise RequestTimedOut(f"{self.address} did not answer {api.name} within {seconds_max:g} s") from error
        except OSError as error:
            self.close()
            raise ConnectionLost(
                f"the connection to {self.address} was lost: {(error.strerror or str(error)).lower()}"
            ) from error
        except ClientError:
            self.close()
            raise

    def _receive(self, size: int, deadline: float) -> memoryview:
        view = memoryview(bytearray(size))
        position = 0
        while position < size:
            self._socket.settimeout(_left(deadline))
            count = self._socket.recv_into(view[position:])
            if not count:
                raise ConnectionLost(f"{self.address} ended the connection")
            position += count
        return view

    def _checked(self, size_field: memoryview) -> int:
        if size_field[:2] == _TLS_ALERT:
            raise SecurityRequired(f"{self.address} speaks TLS, and these calls speak plaintext only")
        (size,) = _SIZE.unpack(size_field)
        if not _SIZE.size <= size <= ANSWER_BYTES_MAX:
            raise InvalidAnswer(f"{self.address} answered with a frame of {size} bytes: is it a Kafka broker?")
        return int(size)

    def _decode(self, api: ApiKey, version: int, frame: memoryview) -> DecodedMessage:
        position = self._body_position(api, version, frame)
        try:
            return decode_response(api, version, frame, position)
        except MalformedRequest as error:
            raise self._nonsense(api, error) from error

    def _body_position(self, api: ApiKey, version: int, frame: memoryview) -> int:
        try:
            correlation_id, position = parse_response_header(api, version, frame)
            if correlation_id != self._correlation_id:
                raise MalformedRequest(f"it is for request {correlation_id}, not {self._correlation_id}")
        except MalformedRequest as error:
            raise self._nonsense(api, error) from error
        return position

    def _nonsense(self, api: ApiKey, error: MalformedRequest) -> InvalidAnswer:
        self.close()
        return InvalidAnswer(f"{self.address} answered {api.name} with what makes no sense: {error}")


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
