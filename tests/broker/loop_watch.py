"""Measures how long a broker holds its event loop: the processor time of each call that the loop would make."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any

from tests.broker.harness import Machine


class LoopWatch:
    """``longest_ms`` is the longest turn of the loop so far: one request, one tick, or one end of a burst."""

    def __init__(self) -> None:
        self.longest_ms = 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*arguments: Any, **named: Any) -> Any:
            began = thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.longest_ms = max(self.longest_ms, (thread_time() - began) * 1000)

        return timed_call


@contextmanager
def watch_loop(machine: Machine) -> Iterator[LoopWatch]:
    """Watch everything that the machine's broker does. The collector is off meanwhile: its time is nobody's request."""
    watch = LoopWatch()
    broker = machine.broker
    broker.tick = watch.timed(broker.tick)  # type: ignore[method-assign]  # the watch stands in for the method
    broker.end_of_burst = watch.timed(broker.end_of_burst)  # type: ignore[method-assign]  # the watch stands in for the method
    gc.disable()
    try:
        yield watch
    finally:
        gc.enable()
        del broker.tick, broker.end_of_burst
