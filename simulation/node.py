"""A broker on simulated ports. It does for the simulation what ``server/`` does on real sockets.

Frames are cut out of the network's streams. Everything that happens wakes a burst, at whose end the broker commits and responses
are sent, their slices read from the simulated files. A process dies by ``kill`` (the page cache survives), by ``cut_power`` (what
was not synced may be lost or torn) or in order (``stop``), and the next one starts on what the disk then holds. A process that
fails to start ends, and another one is started after a while.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from simulation.clock import SimulatedClock
from simulation.disk import Keep, SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.network import SimulatedNetwork
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Event, Scheduler
from tidelog.broker.api import Part
from tidelog.broker.broker import BrokerNode
from tidelog.broker.config import BrokerConfig
from tidelog.log.reading import LogSlice
from tidelog.ports.executor import ChildRun, ChildTask, Completion, OnDone
from tidelog.ports.network import Connection, Listener, WakingNetwork
from tidelog.wire.frames import FrameReader, InvalidFrame

FRAME_BYTES_MAX = 1 << 20
_pack_size = struct.Struct(">i").pack


class NodeConnection:
    __slots__ = ("_connection", "_frames", "_on_closed", "_outbox", "_session", "_unread", "is_open", "listener_index")

    def __init__(
        self, broker: BrokerNode, connection: Connection, on_closed: Callable[[Connection, str], None], listener_index: int
    ) -> None:
        """``on_closed`` is called when the broker has ended the connection."""
        self._connection = connection
        self._on_closed = on_closed
        self._frames = FrameReader(FRAME_BYTES_MAX)
        self._session = broker.session(connection.peer.partition(":")[0], self._send, self.end, listener_index=listener_index)
        self.listener_index = listener_index
        self._outbox: list[list[Part]] = []
        # Frames that arrived while the session had enough in flight.
        self._unread = bytearray()
        self.is_open = True

    def receive(self, data: bytes) -> None:
        self._unread += data
        self._read_on()

    def _read_on(self) -> None:
        frames, session = self._frames, self._session
        try:
            while self.is_open and session.wants_reading:
                frame = frames.next_frame()
                if frame is not None:
                    session.receive(frame)
                elif self._unread:
                    writable = frames.writable()
                    length = min(len(writable), len(self._unread))
                    writable[:length] = self._unread[:length]
                    frames.received(length)
                    del self._unread[:length]
                else:
                    return
        except InvalidFrame as error:
            self.end(str(error))

    def _send(self, parts: list[Part]) -> None:
        self._outbox.append(parts)

    def flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        for parts in outbox:
            if not self.is_open:
                return
            try:
                response = b"".join([_bytes_of(part) for part in parts])
            except OSError as error:
                self.end(f"a slice cannot be read: {error}")
                return
            self._connection.send([_pack_size(len(response)), response])
        self._read_on()

    def lost(self) -> None:
        """Called when the client or the network ended the connection."""
        if self.is_open:
            self.is_open = False
            self._session.closed()

    def end(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self._connection.close()
            self._session.closed()
            self._on_closed(self._connection, reason)


def _bytes_of(part: Part) -> bytes:
    if isinstance(part, LogSlice):
        data = part.file.read(part.position, part.length)
        if len(data) != part.length:
            raise OSError(f"{part.file.path} has {len(data)} bytes at {part.position} where {part.length} were promised")
        return data
    return bytes(part)  # type: ignore[arg-type]  # the only records that the broker sends are slices


HOST, PORT = "broker", 9092
DATA_PATH = "/data"
# Events this close together are one burst, as on a real loop those that are ready in one turn.
BURST_US_MAX = 150
START_AGAIN_US = 300_000

Report = Callable[[str, dict[str, object]], None]


class NodeExecutor:
    """The executor port; a completion wakes the node."""

    def __init__(self, node: "SimulatedBroker", inner: SimulatedExecutor) -> None:
        self._node = node
        self._inner = inner

    def submit(self, work: Callable[[], Any], on_done: OnDone) -> None:
        self._inner.submit(work, partial(self._deliver, on_done))

    def submit_child(self, task: ChildTask, on_done: OnDone) -> ChildRun:
        return self._inner.submit_child(task, partial(self._deliver, on_done))

    def _deliver(self, on_done: OnDone, completion: Completion) -> None:
        if self._node.is_paused:
            self._node.hold(partial(self._deliver, on_done, completion))
            return
        self._node.wake()
        on_done(completion)


class NodeListener:
    """The endpoint of one of the node's listeners, by its place among them."""

    __slots__ = ("_index", "_node")

    def __init__(self, node: "SimulatedBroker", index: int) -> None:
        self._node = node
        self._index = index

    def opened(self, connection: Connection) -> None:
        self._node.opened(connection, self._index)

    def received(self, connection: Connection, data: bytes) -> None:
        self._node.received(connection, data)

    def closed(self, connection: Connection, reason: str) -> None:
        self._node.closed(connection, reason)


