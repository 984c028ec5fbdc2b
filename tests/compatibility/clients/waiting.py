"""Waiting for a condition of the world outside: looked at again and again, until it holds or too much time has passed."""

import time
from collections.abc import Callable

LOOK_SECONDS = 0.02


def wait_until(condition: Callable[[], object], what: str, seconds_max: float = 30.0) -> None:
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds_max:.0f} s: {what}")
        time.sleep(LOOK_SECONDS)
