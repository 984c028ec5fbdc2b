"""A reader of the bank's accounts: it reads on over all crashes and keeps its statement (bank.py), which checks what it sees.

``Offsets`` is the broker's word on how far there is something to read.
"""

import threading
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.faults.bank import ALL_PLACES, Book, Entry, Place, Statement
from tests.faults.bank_worker import SETTINGS
from tests.faults.load import DOWN

LIST_SECONDS = 5.0


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
