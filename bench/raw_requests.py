"""What one request costs the broker, with raw frames on one connection: no client library decides how many are in flight.

``broker-fetches`` reads one batch of one small message again and again, from the page cache. ``group-heartbeats`` sends the
heartbeats of the only member of a stable classic group. As many requests are in flight as a busy client has, so the system calls
are shared as they are in ``broker-requests``. Processor time is the broker's own.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any

from bench.beside.raw_clients import RawConnection, fetch_frame, framed, produce_frame
from bench.broker_process import WAIT_SECONDS_MAX, cpu_seconds, create_topic
from bench.measure import Figure, Row
from bench.workspace import Workspace
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey, parse_response_header

TOPIC = "bench"
GROUP = "bench"
VALUE = b"x" * 100
ROUNDS = 3
REQUESTS = 40_000
IN_FLIGHT = 40

# The last version in which a member joins with one request.
JOIN_VERSION = 3
FIND_VERSION = 3
SYNC_VERSION = 3
HEARTBEAT_VERSION = 4
# What a client retries until the coordinator has created and loaded its topic.
RETRIED = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


def fetches(workspace: Workspace) -> list[Row]:
    def prepare(connection: RawConnection) -> bytes:
        connection.send(produce_frame(TOPIC, VALUE))
        connection.receive()
        frame = fetch_frame(TOPIC, 0)
        connection.send(frame)
        if VALUE not in connection.receive():
            raise RuntimeError("the fetch was not answered with the message")
        return frame

    return [_measure(workspace, "broker: processor time of a fetch of one small batch", prepare)]


def heartbeats(workspace: Workspace) -> list[Row]:
    return [_measure(workspace, "groups: processor time of a heartbeat", _join)]


def _measure(workspace: Workspace, what: str, prepare: Callable[[RawConnection], bytes]) -> Row:
    """``prepare`` returns the frame that is sent over and over."""
    turns = max(1, workspace.scaled(REQUESTS) // IN_FLIGHT)
    microseconds = []
    with workspace.directory("requests") as path, Broker(persist=path) as broker:
        create_topic(broker, TOPIC)
        connection = RawConnection(broker.bootstrap_servers)
        frames = prepare(connection) * IN_FLIGHT
        for _ in range(workspace.rounds(ROUNDS)):
            began = cpu_seconds(broker)
            for _ in range(turns):
                connection.send(frames)
                for _ in range(IN_FLIGHT):
                    connection.receive()
            microseconds.append((cpu_seconds(broker) - began) / (turns * IN_FLIGHT) * 1e6)
        connection.close()
        broker.kill()
    return Row(what, Figure.of(microseconds), "us")


def _join(connection: RawConnection) -> bytes:
    _call(connection, ApiKey.FIND_COORDINATOR, FIND_VERSION, key=GROUP, key_type=0)
    joined = _call(
        connection,
        ApiKey.JOIN_GROUP,
        JOIN_VERSION,
        group_id=GROUP,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    member = {"group_id": GROUP, "generation_id": joined.generation_id, "member_id": joined.member_id}
    _call(connection, ApiKey.SYNC_GROUP, SYNC_VERSION, **member, assignments=())
    _call(connection, ApiKey.HEARTBEAT, HEARTBEAT_VERSION, **member)
    return framed(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, encode_request(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, member))


def _call(connection: RawConnection, api: ApiKey, version: int, **fields: Any) -> DecodedMessage:
    """The response must not be an error: what is measured must be what is meant."""
    frame = framed(api, version, encode_request(api, version, fields))
    deadline = monotonic() + WAIT_SECONDS_MAX
    while True:
        connection.send(frame)
        answer = memoryview(connection.receive())
        _, position = parse_response_header(api, version, answer)
        response = decode_response(api, version, answer, position)
        if not response.error_code:
            return response
        if response.error_code not in RETRIED or monotonic() > deadline:
            raise RuntimeError(f"{api.name} was answered with error {response.error_code}")
