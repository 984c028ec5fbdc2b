"""The simulated executor: work runs some time after it was submitted, and its completion arrives some time after that.

Both times are drawn from the seed, so work submitted first may run last, and completions may arrive in another order than the
work ran. A piece of work happens at one point in time: the crash points inside it are those of the disk's hook. Child tasks run
the same way, on the disk and clock given here.
"""

import json
from collections.abc import Callable
from typing import Any

from simulation.scheduler import Scheduler
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.ports.executor import ChildRun, ChildTask, ChildTaskError, Completion, OnDone
from tidelog.ports.randomness import Randomness

DelayRange = tuple[int, int]

# These are about what such a machine shows: a sync takes from a tenth of a millisecond to a few.
RUN_DELAY_US: DelayRange = (0, 3_000)
COMPLETION_DELAY_US: DelayRange = (0, 1_000)


class SimulatedChild:
    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimulatedExecutor:
    """``disk`` may be replaced (by a crash image); ``run_delay_us`` and ``completion_delay_us`` may be set: a slow fsync."""

    __slots__ = (
        "_generation",
        "_randomness",
        "_scheduler",
        "_submitted",
        "clock",
        "completion_delay_us",
        "disk",
        "pending",
        "run_delay_us",
    )

    def __init__(self, scheduler: Scheduler, randomness: Randomness, disk: Disk, clock: Clock) -> None:
        self._scheduler = scheduler
        self._randomness = randomness
        self.disk = disk
        self.clock = clock
        self.run_delay_us = RUN_DELAY_US
        self.completion_delay_us = COMPLETION_DELAY_US
        # Work submitted whose completion was not delivered yet.
        self.pending = 0
        self._submitted = 0
        self._generation = 0

    def submit(self, work: Callable[[], Any], on_done: OnDone) -> None:
        self._submit("work", work, on_done)

    def submit_child(self, task: ChildTask, on_done: OnDone) -> ChildRun:
        # This goes through JSON as in a real child, so that an argument that JSON cannot carry fails in simulation too.
        arguments = json.loads(json.dumps(dict(task.arguments)))

        child = SimulatedChild()

        def run() -> Any:
            if child.is_cancelled:
                raise ChildTaskError("the task was cancelled")
            try:
                return json.loads(json.dumps(dict(task.function(self.disk, self.clock, arguments))))
            except Exception as error:
                raise ChildTaskError(f"{type(error).__name__}: {error}") from error

        self._submit("child", run, on_done)
        return child

    def crash(self) -> None:
        """Called when the process died: what has not run never will, and no completion is delivered."""
        self._generation += 1
        self.pending = 0

    def _submit(self, kind: str, work: Callable[[], Any], on_done: OnDone) -> None:
        self._submitted += 1
        self.pending += 1
        label = f"{kind} {self._submitted}"
        generation = self._generation

        def run() -> None:
            if generation != self._generation:
                return
            try:
                completion = Completion(work(), None)
            except Exception as error:  # Crashed is not an Exception, and ends the run of the scheduler.
                completion = Completion(None, error)
            self._scheduler.schedule(self._delay(self.completion_delay_us), f"{label} done", lambda: deliver(completion))

        def deliver(completion: Completion) -> None:
            if generation == self._generation:
                self.pending -= 1
                on_done(completion)

        self._scheduler.schedule(self._delay(self.run_delay_us), f"{label} run", run)

    def _delay(self, delay_range_us: DelayRange) -> int:
        return self._randomness.integer(*delay_range_us)
