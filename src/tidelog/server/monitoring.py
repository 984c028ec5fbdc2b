"""The HTTP pages that show how a broker is doing: /metrics, /health/live, /health/ready, and queues (``queue_pages``).

*live* means that the loop answers. It checks nothing else: a restart does not help a broker that is busy or whose disk is full.
*ready* means that clients can be sent here (``BrokerNode.unready_reason``). Otherwise the status is 503 and the body says why.

The metrics of the broker and of the server (connections, bytes, the loop) are collected on the loop. Those of the process and its
machine come from files and the file system, which may block, so a helper thread collects them.
"""

import asyncio
import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path

from tidelog import __version__
from tidelog.broker.broker import BrokerNode
from tidelog.broker.metric_sources import add_broker_metrics
from tidelog.metrics.exposition import CONTENT_TYPE, render
from tidelog.metrics.histogram import SECONDS
from tidelog.metrics.registry import Description, Family, Kind, Registry, Sample
from tidelog.ports import system
from tidelog.ports.executor import Completion, Executor
from tidelog.server.http import Answer, Handler, HttpListener, HttpResponse
from tidelog.server.queue_pages import PREFIX, QueuePages
from tidelog.server.server import Server

FRESH_SECONDS = 1.0
# The pause between two slices, in which everybody else is served.
PAUSE_SECONDS = 0.001
# Long enough for the loop's thread, which may be waiting for the interpreter, to get it.
RENDER_PAUSE_SECONDS = 0.0002

_log = logging.getLogger(__name__)

SEND = Description(
    "tidelog_send_seconds",
    Kind.HISTOGRAM,
    "From the first response that waits on a connection until the kernel has taken all that wait there.",
)
LOOP_LAG = Description(
    "tidelog_loop_lag_seconds",
    Kind.HISTOGRAM,
    "How late a timer of 100 ms was, because something held the loop or the processor.",
)
LOOP_BACKGROUND = Description(
    "tidelog_loop_background_seconds", Kind.HISTOGRAM, "How long each tick and each completion of the broker held the loop."
)
BUILD = Description("tidelog_build_info", Kind.GAUGE, "Always 1; its labels name the versions that run.", ("version", "python"))
DISK_SIZE = Description("tidelog_disk_size_bytes", Kind.GAUGE, "Size of the file system that holds the data directory.")
DISK_FREE = Description("tidelog_disk_free_bytes", Kind.GAUGE, "Free space of that file system that the broker may use.")
MEMORY = Description("process_resident_memory_bytes", Kind.GAUGE, "Memory of the process that is in use.")
CPU = Description("process_cpu_seconds_total", Kind.COUNTER, "Processor time of the process, all threads.")
OPEN_FILES = Description("process_open_fds", Kind.GAUGE, "Open descriptors: connections and files.")
OPEN_FILES_MAX = Description("process_max_fds", Kind.GAUGE, "The most descriptors that the process may open.")
START = Description("process_start_time_seconds", Kind.GAUGE, "When the process began, in seconds since 1970.")


def add_server_metrics(registry: Registry, server: Server) -> None:
    reactor, admission, lag = server.reactor, server.admission, server.lag
    for kind, name, documentation, read in (
        (Kind.GAUGE, "tidelog_connections", "Connected clients.", lambda: len(reactor.connections)),
        (Kind.COUNTER, "tidelog_connections_accepted_total", "Connections accepted.", lambda: admission.accepted),
        (Kind.COUNTER, "tidelog_connections_refused_total", "Connections refused because of a limit.", lambda: admission.refused),
        (
            Kind.COUNTER,
            "tidelog_connections_throttled_total",
            "Connections that were ignored and then closed, because their address had opened too many.",
            lambda: admission.throttled,
        ),
        (
            Kind.COUNTER,
            "tidelog_loop_rests_total",
            "Turns after which the broker paused reading from a client, because its requests had held the loop.",
            lambda: reactor.penalty.count,
        ),
        (Kind.COUNTER, "tidelog_received_bytes_total", "Bytes from clients.", lambda: reactor.received_bytes),
        (Kind.COUNTER, "tidelog_sent_bytes_total", "Bytes to clients.", lambda: reactor.sent_bytes),
        (
            Kind.COUNTER,
            "tidelog_cold_reads_total",
            "Ranges read from the disk before they could be sent.",
            lambda: reactor.cold_reads,
        ),
        (
            Kind.COUNTER,
            "tidelog_throttled_reads_total",
            "How often the broker stopped reading from a client that had too much unanswered or unread, or was over a quota.",
            lambda: reactor.throttled_reads,
        ),
        (Kind.GAUGE, "tidelog_request_memory_bytes", "Memory of requests and responses.", lambda: reactor.memory.used_bytes),
        (
            Kind.GAUGE,
            "tidelog_connections_waiting_for_memory",
            "Clients that the broker does not read from, because that memory is used up.",
            lambda: reactor.memory.waiting_count,
        ),
    ):
        registry.add_value(kind, name, documentation, read)
    registry.add([SEND], lambda: [(SEND, (), reactor.send_ns.value(SECONDS))])
    registry.add([LOOP_LAG], lambda: [(LOOP_LAG, (), lag.lag_ns.value(SECONDS))])
    registry.add([LOOP_BACKGROUND], lambda: [(LOOP_BACKGROUND, (), lag.background_ns.value(SECONDS))])


