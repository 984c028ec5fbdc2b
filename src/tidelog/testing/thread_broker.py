"""A broker in a thread of the test's own process: no process has to start, and a debugger sees all of it.

It shares the interpreter with the test, so its speed means nothing, and it can be stopped but not killed.
"""

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from tidelog.testing.environment import BrokerEnvironment, BrokerFailed

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0


class ThreadBroker:
    """``with ThreadBroker() as broker: broker.bootstrap_servers``; the arguments are those of ``Broker``."""

    def __init__(self, *, persist: str | os.PathLike[str] | None = None, configs: Mapping[str, object] | None = None) -> None:
        self._environment = BrokerEnvironment(persist, configs)
        self._run: _Run | None = None
        self.events: list[dict[str, Any]] = []
        """The events that the broker reported over all its runs."""

    @property
    def bootstrap_servers(self) -> str:
        return self._environment.bootstrap_servers

    @property
    def port(self) -> int:
        return self._environment.port

    @property
    def data_path(self) -> str:
        return str(self._environment.data_path)

    @property
    def pid(self) -> int:
        """The process id of the test itself."""
        return os.getpid()

    @property
    def is_running(self) -> bool:
        return self._run is not None and self._run.thread.is_alive()

    def start(self) -> Self:
        """Return when clients can connect. BrokerFailed has the reason as its cause if the start fails."""
        if self.is_running:
            raise BrokerFailed("the broker is running already")
        self._run = _Run(self._environment.settings, self._report)
        self._run.wait_until_serving()
        return self

    def stop(self) -> None:
        """Stop it. The broker finishes what it has begun and marks the stop as clean."""
        if self._run is None or not self.is_running:
            raise BrokerFailed("the broker is not running")
        self._run.stop()

    def restart(self) -> None:
        """Start it again with the same port and data; a running broker is stopped first."""
        if self.is_running:
            self.stop()
        self.start()

    def close(self) -> None:
        """End it and release its resources."""
        try:
            if self.is_running:
                self.stop()
        finally:
            self._environment.close()

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
    """One broker from its start to its end. This is the ``embedding`` of ``run_broker``."""

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
            # Imported here, because a test whose broker has its own process need not load the server.
            from tidelog.server.process import run_broker

            run_broker(
                self._settings, report=self._report, on_serving=lambda _: self._on_serving(), may_be_insecure=True, embedding=self
            )
        except BaseException as error:  # Whatever the error is, the waiting thread must get it.
            self._error = error
        finally:
            self._is_decided.set()

    def _on_serving(self) -> None:
        self._is_serving = True
        self._is_decided.set()
