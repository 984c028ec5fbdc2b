"""Python's cycle collector, tuned for a broker.

Requests leave no cycles: what a request allocates goes when its references go. The collector finds next to nothing, but a full
collection walks every object, tens of milliseconds in which nobody is served. So what exists after the start (modules, tables,
logs, the image) is frozen, which takes it out of every later walk, and a collection starts only after many more allocations
than frees. Not switched off: cycles do come up (exceptions with tracebacks, closures), rarely, and would add up over months.
"""

import gc

# Container objects allocated and not freed before the young generation is walked; a walk of so many takes a few milliseconds.
# Requests in flight are counted too, so this is far above what clients can have in flight, as 700, the default, is not.
YOUNG_THRESHOLD = 50_000
# Young collections per middle one, and middle ones per full one.
MIDDLE_THRESHOLD = 10
FULL_THRESHOLD = 20


def tune_garbage_collection() -> None:
    """When the broker has started, before it serves."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, FULL_THRESHOLD)
