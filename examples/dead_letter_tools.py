"""Dead letters: look at them, mend what was wrong, replay them. ``python examples/dead_letter_tools.py [HOST:PORT]``

The page that goes with it: docs/guides/dead-letter-tools.md.
"""

import secrets
import sys
import threading
import time
from collections.abc import Callable

from tidelog import Admin, Backoff, Producer, Worker
from tidelog.client.message import Message
from tidelog.deadletters import DeadLetters

ORDERS = 20


class UnknownCurrency(Exception):
    """A mistake in the handler: it does not know all currencies."""


class TooOld(Exception):
    """Nothing to be done about it."""


def main(bootstrap: str) -> None:
    topic = f"orders-{secrets.token_hex(4)}"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(ORDERS):
            currency = "ISK" if number % 5 == 0 else "EUR"
            order = {"number": number, "currency": currency, "year": 1999 if number == 7 else 2026}
            producer.send(topic, order, key=f"customer-{number}")

    letters = DeadLetters(bootstrap)
    dead = f"{topic}.billing.dlq"
    work(bootstrap, topic, known=["EUR"], until=lambda billed: billed + letters.depth(dead)[0].letters == ORDERS)
    for count in letters.list(dead):
        print(f"{count.letters} dead letters of group {count.group}: {count.error}")
    first = next(letters.letters(dead, error="UnknownCurrency"))
    assert first.letter is not None
    print(f"one of them: {first.key!r}, {first.letter.attempts} attempts, {first.letter.exception_message}")

    print(f"discarded: {letters.discard(dead, error='TooOld', reason='the archive has it').letters}")
    replayed = letters.replay(dead)
    print(f"replayed: {replayed.letters}, and again: {letters.replay(dead).letters}")
    work(bootstrap, topic, known=["EUR", "ISK"], until=lambda billed: billed == replayed.letters)
    print(f"left: {sum(depth.letters for depth in letters.depth(dead))}")


def work(bootstrap: str, topic: str, *, known: list[str], until: Callable[[int], bool]) -> None:
    """A worker with one retry, until so many orders were billed. Each dead letter is written once, with exactly_once."""
    worker = Worker(
        bootstrap,
        group="billing",
        topics=[topic],
        retries=1,
        backoff=Backoff(base=0.1, cap=0.1),
        retriable=is_retriable,
        exactly_once=True,
    )
    billed: set[int] = set()

    @worker.handler
    def bill(message: Message) -> None:
        order = message.json()
        if order["year"] < 2000:
            raise TooOld(f"order of {order['year']}")
        if order["currency"] not in known:
            raise UnknownCurrency(f"{order['currency']} of order {order['number']}")
        billed.add(order["number"])

    running = threading.Thread(target=worker.run)
    running.start()
    while running.is_alive() and not (billed and until(len(billed))):
        time.sleep(0.1)
    worker.stop()
    running.join()
    print(f"billed: {len(billed)}")


def is_retriable(error: BaseException) -> bool:
    return not isinstance(error, TooOld)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
