"""Long work on the event loop, done in slices between which every other client is served.

Nothing that a client asks for may hold the loop. Work that may take long is a generator (``ports.steps``): it yields wherever it
may pause, every few hundred microseconds, and ``WorkSlices`` runs all of them in turns. A call that it yields, such as the
decompression of a large batch, runs in a helper thread in the meantime. A slice ends after ``STEPS_PER_SLICE`` steps or after the
few milliseconds of a ``TimeBudget``, and the next one begins with a timer, which is after every socket that is ready has been
read. If nothing else is under way, the first slice runs at once, so a request that is not long after all waits for nothing.

Two kinds of requests use this (see ``ClientSession.receive``). A *large request* is decoded, handled and answered in slices. A
*long answer* to a small request is a handler that returns a generator. The number of steps, and not the time, decides in the
simulator, whose clock stands still while code runs; so the same seed makes the same slices.

Large requests also wait here for memory. A decoded element takes up to forty times the bytes that it had in its frame, so what
is decoded and not answered yet is bounded by ``queued.max.request.bytes``. A request for which there is no room waits as bytes,
in the order of arrival; one that exceeds the bound by itself is admitted alone.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from tidelog.broker.timers import Timer, Timers
from tidelog.log.time_budget import TimeBudget
from tidelog.ports.clock import Clock
from tidelog.ports.executor import Completion, Executor
from tidelog.ports.steps import Pause, Steps

# A step takes at most a millisecond, and the time budget ends a slice of slow steps.
STEPS_PER_SLICE = 8

OnEnd = Callable[[Exception | None], None]


class SlicedWork:
    """Work in progress. ``on_end`` is called once when it has ended, with the error if it failed, unless it was cancelled."""

    __slots__ = ("_on_end", "_steps")

    def __init__(self, steps: Steps[Any], on_end: OnEnd) -> None:
        self._steps: Steps[Any] | None = steps
        self._on_end: OnEnd | None = on_end

    @property
    def is_over(self) -> bool:
        return self._steps is None

    def step(self, completion: Completion | None = None) -> Pause:
        """Continue with the outcome of the call that it asked for, if it did."""
        steps = self._steps
        if steps is None:
            return None
        try:
            if completion is not None and completion.error is not None:
                return steps.throw(completion.error)
            return steps.send(None if completion is None else completion.result)
        except StopIteration:
            self._end(None)
        except Exception as error:
            self._end(error)
        return None

    def _end(self, error: Exception | None) -> None:
        on_end, self._steps, self._on_end = self._on_end, None, None
        if on_end is not None:
            on_end(error)

    def cancel(self) -> None:
        """Forget the work, and everything that it refers to."""
        self._steps = self._on_end = None


class LargeWork(Protocol):
    """A large request, as the bound on memory sees it."""

    decoded_bytes: int

    @property
    def is_cancelled(self) -> bool: ...

    def begin(self) -> None: ...


class WorkSlices:
    __slots__ = ("_admitted_bytes", "_clock", "_decoded_bytes_max", "_executor", "_queue", "_timer", "_timers", "_waiting")

    def __init__(self, clock: Clock, timers: Timers, executor: Executor, decoded_bytes_max: int) -> None:
        self._clock = clock
        self._timers = timers
        self._executor = executor
        self._decoded_bytes_max = decoded_bytes_max
        # The work of the next slices, which takes turns, one step each, and what it waited for.
        self._queue: deque[tuple[SlicedWork, Completion | None]] = deque()
        self._timer: Timer | None = None
        self._admitted_bytes = 0
        self._waiting: deque[LargeWork] = deque()

    def __len__(self) -> int:
        """The number of pieces of work that wait for their turn."""
        return sum(not work.is_over for work, _ in self._queue)

    @property
    def admitted_bytes(self) -> int:
        """An upper bound of the memory of the large requests that are decoded and not answered."""
        return self._admitted_bytes

    @property
    def waiting_count(self) -> int:
        """The number of large requests that wait for memory."""
        return sum(not work.is_cancelled for work in self._waiting)

    # -- slices --------------------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether no work waits for its turn, so that other work may begin at once."""
        return not self._queue

    def run(self, steps: Steps[Any], on_end: OnEnd, pause: Pause = None) -> SlicedWork:
        """Begin at once, unless other work is under way, and continue in later slices. ``pause`` is what the first step yielded,
        if that has been done."""
        work = SlicedWork(steps, on_end)
        if pause is not None:
            self._executor.submit(pause, partial(self._continue, work))
            return work
        is_alone = not self._queue
        self._queue.append((work, None))
        if is_alone:
            self._run_slice()
        return work

    def _run_slice(self) -> None:
        self._timer = None
        queue = self._queue
        budget = TimeBudget(self._clock, STEPS_PER_SLICE)
        while queue and not budget.is_over:
            # It stays at the head meanwhile, so that work which it begins waits for its turn.
            work, completion = queue[0]
            try:
                pause = work.step(completion)
            except BaseException:
                # Whatever goes wrong at the end of one piece of work, the others continue.
                queue.popleft()
                self._plan_slice()
                raise
            queue.popleft()
            if pause is not None:
                self._executor.submit(pause, partial(self._continue, work))
            elif not work.is_over:
                queue.append((work, None))
            budget.spend()
        self._plan_slice()

    def _continue(self, work: SlicedWork, completion: Completion) -> None:
        if not work.is_over:
            self._queue.append((work, completion))
            self._plan_slice()

    def _plan_slice(self) -> None:
        if self._queue and self._timer is None:
            self._timer = self._timers.schedule(0, self._run_slice)

    # -- memory --------------------------------------------------------------------------------------------------------------

    def admit(self, work: LargeWork) -> None:
        """Call ``work.begin`` when there is memory for it, which may be now. Call ``release`` when the memory is free again."""
        self._waiting.append(work)
        self._admit_waiting()

    def release(self, work: LargeWork) -> None:
        self._admitted_bytes -= work.decoded_bytes
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            work = waiting[0]
            if work.is_cancelled:
                waiting.popleft()
                continue
            if self._admitted_bytes and self._admitted_bytes + work.decoded_bytes > self._decoded_bytes_max:
                return
            waiting.popleft()
            self._admitted_bytes += work.decoded_bytes
            work.begin()
