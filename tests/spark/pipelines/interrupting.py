"""Ctrl-C for a run without an end, in the process of the tests: signals are the main thread's, where tests run."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A batch takes seconds where others start Java beside it.
SECONDS_MAX = 200.0


@contextmanager
def ctrl_c_after(meanwhile: Callable[[], None]) -> Iterator[None]:
    """When ``meanwhile``, which runs beside, has returned or failed; what failed there fails here."""
    failed: list[BaseException] = []

    def interrupt() -> None:
        try:
            meanwhile()
        except BaseException as error:
            failed.append(error)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    # A run that ended by itself would leave the signal to pytest.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        thread.start()
        yield
    finally:
        thread.join(2 * SECONDS_MAX)
        signal.signal(signal.SIGINT, before)
    assert not failed, failed
