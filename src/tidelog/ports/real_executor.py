"""Helper threads for calls that free the GIL, child processes for loops of Python.

Work waits in one queue for a bounded number of threads, child tasks in another for a bounded number of supervisors: a
supervisor is a thread that starts one child at a time and waits for it. Threads start when there is work for them and live
until ``close``; a supervisor must, because the kernel's parent-death signal watches the *thread* that started a child, not the
process.

Completions come on the owner's thread: through ``wake`` (an event loop's ``call_soon_threadsafe``), or, without one, from
``run_completions``, which the owner calls.
"""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tidelog.ports.child_pipes import read_outcome
from tidelog.ports.executor import ChildRun, ChildTask, ChildTaskError, Completion, OnDone

# Syncs of different files overlap in the disk's queue; beyond a few threads they only wait for each other there.
THREAD_COUNT = 4
# A child is a core's worth of Python: one at a time leaves the machine to the broker.
CHILD_COUNT_MAX = 1

# -P keeps the working directory out of the child's import path: a file lying there must not become code.
CHILD_COMMAND = (sys.executable, "-P", "-m", "tidelog.ports.child")

Wake = Callable[[Callable[[], None]], object]
_Job = tuple[Callable[[], Any], OnDone]


class ThreadExecutor:
    """``close`` first ends what it started, then the owner may end; it is called on the owner's thread."""

    def __init__(
        self,
        wake: Wake | None = None,
        thread_count: int = THREAD_COUNT,
        child_count_max: int = CHILD_COUNT_MAX,
        child_command: Sequence[str] = CHILD_COMMAND,
    ) -> None:
        self._completions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = self._completions.put if wake is None else wake
        self._child_command = tuple(child_command)
        self._work = _Lane("tidelog-work", thread_count, self._complete)
        self._supervisors = _Lane("tidelog-child", child_count_max, self._complete)
        self._children: list[subprocess.Popen[bytes]] = []
        self._children_lock = threading.Lock()
        self._closed = False

    def submit(self, work: Callable[[], Any], on_done: OnDone) -> None:
        self._work.submit(work, on_done)

    def submit_child(self, task: ChildTask, on_done: OnDone) -> ChildRun:
        # Encode now, on the caller's side: an argument that is not JSON is the caller's mistake and must not wait for a child to
        # report it.
        request = json.dumps(
            {"module": task.function.__module__, "function": task.function.__qualname__, "arguments": dict(task.arguments)}
        )
        run = _CancellableChild()
        self._supervisors.submit(partial(self._run_child, request.encode() + b"\n", task.timeout_seconds, run), on_done)
        return run

    def run_completions(self, timeout_seconds: float) -> int:
        """Deliver all completions that are there, after waiting for the first one; returns how many. Only without ``wake``."""
        count = 0
        try:
            deliver = self._completions.get(timeout=timeout_seconds) if timeout_seconds > 0 else self._completions.get_nowait()
            while True:
                count += 1
                deliver()
                deliver = self._completions.get_nowait()
        except queue.Empty:
            return count

    def close(self, wait: bool) -> None:
        """Take no more work and kill the children. With ``wait``, first finish all submitted work (completions are still
        delivered); without, forget what has not begun, and leave running threads to end by themselves.

        A child is killed either way: its work may take minutes, and the next start repeats it from its input.
        """
        with self._children_lock:
            self._closed = True
            for process in self._children:
                process.kill()
        self._supervisors.close(forget=True)
        self._work.close(forget=not wait)
        # A killed child ends at once: its supervisor is worth waiting for in either case, so that no zombie is left.
        self._supervisors.join()
        if wait:
            self._work.join()

    def _complete(self, on_done: OnDone, completion: Completion) -> None:
        try:
            self._wake(partial(on_done, completion))
        except RuntimeError:
            # The owner's event loop has ended before us, so nobody is left to be told.
            if not self._closed:
                raise

    def _run_child(self, request: bytes, timeout_seconds: float | None, run: "_CancellableChild") -> Mapping[str, Any]:
        if run.is_cancelled:
            raise ChildTaskError("the task was cancelled before its child process was started")
        process = self._start_child()
        try:
            run.started(process)
            result, last_words = read_outcome(process, request, timeout_seconds)
        finally:
            process.kill()
            with self._children_lock:
                self._children.remove(process)
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        return _decode_outcome(result, last_words, process.returncode)

    def _start_child(self) -> subprocess.Popen[bytes]:
        with self._children_lock:
            if self._closed:
                raise ChildTaskError("the executor is closed")
            process = subprocess.Popen(  # noqa: S603 - the command is ours: this interpreter and a module of this package
                self._child_command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
            self._children.append(process)
            return process


class _CancellableChild:
    """The owner's thread cancels, and the supervisor's thread starts the process: whoever comes second kills it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled = True
            if self._process is not None:
                self._process.kill()

    def started(self, process: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            self._process = process
            if self.is_cancelled:
                process.kill()


class _Lane:
    """A queue of jobs and a bounded number of threads that take from it."""

    def __init__(self, name: str, thread_count: int, complete: Callable[[OnDone, Completion], None]) -> None:
        if thread_count < 1:
            raise ValueError(f"{name} needs at least one thread, not {thread_count}")
        self._name = name
        self._thread_count = thread_count
        self._complete = complete
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._unfinished = 0
        self._forget = False
        self._closed = False

    def submit(self, work: Callable[[], Any], on_done: OnDone) -> None:
        if self._closed:
            raise RuntimeError("the executor is closed")
        with self._lock:
            self._unfinished += 1
            all_busy = self._unfinished > len(self._threads)
        self._jobs.put((work, on_done))
        if all_busy and len(self._threads) < self._thread_count:
            # A daemon, so that an owner that dies without ``close`` is not held up by a thread that waits for work.
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self, forget: bool) -> None:
        self._closed = True
        self._forget = forget
        for _ in self._threads:
            self._jobs.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._forget:
                continue
            work, on_done = job
            try:
                completion = Completion(work(), None)
            except BaseException as error:  # Whatever it is, the owner must hear of it, because it waits for this completion.
                completion = Completion(None, error)
            with self._lock:
                self._unfinished -= 1
            self._complete(on_done, completion)
            # A thread that waits for its next job must not keep the last one's buffers alive.
            del job, work, on_done, completion


def _decode_outcome(result: bytes, last_words: str, return_code: int) -> Mapping[str, Any]:
    try:
        outcome = json.loads(result)
    except ValueError:
        outcome = None
    if isinstance(outcome, dict):
        if isinstance(outcome.get("result"), dict):
            return dict(outcome["result"])
        if "error" in outcome:
            raise ChildTaskError(str(outcome["error"]))
    raise ChildTaskError(f"the child process ended without a result, return code {return_code}: {last_words or 'no words'}")
