"""Sockets: names, resets, and readers that a fast peer does not starve."""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.ports.test_network import DEADLINE_SECONDS, Recorder, close_all
from tidelog.ports.real_network import READ_BYTES_MAX, SocketNetwork

Scenario = Callable[[SocketNetwork], Coroutine[Any, Any, None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    new_loop: Callable[[], asyncio.AbstractEventLoop] = (
        asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
    )

    def run_scenario(scenario: Scenario) -> None:
        async def main() -> None:
            try:
                await asyncio.wait_for(scenario(SocketNetwork(asyncio.get_running_loop())), DEADLINE_SECONDS)
            finally:
                close_all()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())

    return run_scenario


async def reach(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_name_is_resolved(run: Callable[[Scenario], None]) -> None:
    async def scenario(network: SocketNetwork) -> None:
        server, client = Recorder(), Recorder()
        listener = network.listen("127.0.0.1", 0, server)
        connection = network.connect("localhost", listener.address[1], client)
        await reach(lambda: bool(client.opened_connections))
        assert connection.peer == f"localhost:{listener.address[1]}"
        connection.close()
        listener.close()

    run(scenario)


def test_a_name_that_nobody_knows_ends_the_connection(run: Callable[[Scenario], None]) -> None:
    async def scenario(network: SocketNetwork) -> None:
        client = Recorder()
        network.connect("no-such-host.invalid", 9092, client)
        await reach(lambda: bool(client.ends))
        assert "cannot resolve no-such-host.invalid" in client.ends[0]

    run(scenario)


def test_a_reset_is_told_with_its_reason(run: Callable[[Scenario], None]) -> None:
    async def scenario(network: SocketNetwork) -> None:
        server = Recorder()
        listener = network.listen("127.0.0.1", 0, server)
        peer = socket.create_connection(listener.address)
        await reach(lambda: bool(server.opened_connections))
        # Lingering for no time makes close send a reset.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await reach(lambda: bool(server.ends))
        assert server.ends == ["Connection reset by peer"]
        listener.close()

    run(scenario)


def test_sending_into_a_reset_connection_ends_it_once(run: Callable[[Scenario], None]) -> None:
    async def scenario(network: SocketNetwork) -> None:
        server = Recorder()
        listener = network.listen("127.0.0.1", 0, server)
        peer = socket.create_connection(listener.address)
        await reach(lambda: bool(server.opened_connections))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        server.in_call = True
        for _ in range(3):
            server.opened_connections[0].send([b"x" * 1_000])
        server.in_call = False
        await reach(lambda: bool(server.ends))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(server.ends) == 1
        listener.close()

    run(scenario)


def test_a_fast_peer_does_not_starve_another(run: Callable[[Scenario], None]) -> None:
    class Sizes(Recorder):
        def received(self, connection: Any, data: bytes) -> None:
            super().received(connection, data)
            assert len(data) <= READ_BYTES_MAX
            order.append((connection.peer, len(data)))

    order: list[tuple[str, int]] = []

    async def scenario(network: SocketNetwork) -> None:
        server = Sizes()
        listener = network.listen("127.0.0.1", 0, server)
        fast, slow = socket.create_connection(listener.address), socket.create_connection(listener.address)
        await reach(lambda: len(server.opened_connections) == 2)
        loop = asyncio.get_running_loop()
        flood = loop.run_in_executor(None, fast.sendall, bytes(64 << 20))
        await reach(lambda: bool(order))
        slow.sendall(b"hello")
        await reach(lambda: any(length == 5 for _, length in order))
        assert sum(length for _, length in order) < 64 << 20
        await reach(lambda: len(server.data) == (64 << 20) + 5)
        await flood
        for end in (fast, slow):
            end.close()
        await reach(lambda: len(server.ends) == 2)
        listener.close()

    run(scenario)


def test_peers_of_ipv6_are_bracketed(run: Callable[[Scenario], None]) -> None:
    async def scenario(network: SocketNetwork) -> None:
        server, client = Recorder(), Recorder()
        try:
            listener = network.listen("::1", 0, server)
        except OSError:
            pytest.skip("this machine has no IPv6 loopback address")
        connection = network.connect(*listener.address, client)
        await reach(lambda: bool(client.opened_connections and server.opened_connections))
        assert connection.peer.startswith("[::1]:")
        assert server.opened_connections[0].peer.startswith("[::1]:")
        connection.close()
        listener.close()

    run(scenario)
