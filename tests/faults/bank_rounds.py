"""Rounds of kill -9 on a bank at work: its workers, the broker, or both, at random moments.

Orders come in all the while. In each round the broker is killed, and some workers: before it, while it is down, or not, but a
new worker of the same slot fences them. Readers read on over all of it and check what they see.

The last kill takes all workers and the broker. Nobody ends their transactions then but the broker itself, by time-out: the last
stable offsets must reach the high watermarks. After that new workers carry out what is left.
"""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.bank import OPENING_ORDER, ORDERS, PARTITIONS, TOPICS, Book, Entry, compare, place_of
from tests.faults.bank_customers import Customers
from tests.faults.bank_reader import Offsets, Reader
from tests.faults.bank_slot import SLOTS, Slot
from tests.faults.bank_worker import SETTINGS, read_journals
from tests.faults.load import wait_until
from tidelog.testing import Broker

READERS = 2
# So many transfers are carried out in a round before the first kill.
CARRIED_OUT_MIN = 10
KILL_SECONDS_MAX = 0.3
CONFIGS = {
    "log.segment.bytes": 1 << 20,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


class BankOutcome(NamedTuple):
    orders: int
    committed: int
    aborted: int
    """Transactions, as far as workers know."""
    snapshots: int
    superseded: int
    replaced: int
    problems: list[str]


class BankRounds:
    def __init__(self, broker: Broker, directory: Path, random: Random) -> None:
        self._broker = broker
        self._directory = directory
        self._random = random
        bootstrap_servers = broker.bootstrap_servers
        self.book = Book()
        self.readers = [Reader(f"reader {number}", bootstrap_servers, self.book) for number in range(READERS)]
        self.slots = [Slot(number, bootstrap_servers, directory) for number in range(SLOTS)]
        self.customers = Customers(bootstrap_servers, self.book, Random(random.random()), self._carried_out)
        self._offsets = Offsets(bootstrap_servers)
        self._stuck: list[str] = []
        self._ways: list[Callable[[list[Slot]], None]] = []

    def run(self, is_enough: Callable[[int], bool]) -> BankOutcome:
        """Rounds until ``is_enough`` says so of their number."""
        self._open()
        for thread in (*self.readers, self.customers):
            thread.start()
        try:
            for slot in self.slots:
                slot.start()
            for number in itertools.count():
                if is_enough(number) or self._problems():
                    break
                self._round(number)
            if not self._problems():
                self._heal()
            if not self._problems():
                self._drain()
        except TimeoutError as error:
            self._stuck.append(f"{error}: {self._carried_out()} of {len(self.book.orders)} transfers, {self._offsets.describe()}")
        finally:
            for slot in self.slots:
                slot.end()
            self.customers.finish()
            for reader in self.readers:
                reader.finish()
        return self._reckon()

    def _open(self) -> None:
        admin = AdminClient({**SETTINGS, "bootstrap.servers": self._broker.bootstrap_servers})
        topics = [NewTopic(ORDERS, SLOTS, 1), *(NewTopic(topic, PARTITIONS, 1) for topic in TOPICS)]
        for future in admin.create_topics(topics).values():
            future.result(10)
        producer = Producer({**SETTINGS, "bootstrap.servers": self._broker.bootstrap_servers, "transactional.id": "opening"})
        producer.init_transactions(10)
        producer.begin_transaction()
        for leg in OPENING_ORDER.legs:
            topic, partition = place_of(leg.account)
            producer.produce(topic, Entry(OPENING_ORDER.number, "opening", *leg).encode(), partition=partition)
        producer.commit_transaction(10)

    def _carried_out(self) -> int:
        return min(reader.statement.carried_out for reader in self.readers)

    def _problems(self) -> list[str]:
        found = [*(reader.statement.problems for reader in self.readers), *(slot.problems for slot in self.slots)]
        return [problem for problems in (self._stuck, *found, self.customers.problems) for problem in problems]

    def _wait(self, is_done: Callable[[], bool], what: str) -> None:
        """Workers that gave up are replaced meanwhile. A problem ends the wait."""

        def look() -> bool:
            for slot in self.slots:
                slot.look_after()
            return bool(self._problems()) or is_done()

        wait_until(look, what)

    def _round(self, number: int) -> None:
        enough = self._carried_out() + CARRIED_OUT_MIN
        self._wait(lambda: self._carried_out() >= enough, f"transfers of round {number}")
        victims = self._random.sample(self.slots, self._random.randint(1, SLOTS - 1))
        if not self._ways:
            # Each in every three rounds, in any order.
            self._ways = self._random.sample((self._kill_workers_first, self._kill_broker_first, self._supersede), 3)
        self._ways.pop()(victims)

    def _pause(self) -> None:
        """A kill comes at any moment of what is going on."""
        time.sleep(self._random.random() * KILL_SECONDS_MAX)

    def _restart_broker(self) -> None:
        self._pause()
        self._broker.kill()
        self._broker.start()

    def _kill_workers_first(self, victims: list[Slot]) -> None:
        self._pause()
        for slot in victims:
            slot.kill()
            slot.start()
        self._restart_broker()

    def _kill_broker_first(self, victims: list[Slot]) -> None:
        self._pause()
        self._broker.kill()
        for slot in victims:
            slot.kill()
        self._broker.start()
        for slot in victims:
            slot.start()

    def _supersede(self, victims: list[Slot]) -> None:
        self._pause()
        for slot in victims:
            slot.start()
        self._restart_broker()

    def _heal(self) -> None:
        """Zombies find out while there are orders; then everything is killed at once."""
        self._wait(lambda: not any(slot.has_zombies for slot in self.slots), "zombies that find out")
        self._pause()
        for slot in self.slots:
            slot.kill()
        self._broker.kill()
        self._broker.start()

        def is_stable() -> bool:
            last_stable_offsets = self._offsets.last_stable_offsets()
            return last_stable_offsets is not None and last_stable_offsets == self._offsets.high_watermarks()

        wait_until(is_stable, "last stable offsets at the high watermarks, with no worker alive")

    def _drain(self) -> None:
        for slot in self.slots:
            slot.start()
        self.customers.finish()
        orders = len(self.book.orders)
        self._wait(lambda: self._carried_out() >= orders, f"{orders} transfers")
        for slot in self.slots:
            slot.kill()
        final = Reader("final reader", self._broker.bootstrap_servers, self.book)
        self.readers.append(final)
        final.start()
        end_offsets = self._offsets.high_watermarks()
        assert end_offsets is not None
        self._wait(
            lambda: all(reader.statement.has_read_up_to(end_offsets) for reader in self.readers), "readers at the end of the log"
        )

    def _reckon(self) -> BankOutcome:
        outcomes = read_journals(self._directory)
        statements = [reader.statement for reader in self.readers]
        if not self._problems():
            for statement in statements:
                statement.finish(outcomes)
        return BankOutcome(
            len(self.book.orders),
            len(outcomes.committed),
            len(outcomes.aborted),
            min(statement.snapshots for statement in statements[:READERS]),
            sum(slot.superseded for slot in self.slots),
            sum(slot.replaced for slot in self.slots),
            [*self._problems(), *compare(statements)][:20],
        )
