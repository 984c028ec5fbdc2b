"""A broker in its own process, for tests: the real thing, with real crashes.

A thread starts the process and reads its output until it ends. The kernel ends the process with that thread (see
``ports.child``), so a broker never outlives the test run, however that ends.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Self

from tidelog.testing.environment import BrokerEnvironment, BrokerFailed, Environment

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
# How much of the broker's output an error message quotes.
LAST_WORDS_LINES = 10


class Broker:
    """``with Broker() as broker: broker.bootstrap_servers``.

    ``persist`` names a data directory to use and keep; without it there is a temporary one. ``configs`` are broker settings
    under Kafka's names: ``Broker(configs={"num.partitions": 3})``.
    """

    def __init__(self, *, persist: str | os.PathLike[str] | None = None, configs: Mapping[str, object] | None = None) -> None:
        self._environment: Environment = BrokerEnvironment(persist, configs)
        self._run: _Run | None = None
        self.log_lines: list[str] = []
        """The output of the broker over all its runs: JSON events, and anything else it printed."""

    # -- what a test wants to know -------------------------------------------------------------------------------------------

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
        """The process id of the current run, or of the last one."""
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
        """Return when clients can connect. BrokerFailed has the reason if the start fails."""
        self.begin_start()
        self.wait_until_serving()
        return self

    def begin_start(self) -> None:
        """Start the process without waiting for it: a node of a cluster serves only when others run."""
        if self.is_running:
            raise BrokerFailed("the broker is running already")
        self._run = _Run(self._command(self._environment.settings), self.log_lines)

    def wait_until_serving(self) -> None:
        """Return when clients of the process that was begun can connect."""
        if self._run is None:
            raise BrokerFailed("the broker was not started")
        self._run.wait_until_serving()

    def stop(self) -> None:
        """Stop it as an operator would, with SIGTERM. The broker finishes what it has begun and marks the stop as clean."""
        run = self._need_run()
        run.process.send_signal(signal.SIGTERM)
        if run.wait_for_end() != 0:
            raise BrokerFailed(f"the broker did not stop cleanly: {run.last_words()}")

    def kill(self) -> None:
        """End it as a crash would, with SIGKILL. Its memory is lost, the page cache is not."""
        run = self._need_run()
        run.process.kill()
        run.wait_for_end()

    def pause(self) -> None:
        """Stop its process in mid-step (SIGSTOP): its connections stay open, and nothing answers."""
        self._need_run().process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._need_run().process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start it again with the same port and data; a running broker is stopped cleanly first."""
        if self.is_running:
            self.stop()
        self.start()

    def close(self) -> None:
        """End it and release its resources. A broker with temporary data is killed, because nobody reads the data again."""
        try:
            if self.is_running:
                self.kill() if self._environment.is_temporary else self.stop()
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

    def _command(self, settings: Mapping[str, str]) -> list[str]:
        # -P keeps the working directory out of the import path: a file there must not be imported.
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
        self._is_spawned = threading.Event()
        self._is_decided = threading.Event()
        self._is_serving = False
        self._start_error: OSError | None = None
        self._thread = threading.Thread(target=self._follow, name="tidelog-broker", daemon=True)
        self._thread.start()
        self._is_spawned.wait()
        if self._start_error is not None:
            raise BrokerFailed("no process could be started") from self._start_error

    def wait_until_serving(self) -> None:
        is_decided = self._is_decided.wait(START_SECONDS_MAX)
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
        # The thread has read all output when it ends.
        self._thread.join()
        return code

    def last_words(self) -> str:
        lines = self._lines[self._first_line :]
        for line in reversed(lines):
            if line.startswith("{") and '"event": "failed"' in line:
                return str(json.loads(line)["error"])
        return " | ".join(lines[-LAST_WORDS_LINES:]) or f"exit code {self.process.returncode}, without any output"

    def _follow(self) -> None:
        try:
            self.process = subprocess.Popen(  # noqa: S603 - the command is ours: this interpreter and a module of this package
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        except OSError as error:
            self._start_error = error
            return
        finally:
            self._is_spawned.set()
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._lines.append(line.rstrip("\n"))
                if not self._is_serving and '"event": "started"' in line:
                    self._is_serving = True
                    self._is_decided.set()
        self.process.wait()
        self._is_decided.set()
