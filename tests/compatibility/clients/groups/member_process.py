"""A member in a process of its own, so that it can crash: ``python -m tests.compatibility.clients.groups.member_process``.

Its arguments are the client's name, the membership as JSON, and the process id of its parent. It writes what it owns and what it
has committed to standard output, one JSON object a line, whenever that changes.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.compatibility.clients.groups.member import Member, Membership, Partition
from tests.compatibility.clients.groups.member_classes import MEMBERS
from tidelog.ports.child import end_with_parent

LOOK_SECONDS = 0.02
ROOT = Path(__file__).parents[4]


class MemberProcess:
    """As much of a ``Member`` as can be seen from outside."""

    def __init__(self, client: str, membership: Membership) -> None:
        self.owned: frozenset[Partition] = frozenset()
        self.committed: dict[Partition, int] = {}
        self.is_in = False
        self._command = [sys.executable, "-m", __name__, client, json.dumps(membership), str(os.getpid())]
        self._is_started = threading.Event()
        # The kernel ends the child with the thread that started it.
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        self._is_started.wait()

    def kill(self) -> None:
        """As a crash would: it cannot say that it leaves."""
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def _follow(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._is_started.set()
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                said = json.loads(line)
                self.committed = {Partition(*where): offset for *where, offset in said["committed"]}
                self.owned = frozenset(Partition(*each) for each in said["owned"])
                self.is_in = said["is_in"]
        self._process.wait()


def _state(member: Member) -> dict[str, Any]:
    committed = sorted([*partition, offset] for partition, offset in dict(member.committed).items())
    return {"owned": sorted(member.owned), "committed": committed, "is_in": member.is_in}


def main(client: str, membership: Membership) -> None:
    member = MEMBERS[client](membership)
    member.start()
    said: dict[str, Any] = {}
    while member.is_alive():
        state = _state(member)
        if state != said:
            print(json.dumps(state), flush=True)
            said = state
        time.sleep(LOOK_SECONDS)
    if member.error is not None:
        raise member.error


if __name__ == "__main__":
    end_with_parent()
    if os.getppid() == int(sys.argv[3]):
        # Else the parent ended before the kernel was asked to tell.
        main(sys.argv[1], Membership(*json.loads(sys.argv[2])))
