"""What is killed: ``python -m tests.client.queue.worker_process BOOTSTRAP QUEUE SEED``. It prints ``got PARTITION OFFSET TIME``
for each job, and ``acked PARTITION OFFSET TIME`` when that is answered. It goes on until killed.
"""

import os
import random
import sys
import time
from contextlib import suppress

from tidelog.client.errors import LockLost
from tidelog.client.queue import Job, Queue


def say(word: str, job: Job) -> None:
    # One write per line: a kill leaves whole lines. The clock is the machine's, the same in all processes.
    os.write(1, f"{word} {job.partition} {job.offset} {time.monotonic_ns()}\n".encode())


def work(bootstrap: str, name: str, seed: str) -> None:
    choices = random.Random(seed)
    with Queue(bootstrap, name, visibility_timeout=2) as queue:
        while True:
            for job in queue.receive(choices.randint(1, 20), wait=0.5):
                say("got", job)
                with suppress(LockLost):
                    if choices.random() < 0.05:
                        job.nack()
                    else:
                        job.ack()
                        say("acked", job)


if __name__ == "__main__":
    work(*sys.argv[1:])
