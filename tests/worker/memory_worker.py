"""A worker that dies of memory, in a process of its own: ``python -m tests.worker.memory_worker <settings as JSON>``.

It may have so much address space and no more. The handler keeps memory of each message that says so, and when there is none left
the process ends as under a kernel that is out of memory: at once, with nothing said to anybody. Whatever else finds no memory
(librdkafka aborts) ends it as well.

Each effect is a line in a file, with how much had been read ahead in that moment.
"""

import json
import os
import resource
import signal
import sys
import time
from typing import Any

from tidelog.client.message import Message
from tidelog.ports.child import end_with_parent
from tidelog.worker import Worker

HANDLER_SECONDS = 0.03


def make_worker(settings: dict[str, Any]) -> Worker:
    worker = Worker(
        settings["bootstrap"],
        group=settings["group"],
        topics=[settings["topic"]],
        order="none",
        concurrency=2,
        # It comes back under its name, so that nobody waits for the session of the dead one.
        instance_id="only",
        commit_interval=0.05,
        prefetch_bytes=settings["prefetch_bytes"],
    )
    ledger = os.open(settings["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    kept: list[bytearray] = []

    @worker.handler
    def handle(message: Message) -> None:
        try:
            if "leaks" in message.headers:
                kept.append(bytearray(settings["leak_bytes"]))
                # A life is longer than it takes to commit.
                time.sleep(HANDLER_SECONDS)
            number = int((message.key or b"").decode())
            os.write(ledger, f"{number} {worker.metrics().in_flight}\n".encode())
        except MemoryError:
            os.kill(os.getpid(), signal.SIGKILL)

    return worker


def limit_memory(room_bytes: int) -> None:
    """What it has now, and so much more."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + room_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> int:
    settings = json.loads(sys.argv[1])
    end_with_parent()
    worker = make_worker(settings)
    limit_memory(settings["room_bytes"])
    return 0 if worker.run() else 1


if __name__ == "__main__":
    sys.exit(main())