def add_process_metrics(registry: Registry, data_path: str) -> None:
    registry.add([BUILD], lambda: [(BUILD, (__version__, platform.python_version()), 1)])
    registry.add([DISK_SIZE, DISK_FREE], lambda: _collect_disk(data_path))
    registry.add([MEMORY, CPU, OPEN_FILES, OPEN_FILES_MAX, START], _collect_process)


def _collect_disk(data_path: str) -> Iterator[Sample]:
    size, free = system.disk_bytes(data_path)
    yield DISK_SIZE, (), size
    yield DISK_FREE, (), free


def _collect_process() -> Iterator[Sample]:
    yield CPU, (), time.process_time()
    limit, page = system.descriptor_limit(), system.page_bytes()
    if limit is not None:
        yield OPEN_FILES_MAX, (), limit
    if page is None or not Path("/proc/self/stat").exists():
        return  # Only Linux has these files.
    yield MEMORY, (), int(Path("/proc/self/statm").read_text().split()[1]) * page
    yield OPEN_FILES, (), len(os.listdir("/proc/self/fd"))
    yield START, (), _process_start_seconds()


# Index of ``starttime`` among the fields of /proc/self/stat that follow the program's name.
_STARTTIME_FIELD = 19


def _process_start_seconds() -> float:
    """Read the start time, which the kernel gives in clock ticks since the machine booted."""
    # The program's name comes first, in parentheses, and may contain anything.
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_STARTTIME_FIELD])
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


class MetricsPage:
    """The page /metrics: one snapshot of all numbers, taken on the loop in slices and rendered in a helper thread.

    One page is made at a time. Whoever asks in the meantime gets the same page, and so does everybody for ``FRESH_SECONDS``: a
    page costs some milliseconds of the processor, and frequent requests must not cost them each time.

    ``on_loop`` is collected on the loop; ``off_loop``, whose sources read files, in the executor's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_loop: Registry, off_loop: Registry, executor: Executor) -> None:
        self._loop = loop
        self._on_loop = on_loop
        self._off_loop = off_loop
        self._executor = executor
        self._waiting: list[Answer] = []
        self._slices: Iterator[list[Family] | None] = iter(())
        self._page: HttpResponse | None = None
        self._made_at = 0.0
        self.made = 0

    def serve(self, answer: Answer) -> None:
        if self._page is not None and self._loop.time() - self._made_at < FRESH_SECONDS:
            answer(self._page)
            return
        self._waiting.append(answer)
        if len(self._waiting) == 1:
            self._slices = self._on_loop.snapshot()
            self._take_slice()

    def _take_slice(self) -> None:
        try:
            families = next(self._slices)
        except Exception as error:
            self._fail(error)
            return
        if families is None:
            self._loop.call_later(PAUSE_SECONDS, self._take_slice)
        else:
            self._executor.submit(partial(_render, families, self._off_loop), self._rendered)

    def _rendered(self, completion: Completion) -> None:
        if completion.error is not None:
            self._fail(completion.error)
            return
        self._page = HttpResponse(HTTPStatus.OK, completion.result, CONTENT_TYPE)
        self._made_at = self._loop.time()
        self.made += 1
        self._answer_all(self._page)

    def _fail(self, error: BaseException) -> None:
        _log.error("cannot collect the metrics: %r", error)
        self._answer_all(
            HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, b"cannot collect the metrics; the broker's log has the reason\n")
        )

    def _answer_all(self, response: HttpResponse) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(response)


def _render(families: list[Family], off_loop: Registry) -> bytes:
    """Runs in a helper thread."""
    pause = partial(time.sleep, RENDER_PAUSE_SECONDS)
    for found in off_loop.snapshot():
        if found is not None:
            families = families + found
    return render(families, pause)


def make_registries(server: Server, broker: BrokerNode) -> tuple[Registry, Registry]:
    """One registry that is collected on the loop, and one for a helper thread."""
    on_loop, off_loop = Registry(), Registry()
    add_broker_metrics(on_loop, broker)
    add_server_metrics(on_loop, server)
    add_process_metrics(off_loop, broker.config.data_path)
    return on_loop, off_loop


def make_routes(server: Server, broker: BrokerNode) -> Mapping[str, Handler]:
    page = MetricsPage(server.reactor.loop, *make_registries(server, broker), server.reactor.executor)

    def live(answer: Answer) -> None:
        answer(HttpResponse(HTTPStatus.OK, b"live\n"))

    def ready(answer: Answer) -> None:
        reason = "the broker is stopping" if server.is_stopping else broker.unready_reason()
        if reason is None:
            answer(HttpResponse(HTTPStatus.OK, b"ready\n"))
        else:
            answer(HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode()))

    return {"/metrics": page.serve, "/health/live": live, "/health/ready": ready}


class MonitoringListener:
    """Serves the pages at ``address``. ``broker()`` is called once the server has a broker."""

    def __init__(self, address: tuple[str, int], broker: Callable[[], BrokerNode]) -> None:
        self.address = address
        self._broker = broker
        self._listener: HttpListener | None = None

    async def start(self, server: Server, bound: socket.socket) -> None:
        self.address = bound.getsockname()[:2]
        broker, loop = self._broker(), server.reactor.loop
        queues = QueuePages(broker, server.reactor.wake)
        self._listener = HttpListener(loop, make_routes(server, broker), {PREFIX: queues.serve})
        await self._listener.start(bound)

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
