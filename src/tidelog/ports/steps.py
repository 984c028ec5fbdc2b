"""Work that may take long, as a generator: it yields where it may pause, and returns its result.

What it yields says how to continue. None means later, after other work had its turn. A callable means that this has to run in a
helper thread (see ``Executor.submit``) and that the work continues with its result, or with the exception that it raised.
``broker.work_slices`` runs such work between requests. ``run_to_end`` runs it in one go, where nobody else waits.
"""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

Result = TypeVar("Result")

Pause = Any
"""None, or a callable."""
Steps = Generator[Pause, Any, Result]


def run_to_end(steps: Steps[Result]) -> Result:
    try:
        pause = next(steps)
        while True:
            pause = steps.send(None) if pause is None else _continue_after(pause, steps)
    except StopIteration as end:
        result: Result = end.value
        return result


def _continue_after(call: Callable[[], Any], steps: Steps[Any]) -> Pause:
    try:
        outcome = call()
    except Exception as error:
        return steps.throw(error)
    return steps.send(outcome)
