"""The executor port: submit work that must not run on the event loop, and get a completion event.

A core never blocks. It submits work that would block (fsync, compression, reading cold history) as a callable, and work that
would burn Python for long (compaction, verification) as a ``ChildTask`` that runs in another process. Either way the outcome
comes back as a ``Completion`` passed to ``on_done``, always on the owner's thread and never from within ``submit`` itself, so
that a core's state changes only between events.

A ``ChildTask`` names a module-level function ``function(disk, clock, arguments) -> result`` whose arguments and result are plain
JSON values: nothing is pickled, and the simulated executor can run the same function on the simulated disk.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk


@dataclass(frozen=True, slots=True)
class Completion:
    """The outcome of submitted work: ``error`` is None exactly when the work returned ``result``."""

    result: Any
    error: BaseException | None


OnDone = Callable[[Completion], None]
ChildFunction = Callable[[Disk, Clock, Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ChildTask:
    function: ChildFunction
    arguments: Mapping[str, Any]
    timeout_seconds: float | None = None
    """The child is killed when it has no result after this time."""


class ChildTaskError(Exception):
    """The child process ended without a result, or its function raised. The message contains the child's own error."""


class ChildRun(Protocol):
    """A child task that was submitted."""

    def cancel(self) -> None:
        """Kill the child, or do not start it. Its completion comes all the same, with an error unless it was done already."""
        ...


class Executor(Protocol):
    def submit(self, work: Callable[[], Any], on_done: OnDone) -> None:
        """Run ``work`` in a helper thread. ``work`` must spend its time in calls that free the GIL."""
        ...

    def submit_child(self, task: ChildTask, on_done: OnDone) -> ChildRun:
        """Run ``task`` in a child process that ends when its parent ends."""
        ...
