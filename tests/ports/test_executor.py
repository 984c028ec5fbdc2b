"""What every executor does: the same tests on threads and child processes, and on the simulated one."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tests.ports import child_functions
from tidelog.ports.disk import Disk
from tidelog.ports.executor import ChildTask, ChildTaskError, Completion, Executor
from tidelog.ports.real_disk import RealDisk
from tidelog.ports.real_executor import ThreadExecutor


class Bench:
    """An executor, a way to let it work until something holds, and a disk that its child tasks see."""

    def __init__(self, executor: Executor, run_until: Callable[[Callable[[], bool]], None], disk: Disk, directory: str) -> None:
        self.executor = executor
        self.run_until = run_until
        self.disk = disk
        self.directory = directory

    def result_of_child(self, function: Callable[..., Mapping[str, Any]], arguments: Mapping[str, Any]) -> Completion:
        done: list[Completion] = []
        self.executor.submit_child(ChildTask(function, arguments), done.append)
        self.run_until(lambda: bool(done))
        return done[0]


@pytest.fixture(params=["real", "simulated"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "real":
        executor = ThreadExecutor(child_command=child_functions.COMMAND)

        def run_until(condition: Callable[[], bool]) -> None:
            while not condition():
                assert executor.run_completions(30), "nothing completed in 30 seconds"

        yield Bench(executor, run_until, RealDisk(), str(tmp_path))
        executor.close(wait=True)
    else:
        scheduler = Scheduler()
        clock = SimulatedClock(scheduler)
        disk = SimulatedDisk(clock)
        simulated = SimulatedExecutor(scheduler, SimulatedRandomness(1), disk, clock)
        yield Bench(simulated, scheduler.run_until, disk, "")


def test_every_piece_of_work_completes_with_its_result(bench: Bench) -> None:
    done: dict[int, Completion] = {}

    def submit(number: int) -> None:
        bench.executor.submit(lambda: number * number, lambda completion: done.update({number: completion}))

    for number in range(50):
        submit(number)
    assert not done
    bench.run_until(lambda: len(done) == 50)
    assert done == {number: Completion(number * number, None) for number in range(50)}


def test_an_exception_comes_as_the_error(bench: Bench) -> None:
    error = OSError(5, "broken")

    def fail() -> None:
        raise error

    done: list[Completion] = []
    bench.executor.submit(fail, done.append)
    bench.run_until(lambda: bool(done))
    assert done == [Completion(None, error)]


def test_completions_come_on_the_owners_thread(bench: Bench) -> None:
    threads: list[threading.Thread] = []
    bench.executor.submit(lambda: None, lambda _: threads.append(threading.current_thread()))
    bench.run_until(lambda: bool(threads))
    assert threads == [threading.current_thread()]


def test_work_submitted_from_a_completion_runs(bench: Bench) -> None:
    order: list[str] = []

    def again(completion: Completion) -> None:
        order.append(completion.result)
        if len(order) < 3:
            bench.executor.submit(lambda: f"work {len(order)}", again)

    bench.executor.submit(lambda: "work 0", again)
    bench.run_until(lambda: len(order) == 3)
    assert order == ["work 0", "work 1", "work 2"]


def test_a_child_works_on_the_disk_and_returns_its_result(bench: Bench) -> None:
    source, target = f"{bench.directory}/source", f"{bench.directory}/target"
    bench.disk.open(source, "create").write(0, [b"abc" * 1_000])
    completion = bench.result_of_child(child_functions.copy_file, {"source": source, "target": target})
    assert completion == Completion({"bytes": 3_000, "clock": True}, None)
    assert bench.disk.open(target, "read").read(0, 9_999) == b"abc" * 1_000


def test_a_childs_exception_comes_with_its_words(bench: Bench) -> None:
    completion = bench.result_of_child(child_functions.fail, {"words": "the key map is too large"})
    assert isinstance(completion.error, ChildTaskError)
    assert completion.result is None
    assert "the key map is too large" in str(completion.error)
    assert "LookupError" in str(completion.error)


def test_arguments_that_are_not_json_are_refused_at_once(bench: Bench) -> None:
    with pytest.raises(TypeError):
        bench.executor.submit_child(ChildTask(child_functions.copy_file, {"source": b"bytes"}), lambda _: None)
