"""Requests to another node: replies find their requests, and every request ends once, whatever the network or the node does."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from simulation.clock import SimulatedClock
from simulation.network import SimulatedNetwork
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.broker.peer_channel import (
    ChannelState,
    PeerBusy,
    PeerChannel,
    PeerError,
    PeerOptions,
    PeerRequest,
    PeerTimedOut,
    PeerUnreachable,
    UnsupportedByPeer,
)
from tidelog.broker.timers import Timers
from tidelog.ports import system
from tidelog.ports.clock import RealClock
from tidelog.ports.network import Connection
from tidelog.ports.real_network import SocketNetwork
from tidelog.testing import Broker
from tidelog.wire.messages import decode_response, encode_request, encode_response
from tidelog.wire.primitives import INT32
from tidelog.wire.protocol import ApiKey, parse_request_header, response_header

PORT = 9093
OPTIONS = PeerOptions("tests", requests_max=5, connect_ms_max=500, backoff_ms_min=50, backoff_ms_max=400)
API_KEYS = ({"api_key": ApiKey.API_VERSIONS, "max_version": 4}, {"api_key": ApiKey.DESCRIBE_CLUSTER, "max_version": 1})


class Peer:
    """Another node: it answers ApiVersions, keeps every other request, and answers it when the test says so."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.requests: list[tuple[Connection, int, int]] = []
        self.greets = True
        self._unread: dict[Connection, bytes] = {}

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def received(self, connection: Connection, data: bytes) -> None:
        data = self._unread.pop(connection, b"") + data
        while len(data) >= INT32.size and len(data) >= (size := INT32.unpack_from(data)[0] + INT32.size):
            self._take(connection, memoryview(data)[INT32.size : size])
            data = data[size:]
        self._unread[connection] = data

    def closed(self, connection: Connection, reason: str) -> None:
        self.connections.remove(connection)

    def _take(self, connection: Connection, frame: memoryview) -> None:
        header = parse_request_header(frame)
        if header.api_key != ApiKey.API_VERSIONS:
            self.requests.append((connection, header.correlation_id, header.api_version))
        elif self.greets:
            body = encode_response(ApiKey.API_VERSIONS, header.api_version, {"error_code": 0, "api_keys": API_KEYS})
            self._send(connection, response_header(ApiKey.API_VERSIONS, header.api_version, header.correlation_id) + body)

    def answer(self, index: int = 0) -> None:
        connection, correlation_id, version = self.requests.pop(index)
        body = encode_response(ApiKey.DESCRIBE_CLUSTER, version, {"cluster_id": f"reply {correlation_id}", "brokers": ()})
        self._send(connection, response_header(ApiKey.DESCRIBE_CLUSTER, version, correlation_id) + body)

    def send_garbage(self) -> None:
        self._send(self.connections[0], INT32.pack(999_999))

    @staticmethod
    def _send(connection: Connection, frame: bytes) -> None:
        connection.send([INT32.pack(len(frame)), frame])


