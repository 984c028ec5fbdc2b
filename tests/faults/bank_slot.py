"""The workers (bank_worker.py) of a slot, each a process: killed, replaced, or superseded while they still run.

One that was superseded is a zombie: it has to find out by itself, and ends for no other reason.
"""

import subprocess
import sys
from os import getpid
from pathlib import Path

from tests.faults.bank_worker import FENCED_STATUS, UNDECIDED_STATUS

SLOTS = 3
ROOT = Path(__file__).parents[2]


class Slot:
    """The workers that share a transactional id, one after the other."""

    def __init__(self, number: int, bootstrap_servers: str, directory: Path) -> None:
        self._number = number
        self._bootstrap_servers = bootstrap_servers
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._zombies: list[subprocess.Popen[bytes]] = []
        self.superseded = 0
        self.replaced = 0
        self.problems: list[str] = []

    @property
    def has_zombies(self) -> bool:
        return bool(self._zombies)

    def start(self) -> None:
        """If there is a worker, it has yet to find out that it is none any more."""
        if self._process is not None:
            self.superseded += 1
            self._zombies.append(self._process)
        journal = self._directory / f"{self._number}.journal"
        arguments = [self._bootstrap_servers, str(self._number), str(journal), str(getpid())]
        with (self._directory / f"{self._number}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.bank_worker", *arguments], cwd=ROOT, stdout=output, stderr=output
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def look_after(self) -> None:
        """A worker whose transaction timed out, or who lost track of it, is replaced. It ends for no other reason."""
        if self._process is not None and self._process.poll() is not None:
            self._check_status(self._process)
            self.replaced += 1
            self._process = None
            self.start()
        for zombie in [each for each in self._zombies if each.poll() is not None]:
            self._check_status(zombie)
            self._zombies.remove(zombie)

    def end(self) -> None:
        self.kill()
        for zombie in self._zombies:
            zombie.kill()
            zombie.wait()

    def _check_status(self, process: subprocess.Popen[bytes]) -> None:
        if process.returncode not in (FENCED_STATUS, UNDECIDED_STATUS):
            said = (self._directory / f"{self._number}.log").read_text()[-1_000:]
            self.problems.append(f"worker {self._number} ended with {process.returncode}: {said}")
