"""An executor that knows how much of its work is not done: a broker stops only when nothing runs any more."""

from collections.abc import Callable
from typing import Any

from tidelog.ports.executor import ChildTask, Completion, Executor, OnDone


class TrackedExecutor:
    """Child tasks are not counted: they take minutes, and are killed when the process ends and begun anew by the next start."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.outstanding = 0

    def submit(self, work: Callable[[], Any], on_done: OnDone) -> None:
        def done(completion: Completion) -> None:
            self.outstanding -= 1
            on_done(completion)

        self.outstanding += 1
        self._inner.submit(work, done)

    def submit_child(self, task: ChildTask, on_done: OnDone) -> None:
        self._inner.submit_child(task, on_done)
