"""Signals: the first stops gracefully, the second now, and what was there before comes back."""

import os
import signal
import threading

from tidelog.worker.signals import stopping_on_signals


def test_the_first_stops_and_the_second_stops_now() -> None:
    calls: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with stopping_on_signals(lambda: calls.append("stop"), lambda: calls.append("now")):
        os.kill(os.getpid(), signal.SIGTERM)
        assert calls == ["stop"]
        os.kill(os.getpid(), signal.SIGINT)
        assert calls == ["stop", "now"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def run() -> None:
        with stopping_on_signals(lambda: None, lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
