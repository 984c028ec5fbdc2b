"""The bank's customers: they give orders all the while, through all crashes, and each once."""

import itertools
import threading
from collections.abc import Callable
from random import Random
from typing import Any

from confluent_kafka import Producer

from tests.faults.bank import ORDERS, Book, random_order
from tests.faults.bank_slot import SLOTS
from tests.faults.bank_worker import SETTINGS
from tests.faults.load import WAIT_SECONDS_MAX

ORDERS_PER_SECOND = 100
# Orders that wait for a worker at most: what is left to do at the end is bounded.
BACKLOG_MAX = 100


class Customers(threading.Thread):
    """Give orders, each once: by an idempotent producer that waits out the crashes."""

    def __init__(self, bootstrap_servers: str, book: Book, random: Random, carried_out: Callable[[], int]) -> None:
        super().__init__(name="customers", daemon=True)
        self.problems: list[str] = []
        self._book = book
        self._random = random
        self._carried_out = carried_out
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                **SETTINGS,
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": int(WAIT_SECONDS_MAX * 1000),
                "linger.ms": 1,
            }
        )

    def run(self) -> None:
        for number in itertools.count(1):
            while len(self._book.orders) - self._carried_out() > BACKLOG_MAX and not self._is_over.wait(0.01):
                pass
            if self._is_over.wait(1 / ORDERS_PER_SECOND):
                break
            order = random_order(number, self._random)
            self._book.orders[number] = order
            slot = self._random.randrange(SLOTS)
            self._producer.produce(ORDERS, order.encode(), partition=slot, on_delivery=self._on_delivery)
            self._producer.poll(0)

    def finish(self) -> None:
        self._is_over.set()
        self.join()
        if self._producer.flush(WAIT_SECONDS_MAX):
            self.problems.append("not all orders were delivered after the last restart")

    def _on_delivery(self, error: Any, _: Any) -> None:
        if error is not None:
            self.problems.append(f"an order was not delivered: {error}")
