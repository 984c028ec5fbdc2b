"""The proxy between the nodes of a test cluster: what passes, what waits behind a cut, and what is refused."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tidelog.ports.network import CONNECTION_REFUSED, Connection
from tidelog.ports.real_network import SocketNetwork
from tidelog.testing.environment import HOST, reserve_port
from tidelog.testing.links import LinkedNetwork, Links

# Long enough for a byte that may pass to arrive, short enough to wait for one that must not.
SILENCE_SECONDS = 0.1
SECONDS_MAX = 10.0


class Far:
    """Node 2: it accepts connections of others."""

    def __init__(self) -> None:
        self._server = socket.create_server((HOST, 0))
        self._server.settimeout(SECONDS_MAX)
        self.port: int = self._server.getsockname()[1]

    def accept(self) -> socket.socket:
        accepted, _ = self._server.accept()
        accepted.settimeout(SECONDS_MAX)
        return accepted

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def far() -> Iterator[Far]:
    far = Far()
    yield far
    far.close()


@pytest.fixture
def links(far: Far) -> Iterator[Links]:
    links = Links({far.port: 2})
    yield links
    links.close()


def dial(links: Links, port: int) -> socket.socket:
    """Node 1 asks for a connection."""
    near = socket.create_connection((HOST, links.port), timeout=SECONDS_MAX)
    near.sendall(json.dumps({"from": 1, "port": port}).encode() + b"\n")
    return near


def joined(links: Links, far: Far) -> tuple[socket.socket, socket.socket]:
    near = dial(links, far.port)
    accepted = far.accept()
    assert near.recv(1) == b"+"
    return near, accepted


def is_silent(end: socket.socket) -> bool:
    end.settimeout(SILENCE_SECONDS)
    try:
        return end.recv(1) is None
    except TimeoutError:
        return True
    finally:
        end.settimeout(SECONDS_MAX)


def test_bytes_pass_both_ways_and_so_does_the_end(links: Links, far: Far) -> None:
    near, accepted = joined(links, far)
    with near, accepted:
        near.sendall(b"question")
        assert accepted.recv(100) == b"question"
        accepted.sendall(b"answer")
        assert near.recv(100) == b"answer"
        accepted.close()
        assert near.recv(1) == b""


def test_a_port_where_nobody_listens_is_refused(links: Links, far: Far) -> None:
    far.close()
    with dial(links, far.port) as near:
        assert near.recv(1) == b"-"
        assert near.recv(1) == b""


@pytest.mark.parametrize("direction", [(1, 2), (2, 1)])
def test_no_connection_is_opened_across_a_cut_in_either_direction(links: Links, far: Far, direction: tuple[int, int]) -> None:
    links.cut(*direction)
    with dial(links, far.port) as near:
        assert is_silent(near)
        links.heal()
        with far.accept():
            assert near.recv(1) == b"+"


def test_a_cut_holds_one_direction_up_and_the_other_goes_on(links: Links, far: Far) -> None:
    near, accepted = joined(links, far)
    with near, accepted:
        links.cut(1, 2)
        near.sendall(b"held")
        accepted.sendall(b"passes")
        assert near.recv(100) == b"passes"
        assert is_silent(accepted)
        links.heal()
        assert accepted.recv(100) == b"held"


def test_nobody_learns_of_an_end_across_a_cut(links: Links, far: Far) -> None:
    near, accepted = joined(links, far)
    with near, accepted:
        links.cut(2, 1)
        accepted.close()
        assert is_silent(near)
        links.heal()
        assert near.recv(1) == b""


def test_other_nodes_are_not_concerned(links: Links, far: Far) -> None:
    near, accepted = joined(links, far)
    with near, accepted:
        links.cut(3, 2)
        links.cut(2, 3)
        near.sendall(b"passes")
        assert accepted.recv(100) == b"passes"


def test_nothing_is_left_when_it_is_closed(far: Far) -> None:
    before = threading.active_count()
    links = Links({far.port: 2})
    near, accepted = joined(links, far)
    with near, accepted:
        links.close()
        assert near.recv(1) == b""
        assert accepted.recv(1) == b""
    links.close()
    assert threading.active_count() == before


class Recorder:
    """An endpoint that writes down what happens, and echoes nothing."""

    def __init__(self, is_enough: Callable[[list[str]], bool]) -> None:
        self.happened: list[str] = []
        self._is_enough = is_enough
        self.done = asyncio.Event()

    def opened(self, connection: Connection) -> None:
        self._note("opened")

    def received(self, connection: Connection, data: bytes) -> None:
        self._note(f"received {data.decode()}")

    def closed(self, connection: Connection, reason: str) -> None:
        self._note(f"closed: {reason}")

    def _note(self, event: str) -> None:
        self.happened.append(event)
        if self._is_enough(self.happened):
            self.done.set()


def test_a_node_dials_through_the_proxy_without_noticing(links: Links, far: Far) -> None:
    async def run() -> list[str]:
        network = SocketNetwork(asyncio.get_running_loop())
        recorder = Recorder(lambda happened: happened[-1].startswith("closed"))
        connection = LinkedNetwork(network, 1, links.port).connect(HOST, far.port, recorder)
        assert connection.peer == f"{HOST}:{far.port}"
        # What is sent before the connection is open waits.
        connection.send([b"early"])
        accepted = await asyncio.to_thread(far.accept)
        with accepted:
            assert await asyncio.to_thread(accepted.recv, 100) == b"early"
            assert connection.unsent_bytes() == 0
            accepted.sendall(b"answer")
            while "received answer" not in recorder.happened:
                await asyncio.sleep(0.001)
        await asyncio.wait_for(recorder.done.wait(), SECONDS_MAX)
        network.close()
        return recorder.happened

    assert asyncio.run(run()) == ["opened", "received answer", "closed: closed by the peer"]


def test_a_node_is_refused_as_without_the_proxy() -> None:
    with reserve_port() as reserved:
        port = reserved.getsockname()[1]
        links = Links({port: 2})

        async def run() -> list[str]:
            network = SocketNetwork(asyncio.get_running_loop())
            recorder = Recorder(bool)
            LinkedNetwork(network, 1, links.port).connect(HOST, port, recorder)
            await asyncio.wait_for(recorder.done.wait(), SECONDS_MAX)
            network.close()
            return recorder.happened

        assert asyncio.run(run()) == [f"closed: {CONNECTION_REFUSED}"]
        links.close()
