"""What the server shows of itself: connections, bytes, the loop; and of the process and its machine.

The last two are read from files and the file system, which may block: they are for a helper thread.
"""

import os
import platform
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog import __version__
from tidelog.metrics.histogram import SECONDS
from tidelog.metrics.registry import Description, Kind, Registry, Sample

if TYPE_CHECKING:
    from tidelog.server.server import Server

SEND = Description(
    "tidelog_send_seconds",
    Kind.HISTOGRAM,
    "From the first answer that waits on a connection until the kernel has taken all that wait there.",
)
LOOP_LAG = Description(
    "tidelog_loop_lag_seconds", Kind.HISTOGRAM, "How late a timer of 100 ms was: whatever held the loop, or the processor."
)
LOOP_BACKGROUND = Description(
    "tidelog_loop_background_seconds", Kind.HISTOGRAM, "How long each tick and each completion of the broker held the loop."
)
BUILD = Description("tidelog_build_info", Kind.GAUGE, "Always 1; its labels say what runs.", ("version", "python"))
DISK_SIZE = Description("tidelog_disk_size_bytes", Kind.GAUGE, "Size of the file system that holds the data directory.")
DISK_FREE = Description("tidelog_disk_free_bytes", Kind.GAUGE, "What is left of it for the broker.")
MEMORY = Description("process_resident_memory_bytes", Kind.GAUGE, "Memory of the process that is in use.")
CPU = Description("process_cpu_seconds_total", Kind.COUNTER, "Processor time of the process, all threads.")
OPEN_FILES = Description("process_open_fds", Kind.GAUGE, "Open descriptors: connections and files.")
OPEN_FILES_MAX = Description("process_max_fds", Kind.GAUGE, "How many there may be.")
START = Description("process_start_time_seconds", Kind.GAUGE, "When the process began, in seconds since 1970.")


def add_server_metrics(registry: Registry, server: "Server") -> None:
    hub, admission, lag = server.hub, server.admission, server.lag
    for kind, name, documentation, read in (
        (Kind.GAUGE, "tidelog_connections", "Clients that are connected.", lambda: len(hub.connections)),
        (Kind.COUNTER, "tidelog_connections_accepted_total", "Connections accepted.", lambda: admission.accepted),
        (Kind.COUNTER, "tidelog_connections_refused_total", "Connections beyond a limit.", lambda: admission.refused),
        (
            Kind.COUNTER,
            "tidelog_connections_throttled_total",
            "Connections that were left alone and then ended, because their address had made too many.",
            lambda: admission.throttled,
        ),
        (
            Kind.COUNTER,
            "tidelog_loop_rests_total",
            "Turns of clients whose requests held the loop, after each of which the client was not listened to for a while.",
            lambda: hub.share.rests,
        ),
        (Kind.COUNTER, "tidelog_received_bytes_total", "Bytes from clients.", lambda: hub.received_bytes),
        (Kind.COUNTER, "tidelog_sent_bytes_total", "Bytes to clients.", lambda: hub.sent_bytes),
        (
            Kind.COUNTER,
            "tidelog_cold_reads_total",
            "Ranges read from the disk before they could be sent.",
            lambda: hub.cold_reads,
        ),
        (
            Kind.COUNTER,
            "tidelog_throttled_reads_total",
            "How often the broker stopped reading from a client that had too much unanswered or unread, or was over a quota.",
            lambda: hub.throttled_reads,
        ),
        (Kind.GAUGE, "tidelog_request_memory_bytes", "Memory of requests and responses.", lambda: hub.memory.used_bytes),
        (
            Kind.GAUGE,
            "tidelog_connections_waiting_for_memory",
            "Clients that are not read from because that memory is used up.",
            lambda: hub.memory.waiting_count,
        ),
    ):
        registry.add_value(kind, name, documentation, read)
    registry.add([SEND], lambda: [(SEND, (), hub.send_ns.value(SECONDS))])
    registry.add([LOOP_LAG], lambda: [(LOOP_LAG, (), lag.late_ns.value(SECONDS))])
    registry.add([LOOP_BACKGROUND], lambda: [(LOOP_BACKGROUND, (), lag.background_ns.value(SECONDS))])


def add_process_metrics(registry: Registry, data_path: str) -> None:
    registry.add([BUILD], lambda: [(BUILD, (__version__, platform.python_version()), 1)])
    registry.add([DISK_SIZE, DISK_FREE], lambda: _collect_disk(data_path))
    registry.add([MEMORY, CPU, OPEN_FILES, OPEN_FILES_MAX, START], _collect_process)


def _collect_disk(data_path: str) -> Iterator[Sample]:
    found = os.statvfs(data_path)
    yield DISK_SIZE, (), found.f_frsize * found.f_blocks
    yield DISK_FREE, (), found.f_frsize * found.f_bavail


def _collect_process() -> Iterator[Sample]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    yield MEMORY, (), pages * resource.getpagesize()
    yield CPU, (), time.process_time()
    yield OPEN_FILES, (), len(os.listdir("/proc/self/fd"))
    yield OPEN_FILES_MAX, (), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield START, (), _process_start_seconds()


def _process_start_seconds() -> float:
    """The process knows it in ticks since the machine began."""
    # The name of the program comes before, in parentheses, and may hold anything.
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
