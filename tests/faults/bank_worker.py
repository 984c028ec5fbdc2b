"""A worker of the bank, in a process of its own so that it can be killed: ``python -m tests.faults.bank_worker``.

It reads the orders of one partition and carries them out: a few orders are one transaction, with their offset in it. Some
transactions it aborts on purpose, and carries the same orders out in the next. What it was told about its transactions goes into
a journal, one line each; a kill can make the journal say less than is true, never more.

Its transactional id is its slot's, so that the next worker of the slot fences it. Then it ends with ``FENCED_STATUS``. When it
cannot find out whether a transaction was committed, it ends with ``UNDECIDED_STATUS``: the next worker will know.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.faults.bank import ORDERS, Entry, Order, Outcomes, place_of
from tests.faults.load import COMMON, DOWN
from tidelog.ports.child import end_with_parent

# Without this librdkafka forgets the only broker whenever it is down, and now and then never finds its way back (2.16).
SETTINGS = {**COMMON, "metadata.recovery.strategy": "none"}
GROUP = "bank"
TRANSACTION_TIMEOUT_MS = 5_000
CALL_SECONDS = 5.0
ORDERS_PER_TRANSACTION_MAX = 4
ABORT_SHARE = 0.15
FENCED_STATUS = 3
UNDECIDED_STATUS = 4
COMMITTED, ABORTED = "committed", "aborted"


class Abort(Exception):
    """The transaction cannot be committed."""


class Fatal(Exception):
    """This worker cannot go on."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(str(error))
        self.error = error


def read_journals(directory: Path) -> Outcomes:
    lines = [line.split(" ") for path in sorted(directory.glob("*.journal")) for line in path.read_text().splitlines()]
    committed = frozenset(transaction for outcome, transaction in lines if outcome == COMMITTED)
    return Outcomes(committed, frozenset(transaction for outcome, transaction in lines if outcome == ABORTED))


def insist(call: Callable[[], Any]) -> Any:
    """Again and again while that can help: the broker may be down."""
    while True:
        try:
            return call()
        except KafkaException as exception:
            error = exception.args[0]
            if error.fatal():
                raise Fatal(error) from exception
            if error.txn_requires_abort():
                raise Abort(str(error)) from exception
            if not error.retriable() and error.code() not in DOWN:
                raise


def _end(error: KafkaError) -> NoReturn:
    print(error, flush=True)
    fenced = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    # Without cleaning up: librdkafka would wait for what cannot be delivered.
    os._exit(FENCED_STATUS if error.code() in fenced else 1)


class Worker:
    def __init__(self, bootstrap_servers: str, slot: int, journal: Path) -> None:
        self._slot = slot
        self._random = Random()
        self._name = f"{slot}-{os.getpid()}"
        self._transactions = 0
        # Of the transaction under way: whether the broker has certainly heard of it.
        self._is_known = False
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._producer = Producer(
            {
                **SETTINGS,
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": f"bank-{slot}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                # Neither may be longer than the transaction.
                "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "socket.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 1,
            }
        )
        self._consumer = Consumer(
            {
                **SETTINGS,
                "bootstrap.servers": bootstrap_servers,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )

    def run(self) -> NoReturn:
        # In this order: once the worker before is fenced, the offsets do not change any more.
        insist(lambda: self._producer.init_transactions(CALL_SECONDS))
        mine = [TopicPartition(ORDERS, self._slot)]
        (committed,) = insist(lambda: self._consumer.committed(mine, CALL_SECONDS))
        if committed.error is not None:
            raise KafkaException(committed.error)
        offset = max(committed.offset, 0)
        self._consumer.assign([TopicPartition(ORDERS, self._slot, offset)])
        while True:
            orders = self._read(offset)
            if orders and self._carry_out(orders, offset + len(orders)):
                offset += len(orders)
            elif orders:
                insist(lambda: self._consumer.seek(TopicPartition(ORDERS, self._slot, offset)))  # noqa: B023 - called at once

    def _read(self, offset: int) -> list[Order]:
        orders: list[Order] = []
        for message in self._consumer.consume(self._random.randint(1, ORDERS_PER_TRANSACTION_MAX), 0.1):
            error = message.error()
            if error is not None:
                if error.code() not in DOWN:
                    raise KafkaException(error)
            elif message.offset() != offset + len(orders):
                raise RuntimeError(f"got order {message.offset()} instead of {offset + len(orders)}")
            else:
                orders.append(Order.decode(message.value()))
        return orders

    def _carry_out(self, orders: list[Order], next_offset: int) -> bool:
        self._transactions += 1
        transaction = f"{self._name}-{self._transactions}"
        insist(self._producer.begin_transaction)
        self._is_known = False
        try:
            self._write(orders, transaction)
            offsets = [TopicPartition(ORDERS, self._slot, next_offset)]
            group = self._consumer.consumer_group_metadata()
            insist(lambda: self._producer.send_offsets_to_transaction(offsets, group, CALL_SECONDS))
            self._is_known = True
            if self._random.random() < ABORT_SHARE:
                insist(lambda: self._producer.flush(CALL_SECONDS))
                raise Abort("because it likes to")
        except Abort:
            self._abort()
            self._note(ABORTED, transaction)
            return False
        self._commit()
        self._note(COMMITTED, transaction)
        return True

    def _abort(self) -> None:
        try:
            insist(lambda: self._producer.abort_transaction(CALL_SECONDS))
        except Fatal as fatal:
            # The broker was away for as long as the transaction may take, and has never heard of it: as in Kafka there is nothing
            # that it could end, and librdkafka gives up.
            if self._is_known or fatal.error.code() != KafkaError.INVALID_TXN_STATE:
                raise
            print(fatal, flush=True)
            os._exit(UNDECIDED_STATUS)

    def _commit(self) -> None:
        try:
            insist(lambda: self._producer.commit_transaction(CALL_SECONDS))
        except Abort as error:
            # The broker was away for so long that librdkafka gave up. It may have decided before, then an abort would be refused.
            print(error, flush=True)
            os._exit(UNDECIDED_STATUS)

    def _write(self, orders: list[Order], transaction: str) -> None:
        entries = [Entry(order.number, transaction, *leg) for order in orders for leg in order.legs]
        self._random.shuffle(entries)
        for entry in entries:
            topic, partition = place_of(entry.account)
            insist(lambda: self._producer.produce(topic, entry.encode(), partition=partition))  # noqa: B023 - called at once
        if self._random.random() < 0.5:
            # So that a kill finds transactions whose records are all written.
            insist(lambda: self._producer.flush(CALL_SECONDS))

    def _note(self, outcome: str, transaction: str) -> None:
        os.write(self._journal, f"{outcome} {transaction}\n".encode())


if __name__ == "__main__":
    end_with_parent()
    bootstrap_servers, slot, journal, parent = sys.argv[1:]
    if os.getppid() == int(parent):
        # Else the parent ended before the kernel was asked to tell.
        try:
            Worker(bootstrap_servers, int(slot), Path(journal)).run()
        except Fatal as fatal:
            _end(fatal.error)
