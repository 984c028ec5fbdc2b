"""SIGTERM and SIGINT: the first one stops the worker gracefully, the second one now.

Only in the main thread, where Python lets signals in; elsewhere whoever runs the worker calls ``stop`` and ``stop_now``.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(stop: Callable[[], None], stop_now: Callable[[], None]) -> Iterator[None]:
    """Within the block. The handlers that were there before come back afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def came(number: int, _: object) -> None:
        seen.append(number)
        if len(seen) == 1:
            stop()
        else:
            stop_now()

    before = {number: signal.signal(number, came) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
