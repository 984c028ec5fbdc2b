"""A broker in its own process, for tests: the real thing, with real crashes.

A thread starts the process and reads what it says until it ends. It is that thread whose end the kernel watches for (see
``ports.child``), so it lives exactly as long as it must: a broker never outlives the test run, however that ends.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Self

from tidelog.testing.place import BrokerFailed, Place

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
# Of what the broker said, as much as helps in an error message.
LAST_WORDS_LINES = 10


class Broker:
    """``with Broker() as broker: broker.bootstrap_servers``.

    ``persist`` names a data directory to use and keep; without it there is a temporary one. ``configs`` are broker settings
    under Kafka's names: ``Broker(configs={"num.partitions": 3})``.
    """

    def __init__(self, *, persist: str | os.PathLike[str] | None = None, configs: Mapping[str, object] | None = None) -> None:
        self._place = Place(persist, configs)
        self._run: _Run | None = None
        self.log_lines: list[str] = []
        """What the broker said, over all its runs: JSON events, and whatever else came out of it."""

    # -- what a test wants to know -------------------------------------------------------------------------------------------

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
        """Of the run under way, or of the last one."""
        if self._run is None:
            raise BrokerFailed("the broker was not started")
        return self._run.process.pid

    @property
    def is_running(self) -> bool:
        return self._run is not None and self._run.process.poll() is None

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events among ``log_lines``."""
        return [json.loads(line) for line in list(self.log_lines) if line.startswith("{")]

    # -- what a test does ----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Returns when clients can connect. BrokerFailed, with the reason, when it does not come to that."""
        if self.is_running:
            raise BrokerFailed("the broker is running already")
        self._run = _Run(self._command(self._place.settings), self.log_lines)
        self._run.wait_until_serving()
        return self

    def stop(self) -> None:
        """As an operator would: SIGTERM. The broker finishes what it has begun and leaves the mark of a clean stop."""
        run = self._need_run()
        run.process.send_signal(signal.SIGTERM)
        if run.wait_for_end() != 0:
            raise BrokerFailed(f"the broker did not stop cleanly: {run.last_words()}")

    def kill(self) -> None:
        """As a crash would: SIGKILL. What was only in its memory is lost; the page cache is not."""
        run = self._need_run()
        run.process.kill()
        run.wait_for_end()

    def restart(self) -> None:
        """The same port and data; stopped cleanly first if it runs."""
        if self.is_running:
            self.stop()
        self.start()

    def close(self) -> None:
        """End it and give up what it used. Nobody reads temporary data again, so that is not made durable first."""
        try:
            if self.is_running:
                self.kill() if self._place.is_temporary else self.stop()
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

    def _command(self, settings: Mapping[str, str]) -> list[str]:
        # -P keeps the working directory out of the import path: a file lying there must not become code.
        return [sys.executable, "-P", "-m", "tidelog.testing.child", json.dumps(settings), str(os.getpid())]

    def _need_run(self) -> "_Run":
        if self._run is None or not self.is_running:
            raise BrokerFailed("the broker is not running")
        return self._run


class _Run:
    """One process from its start to its end."""

    process: "subprocess.Popen[str]"

    def __init__(self, command: list[str], lines: list[str]) -> None:
        self._command = command
        self._lines = lines
        self._first_line = len(lines)
        self._is_decided = threading.Event()
        self._is_serving = False
        self._start_error: OSError | None = None
        self._thread = threading.Thread(target=self._follow, name="tidelog-broker", daemon=True)
        self._thread.start()

    def wait_until_serving(self) -> None:
        is_decided = self._is_decided.wait(START_SECONDS_MAX)
        if self._start_error is not None:
            raise BrokerFailed("no process could be started") from self._start_error
        if not self._is_serving:
            self.process.kill()
            self.wait_for_end()
            raise BrokerFailed(self.last_words() if is_decided else f"no start within {START_SECONDS_MAX} s: {self.last_words()}")

    def wait_for_end(self) -> int:
        try:
            code = self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        # It has read the last words when it ends.
        self._thread.join()
        return code

    def last_words(self) -> str:
        lines = self._lines[self._first_line :]
        for line in reversed(lines):
            if line.startswith("{") and '"event": "failed"' in line:
                return str(json.loads(line)["error"])
        return " | ".join(lines[-LAST_WORDS_LINES:]) or f"exit code {self.process.returncode}, without a word"

    def _follow(self) -> None:
        try:
            self.process = subprocess.Popen(  # noqa: S603 - the command is ours: this interpreter and a module of this package
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        except OSError as error:
            self._start_error = error
            self._is_decided.set()
            return
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._lines.append(line.rstrip("\n"))
                if not self._is_serving and '"event": "started"' in line:
                    self._is_serving = True
                    self._is_decided.set()
        self.process.wait()
        self._is_decided.set()
