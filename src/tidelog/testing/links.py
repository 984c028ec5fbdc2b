"""The links between the nodes of a test cluster: every connection of a node to another goes through a proxy that can cut it.

A node dials through ``LinkedNetwork``. It connects to the proxy and sends one line, ``{"from": 1, "port": 9193}``: who asks, and
which port of the machine it wants. The proxy answers with one byte, ``+`` once it is connected and ``-`` if it was refused, and
from then on moves bytes. So a node sees what it would see on a network: a refused connection is refused, and a connection to the
far side of a cut hangs until the node's own time-out.

A cut has a direction. What a node sends in that direction is neither read nor lost while the cut lasts, and neither is the end of
its connection: once the cut is healed, it arrives, as TCP would send it again. Opening a connection needs both directions.

``Links`` runs the proxy on a thread of the test's process.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from tidelog.ports.disk import Buffer
from tidelog.ports.network import CONNECTION_REFUSED, Connection, Endpoint, Listener, Network

HOST = "127.0.0.1"
CONNECTED, REFUSED = b"+", b"-"
CHUNK_BYTES = 64 * 1024

Direction = tuple[int, int]


class LinkedNetwork:
    """The network of a node in a test: it dials through the proxy."""

    def __init__(self, inner: Network, node_id: int, proxy_port: int) -> None:
        self._inner = inner
        self._node_id = node_id
        self._proxy_port = proxy_port

    def listen(self, host: str, port: int, endpoint: Endpoint) -> Listener:
        return self._inner.listen(host, port, endpoint)

    def connect(self, host: str, port: int, endpoint: Endpoint) -> Connection:
        hello = json.dumps({"from": self._node_id, "port": port}).encode() + b"\n"
        return LinkedConnection(self._inner, self._proxy_port, endpoint, f"{host}:{port}", hello)


class LinkedConnection:
    """A connection through the proxy. It counts as opened when the proxy has reached the other node."""

    def __init__(self, network: Network, proxy_port: int, endpoint: Endpoint, peer: str, hello: bytes) -> None:
        self._endpoint = endpoint
        self._hello = hello
        self._is_open = False
        self._waiting: list[Buffer] = []
        self.peer = peer
        self._inner = network.connect(HOST, proxy_port, self)

    # -- what the node does --------------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[Buffer]) -> None:
        if self._is_open:
            self._inner.send(buffers)
        else:
            self._waiting += buffers

    def unsent_bytes(self) -> int:
        return self._inner.unsent_bytes() + sum(map(len, self._waiting))

    def close(self) -> None:
        self._inner.close()

    # -- what the proxy does -------------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        connection.send([self._hello])

    def received(self, connection: Connection, data: bytes) -> None:
        if self._is_open:
            self._endpoint.received(self, data)
        elif data[:1] == REFUSED:
            connection.close()
            self._endpoint.closed(self, CONNECTION_REFUSED)
        else:
            self._is_open = True
            self._endpoint.opened(self)
            waiting, self._waiting = self._waiting, []
            self._inner.send(waiting)
            if data[1:]:
                self._endpoint.received(self, data[1:])

    def closed(self, connection: Connection, reason: str) -> None:  # noqa: ARG002 - one connection
        self._endpoint.closed(self, reason)


class Links:
    """The proxy. ``node_of_port`` says to which node a port belongs."""

    def __init__(self, node_of_port: Mapping[int, int]) -> None:
        self._node_of_port = dict(node_of_port)
        self._gates: dict[Direction, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidelog-links", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accepted, HOST, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self, source: int, target: int) -> None:
        """From now on nothing that ``source`` sends reaches ``target``."""
        self._call(self._do(lambda: self._gate((source, target)).clear()))

    def heal(self) -> None:
        self._call(self._do(self._open_all))

    def close(self) -> None:
        if not self._loop.is_closed():
            self._call(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    # -- on the proxy's thread -----------------------------------------------------------------------------------------------

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _do(self, action: Callable[[], None]) -> None:
        action()

    def _open_all(self) -> None:
        for gate in self._gates.values():
            gate.set()

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _gate(self, direction: Direction) -> asyncio.Event:
        gate = self._gates.get(direction)
        if gate is None:
            gate = self._gates[direction] = asyncio.Event()
            gate.set()
        return gate

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = json.loads(await reader.readline())
            source, target = hello["from"], self._node_of_port[hello["port"]]
            outward, homeward = self._gate((source, target)), self._gate((target, source))
            await outward.wait()
            await homeward.wait()
            try:
                far_reader, far_writer = await asyncio.open_connection(HOST, hello["port"])
            except OSError:
                writer.write(REFUSED)
                return
            writer.write(CONNECTED)
            try:
                await asyncio.gather(
                    self._move(reader, far_writer, outward, homeward, writer),
                    self._move(far_reader, writer, homeward, outward, far_writer),
                )
            finally:
                far_writer.close()
        except (OSError, ValueError, KeyError):
            pass  # The node went away, or spoke nonsense; its connection ends either way.
        finally:
            writer.close()

    async def _move(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gate: asyncio.Event,
        back_gate: asyncio.Event,
        back_writer: asyncio.StreamWriter,
    ) -> None:
        """Move bytes in one direction until that side ends. Its end is news in the same direction; that the other side is gone
        is news in the opposite one."""
        while True:
            await gate.wait()
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            await gate.wait()
            if not data:
                writer.close()
                return
            writer.write(data)
            with contextlib.suppress(OSError):
                await writer.drain()
                continue
            await back_gate.wait()
            back_writer.close()
            return
