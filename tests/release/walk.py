"""Every command of an installed wheel, as a person sees it: ``make release-check`` runs this, and ``make test`` does not, because
each of the commands is a process of its own here.

The steps, and what is wrong in a terminal, are those of ``tests/cli/test_walk.py``. The commands and the broker that they talk to
come from the wheel; only what prepares the steps comes from this tree.
"""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cli.test_walk import STEPS, Ended, Place, problem_in, typed

# What these want is in no empty environment, and they name the extra that brings it.
OF_EXTRAS = {"pipeline list": "install Tidelog with its extra pipelines"}
STOP_SECONDS_MAX = 60.0
STEP_SECONDS_MAX = 120.0


class InstalledBroker(AbstractContextManager["InstalledBroker"]):
    """``tidelog start``, from an environment."""

    def __init__(self, program: Path, data: Path, environment: dict[str, str]) -> None:
        words = ["start", "--data", str(data), "--listener", "127.0.0.1:0", "--json"]
        self._process = subprocess.Popen([program, *words], stderr=subprocess.PIPE, env=environment, cwd=data.parent, text=True)
        assert self._process.stderr is not None
        first = self._process.stderr.readline()
        if not first:
            raise RuntimeError(f"{program} start ended with code {self._process.wait()}")
        self.bootstrap_servers = str(json.loads(first)["advertised"])
        # Whatever it says later must not fill the pipe.
        threading.Thread(target=self._process.stderr.read, daemon=True).start()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(STOP_SECONDS_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def walk(program: Path, columns: int, directory: Path) -> list[tuple[str, int, str]]:
    """Run all steps in a terminal of that width; returns the step, exit code and screen of those that went wrong."""
    left_out = ("COLUMNS", "PYTHONPATH", "TIDELOG_PROFILE", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"TIDELOG_PROFILES": str(directory / "profiles.toml"), "TERM": "xterm"}
    problems = []
    with InstalledBroker(program, directory / "data", environment) as broker:
        environment["TIDELOG_BOOTSTRAP"] = broker.bootstrap_servers
        place = Place(directory, broker)
        for step in STEPS.strip().splitlines():
            command, stdin = typed(step)
            ended = in_a_terminal([str(program), *place.prepare(command)], stdin, columns, environment, directory)
            shown = problem_in(ended)
            if shown is not None and not (ended.code == 1 and command in OF_EXTRAS and OF_EXTRAS[command] in shown):
                problems.append((command, ended.code, shown))
        place.close()
    return problems


def in_a_terminal(words: list[str], stdin: bytes, columns: int, environment: dict[str, str], directory: Path) -> Ended:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    heard: list[bytes] = []

    def listen() -> None:
        try:
            while found := os.read(ours, 65536):
                heard.append(found)
        except OSError:
            return  # The other end is closed.

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=directory,
            timeout=STEP_SECONDS_MAX,
            check=False,
        )
    finally:
        os.close(theirs)
        listener.join()
        os.close(ours)
    return Ended(done.returncode, b"".join(heard).decode(), "")
