"""A broker in a thread of the test's own process: no process to start, and a debugger sees all of it.

It shares the interpreter with the test, so its speed says nothing, and it cannot be killed, only stopped.
"""

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from tidelog.testing.place import BrokerFailed, Place

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0


class ThreadBroker:
    """``with ThreadBroker() as broker: broker.bootstrap_servers``; the arguments are those of ``Broker``."""

    def __init__(self, *, persist: str | os.PathLike[str] | None = None, configs: Mapping[str, object] | None = None) -> None:
        self._place = Place(persist, configs)
        self._run: _Run | None = None
        self.events: list[dict[str, Any]] = []
        """What the broker reported, over all its runs."""

    @property
    def bootstrap_servers(self) -> str:
        return self._place.bootstrap_servers

    @property
    def port(self) -> int:
        return self._place.port

    @property
    def data_path(self) -> str:
        return str(self._place.data_path)

    @property
    def pid(self) -> int:
        """Of the test itself."""
        return os.getpid()

    @property
    def is_running(self) -> bool:
        return self._run is not None and self._run.thread.is_alive()

    def start(self) -> Self:
        """Returns when clients can connect. BrokerFailed, with the reason as its cause, when it does not come to that."""
        if self.is_running:
            raise BrokerFailed("the broker is running already")
        self._run = _Run(self._place.settings, self._report)
        self._run.wait_until_serving()
        return self

    def stop(self) -> None:
        """The broker finishes what it has begun and leaves the mark of a clean stop."""
        if self._run is None or not self.is_running:
            raise BrokerFailed("the broker is not running")
        self._run.stop()

    def restart(self) -> None:
        """The same port and data; stopped first if it runs."""
        if self.is_running:
            self.stop()
        self.start()

    def close(self) -> None:
        """End it and give up what it used."""
        try:
            if self.is_running:
                self.stop()
        finally:
            self._place.give_up()

    def __enter__(self) -> Self:
        try:
            return self if self.is_running else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report(self, event: str, facts: dict[str, object]) -> None:
        self.events.append({"event": event, **facts})


class _Run:
    """One broker from its start to its end; also what ``serve`` knows as its embedding."""

    def __init__(self, settings: Mapping[str, str], report: Callable[[str, dict[str, object]], None]) -> None:
        self._settings = settings
        self._report = report
        self._is_decided = threading.Event()
        self._is_serving = False
        self._error: BaseException | None = None
        self._stop: Callable[[], object] | None = None
        self.thread = threading.Thread(target=self._serve, name="tidelog-broker", daemon=True)
        self.thread.start()

    def stoppable(self, stop: Callable[[], object]) -> None:
        self._stop = stop

    def wait_until_serving(self) -> None:
        self._is_decided.wait(START_SECONDS_MAX)
        if self._error is not None:
            raise BrokerFailed(str(self._error)) from self._error
        if not self._is_serving:
            raise BrokerFailed(f"no start within {START_SECONDS_MAX} s")

    def stop(self) -> None:
        assert self._stop is not None, "a broker that serves can be stopped"
        self._stop()
        self.thread.join(STOP_SECONDS_MAX)
        if self.thread.is_alive():
            raise BrokerFailed(f"the broker has not stopped within {STOP_SECONDS_MAX} s")
        if self._error is not None:
            raise BrokerFailed(f"the broker did not stop cleanly: {self._error}") from self._error

    def _serve(self) -> None:
        try:
            # Not above: a test that has its broker in a process of its own need not load one.
            from tidelog.server.process import run_broker

            run_broker(
                self._settings, report=self._report, on_serving=lambda _: self._on_serving(), may_be_insecure=True, embedding=self
            )
        except BaseException as error:  # whatever it is, it belongs to whoever waits for this thread
            self._error = error
        finally:
            self._is_decided.set()

    def _on_serving(self) -> None:
        self._is_serving = True
        self._is_decided.set()
