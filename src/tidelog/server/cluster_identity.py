"""To which cluster a node belongs, found before anything is opened.

The data directory says so, if it was ever used or formatted. Otherwise:

- A node that is told of no quorum is a cluster by itself, and makes an id.
- A node that joins a quorum asks it (DescribeCluster, on the controllers' listener), and waits until somebody answers. It never
  makes an id, because two nodes would make two.
- A voter of ``controller.quorum.voters`` is refused. The others count on the votes that it gave, and an empty directory has
  forgotten them: that it is meant to be empty is for the operator to say, by formatting it.
"""

import socket
import struct
from collections.abc import Callable, Mapping, Sequence

from tidelog.config.cluster import NODE_ID, bootstrap_servers_of, names_a_quorum, quorum_voters_of
from tidelog.config.listeners import ListenerAddress
from tidelog.config.types import Value
from tidelog.log.errors import DirectoryUnusable
from tidelog.log.recovery.formatting import random_id, read_format
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.ports.randomness import Randomness
from tidelog.server.event_log import ReportEvent
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

REPORT_INTERVAL_MS = 5_000
PAUSE_SECONDS = 0.5
ANSWER_SECONDS_MAX = 2.0
# The answer names the controllers: a handful.
ANSWER_BYTES_MAX = 1 << 20
# The first version in which one asks controllers for controllers.
DESCRIBE_VERSION = 1
CONTROLLERS = 2
_SIZE = struct.Struct(">i")

# Waits for so many seconds, and returns whether the node was told to stop meanwhile.
Wait = Callable[[float], bool]
Ask = Callable[[Sequence[ListenerAddress]], str]


class StoppedWhileWaiting(Exception):
    """The node was told to stop before anybody had told it its cluster's id."""


def find_cluster_id(disk: Disk, randomness: Randomness, data_path: str, values: Mapping[str, Value], ask: Ask) -> str:
    """The id in the directory, else the one that the quorum tells, else a new one. Raises DirectoryUnusable for the empty
    directory of a voter."""
    found = read_format(disk, data_path)
    if found is not None:
        return found.cluster_id
    if not names_a_quorum(values):
        return random_id(randomness)
    voters = quorum_voters_of(values)
    if any(voter.node_id == values[NODE_ID] for voter in voters):
        raise DirectoryUnusable(
            f"{data_path} is empty, and this node is one of the quorum's voters: if it is new, give it the cluster's id with "
            f"tidelog storage format --cluster-id ID --node-id {values[NODE_ID]}; if it lost its disk, see docs/OPERATIONS.md"
        )
    return ask(bootstrap_servers_of(values) or [voter.address for voter in voters])


def ask_quorum(servers: Sequence[ListenerAddress], report: ReportEvent, clock: Clock, wait: Wait) -> str:
    """Ask the servers in turn until one knows the cluster's id, and say every five seconds who cannot be reached."""
    next_report_ms = clock.monotonic_ms() + REPORT_INTERVAL_MS
    while True:
        problems = {}
        for server in servers:
            try:
                return describe_cluster(server)
            except (OSError, MalformedRequest) as error:
                problems[str(server)] = str(getattr(error, "strerror", None) or error).lower()
        if clock.monotonic_ms() >= next_report_ms:
            next_report_ms += REPORT_INTERVAL_MS
            missing = ", ".join(f"{server} ({problem})" for server, problem in problems.items())
            report("waiting_for_the_cluster_id", {"cannot_reach": missing})
        if wait(PAUSE_SECONDS):
            raise StoppedWhileWaiting


def describe_cluster(server: ListenerAddress) -> str:
    """The cluster's id, as one controller knows it. Raises OSError or MalformedRequest if it does not answer as it should."""
    body = encode_request(ApiKey.DESCRIBE_CLUSTER, DESCRIBE_VERSION, {"endpoint_type": CONTROLLERS})
    request = request_header(ApiKey.DESCRIBE_CLUSTER, DESCRIBE_VERSION, 0, "tidelog") + body
    with socket.create_connection((server.host, server.port), timeout=ANSWER_SECONDS_MAX) as connection:
        connection.sendall(_SIZE.pack(len(request)) + request)
        (size,) = _SIZE.unpack(_receive(connection, _SIZE.size))
        if not _SIZE.size <= size <= ANSWER_BYTES_MAX:
            raise MalformedRequest(f"an answer of {size} bytes")
        frame = memoryview(_receive(connection, size))
    _, position = parse_response_header(ApiKey.DESCRIBE_CLUSTER, DESCRIBE_VERSION, frame)
    answer = decode_response(ApiKey.DESCRIBE_CLUSTER, DESCRIBE_VERSION, frame, position)
    if answer.error_code != ErrorCode.NONE:
        raise MalformedRequest(answer.error_message or f"error code {answer.error_code}")
    return str(answer.cluster_id)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the connection was closed before the answer")
        data += more
    return data
