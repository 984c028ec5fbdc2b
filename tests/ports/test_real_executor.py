"""Threads and child processes: limits, closing, and children that end with their parent."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.ports import child_functions
from tidelog.ports.child_pipes import LAST_WORDS_BYTES_MAX
from tidelog.ports.executor import ChildTask, ChildTaskError, Completion
from tidelog.ports.real_executor import ThreadExecutor

DEADLINE_SECONDS = 30


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.005)


def process_is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")


def run_child(function: Callable[..., Any], arguments: dict[str, Any]) -> Completion:
    executor = ThreadExecutor(child_command=child_functions.COMMAND)
    done: list[Completion] = []
    executor.submit_child(ChildTask(function, arguments), done.append)
    assert executor.run_completions(DEADLINE_SECONDS) == 1
    executor.close(wait=True)
    return done[0]


def hang(executor: ThreadExecutor, path: Path, done: list[Completion]) -> int:
    """Start a child that never ends; returns its process id."""
    executor.submit_child(ChildTask(child_functions.hang, {"path": str(path)}), done.append)
    wait_for(lambda: path.exists() and bool(path.read_text()))
    return int(path.read_text())


def test_completions_go_through_an_event_loop() -> None:
    async def scenario() -> list[tuple[Completion, bool]]:
        loop = asyncio.get_running_loop()
        executor = ThreadExecutor(loop.call_soon_threadsafe)
        owner = threading.current_thread()
        arrived: asyncio.Queue[tuple[Completion, bool]] = asyncio.Queue()
        for number in range(3):
            executor.submit(
                partial(abs, number),
                lambda completion: arrived.put_nowait((completion, threading.current_thread() is owner)),
            )
        outcomes = [await asyncio.wait_for(arrived.get(), DEADLINE_SECONDS) for _ in range(3)]
        executor.close(wait=True)
        return outcomes

    outcomes = asyncio.run(scenario())
    assert sorted(completion.result for completion, _ in outcomes) == [0, 1, 2]
    assert all(on_owner for _, on_owner in outcomes)


def test_threads_are_bounded_and_work_runs_side_by_side() -> None:
    executor = ThreadExecutor(thread_count=3)
    together = threading.Barrier(3)
    running: list[str] = []
    done: list[Completion] = []

    def work() -> None:
        running.append(threading.current_thread().name)
        together.wait(DEADLINE_SECONDS)

    for _ in range(9):
        executor.submit(work, done.append)
    while len(done) < 9:
        assert executor.run_completions(DEADLINE_SECONDS)
    assert all(completion.error is None for completion in done)
    assert len(set(running)) == 3
    executor.close(wait=True)


def test_one_piece_of_work_at_a_time_needs_one_thread() -> None:
    executor = ThreadExecutor(thread_count=4)
    names: list[Completion] = []
    for _ in range(5):
        executor.submit(lambda: threading.current_thread().name, names.append)
        assert executor.run_completions(DEADLINE_SECONDS) == 1
    assert len({completion.result for completion in names}) == 1
    executor.close(wait=True)


def test_run_completions_does_not_wait_for_ever() -> None:
    executor = ThreadExecutor()
    assert executor.run_completions(0) == 0
    assert executor.run_completions(0.01) == 0
    executor.close(wait=True)


def test_close_finishes_submitted_work() -> None:
    executor = ThreadExecutor(thread_count=1)
    done: list[Completion] = []
    for number in range(20):
        executor.submit(partial(abs, number), done.append)
    executor.close(wait=True)
    executor.run_completions(0)
    assert [completion.result for completion in done] == list(range(20))
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(lambda: None, done.append)
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit_child(ChildTask(child_functions.copy_file, {}), done.append)


def test_close_without_waiting_forgets_what_has_not_begun() -> None:
    executor = ThreadExecutor(thread_count=1)
    begun, may_end = threading.Event(), threading.Event()
    done: list[Completion] = []

    def first() -> str:
        begun.set()
        may_end.wait(DEADLINE_SECONDS)
        return "first"

    executor.submit(first, done.append)
    executor.submit(lambda: "second", done.append)
    assert begun.wait(DEADLINE_SECONDS)
    executor.close(wait=False)
    may_end.set()
    assert executor.run_completions(DEADLINE_SECONDS) == 1
    assert executor.run_completions(0.05) == 0
    assert done == [Completion("first", None)]


def test_a_child_that_dies_leaves_its_last_words() -> None:
    error = run_child(child_functions.die, {}).error
    assert isinstance(error, ChildTaskError)
    assert "return code 7" in str(error)
    assert str(error).endswith("last words")
    assert len(str(error)) < LAST_WORDS_BYTES_MAX + 200


def test_what_a_child_prints_is_not_its_result_and_it_runs_at_low_priority() -> None:
    completion = run_child(child_functions.print_much, {"echo": ["ä", 1, None, {"x": 1.5}]})
    assert completion.error is None
    assert completion.result["echo"] == ["ä", 1, None, {"x": 1.5}]
    assert completion.result["niceness"] > os.nice(0)


def test_a_request_larger_than_a_pipe() -> None:
    text = "x" * 1_000_000
    assert run_child(child_functions.print_much, {"echo": text}).result["echo"] == text


def test_children_are_capped(tmp_path: Path) -> None:
    executor = ThreadExecutor(child_command=child_functions.COMMAND, child_count_max=1)
    done: list[Completion] = []
    process_id = hang(executor, tmp_path / "first", done)
    executor.submit_child(ChildTask(child_functions.hang, {"path": str(tmp_path / "second")}), done.append)
    assert executor.run_completions(0.2) == 0
    assert not (tmp_path / "second").exists()
    # The first one's end lets the second one start.
    os.kill(process_id, signal.SIGKILL)
    assert executor.run_completions(DEADLINE_SECONDS) == 1
    wait_for(lambda: (tmp_path / "second").exists())
    executor.close(wait=True)


def test_a_child_without_a_result_is_killed_after_its_time(tmp_path: Path) -> None:
    executor = ThreadExecutor(child_command=child_functions.COMMAND)
    done: list[Completion] = []
    path = tmp_path / "pid"
    executor.submit_child(ChildTask(child_functions.hang, {"path": str(path)}, timeout_seconds=0.2), done.append)
    assert executor.run_completions(DEADLINE_SECONDS) == 1
    assert isinstance(done[0].error, ChildTaskError)
    assert "had no result after 0 s and was killed" in str(done[0].error)
    assert not path.exists() or not process_is_running(int(path.read_text() or 0))
    executor.close(wait=True)


def test_a_cancelled_child_is_killed_or_never_started(tmp_path: Path) -> None:
    executor = ThreadExecutor(child_command=child_functions.COMMAND, child_count_max=1)
    done: list[Completion] = []
    first, second = (
        executor.submit_child(ChildTask(child_functions.hang, {"path": str(tmp_path / name)}), done.append)
        for name in ("first", "second")
    )
    wait_for(lambda: (tmp_path / "first").exists() and bool((tmp_path / "first").read_text()))
    second.cancel()
    first.cancel()
    wait_for(lambda: executor.run_completions(0.1) >= 0 and len(done) == 2)
    assert [type(completion.error) for completion in done] == [ChildTaskError, ChildTaskError]
    assert not process_is_running(int((tmp_path / "first").read_text()))
    assert not (tmp_path / "second").exists()
    first.cancel()
    executor.close(wait=True)


@pytest.mark.parametrize("wait", [True, False])
def test_close_ends_children(tmp_path: Path, wait: bool) -> None:
    executor = ThreadExecutor(child_command=child_functions.COMMAND)
    done: list[Completion] = []
    process_id = hang(executor, tmp_path / "pid", done)
    executor.close(wait=wait)
    assert not process_is_running(process_id)
    executor.run_completions(0)
    assert isinstance(done[0].error, ChildTaskError)


PARENT = """
import sys
from tests.ports import child_functions
from tidelog.ports.executor import ChildTask
from tidelog.ports.real_executor import ThreadExecutor

executor = ThreadExecutor(child_command=child_functions.COMMAND)
executor.submit_child(ChildTask(child_functions.hang, {"path": sys.argv[1]}), print)
executor.run_completions(600)
"""


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(path)], env=environment)
    try:
        wait_for(lambda: path.exists() and bool(path.read_text()))
        process_id = int(path.read_text())
        assert process_is_running(process_id)
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not process_is_running(process_id))
