"""Runs a broker as a process: its settings, an event loop, helper threads, signals, an exit code.

``run_broker`` takes settings as text under Kafka's names, finds everything that is wrong with them before anything is bound or
written, finds out to which cluster the node belongs (``server.cluster_identity``), composes the broker on the real ports, and
calls ``serve``.

``serve`` runs any broker until it is told to stop. SIGTERM and SIGINT stop it in order, and it exits with 0. A second signal
stops it at once, as a crash would, and it exits with 1. Acknowledged records are on the disk either way. The addresses are bound
before the broker is composed, because it tells clients its port, and listened on when it has started.

A program that contains a broker (``Embedding``) runs it in a thread and stops it by a call; signals, the limits of the process
and its garbage collector remain the program's own.
"""

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Protocol

from tidelog import __version__
from tidelog.broker.broker import BrokerNode
from tidelog.broker.config import BrokerConfig
from tidelog.broker.handlers import warm_up
from tidelog.build import build_name
from tidelog.config.broker import (
    BROKER,
    METRICS_LISTENER,
    data_directory_of,
    listeners_of,
    metrics_listener_of,
)
from tidelog.config.definition import inherit, parse
from tidelog.config.listeners import ListenerAddress, NamedListener
from tidelog.config.topic import TOPIC
from tidelog.config.types import InvalidSetting, Value
from tidelog.ports import system
from tidelog.ports.clock import Clock, RealClock
from tidelog.ports.disk import Disk
from tidelog.ports.executor import Executor
from tidelog.ports.network import Network, WakingNetwork
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.ports.real_executor import ThreadExecutor
from tidelog.ports.real_network import SocketNetwork
from tidelog.server.cluster_identity import StoppedWhileWaiting, ask_quorum, find_cluster_id
from tidelog.server.event_log import ReportEvent, ignore_event
from tidelog.server.limits import ConnectionLimits
from tidelog.server.listener import bind_all
from tidelog.server.reactor import BrokerProtocol
from tidelog.server.server import Server

EXIT_STOPPED = 0
EXIT_CUT_SHORT = 1
# Cold reads wait for the disk, not for each other.
COLD_READ_THREADS = 4

OPEN_FILES_MAX = "tidelog.open.files.max"
MAX_CONNECTIONS = "max.connections"
# Descriptors that neither a connection nor the cache of open segments may take: the interpreter's, the event loop's, and above
# all those that the logs need to roll, to sync and to write checkpoints while clients hold all the others. A small limit keeps a
# quarter for that.
DESCRIPTORS_RESERVED = 128
OPEN_FILES_DERIVED_MIN = 16
# An open segment costs some memory even when nobody reads it; opening one again costs microseconds.
OPEN_FILES_DERIVED_MAX = 65_536

# The number of container objects allocated and not freed before the young generation is collected, which takes a few
# milliseconds. Requests in flight count too, so this is far above what clients can have in flight; the default of 700 is not.
GC_YOUNG_THRESHOLD = 50_000
# Young collections per middle one, and middle ones per full one.
GC_MIDDLE_THRESHOLD = 10
GC_FULL_THRESHOLD = 20


@dataclass(frozen=True, slots=True)
class ServedPorts:
    """What ``serve`` gives to the broker that it runs."""

    executor: Executor
    clock: Clock
    network: Network
    addresses: Sequence[tuple[str, int]]
    """The addresses that were bound."""


MakeBroker = Callable[[ServedPorts], BrokerProtocol]


class Embedding(Protocol):
    """The program that contains a broker, which runs in a thread of its own."""

    def stoppable(self, stop: Callable[[], object]) -> None:
        """Called before the broker starts. ``stop`` does what a signal would, from any thread, until ``serve`` returns."""
        ...


class AuxiliaryListener(Protocol):
    """Another service on the broker's loop, at its own address."""

    address: tuple[str, int]

    async def start(self, server: Server, bound: socket.socket) -> None:
        """Called before the broker starts."""
        ...

    async def stop(self) -> None:
        """Called after the broker has stopped."""
        ...


