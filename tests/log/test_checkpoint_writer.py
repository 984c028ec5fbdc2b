"""One write at a time; a request is answered by a write whose offsets are at least as new as the request."""

import errno

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.log.checkpoint_writer import CheckpointWriter
from tidelog.log.checkpoints import read_offset_checkpoint

PATH = "/checkpoint"


class Machine:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        clock = SimulatedClock(self.scheduler)
        self.disk = SimulatedDisk(clock)
        self.offset = 0
        self.reports: list[str] = []
        executor = SimulatedExecutor(self.scheduler, SimulatedRandomness(1), self.disk, clock)
        self.writer = CheckpointWriter(
            self.disk, executor, lambda event, facts: self.reports.append(event), PATH, lambda: {("orders", 0): self.offset}
        )

    def durable(self) -> int | None:
        return read_offset_checkpoint(self.disk.crash_image(keep="none"), PATH).get(("orders", 0))


def test_what_was_told_is_durable_and_known() -> None:
    machine = Machine()
    machine.offset = 5
    told: list[object] = []
    machine.writer.request(lambda error: told.append((error, machine.durable())))
    assert (told, machine.writer.is_idle) == ([], False)
    machine.scheduler.run_all()
    assert told == [(None, 5)]
    assert machine.writer.written == {("orders", 0): 5}
    assert machine.writer.is_idle


def test_requests_during_a_write_share_the_next_one() -> None:
    machine = Machine()
    told: list[tuple[str, int | None]] = []
    machine.writer.request(lambda error: told.append(("first", machine.durable())))
    renames: list[str] = []
    machine.disk.on_operation = lambda operation, path: renames.append(path) if operation == "rename" else None
    for name in ("second", "third"):
        machine.offset += 1
        machine.writer.request(lambda error, name=name: told.append((name, machine.durable())))  # type: ignore[misc]  # a default
    machine.scheduler.run_all()
    assert told == [("first", 0), ("second", 2), ("third", 2)]
    assert len(renames) == 2


def test_a_failed_write_is_told_and_the_next_one_goes_on() -> None:
    machine = Machine()
    machine.writer.write_now()
    machine.offset = 5
    machine.disk.faults.fail("write", lambda path: True, errno.EIO, times=1)
    told: list[BaseException | None] = []
    machine.writer.request(told.append)
    machine.scheduler.run_all()
    assert isinstance(told[0], OSError)
    assert machine.reports == ["checkpoint_not_written"]
    assert machine.writer.written == {("orders", 0): 0}
    assert machine.durable() == 0
    machine.writer.request(told.append)
    machine.scheduler.run_all()
    assert told[1] is None
    assert machine.durable() == 5


def test_a_request_made_in_a_callback_is_answered() -> None:
    machine = Machine()
    told: list[object] = []
    machine.writer.request(lambda error: machine.writer.request(told.append))
    machine.scheduler.run_all()
    assert told == [None]


def test_write_now_blocks_until_it_is_durable() -> None:
    machine = Machine()
    machine.offset = 9
    machine.writer.write_now()
    assert machine.durable() == 9
