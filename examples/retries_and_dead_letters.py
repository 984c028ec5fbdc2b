"""Retries and dead letters: a handler that fails in three ways. ``python examples/retries_and_dead_letters.py [HOST:PORT]``

The page that goes with it: docs/guides/retries-and-dead-letters.md.
"""

import logging
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from tidelog import Admin, Backoff, Producer, Worker
from tidelog.client.message import Message
from tidelog.deadletters import DeadLetters

ORDERS = 20
KEYS = 4


def main(bootstrap: str) -> None:
    logging.getLogger("tidelog").setLevel(logging.CRITICAL)
    topic = f"orders-{secrets.token_hex(4)}"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(ORDERS):
            producer.send(topic, {"order": number}, key=f"customer-{number % KEYS}")
        # Nobody can read this, now or later.
        producer.send(topic, b"\xff no JSON", key="customer-0")

    worker = Worker(
        bootstrap,
        group="email",
        topics=[topic],
        order="key",
        retries=3,
        backoff=Backoff(base=0.1, cap=1.0),
        application_version="1.4.2",
    )
    tries: Counter[int] = Counter()
    sent: list[int] = []

    @worker.handler
    def send_email(message: Message) -> None:
        order: int = message.json()["order"]
        tries[order] += 1
        if order == 5 and tries[order] < 3:
            raise ConnectionError("the mail server is busy")
        if order == 6:
            raise LookupError("this customer has no address")
        sent.append(order)

    run_until(worker, lambda: worker.metrics().handled == ORDERS - 1 and worker.metrics().dead == 2)
    print(f"sent: {len(sent)}, order 5 at the {tries[5]}rd try, order 6 given up after {tries[6]} tries")
    in_order = sum(numbers == sorted(numbers) for numbers in by_customer(sent).values())
    print(f"{in_order} of {KEYS} customers got their emails in order")
    dead = DeadLetters(bootstrap).letters(f"{topic}.email.dlq")
    for story in sorted(each.letter for each in dead if each.letter is not None):
        print(f"dead: {story.exception_class} after {story.attempts} attempts, version {story.application_version}")


def by_customer(orders: list[int]) -> dict[int, list[int]]:
    return {customer: [order for order in orders if order % KEYS == customer] for customer in range(KEYS)}


def run_until(worker: Worker, is_done: Callable[[], bool]) -> None:
    """A real worker just calls ``worker.run()`` and goes on until SIGTERM."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    while thread.is_alive() and not is_done():
        time.sleep(0.05)
    worker.stop()
    thread.join()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