@dataclass(frozen=True, slots=True)
class ServeOptions:
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    embedding: Embedding | None = None
    report: ReportEvent = ignore_event
    auxiliary: AuxiliaryListener | None = None
    wrap_network: Callable[[Network], Network] | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """The addresses and limits in force once clients can connect."""

    cluster_id: str
    node_id: int
    listeners: tuple[NamedListener, ...]
    """The listeners, those for clients first."""
    data_path: str
    topic_count: int
    partition_count: int
    flush_messages: int
    was_stopped_cleanly: bool
    metrics: ListenerAddress | None = None
    """Where /metrics and /health are served."""

    def facts(self) -> dict[str, object]:
        """The facts of the event ``started``."""
        addresses = {
            "listener": str(self.listeners[0].address),
            "advertised": str(self.listeners[0].advertised),
            "listeners": [f"{listener.name}://{listener.address}" for listener in self.listeners],
            "metrics": str(self.metrics) if self.metrics is not None else None,
        }
        return {"version": __version__, "build": build_name(), **asdict(self), **addresses}


def run_broker(
    texts: Mapping[str, str],
    *,
    report: ReportEvent,
    on_serving: Callable[[Serving], None],
    may_be_insecure: bool = False,
    embedding: Embedding | None = None,
    disk: Disk | None = None,
    wrap_network: Callable[[Network], Network] | None = None,
) -> int:
    """Serve until a signal (or the embedding program) ends it; returns the exit code. Tests of failures pass a ``disk``, or put a
    network of their own around the real one.

    Raises InvalidSetting for settings that make no sense, LogError for an unusable data directory, and OSError for an address
    that cannot be bound."""
    values = parse(BROKER, texts)
    # Check the broker's defaults for topics now, not when the first topic is created.
    topic_defaults = parse(TOPIC, {}, inherit(TOPIC, texts))
    listeners, metrics_listener = _check_listeners(values, may_be_insecure)
    if embedding is None:
        system.raise_descriptor_limit()
    descriptors = _divide_descriptors(texts, values, report)
    data_path = os.path.abspath(data_directory_of(values))
    disk = disk if disk is not None else RealDisk()
    stopped = threading.Event()
    if embedding is not None:
        embedding.stoppable(stopped.set)
    ask = partial(ask_quorum, report=report, clock=RealClock(), wait=stopped.wait)
    try:
        cluster_id = find_cluster_id(disk, RealRandomness(), data_path, values, ask)
    except StoppedWhileWaiting:
        return EXIT_CUT_SHORT
    made: list[BrokerNode] = []

    def make_broker(ports: ServedPorts) -> BrokerProtocol:
        config = BrokerConfig.from_texts(
            texts,
            data_path=data_path,
            cluster_id=cluster_id,
            bound=[ListenerAddress(*address) for address in ports.addresses],
        )
        config = replace(config, values={**config.values, OPEN_FILES_MAX: descriptors.open_files_max})
        made.append(
            BrokerNode(
                config,
                disk=disk,
                clock=ports.clock,
                randomness=RealRandomness(),
                executor=ports.executor,
                network=ports.network,
                report=report,
            )
        )
        return made[0]

    def serving(server: Server) -> None:
        # Every client's first request is ApiVersions, whose definitions come first. The rest of the warm-up takes longer than a
        # start may.
        server.warm_up(warm_up())
        metrics = ListenerAddress(*monitoring.address) if monitoring is not None else None
        on_serving(_describe_serving(made[0], topic_defaults, metrics))

    monitoring = _monitoring_listener(metrics_listener, lambda: made[0])
    limits = ConnectionLimits.from_config({**values, MAX_CONNECTIONS: descriptors.connections_max})
    options = ServeOptions(limits, embedding, report, monitoring, wrap_network)
    return serve(make_broker, [(listener.address.host, listener.address.port) for listener in listeners], serving, options)


