"""What the tests of queues share: a queue of their own, and waiting for jobs."""

import secrets
import time

from tests.toolkit_broker import create_topic
from tidelog.client.queue import Job, Queue

SECONDS_MAX = 60.0


def new_queue(bootstrap: str, partitions: int = 1) -> str:
    return create_topic(bootstrap, f"jobs-{secrets.token_hex(4)}", partitions=partitions)


def send(queue: Queue, *values: str) -> None:
    for value in values:
        queue.send(value)
    queue.flush()


def receive(queue: Queue, count: int) -> list[Job]:
    """Wait for so many jobs, and return no more."""
    jobs: list[Job] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(jobs) < count:
        assert time.monotonic() < deadline, f"{len(jobs)} of {count} jobs"
        jobs += queue.receive(count - len(jobs), wait=1)
    return jobs


def values(jobs: list[Job]) -> list[str | None]:
    return [job.text() for job in jobs]
