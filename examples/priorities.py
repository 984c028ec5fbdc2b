"""Urgent messages pass a flood of ordinary ones, within one worker and without a second system.

    python examples/priorities.py 127.0.0.1:9092

See docs/guides/priorities.md.
"""

import secrets
import sys
import threading
import time
from collections.abc import Mapping

from tidelog import Admin, Producer, Worker
from tidelog.client.message import Message

ORDINARY = 2_000
URGENT = 100


def handled_before_the_last_urgent_one(bootstrap: str, weights: Mapping[str, float]) -> int:
    """Let a flood wait, send urgent messages behind it, and count the messages until the urgent ones are through."""
    suffix = secrets.token_hex(4)
    orders, urgent = f"orders-{suffix}", f"urgent-{suffix}"
    with Admin(bootstrap) as admin:
        for topic in (orders, urgent):
            admin.create_topic(topic, partitions=2)
    begun: list[str] = []
    may_begin = threading.Event()
    named: Mapping[str | tuple[str, int], float] = {f"{topic}-{suffix}": weight for topic, weight in weights.items()}
    worker = Worker(
        bootstrap, group="shipping", topics=[orders, urgent], order="key", concurrency=2, weights=named, prefetch_messages=100_000
    )

    @worker.handler
    def ship(message: Message) -> None:
        may_begin.wait()
        begun.append(message.topic)

    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with Producer(bootstrap) as producer:
            for topic, count, waiting in ((orders, ORDINARY, ORDINARY), (urgent, URGENT, ORDINARY + URGENT)):
                for number in range(count):
                    producer.send(topic, f"parcel {number}", key=f"customer-{number}")
                producer.flush()
                wait_for(worker, waiting)
        may_begin.set()
        while len(begun) < ORDINARY + URGENT:
            time.sleep(0.02)
    finally:
        may_begin.set()
        worker.stop()
        thread.join()
    return len(begun) - begun[::-1].index(urgent)


def wait_for(worker: Worker, count: int) -> None:
    while worker.metrics().in_flight < count:
        time.sleep(0.02)


def main(bootstrap: str) -> None:
    print(f"{ORDINARY:,} ordinary messages wait, and {URGENT} urgent ones come")
    print(f"without weights the urgent ones are through after {handled_before_the_last_urgent_one(bootstrap, {}):,} messages")
    weighted = handled_before_the_last_urgent_one(bootstrap, {"urgent": 9, "orders": 1})
    print(f"with weights of 9 to 1 they are through after {weighted:,} messages")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