def _describe_serving(broker: BrokerNode, topic_defaults: Mapping[str, Value], metrics: ListenerAddress | None) -> Serving:
    config = broker.config
    flush_messages = topic_defaults["flush.messages"]
    assert isinstance(flush_messages, int)
    return Serving(
        cluster_id=config.cluster_id,
        node_id=config.node_id,
        listeners=tuple(sorted(config.listeners, key=lambda listener: listener.role)),
        data_path=config.data_path,
        topic_count=sum(1 for _ in broker.image.topics),
        partition_count=sum(len(topic.partitions) for topic in broker.image.topics),
        flush_messages=flush_messages,
        was_stopped_cleanly=broker.directory.was_stopped_cleanly,
        metrics=metrics,
    )


def _check_listeners(values: Mapping[str, Value], may_be_insecure: bool) -> tuple[list[NamedListener], ListenerAddress | None]:
    listeners = listeners_of(values)
    for listener in listeners:
        if not listener.address.is_loopback and not may_be_insecure:
            reason = "everyone who reaches this address could read and write everything; to allow that, add --insecure"
            raise InvalidSetting("listeners", str(listener.address), reason)
    metrics_listener = metrics_listener_of(values)
    if metrics_listener is not None and not metrics_listener.is_loopback and not may_be_insecure:
        reason = "everyone who reaches this address could read the names of topics and groups; to allow that, add --insecure"
        raise InvalidSetting(METRICS_LISTENER, str(metrics_listener), reason)
    return listeners, metrics_listener


def _monitoring_listener(listener: ListenerAddress | None, broker: Callable[[], BrokerNode]) -> AuxiliaryListener | None:
    if listener is None:
        return None
    # Only a broker that serves its metrics takes the time to import what that needs.
    from tidelog.server.monitoring import MonitoringListener

    return MonitoringListener((listener.host, listener.port), broker)


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    connections_max: int
    open_files_max: int


