"""Two workers share the jobs of one partition: one job fails once, and one can never work.

    python examples/queues.py 127.0.0.1:9092

See docs/guides/queues.md.
"""

import secrets
import sys
import threading

from tidelog import Admin, Queue

JOBS = 12


class TemporaryProblem(Exception):
    """The store for pictures does not answer."""


def resize(picture: str, deliveries: int) -> None:
    if picture == "photo-3" and deliveries == 1:
        raise TemporaryProblem
    if picture == "photo-7":
        raise ValueError("this is no picture")


def work(queue: Queue, done: dict[str, int], rejected: list[str], finished: threading.Event) -> None:
    while not finished.is_set():
        for job in queue.receive(max_messages=3, wait=1):
            picture = job.text() or ""
            try:
                resize(picture, job.deliveries)
            except TemporaryProblem:
                job.nack(delay=0.5)
            except ValueError:
                job.reject()
                rejected.append(picture)
            else:
                job.ack()
                done[picture] = job.deliveries
        if len(done) + len(rejected) == JOBS:
            finished.set()


def main(bootstrap: str) -> None:
    name = f"resize-jobs-{secrets.token_hex(4)}"
    with Admin(bootstrap) as admin:
        admin.create_topic(name)
    with Queue(bootstrap, name) as one, Queue(bootstrap, name) as other:
        for number in range(JOBS):
            one.send(f"photo-{number}")
        one.flush()
        print(f"sent {JOBS} jobs")
        done: dict[str, int] = {}
        rejected: list[str] = []
        finished = threading.Event()
        workers = [threading.Thread(target=work, args=(queue, done, rejected, finished)) for queue in (one, other)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(f"two workers did {len(done) + len(rejected)} of {JOBS} jobs, on one partition")
        print(f"photo-3 needed {done['photo-3']} deliveries")
        print(f"{', '.join(rejected)} was rejected")
        print(f"left: {len(one.receive(wait=0.5))}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
