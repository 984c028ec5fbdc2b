"""What is asked of each peer: a server of its own on an empty directory, and three pieces of work.

A peer says aloud what its acknowledgement is worth: ``durability`` stands in the table beside its figures, because they compare
only at the same promise.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

START_SECONDS_MAX = 60.0
VALUE = b"p" * 100


class PeerMissing(Exception):
    """It is not installed; the message says how to install it."""


class Peer(Protocol):
    name: str
    durability: str

    def start(self) -> None: ...

    def publish(self, count: int) -> float:
        """Seconds until ``count`` messages are acknowledged, as many under way as its client is good for."""

    def publish_one_by_one(self, count: int) -> list[float]:
        """Milliseconds of each of ``count`` messages until its acknowledgement, one after the other."""

    def read(self, count: int) -> float:
        """Seconds until ``count`` messages that were published are here, and acknowledged where the peer has that."""

    def mebibytes(self) -> float:
        """What its processes hold in memory."""

    def kill(self) -> None: ...


class QueuePeer(Peer, Protocol):
    """A peer that has messages acknowledged one by one."""

    def settle_one_by_one(self, count: int) -> list[float]:
        """Milliseconds from each acknowledgement until the next message is here, with one message locked at a time.

        An acknowledgement has an answer of its own at some peers and none at others. With one message locked at a time, the next
        one comes when the peer has taken note of it, so this compares.
        """


class Process:
    """The peer's server, and nothing left of it afterwards."""

    def __init__(self, command: Sequence[str], port: int, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        with (directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _answers(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{command[0]} did not start: {(directory / 'output').read_text()[-2000:]}")
            time.sleep(0.05)

    def mebibytes(self) -> float:
        """Of all processes of its session: some start as a script."""
        pages = 0
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError):
                if os.getsid(int(directory.name)) == self._process.pid:
                    pages += int((directory / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()


def program(name: str, package: str, *places: str) -> str:
    found = shutil.which(name, path=os.pathsep.join((*places, os.environ["PATH"], "/usr/sbin")))
    if found is None:
        raise PeerMissing(f"{name} is not installed (on Debian: apt install {package}): it is left out")
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