def divide_descriptors(limit: int, connections_max: int, open_files_max: int | None) -> DescriptorShares:
    """Divide the descriptors that the process may open: a reserve for the logs, the cache of open segments, and the rest for
    connections. Without ``open_files_max`` the cache gets what the connections leave, and at least half of what is not reserved;
    with it, at most three quarters."""
    available = limit - min(DESCRIPTORS_RESERVED, limit // 4)
    if open_files_max is None:
        open_files_max = min(max(available - connections_max, available // 2), OPEN_FILES_DERIVED_MAX)
    open_files_max = max(OPEN_FILES_DERIVED_MIN, min(open_files_max, available * 3 // 4))
    return DescriptorShares(max(1, min(connections_max, available - open_files_max)), open_files_max)


def _divide_descriptors(texts: Mapping[str, str], values: Mapping[str, Value], report: ReportEvent) -> DescriptorShares:
    """Divide the descriptors, and report where that is less than what the operator asked for."""
    limit = system.descriptor_limit()
    connections_max, open_files_max = values[MAX_CONNECTIONS], values[OPEN_FILES_MAX]
    assert isinstance(connections_max, int)
    assert isinstance(open_files_max, int)
    if limit is None:
        return DescriptorShares(connections_max, open_files_max if OPEN_FILES_MAX in texts else OPEN_FILES_DERIVED_MAX)
    shares = divide_descriptors(limit, connections_max, open_files_max if OPEN_FILES_MAX in texts else None)
    for name, granted in ((MAX_CONNECTIONS, shares.connections_max), (OPEN_FILES_MAX, shares.open_files_max)):
        if name in texts and granted != values[name]:
            report("setting_limited", {"setting": name, "value": values[name], "in_force": granted, "descriptors_max": limit})
    return shares


class _Process:
    """The lifecycle of the loop: started, stopped by one signal or two, or failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_stopping = False
        self.server: Server | None = None
        self.is_cut_short = False
        self.error: Exception | None = None

    def on_signal(self) -> None:
        if self._is_stopping or self.server is None or not self.server.listeners:
            self.is_cut_short = True
            self._loop.stop()
            return
        self._is_stopping = True
        self.server.begin_stop(self.ended)

    def ended(self, error: Exception | None) -> None:
        self.error = error
        self._loop.stop()

    def wake(self) -> None:
        """Something happened on the broker's own connections."""
        if self.server is not None:
            self.server.reactor.wake()

    def deliver(self, completion: Callable[[], None]) -> None:
        """Deliver a completion of the broker's executor, on the loop's thread."""
        if self.server is None:
            completion()
        else:
            self.server.reactor.deliver(completion)


def serve(
    make_broker: MakeBroker,
    addresses: Sequence[tuple[str, int]],
    on_serving: Callable[[Server], None],
    options: ServeOptions,
) -> int:
    """Run a broker until a signal ends it; returns the exit code. ``on_serving`` is called once clients can connect.

    Raises what the broker raises when it cannot start or stop, and OSError when an address is taken."""
    embedding, auxiliary = options.embedding, options.auxiliary
    bound = bind_all(addresses if auxiliary is None else [*addresses, auxiliary.address])
    auxiliary_bound = [] if auxiliary is None else [bound.pop()]
    loop = system.new_event_loop()
    process = _Process(loop)
    sockets = SocketNetwork(loop)
    network = sockets if options.wrap_network is None else options.wrap_network(sockets)
    clock = RealClock()
    threads = ThreadExecutor(wake=lambda completion: loop.call_soon_threadsafe(process.deliver, completion))
    cold_reads = ThreadExecutor(wake=loop.call_soon_threadsafe, thread_count=COLD_READ_THREADS)

    def start() -> None:
        try:
            broker.start(started)
        except Exception as error:
            # The loop would report it and run on, and nobody would ever be served.
            started(error)
        if process.error is None:
            server.listen_for_controllers(bound)

    def started(error: Exception | None) -> None:
        if error is not None:
            for listener in server.listeners:
                listener.close()
            process.ended(error)
            return
        server.listen(bound)
        if embedding is None:
            tune_garbage_collection()
        on_serving(server)

    try:
        addresses = [listening.getsockname()[:2] for listening in bound]
        broker = make_broker(ServedPorts(threads, clock, WakingNetwork(network, process.wake), addresses))
        server = Server(loop, broker, clock, cold_reads, options.limits, options.report)
        process.server = server
        if auxiliary is not None:
            loop.run_until_complete(auxiliary.start(server, auxiliary_bound[0]))
        if embedding is None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, process.on_signal)
        else:
            embedding.stoppable(lambda: loop.call_soon_threadsafe(process.on_signal))
        loop.call_soon(start)
        server.reactor.wake()
        loop.run_forever()
    finally:
        if auxiliary is not None:
            loop.run_until_complete(auxiliary.stop())
        for listening in (*bound, *auxiliary_bound):
            listening.close()
        sockets.close()
        cold_reads.close(wait=False)
        # After an orderly stop none of the broker's work is running any more.
        threads.close(wait=False)
        loop.close()
    if process.error is not None:
        raise process.error
    return EXIT_CUT_SHORT if process.is_cut_short else EXIT_STOPPED


def tune_garbage_collection() -> None:
    """Tune Python's cycle collector for a broker. Call it when the broker has started, before it serves.

    Requests leave no cycles: what a request allocates is freed when its references go. The collector finds next to nothing, but a
    full collection walks every object, for tens of milliseconds in which nobody is served. So everything that exists after the
    start (modules, tables, logs, the image) is frozen, which takes it out of every later collection, and a collection starts only
    after many more allocations than frees. The collector stays on, because cycles do occur now and then (exceptions with
    tracebacks, closures) and would add up over months."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_THRESHOLD, GC_MIDDLE_THRESHOLD, GC_FULL_THRESHOLD)
