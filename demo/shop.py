"""The shop's worker: books what was paid for. What fails is tried again where that can help, and kept as a dead letter else."""

import json
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from demo.orders import CURRENCIES, Kind, kind_of
from tidelog import Backoff, Worker
from tidelog.client.message import Message
from tidelog.worker.failures import Reject

GROUP = "billing"
RETRIES = 2
# Without anything new for so long, something is wrong.
PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class UnknownCurrency(Reject):
    """Trying again does not make the shop take it: a dead letter at once."""


class Ledger:
    """What was booked: amounts by order, so that an order that comes twice is booked once."""

    def __init__(self) -> None:
        self._amounts: dict[int, int] = {}
        self._lock = threading.Lock()

    def book(self, order: int, amount: int) -> None:
        with self._lock:
            self._amounts[order] = amount

    @property
    def orders(self) -> int:
        return len(self._amounts)

    @property
    def total(self) -> int:
        return sum(self._amounts.values())


class Handled(NamedTuple):
    handled: int
    retried: int
    dead: int
    booked_orders: int
    booked_total: int
    seconds: float


def work(bootstrap: str, topic: str, count: int, on_progress: Callable[[int], None]) -> Handled:
    """Until every order was handled or given up. TimeoutError when that does not come to an end."""
    worker = Worker(
        bootstrap,
        group=GROUP,
        topics=[topic],
        order="key",
        retries=RETRIES,
        backoff=Backoff(base=0.2, cap=1.0),
        application_version="demo-1",
    )
    ledger = Ledger()
    still_busy = {number for number in range(count) if kind_of(number) is Kind.BUSY_AT_FIRST}

    @worker.handler
    def book(message: Message) -> None:
        order = json.loads(message.value or b"")
        if order["id"] in still_busy:
            still_busy.discard(order["id"])
            raise ConnectionError("the payment service is busy")
        if order["currency"] not in CURRENCIES:
            raise UnknownCurrency(f"we do not take {order['currency']}")
        ledger.book(order["id"], order["amount"])

    begun = time.monotonic()
    _run_until_drained(worker, count, on_progress)
    metrics = worker.metrics()
    return Handled(metrics.handled, metrics.retried, metrics.dead, ledger.orders, ledger.total, time.monotonic() - begun)


def _run_until_drained(worker: Worker, count: int, on_progress: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="worker")
    thread.start()
    settled, settled_at = -1, time.monotonic()
    try:
        while thread.is_alive() and settled < count:
            metrics = worker.metrics()
            if metrics.handled + metrics.dead != settled:
                settled, settled_at = metrics.handled + metrics.dead, time.monotonic()
                on_progress(settled)
            elif time.monotonic() - settled_at > PATIENCE_SECONDS:
                raise TimeoutError(f"the worker has settled {settled:,} of {count:,} orders, and no more since a minute")
            thread.join(_LOOK_SECONDS)
    finally:
        worker.stop()
        thread.join()
    if failures:
        raise failures[0]
