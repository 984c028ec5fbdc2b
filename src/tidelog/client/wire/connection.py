"""One connection to one broker: a request, its response, the next request.

It begins with ApiVersions, which says which version of each later request both sides have; the newest is used. Every request has
a deadline. After any failure the connection is closed, so that a late response is never taken for that of the next request.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.client.wire.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    InvalidAddress,
    InvalidAnswer,
    RequestTimedOut,
    SecurityRequired,
    UnsupportedByBroker,
    check_code,
)
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import DecodedMessage, Fields, decode_response, encode_request
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

DEFAULT_PORT = 9092
PORT_MAX = 65535

# The first and the last version that this client speaks. Brokers have had all of them since Kafka 3.0, which added
# ListTransactions, except for those about the quorum and about share groups (Kafka 4.2).
VERSIONS = {
    ApiKey.API_VERSIONS: (3, 3),
    # Up to version 11 the producer adds partitions to a transaction by a separate request; from 12 on the broker does it.
    ApiKey.PRODUCE: (9, 11),
    ApiKey.FETCH: (4, 17),
    ApiKey.LIST_OFFSETS: (2, 10),
    ApiKey.METADATA: (9, 13),
    ApiKey.FIND_COORDINATOR: (4, 6),
    ApiKey.INIT_PRODUCER_ID: (4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (3, 3),
    # Up to version 4 the producer keeps its epoch, so (id, epoch) names the transaction, and repeating the request is harmless.
    ApiKey.END_TXN: (3, 4),
    ApiKey.DESCRIBE_CONFIGS: (4, 4),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.ELECT_LEADERS: (1, 2),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.ADD_RAFT_VOTER: (0, 1),
    ApiKey.UPDATE_FEATURES: (1, 2),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (1, 1),
    ApiKey.LIST_GROUPS: (4, 5),
    ApiKey.DELETE_GROUPS: (2, 2),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1),
    ApiKey.SHARE_GROUP_DESCRIBE: (1, 1),
    # Version 2 renews locks and has a strict limit of records.
    ApiKey.SHARE_FETCH: (2, 2),
    ApiKey.SHARE_ACKNOWLEDGE: (2, 2),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, 0),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, 0),
}
# The largest frame that a broker accepts by default (socket.request.max.bytes).
ANSWER_BYTES_MAX = 100 << 20
CLIENT_NAME = "tidelog"

_SIZE = struct.Struct(">i")
# A TLS record of type alert, which is what a TLS listener answers to plaintext.
_TLS_ALERT = b"\x15\x03"
_MAY_REQUIRE_SECURITY = "it may require TLS or SASL, and these calls speak plaintext only"

Address = tuple[str, int]


def parse_addresses(bootstrap_servers: str) -> list[Address]:
    """The addresses of ``host:port,host:port``. As with librdkafka a listener's name may precede ``://``; one of a secure
    listener is refused."""
    found = [_parse_address(text.strip()) for text in bootstrap_servers.split(",") if text.strip()]
    if not found:
        raise InvalidAddress(f"{bootstrap_servers!r} names no broker: expected HOST:PORT")
    return found


def _parse_address(text: str) -> Address:
    protocol, _, rest = text.rpartition("://")
    check_protocol(protocol or "PLAINTEXT")
    host, separator, port = rest.rpartition(":")
    if not separator or rest.endswith("]"):
        host, port = rest, str(DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise InvalidAddress(f"{text}: {port} is not a port number")
    if not host.strip("[]"):
        raise InvalidAddress(f"{text}: expected HOST:PORT")
    return host.strip("[]"), int(port)


def check_protocol(name: str) -> None:
    if name.upper() != "PLAINTEXT":
        raise SecurityRequired(f"security.protocol {name}: these calls speak plaintext only")


class BrokerConnection:
    def __init__(self, host: str, port: int, client_id: str, connect_seconds_max: float, request_seconds_max: float) -> None:
        self.address = f"{host}:{port}"
        self._client_id = client_id
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._has_answered = False
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_seconds_max)
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be encoded.
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise BrokerUnreachable(f"no broker answers at {self.address}: {reason}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(request_seconds_max)
        except BaseException:
            self.close()
            raise

    def expect_answers(self) -> None:
        """The cluster has answered such requests before. So if the connection ends before its first answer, it was lost: this
        says nothing about security."""
        self._has_answered = True

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """The socket's descriptor, for a caller that waits for several connections; -1 once it is closed."""
        return self._socket.fileno()

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
        """``version_min`` is the first version that has all of ``fields``; a field that a version lacks is not sent."""
        version = self.version_of(api, version_min)
        try:
            frame = self._exchange(api, version, fields, seconds_max)
        except ConnectionLost as error:
            if self._has_answered:
                raise
            # A listener that requires SASL answers ApiVersions without it, and nothing else.
            raise SecurityRequired(f"{error}: {_MAY_REQUIRE_SECURITY}") from error
        self._has_answered = True
        return self._decode(api, version, frame)

    def _greet(self, seconds_max: float) -> None:
        api, version = ApiKey.API_VERSIONS, VERSIONS[ApiKey.API_VERSIONS][1]
        hello = {"client_software_name": CLIENT_NAME, "client_software_version": "1"}
        try:
            frame = self._exchange(api, version, hello, seconds_max)
        except ConnectionLost as error:
            raise SecurityRequired(f"{error}: {_MAY_REQUIRE_SECURITY}") from error
        # A broker that lacks this version answers in version 0, whose first field is the same.
        position = _SIZE.size
        code = int.from_bytes(frame[position : position + 2], "big", signed=True)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            raise UnsupportedByBroker(f"the broker at {self.address} is older than Kafka 2.4")
        answer = self._decode(api, version, frame)
        check_code(answer.error_code, f"the broker at {self.address} refused ApiVersions")
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def send(self, api: ApiKey, version: int, body: bytes, seconds_max: float) -> None:
        """Send a body that the caller has encoded. ``receive`` must follow before anything else is sent."""
        self._correlation_id += 1
        message = request_header(api, version, self._correlation_id, self._client_id) + body
        with self._closed_on_failure(api, seconds_max):
            self._socket.settimeout(seconds_max)
            self._socket.sendall(_SIZE.pack(len(message)) + message)

    def receive(self, api: ApiKey, version: int, seconds_max: float) -> tuple[memoryview, int]:
        """The response to what was sent: its frame, and where the body begins in it."""
        frame = self._receive_frame(api, time.monotonic() + seconds_max, seconds_max)
        return frame, self._body_position(api, version, frame)

    def receive_message(self, api: ApiKey, version: int, seconds_max: float) -> DecodedMessage:
        """The decoded response to what was sent."""
        frame = self._receive_frame(api, time.monotonic() + seconds_max, seconds_max)
        return self._decode(api, version, frame)

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
            raise self._invalid(api, error) from error

    def _body_position(self, api: ApiKey, version: int, frame: memoryview) -> int:
        try:
            correlation_id, position = parse_response_header(api, version, frame)
            if correlation_id != self._correlation_id:
                raise MalformedRequest(f"it is for request {correlation_id}, not {self._correlation_id}")
        except MalformedRequest as error:
            raise self._invalid(api, error) from error
        return position

    def _invalid(self, api: ApiKey, error: MalformedRequest) -> InvalidAnswer:
        self.close()
        return InvalidAnswer(f"{self.address} sent an invalid response to {api.name}: {error}")


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
