"""What every network does: the same tests on sockets (asyncio and uvloop) and on the simulated one."""

import asyncio
import errno
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
import uvloop

from simulation.network import SimulatedNetwork
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.ports.network import CONNECTION_REFUSED, Connection, Network
from tidelog.ports.real_network import SocketNetwork

DEADLINE_SECONDS = 30
RunUntil = Callable[[Callable[[], bool]], None]


class Recorder:
    """An endpoint that keeps what happened to it. ``in_call`` is set around calls in which nothing may happen to it."""

    everyone: ClassVar[list["Recorder"]] = []

    def __init__(self) -> None:
        self.everyone.append(self)
        self.opened_connections: list[Connection] = []
        self.data = bytearray()
        self.ends: list[str] = []
        self.in_call = False

    def opened(self, connection: Connection) -> None:
        assert not self.in_call
        self.opened_connections.append(connection)

    def received(self, connection: Connection, data: bytes) -> None:
        assert not self.in_call
        assert data
        assert connection in self.opened_connections
        self.data += data

    def closed(self, connection: Connection, reason: str) -> None:
        assert not self.in_call
        self.ends.append(reason)


def close_all() -> None:
    """A socket left open is a warning, and a warning an error."""
    for recorder in Recorder.everyone:
        for connection in recorder.opened_connections:
            connection.close()
    Recorder.everyone.clear()


class Net:
    """A client's and a server's network, and a way to let them work until something holds."""

    def __init__(self, client: Network, server: Network, run_until: RunUntil) -> None:
        self.client = client
        self.server = server
        self.run_until = run_until

    def pair(self) -> tuple[Recorder, Connection, Recorder, Connection]:
        """A connection: the client's endpoint and end, the server's endpoint and end."""
        server, client = Recorder(), Recorder()
        listener = self.server.listen("127.0.0.1", 0, server)
        connection = self.client.connect(*listener.address, client)
        self.run_until(lambda: bool(client.opened_connections and server.opened_connections))
        listener.close()
        assert client.opened_connections == [connection]
        return client, connection, server, server.opened_connections[0]