class SimulatedBroker:
    def __init__(
        self,
        scheduler: Scheduler,
        network: SimulatedNetwork,
        randomness: SimulatedRandomness,
        settings: Mapping[str, str],
        unchecked: Mapping[str, int],
        report: Report,
        host: str = HOST,
    ) -> None:
        """``settings`` are texts under Kafka's names; ``unchecked`` are values too small for real life, under the same names."""
        self.host = host
        self.scheduler = scheduler
        self.network = network
        self.clock = SimulatedClock(scheduler)
        self.disk = SimulatedDisk(self.clock)
        self.executor = SimulatedExecutor(scheduler, randomness.fork("executor"), self.disk, self.clock)
        self.report = report
        self.broker: BrokerNode | None = None
        self.is_serving = False
        self.starts = 0
        self._randomness = randomness.fork("node")
        config = BrokerConfig.from_texts({"listeners": f"{host}:{PORT}", **settings}, data_path=DATA_PATH, cluster_id="simulated")
        self._config = replace(
            config, values={**config.values, **unchecked}, topic_defaults={**config.topic_defaults, **unchecked}
        )
        self._port = NodeExecutor(self, self.executor)
        self._connections: dict[Connection, NodeConnection] = {}
        self._listeners: dict[int, Listener] = {}
        # A paused process hears, says and does nothing; what happens in the meantime happens when it goes on.
        self.is_paused = False
        self._held: list[Callable[[], None]] = []
        self._burst: Event | None = None
        self._tick: Event | None = None
        self._tick_ms = 0
        self._start: Event | None = None
        self._is_stopping = False

    # -- the life of a process -----------------------------------------------------------------------------------------------

    @property
    def is_down(self) -> bool:
        return self.broker is None

    def serving(self) -> BrokerNode:
        assert self.broker is not None, "the node is down"
        return self.broker

    def start_after(self, delay_us: int) -> None:
        if self._start is not None:
            self._start.cancel()
        self._start = self.scheduler.schedule(delay_us, "node start", self.start)

    def start(self) -> None:
        self._start = None
        self.starts += 1
        self.report("starting", {})
        try:
            self.broker = BrokerNode(
                self._config,
                disk=self.disk,
                clock=self.clock,
                randomness=self._randomness.fork(f"broker {self.starts}"),
                executor=self._port,
                network=WakingNetwork(self.network.host(self.host), self.wake),
                report=self.report,
            )
            self.broker.start(self._started)
        except Exception as error:
            self._failed_to_start(error)
            return
        if self.broker is not None:
            self._listen(self.broker.controller_listeners)
        self.wake()

    def _listen(self, indexes: frozenset[int]) -> None:
        network = self.network.host(self.host)
        for index in sorted(indexes - self._listeners.keys()):
            address = self._config.listeners[index].address
            self._listeners[index] = network.listen(address.host, address.port, NodeListener(self, index))

    def _started(self, error: Exception | None) -> None:
        if error is not None:
            self._failed_to_start(error)
            return
        broker = self.broker
        assert broker is not None
        self.is_serving = True
        offline = [f"{topic}-{index}" for topic, index in broker.directory.offline]
        self.report("started", {"offline": offline, "clean": broker.directory.was_stopped_cleanly})
        self._listen(frozenset(range(len(self._config.listeners))))

    def _failed_to_start(self, error: Exception) -> None:
        self.report("start_failed", {"error": repr(error)})
        self.kill()
        self.start_after(START_AGAIN_US)

    def stop(self, on_stopped: Callable[[Exception | None], None]) -> None:
        """Stop in order: accept no more requests, let what is under way end, and write the mark for the next start."""
        broker = self.broker
        assert broker is not None
        self._is_stopping = True
        self.is_serving = False
        kept = broker.controller_listeners
        for index, listener in self._listeners.items():
            if index not in kept:
                listener.close()
        for connection in list(self._connections.values()):
            if connection.listener_index not in kept:
                connection.end("the broker stops")

        def stopped(error: Exception | None) -> None:
            self.kill()
            on_stopped(error)

        broker.begin_stop(stopped)
        self.wake()

    def kill(self) -> None:
        """Die as by kill -9: the page cache survives."""
        self._die("all")

    def cut_power(self, keep: Keep) -> None:
        self._die(keep)

    def _die(self, keep: Keep) -> None:
        self.scheduler.record(f"node dies, disk keeps {keep}")
        self.network.crash(self.host)
        self.executor.crash()
        for event in (self._burst, self._tick, self._start):
            if event is not None:
                event.cancel()
        self._burst = self._tick = self._start = None
        self._connections = {}
        self._listeners = {}
        self.is_paused = False
        self._held = []
        self.broker = None
        self.is_serving = self._is_stopping = False
        before = self.disk
        self.disk = before.crash_image(self._randomness, keep)
        # A disk that fails goes on failing for the next process.
        self.disk.faults = before.faults
        self.disk.on_operation = before.on_operation
        self.executor.disk = self.disk

    def pause(self) -> None:
        """Stop as by SIGSTOP. The caller blocks the node's links, so that bytes wait."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for action in held:
            action()
        self.wake()

    def hold(self, action: Callable[[], None]) -> None:
        self._held.append(action)

    # -- bursts and time -----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if self._burst is None and self.broker is not None:
            self._burst = self.scheduler.schedule(self._randomness.integer(0, BURST_US_MAX), "end of burst", self._end_of_burst)

    def _end_of_burst(self) -> None:
        self._burst = None
        if self.broker is None:
            return
        if self.is_paused:
            self.hold(self.wake)
            return
        self.broker.end_of_burst()
        for connection in list(self._connections.values()):
            connection.flush()
        self._arm()

    def _arm(self) -> None:
        deadline_ms = self.broker.next_deadline_ms() if self.broker is not None else None
        if deadline_ms is None or (self._tick is not None and self._tick_ms <= deadline_ms):
            return
        if self._tick is not None:
            self._tick.cancel()
        self._tick_ms = deadline_ms
        self._tick = self.scheduler.schedule(max(0, deadline_ms * 1000 - self.scheduler.now_us), "tick", self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        if self.is_paused:
            self.hold(self._on_tick)
        elif self.broker is not None:
            self.wake()
            self.broker.tick()

    # -- the network's endpoint ----------------------------------------------------------------------------------------------

    def opened(self, connection: Connection, listener_index: int) -> None:
        if self.broker is None or (self._is_stopping and listener_index not in self.broker.controller_listeners):
            connection.close()
            return
        self._connections[connection] = NodeConnection(self.broker, connection, self._closed_by_broker, listener_index)
        self.wake()

    def received(self, connection: Connection, data: bytes) -> None:
        ours = self._connections.get(connection)
        if ours is not None:
            self.wake()
            ours.receive(data)

    def closed(self, connection: Connection, reason: str) -> None:  # noqa: ARG002 - why a client went is all the same
        ours = self._connections.pop(connection, None)
        if ours is not None:
            self.wake()
            ours.lost()

    def _closed_by_broker(self, connection: Connection, reason: str) -> None:
        if self._connections.pop(connection, None) is not None:
            self.report("connection_closed", {"peer": connection.peer, "reason": reason})
