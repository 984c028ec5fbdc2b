"""Rounds of kill -9 on a bank at work: its workers, the broker, or both, at random moments.

Orders come in all the while. In each round the broker is killed, and some workers: before it, while it is down, or not, but a
new worker of the same slot fences them. Readers read on over all of it and check what they see.

The last kill takes all workers and the broker. Nobody ends their transactions then but the broker itself, by time-out: the last
stable offsets must reach the high watermarks. After that new workers carry out what is left.
"""

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from os import getpid
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.faults.bank import (
    ALL_PLACES,
    OPENING_ORDER,
    ORDERS,
    PARTITIONS,
    TOPICS,
    Book,
    Entry,
    Place,
    Statement,
    compare,
    place_of,
    random_order,
)
from tests.faults.bank_worker import FENCED_STATUS, SETTINGS, UNDECIDED_STATUS, read_journals
from tests.faults.load import DOWN, WAIT_SECONDS_MAX, wait_until
from tidelog.testing import Broker

SLOTS = 3
READERS = 2
ROOT = Path(__file__).parents[2]
ORDERS_PER_SECOND = 100
# Orders that wait for a worker at most: what is left to do at the end is bounded.
BACKLOG_MAX = 100
# So many transfers are carried out in a round before the first kill.
CARRIED_OUT_MIN = 10
KILL_SECONDS_MAX = 0.3
LIST_SECONDS = 5.0

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


class Offsets:
    """High watermarks and last stable offsets of all accounts' partitions; None while the broker is down."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._admin = AdminClient({**SETTINGS, "bootstrap.servers": bootstrap_servers})

    def high_watermarks(self) -> dict[Place, int] | None:
        return self._list(IsolationLevel.READ_UNCOMMITTED)

    def last_stable_offsets(self) -> dict[Place, int] | None:
        return self._list(IsolationLevel.READ_COMMITTED)

    def describe(self) -> str:
        last_stable_offsets, high_watermarks = self.last_stable_offsets(), self.high_watermarks()
        if last_stable_offsets is None or high_watermarks is None:
            return "offsets unknown"
        return f"last stable offsets {[*last_stable_offsets.values()]}, high watermarks {[*high_watermarks.values()]}"

    def _list(self, isolation: Any) -> dict[Place, int] | None:
        wanted = {TopicPartition(*place): OffsetSpec.latest() for place in ALL_PLACES}
        answers = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=LIST_SECONDS)
        offsets = {}
        for each, future in answers.items():
            try:
                offsets[Place(each.topic, each.partition)] = future.result(2 * LIST_SECONDS).offset
            except (KafkaException, TimeoutError):
                self._find_leaders()
                return None
        # A request that got no answer is no error to librdkafka, only an offset that is none.
        return offsets if min(offsets.values()) >= 0 else None

    def _find_leaders(self) -> None:
        """librdkafka would go on asking with the leader epochs from before a restart."""
        with suppress(KafkaException):
            self._admin.list_topics(timeout=LIST_SECONDS)


class Reader(threading.Thread):
    """Reads what is committed from the beginning on, over all crashes, and takes one snapshot after the other."""

    def __init__(self, name: str, bootstrap_servers: str, book: Book) -> None:
        super().__init__(name=name, daemon=True)
        self.statement = Statement(name, book)
        self._offsets = Offsets(bootstrap_servers)
        self._is_over = threading.Event()
        self._consumer = Consumer(
            {
                **SETTINGS,
                "bootstrap.servers": bootstrap_servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )

    def finish(self) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        try:
            self._consumer.assign([TopicPartition(*place, 0) for place in ALL_PLACES])
            while not self._is_over.is_set():
                for message in self._consumer.consume(200, 0.05):
                    self._take(message)
                if not self.statement.is_in_snapshot:
                    self._begin_snapshot()
        except Exception as error:
            self.statement.problems.append(f"{self.name} failed: {error!r}")
        finally:
            self._consumer.close()

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            self.statement.on_entry(Place(message.topic(), message.partition()), message.offset(), Entry.decode(message.value()))
        elif error.code() == KafkaError._PARTITION_EOF:
            self.statement.on_end(Place(message.topic(), message.partition()), message.offset())
        elif error.code() not in DOWN:
            raise KafkaException(error)

    def _begin_snapshot(self) -> None:
        half = self.statement.half
        high_watermarks = self._offsets.high_watermarks()
        if high_watermarks is not None:
            self.statement.begin_snapshot(half, high_watermarks)


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


class Slot:
    """The workers that share a transactional id, one after the other."""

    def __init__(self, number: int, bootstrap_servers: str, directory: Path) -> None:
        self._number = number
        self._bootstrap_servers = bootstrap_servers
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._zombies: list[subprocess.Popen[bytes]] = []
        self.superseded = 0
        self.replaced = 0
        self.problems: list[str] = []

    @property
    def has_zombies(self) -> bool:
        return bool(self._zombies)

    def start(self) -> None:
        """If there is a worker, it has yet to find out that it is none any more."""
        if self._process is not None:
            self.superseded += 1
            self._zombies.append(self._process)
        journal = self._directory / f"{self._number}.journal"
        arguments = [self._bootstrap_servers, str(self._number), str(journal), str(getpid())]
        with (self._directory / f"{self._number}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.bank_worker", *arguments], cwd=ROOT, stdout=output, stderr=output
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def look_after(self) -> None:
        """A worker whose transaction timed out, or who lost track of it, is replaced. It ends for no other reason."""
        if self._process is not None and self._process.poll() is not None:
            self._check_status(self._process)
            self.replaced += 1
            self._process = None
            self.start()
        for zombie in [each for each in self._zombies if each.poll() is not None]:
            self._check_status(zombie)
            self._zombies.remove(zombie)

    def end(self) -> None:
        self.kill()
        for zombie in self._zombies:
            zombie.kill()
            zombie.wait()

    def _check_status(self, process: subprocess.Popen[bytes]) -> None:
        if process.returncode not in (FENCED_STATUS, UNDECIDED_STATUS):
            said = (self._directory / f"{self._number}.log").read_text()[-1_000:]
            self.problems.append(f"worker {self._number} ended with {process.returncode}: {said}")


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
        way = self._random.choice((self._kill_workers_first, self._kill_broker_first, self._supersede))
        way(victims)

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
