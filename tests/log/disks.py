"""Disks for the tests of the log's leaves."""

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