class Stage:
    """A channel to a peer over the simulated network. Every outcome of a request is noted under the request's name."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.network = SimulatedNetwork(self.scheduler, SimulatedRandomness(7))
        self.timers = Timers(SimulatedClock(self.scheduler))
        self.peer = Peer()
        self.listener = self.network.host("other").listen("other", PORT, self.peer)
        self.channel = PeerChannel(self.network.host("here"), self.timers, "other", PORT, OPTIONS)
        self.outcomes: dict[str, list[str | PeerError]] = {}

    def send(self, name: str, timeout_ms: int = 1_000, api_key: int = ApiKey.DESCRIBE_CLUSTER, low: int = 0) -> None:
        outcomes = self.outcomes.setdefault(name, [])

        def replied(version: int, body: memoryview) -> None:
            outcomes.append(f"version {version}: {decode_response(api_key, version, body).cluster_id}")

        encode = partial(encode_request, api_key, fields={})
        self.channel.send(PeerRequest(api_key, (low, 2), encode, replied, outcomes.append, timeout_ms))
        assert not outcomes, "a request must not end from within send"

    def run_until(self, condition: Callable[[], bool], duration_ms: int = 10_000) -> None:
        deadline_us = self.scheduler.now_us + duration_ms * 1000
        while not condition():
            self.timers.run_due()
            if condition():
                return
            assert self.scheduler.now_us < deadline_us, f"did not happen in time; outcomes: {self.outcomes}"
            # The clock moves by a millisecond even when nothing is scheduled.
            self.scheduler.schedule(1_000, "tick", lambda: None)
            self.scheduler.step()

    def run_for(self, duration_ms: int) -> None:
        end_us = self.scheduler.now_us + duration_ms * 1000
        self.run_until(lambda: self.scheduler.now_us >= end_us, duration_ms + 1000)

    def outcome(self, name: str) -> str | PeerError:
        self.run_until(lambda: bool(self.outcomes[name]))
        assert len(self.outcomes[name]) == 1
        return self.outcomes[name][0]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_replies_find_their_requests_in_the_newest_version_of_both(stage: Stage) -> None:
    stage.send("first")
    stage.send("second")
    stage.run_until(lambda: len(stage.peer.requests) == 2)
    stage.send("third")
    stage.run_until(lambda: len(stage.peer.requests) == 3)
    stage.peer.answer(1)
    stage.peer.answer(1)
    stage.peer.answer(0)
    # The correlation id of ApiVersions was 1.
    assert stage.outcome("first") == "version 1: reply 2"
    assert stage.outcome("second") == "version 1: reply 3"
    assert stage.outcome("third") == "version 1: reply 4"
    assert len(stage.peer.connections) == 1
    assert stage.channel.pending_count == 0
    # No timer is left: the next deadline would wake the node for nothing.
    assert len(stage.timers) == 0


def test_an_api_or_a_version_that_the_peer_lacks_is_named_and_the_connection_stays(stage: Stage) -> None:
    stage.send("api", api_key=ApiKey.DESCRIBE_QUORUM)
    stage.send("version", low=2)
    stage.send("good")
    api, version = stage.outcome("api"), stage.outcome("version")
    assert isinstance(api, UnsupportedByPeer)
    assert str(api) == "other:9093: DESCRIBE_QUORUM is not served, this node needs 0 to 2"
    assert isinstance(version, UnsupportedByPeer)
    assert "is served in versions 0 to 1, this node needs 2 to 2" in str(version)
    stage.run_until(lambda: len(stage.peer.requests) == 1)
    stage.peer.answer()
    assert isinstance(stage.outcome("good"), str)


def test_a_refused_connection_is_told_apart_and_retried_after_a_growing_pause(stage: Stage) -> None:
    stage.listener.close()
    stage.send("first")
    first = stage.outcome("first")
    assert isinstance(first, PeerUnreachable)
    assert first.is_refused
    assert stage.channel.state is ChannelState.BACKING_OFF
    pauses_ms = []
    for attempt in range(5):
        # During the pause nothing is tried, and the reason is the last one.
        stage.send(f"during pause {attempt}")
        began_us = stage.scheduler.now_us
        assert stage.outcome(f"during pause {attempt}") is first
        stage.run_until(lambda: stage.channel.state is ChannelState.IDLE)
        pauses_ms.append((stage.scheduler.now_us - began_us) // 1000)
        stage.send(f"again {attempt}")
        again = stage.outcome(f"again {attempt}")
        assert isinstance(again, PeerUnreachable)
        first = again
    assert pauses_ms == sorted(pauses_ms)
    assert pauses_ms[-1] <= 2 * OPTIONS.backoff_ms_max
    stage.network.host("other").listen("other", PORT, stage.peer)
    stage.run_until(lambda: stage.channel.state is ChannelState.IDLE)
    stage.send("back")
    stage.run_until(lambda: bool(stage.peer.requests))
    stage.peer.answer()
    assert isinstance(stage.outcome("back"), str)


def test_a_request_without_a_reply_ends_the_connection_and_what_waited_behind_it(stage: Stage) -> None:
    stage.send("patient", timeout_ms=5_000)
    stage.send("hasty", timeout_ms=100)
    hasty, patient = stage.outcome("hasty"), stage.outcome("patient")
    assert isinstance(hasty, PeerTimedOut)
    assert isinstance(patient, PeerUnreachable)
    assert not patient.is_refused
    stage.run_until(lambda: not stage.peer.connections)
    # A reply that comes too late reaches nobody.
    stage.peer.answer()
    stage.run_for(200)
    assert [len(outcomes) for outcomes in stage.outcomes.values()] == [1, 1]


def test_a_peer_that_never_answers_costs_a_bounded_number_of_requests(stage: Stage) -> None:
    stage.network.partition("here", "other")
    for number in range(OPTIONS.requests_max + 3):
        stage.send(f"request {number}", timeout_ms=50 if number == 1 else 10_000)
    for number in range(OPTIONS.requests_max, OPTIONS.requests_max + 3):
        assert isinstance(stage.outcome(f"request {number}"), PeerBusy)
    # The deadline of a request holds while the connection is being made, and ends only that request.
    assert isinstance(stage.outcome("request 1"), PeerTimedOut)
    assert stage.outcomes["request 0"] == []
    connecting = stage.outcome("request 0")
    assert isinstance(connecting, PeerUnreachable)
    assert "did not accept a connection within 500 ms" in str(connecting)
    stage.run_for(1_000)
    assert all(len(outcomes) == 1 for outcomes in stage.outcomes.values())
    assert stage.channel.pending_count == 0


def test_a_peer_that_connects_but_says_nothing_is_given_up_in_time(stage: Stage) -> None:
    stage.peer.greets = False
    stage.send("request", timeout_ms=10_000)
    assert isinstance(stage.outcome("request"), PeerUnreachable)


def test_a_reply_that_is_none_ends_the_connection(stage: Stage) -> None:
    stage.send("request")
    stage.run_until(lambda: bool(stage.peer.requests))
    stage.peer.send_garbage()
    outcome = stage.outcome("request")
    assert isinstance(outcome, PeerUnreachable)
    assert "not a reply" in str(outcome)


def test_a_cut_a_move_and_a_close_end_every_request_once(stage: Stage) -> None:
    stage.send("cut", timeout_ms=5_000)
    stage.run_until(lambda: bool(stage.peer.requests))
    stage.network.cut("here", "other")
    assert isinstance(stage.outcome("cut"), PeerUnreachable)
    stage.run_until(lambda: stage.channel.state is ChannelState.IDLE)
    stage.send("moved")
    stage.run_until(lambda: len(stage.peer.requests) == 2)
    elsewhere = Peer()
    stage.network.host("elsewhere").listen("elsewhere", PORT + 1, elsewhere)
    stage.channel.move_to("elsewhere", PORT + 1)
    assert isinstance(stage.outcome("moved"), PeerUnreachable)
    stage.send("closed")
    stage.run_until(lambda: bool(elsewhere.requests))
    stage.channel.close()
    stage.send("too late")
    assert isinstance(stage.outcome("closed"), PeerUnreachable)
    assert isinstance(stage.outcome("too late"), PeerUnreachable)
    stage.run_for(2_000)
    assert all(len(outcomes) == 1 for outcomes in stage.outcomes.values())
    assert elsewhere.connections == []


def test_on_sockets_a_broker_answers_and_its_death_is_noticed_at_once() -> None:
    outcomes: list[object] = []

    async def scenario(broker: Broker) -> None:
        network, timers = SocketNetwork(asyncio.get_running_loop()), Timers(RealClock())
        host, port = broker.bootstrap_servers.split(":")
        channel = PeerChannel(network, timers, host, int(port), PeerOptions("tests"))

        async def reach(condition: Callable[[], bool]) -> None:
            while not condition():
                timers.run_due()
                await asyncio.sleep(0.001)

        def send() -> None:
            def replied(version: int, body: memoryview) -> None:
                outcomes.append(decode_response(ApiKey.DESCRIBE_CLUSTER, version, body).cluster_id)

            encode = partial(encode_request, ApiKey.DESCRIBE_CLUSTER, fields={})
            channel.send(PeerRequest(ApiKey.DESCRIBE_CLUSTER, (0, 2), encode, replied, outcomes.append, 30_000))

        send()
        await reach(lambda: len(outcomes) == 1)
        assert isinstance(outcomes[0], str)
        broker.kill()
        await reach(lambda: channel.state is not ChannelState.READY)
        await reach(lambda: channel.state is ChannelState.IDLE)
        send()
        await reach(lambda: len(outcomes) == 2)
        refused = outcomes[1]
        assert isinstance(refused, PeerUnreachable)
        assert refused.is_refused
        channel.close()
        network.close()

    with Broker() as broker, asyncio.Runner(loop_factory=system.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(broker), 60))
