"""How much memory one of many objects takes."""

import gc
import tracemalloc
from collections.abc import Callable

TRIES = 5


def bytes_each(make: Callable[[int], object], count: int = 1000) -> float:
    """With all that it holds alone. Threads of other tests in this process can only add to what is seen, so the least counts."""
    return min(_bytes_each(make, count) for _ in range(TRIES))


def _bytes_each(make: Callable[[int], object], count: int) -> float:
    gc.collect()
    tracemalloc.start()
    try:
        made: list[object] = [None] * count
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            made[number] = make(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / count
