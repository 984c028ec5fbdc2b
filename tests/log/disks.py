"""Disks for the tests of the log's leaves."""

import gc
import tracemalloc
from collections.abc import Callable

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.scheduler import Scheduler
from tidelog.ports.disk import Disk

DIRECTORY = "/data"


def simulated_disk() -> SimulatedDisk:
    """An empty disk with one durable directory, DIRECTORY."""
    disk = SimulatedDisk(SimulatedClock(Scheduler()))
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    return disk


def write_file(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, "create")
    file.truncate(0)
    file.write(0, [data])


def read_file(disk: Disk, path: str) -> bytes:
    file = disk.open(path, "read")
    return file.read(0, file.size())


def bytes_each(make: Callable[[int], object], count: int = 1000) -> float:
    """How much memory one of many such objects takes, with all that it holds alone."""
    gc.collect()
    tracemalloc.start()
    try:
        made: list[object] = [None] * count
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            made[number] = make(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / count
