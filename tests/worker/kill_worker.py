"""A worker in a process of its own, to be killed: ``python -m tests.worker.kill_worker <settings as JSON>``.

Every effect is one line in a file that all workers share, appended with one write: it is there when the write returned, whatever
happens to the process. Whether a message fails follows from its number and how often it was tried, so that every run agrees.
"""

import json
import os
import sys
from typing import Any

from tidelog.client.errors import TidelogError
from tidelog.client.message import Message
from tidelog.ports.child import end_with_parent
from tidelog.worker import Backoff, Worker

RETRIES = 3
# The tests start it again: as a supervisor would.
GAVE_UP_STATUS = 3


def is_dead_letter(number: int) -> bool:
    """It fails for ever."""
    return number % 31 == 5


def fails(number: int, attempts: int) -> bool:
    return is_dead_letter(number) or (number % 7 == 3 and attempts < 2) or (number % 11 == 4 and attempts < 1)


def make_worker(settings: dict[str, Any]) -> Worker:
    worker = Worker(
        settings["bootstrap"],
        group=settings["group"],
        topics=[settings["topic"]],
        order=settings["order"],
        exactly_once=settings["exactly_once"],
        instance_id=settings["instance"],
        retries=RETRIES,
        backoff=Backoff(base=0.05, cap=0.2),
        concurrency=8,
        commit_interval=0.1,
        circuit_breaker=None,
        config={"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300, "fetch.wait.max.ms": 20},
    )
    ledger = os.open(settings["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @worker.handler
    def handle(message: Message) -> None:
        number = int(message.value or b"")
        attempts = int(message.headers.get("tidelog.attempts") or b"0")
        if fails(number, attempts):
            raise OSError(f"{number} fails")
        os.write(ledger, f"{(message.key or b'').decode()} {number}\n".encode())

    return worker


def main() -> int:
    settings = json.loads(sys.argv[1])
    end_with_parent()
    try:
        return 0 if make_worker(settings).run() else 1
    except TidelogError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return GAVE_UP_STATUS


if __name__ == "__main__":
    sys.exit(main())
