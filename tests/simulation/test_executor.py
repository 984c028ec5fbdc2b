"""The simulated executor: times drawn from the seed, orders mixed, and a crash that forgets."""

from functools import partial

import pytest

from simulation.clock import SimulatedClock
from simulation.disk import Crashed, SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.ports.executor import Completion


class Machine:
    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler()
        clock = SimulatedClock(self.scheduler)
        self.disk = SimulatedDisk(clock)
        self.executor = SimulatedExecutor(self.scheduler, SimulatedRandomness(seed), self.disk, clock)


def orders(seed: int) -> tuple[list[int], list[int]]:
    """In which order ten pieces of work ran, and in which their completions came."""
    machine = Machine(seed)
    ran: list[int] = []
    done: list[int] = []

    def work(number: int) -> int:
        ran.append(number)
        return number

    for number in range(10):
        machine.executor.submit(partial(work, number), lambda completion: done.append(completion.result))
    assert machine.executor.pending == 10
    machine.scheduler.run_all()
    assert machine.executor.pending == 0
    return ran, done


def test_work_and_completions_are_reordered_each_in_its_own_way() -> None:
    seen = [orders(seed) for seed in range(20)]
    assert all(sorted(ran) == sorted(done) == list(range(10)) for ran, done in seen)
    assert any(ran != list(range(10)) for ran, _ in seen)
    assert any(ran != done for ran, done in seen)
    assert seen == [orders(seed) for seed in range(20)]


def test_nothing_happens_until_the_scheduler_runs_it() -> None:
    machine = Machine(1)
    machine.executor.run_delay_us = (100, 100)
    machine.executor.completion_delay_us = (50, 50)
    ran: list[int] = []
    done: list[int] = []
    machine.executor.submit(
        lambda: ran.append(machine.scheduler.now_us),
        lambda _: done.append(machine.scheduler.now_us),
    )
    assert (ran, done) == ([], [])
    machine.scheduler.step()
    assert (ran, done) == ([100], [])
    machine.scheduler.step()
    assert (ran, done) == ([100], [150])


def test_a_write_between_submission_and_run_is_covered_by_the_sync() -> None:
    machine = Machine(1)
    machine.disk.open_filesystem("/").sync()
    file = machine.disk.open("/a", "create")
    machine.disk.sync_directory("/")
    machine.executor.run_delay_us = (100, 100)
    machine.executor.submit(file.sync, lambda _: None)
    file.write(0, [b"1"])
    assert machine.disk.crash_image(keep="none").file_size("/a") == 0
    machine.scheduler.run_all()
    assert machine.disk.crash_image(keep="none").file_size("/a") == 1


@pytest.mark.parametrize("steps", [0, 1])
def test_a_crash_forgets_work_and_completions(steps: int) -> None:
    machine = Machine(1)
    ran: list[str] = []
    done: list[Completion] = []
    machine.executor.submit(lambda: ran.append("before"), done.append)
    for _ in range(steps):
        machine.scheduler.step()
    machine.executor.crash()
    assert machine.executor.pending == 0
    machine.executor.submit(lambda: ran.append("after"), done.append)
    machine.scheduler.run_all()
    assert ran == ["before", "after"][1 - steps :]
    assert len(done) == 1
    assert machine.executor.pending == 0


def test_dying_in_the_work_ends_the_run() -> None:
    machine = Machine(1)

    def die(operation: str, path: str) -> None:
        raise Crashed

    file = machine.disk.open("/a", "create")
    machine.disk.on_operation = die
    done: list[Completion] = []
    machine.executor.submit(file.sync, done.append)
    with pytest.raises(Crashed):
        machine.scheduler.run_all()
    machine.executor.crash()
    machine.scheduler.run_all()
    assert done == []
