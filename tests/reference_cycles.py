"""Finds the reference cycles that a piece of work leaves behind."""

import gc
from collections import Counter
from collections.abc import Callable
from types import FunctionType

WARM_UP_REQUESTS = 20

Work = Callable[[int], None]


def assert_no_cycles(work: Work, count: int) -> None:
    """Run ``work`` for ``count`` requests with the collector off, after a first run that fills the caches. A collection then must
    find no object of ours."""
    gc.disable()
    try:
        work(min(count, WARM_UP_REQUESTS))
        gc.collect()
        work(count)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        # Other threads of the test process leave garbage too, but nothing of the broker's.
        found = Counter(name for name in map(_name_of, gc.garbage) if name.startswith("tidelog."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not found, f"{found.total()} objects after {count} requests, among them {found.most_common(12)}"


def _name_of(found: object) -> str:
    """Functions and classes have a module themselves; of everything else its class counts."""
    named = found if isinstance(found, FunctionType | type) else type(found)
    return f"{named.__module__}.{named.__qualname__}"