@pytest.fixture(params=["asyncio", "uvloop", "simulated"])
def net(request: pytest.FixtureRequest) -> Iterator[Net]:
    if request.param == "simulated":
        scheduler = Scheduler()
        network = SimulatedNetwork(scheduler, SimulatedRandomness(1))
        yield Net(network.host("client"), network.host("server"), scheduler.run_until)
        return
    loop: asyncio.AbstractEventLoop = asyncio.new_event_loop() if request.param == "asyncio" else uvloop.new_event_loop()
    sockets = SocketNetwork(loop)
    # Without this an exception in an event is only logged.
    errors: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))

    async def reach(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    yield Net(sockets, sockets, lambda condition: loop.run_until_complete(asyncio.wait_for(reach(condition), DEADLINE_SECONDS)))
    close_all()
    sockets.close()
    loop.close()
    assert errors == []


def test_bytes_arrive_in_order_both_ways(net: Net) -> None:
    client, connection, server, accepted = net.pair()
    connection.send([b"one ", bytearray(b"two "), b"", memoryview(b"three")])
    accepted.send([b"four"])
    accepted.send([b" five"])
    net.run_until(lambda: len(server.data) == 13 and len(client.data) == 9)
    assert server.data == b"one two three"
    assert client.data == b"four five"
    assert connection.unsent_bytes() == accepted.unsent_bytes() == 0
    assert connection.peer.rpartition(":")[2].isdigit()
    assert accepted.peer.rpartition(":")[2].isdigit()


def test_bytes_sent_before_the_connection_is_open_arrive(net: Net) -> None:
    server, client = Recorder(), Recorder()
    listener = net.server.listen("127.0.0.1", 0, server)
    connection = net.client.connect(*listener.address, client)
    client.in_call = server.in_call = True
    connection.send([b"early"])
    client.in_call = server.in_call = False
    assert connection.unsent_bytes() == 5
    net.run_until(lambda: bytes(server.data) == b"early")
    connection.close()
    listener.close()


def test_a_large_message_of_many_buffers(net: Net) -> None:
    _, connection, server, _ = net.pair()
    # Many small ones, more than one call takes, then some that are larger than a socket's buffer.
    buffers = [number.to_bytes(4, "big") * 10 for number in range(2_000)]
    buffers += [number.to_bytes(4, "big") * 300_000 for number in range(12)]
    connection.send(buffers)
    connection.send([b"the end"])
    expected = b"".join(buffers) + b"the end"
    net.run_until(lambda: len(server.data) >= len(expected))
    assert server.data == expected
    assert connection.unsent_bytes() == 0
    connection.close()


def test_unsent_bytes_grow_while_the_other_side_does_not_read(net: Net) -> None:
    _, connection, _, _ = net.pair()
    for _ in range(64):
        connection.send([bytes(1 << 20)])
    assert connection.unsent_bytes() > 32 << 20
    connection.close()
    assert connection.unsent_bytes() == 0


def test_closing_tells_only_the_other_side(net: Net) -> None:
    client, connection, server, _ = net.pair()
    connection.close()
    connection.close()
    connection.send([b"too late"])
    net.run_until(lambda: bool(server.ends))
    assert server.ends == ["closed by the peer"]
    assert client.ends == []
    assert connection.unsent_bytes() == 0


def test_the_server_may_close_first(net: Net) -> None:
    client, _, server, accepted = net.pair()
    accepted.close()
    net.run_until(lambda: bool(client.ends))
    assert server.ends == []


def test_a_refused_connection_ends_later(net: Net) -> None:
    listener = net.server.listen("127.0.0.1", 0, Recorder())
    host, port = listener.address
    listener.close()
    listener.close()
    client = Recorder()
    client.in_call = True
    net.client.connect(host, port, client)
    client.in_call = False
    net.run_until(lambda: bool(client.ends))
    assert client.ends == [CONNECTION_REFUSED]
    assert client.opened_connections == []


def test_a_connection_closed_before_it_opens_is_never_heard_of(net: Net) -> None:
    server, client, second = Recorder(), Recorder(), Recorder()
    listener = net.server.listen("127.0.0.1", 0, server)
    net.client.connect(*listener.address, client).close()
    other = net.client.connect(*listener.address, second)
    net.run_until(lambda: bool(second.opened_connections))
    assert client.opened_connections == []
    assert client.ends == []
    other.close()
    listener.close()


def test_an_address_in_use_is_refused(net: Net) -> None:
    listener = net.server.listen("127.0.0.1", 0, Recorder())
    with pytest.raises(OSError, match="in use") as caught:
        net.server.listen("127.0.0.1", listener.address[1], Recorder())
    assert caught.value.errno == errno.EADDRINUSE
    listener.close()


def test_an_endpoint_may_close_from_within_its_calls(net: Net) -> None:
    class Closing(Recorder):
        def opened(self, connection: Connection) -> None:
            super().opened(connection)
            connection.close()

    class ClosingOnData(Recorder):
        def received(self, connection: Connection, data: bytes) -> None:
            super().received(connection, data)
            connection.close()

    def check(server: Recorder) -> None:
        listener = net.server.listen("127.0.0.1", 0, server)
        client = Recorder()
        net.client.connect(*listener.address, client).send([b"x"])
        net.run_until(lambda: bool(client.ends))
        assert server.ends == []
        listener.close()

    check(Closing())
    check(ClosingOnData())


def test_many_connections_at_once(net: Net) -> None:
    server = Recorder()
    listener = net.server.listen("127.0.0.1", 0, server)
    clients = [Recorder() for _ in range(100)]
    connections = [net.client.connect(*listener.address, client) for client in clients]
    for connection in connections:
        connection.send([b"x"])
    net.run_until(lambda: len(server.data) == 100)
    for connection in connections:
        connection.close()
    net.run_until(lambda: len(server.ends) == 100)
    listener.close()
