"""Makes the fixtures of ``kafka_fixtures.py``, once, by hand: ``python -m tests.compatibility.make_kafka_fixtures``.

Each topic is one feature of the format. Segments are a kilobyte, so that a few dozen records give several of them (Kafka refuses
less than a megabyte in ``segment.bytes``; its own tests use ``internal.segment.bytes``). Indexes are small too: those of a killed
broker are preallocated. The script waits until cleaner, retention and transaction markers have done their work, reads everything
with a client, and only then stops or kills the broker.
"""

import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compatibility.apache_kafka import KAFKA_VERSION, ApacheKafka, wait_until
from tests.compatibility.kafka_client import (
    CALL_SECONDS_MAX,
    admin_client,
    create_topic,
    make_producer,
    read_partition,
    send,
)
from tests.compatibility.kafka_fixtures import CLEAN, KILLED, Expected, ExpectedPartition, pack, write_expected
from tests.compatibility.kafka_records import SentRecord

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL_SEGMENTS = {"internal.segment.bytes": "1024", "index.interval.bytes": "128"}
COMPACTED = {
    **SMALL_SEGMENTS,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "86400000",
}
BROKER_CONFIGS = {
    "log.index.size.max.bytes": "1024",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.backoff.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "300",
    "log.flush.start.offset.checkpoint.interval.ms": "300",
    "replica.high.watermark.checkpoint.interval.ms": "300",
}


class Workload:
    """Writes the topics and remembers which partitions there are; ``finish`` waits for the broker's background work."""

    def __init__(self, kafka: ApacheKafka, made_ms: int) -> None:
        self.kafka = kafka
        self.made_ms = made_ms
        self.partitions: list[tuple[str, int]] = []
        self.admin: AdminClient = admin_client(kafka.bootstrap_servers)
        self._records_made = 0
        self._open_producers: list[Producer] = []
        self._waits: list[tuple[Callable[[], bool], str]] = []

    def write_all(self) -> None:
        self._leader_epochs()
        self._topic("empty")
        self._plain()
        self._recompressed()
        self._several_partitions()
        self._log_append_time()
        self._idempotent()
        self._transactions()
        self._compacted()
        self._compacted_transactions()
        self._retained()
        self._deleted_records()
        for condition, what in self._waits:
            wait_until(condition, what)

    def read_all(self) -> Expected:
        return Expected(KAFKA_VERSION, self.made_ms, [self._read(topic, partition) for topic, partition in self.partitions])

    def _read(self, topic: str, partition: int) -> ExpectedPartition:
        servers = self.kafka.bootstrap_servers
        everything = read_partition(servers, topic, partition, committed_only=False)
        committed = read_partition(servers, topic, partition, committed_only=True)
        if not set(committed.records) <= set(everything.records):
            raise RuntimeError(f"{topic}-{partition} changed while it was read")
        offsets = [record.offset for record in committed.records]
        start, end = everything.log_start_offset, everything.end_offset
        return ExpectedPartition(topic, partition, start, end, committed.end_offset, everything.records, offsets)

    # -- topics, one feature each

    def _leader_epochs(self) -> None:
        """Each start of the broker is a new leader epoch; this topic has seen three."""
        topic = "leader-epochs"
        self._topic(topic, SMALL_SEGMENTS)
        for restarts_left in (2, 1, 0):
            producer = self._producer(**{"enable.idempotence": "true"})
            for size in (4, 6, 5):
                send(producer, topic, self._some(size))
            if restarts_left:
                self.kafka.stop()
                self.kafka.start()
                self.admin = admin_client(self.kafka.bootstrap_servers)

    def _plain(self) -> None:
        self._topic("plain")
        unusual = [
            SentRecord(None, b"no key", self.made_ms),
            SentRecord(b"no value", None, self.made_ms + 1),
            SentRecord(None, None, self.made_ms + 2),
            SentRecord(b"", b"", self.made_ms + 3),
            SentRecord(
                b"headers", b"x", self.made_ms + 4, (("a", b"1"), ("a", b"2"), ("null", None), ("empty", b""), ("é", b"\xff"))
            ),
        ]
        for codec in CODECS:
            producer = self._producer(**{"compression.type": codec})
            send(producer, "plain", unusual)
            send(producer, "plain", self._some(8, f"{codec} "))

    def _recompressed(self) -> None:
        """The broker compresses: these are the bytes of Java's codecs."""
        for codec in CODECS[1:]:
            self._topic(f"recompressed-{codec}", {"compression.type": codec})
            send(self._producer(), f"recompressed-{codec}", self._some(12, "by the broker "))

    def _several_partitions(self) -> None:
        self._topic("several", partitions=3)
        for partition in range(3):
            send(self._producer(), "several", self._some(partition + 1), partition)

    def _log_append_time(self) -> None:
        self._topic("log-append-time", {"message.timestamp.type": "LogAppendTime"})
        for codec in ("none", "zstd"):
            send(self._producer(**{"compression.type": codec}), "log-append-time", self._some(4))

    def _idempotent(self) -> None:
        self._topic("idempotent", SMALL_SEGMENTS)
        producers = [self._producer(**{"enable.idempotence": "true"}) for _ in range(2)]
        for size in (1, 3, 2, 1, 4, 2, 1):
            for producer in producers:
                send(producer, "idempotent", self._some(size))

    def _transactions(self) -> None:
        """Commits and aborts of two producers, interleaved, and a transaction of a third that nobody ends."""
        topic = "transactions"
        self._topic(topic, SMALL_SEGMENTS)
        first, second, third = (self._transactional(f"{topic}-{name}") for name in ("first", "second", "third"))
        for turn in range(4):
            first.begin_transaction()
            send(first, topic, self._some(3, f"first {turn} "))
            second.begin_transaction()
            send(second, topic, self._some(2, f"second {turn} "))
            send(first, topic, self._some(1, f"first {turn} again "))
            self._end(first, commit=turn % 2 == 0)
            send(second, topic, self._some(1, f"second {turn} again "))
            self._end(second, commit=turn % 3 == 0)
        send(self._producer(), topic, self._some(1, "without a transaction "))
        third.begin_transaction()
        open_from = send(third, topic, self._some(2, "never ended "))[0]
        send(self._producer(), topic, self._some(2, "beyond the last stable offset "))
        self._wait(lambda: self._last_stable_offset(topic) == open_from, "the markers are written")

    def _compacted(self) -> None:
        """Updates and tombstones, cleaned: gaps, batches emptied but for their producer's last, a delete horizon."""
        self._topic("compacted", COMPACTED)
        producer = self._producer(**{"enable.idempotence": "true"})
        for turn in range(12):
            send(producer, "compacted", [self._keyed(f"key-{number}", turn) for number in range(turn % 4, 6)])
            send(producer, "compacted", [self._keyed(f"once-{turn}", turn), self._tombstone(f"key-{turn % 8}")])
        send(self._producer(**{"compression.type": "gzip"}), "compacted", [self._keyed(f"key-{n}", 9) for n in range(3, 6)])
        self._wait(lambda: self._is_cleaned("compacted"), "the cleaner has cleaned")

    def _compacted_transactions(self) -> None:
        topic = "compacted-transactions"
        self._topic(topic, COMPACTED)
        producer = self._transactional(topic)
        for turn in range(8):
            producer.begin_transaction()
            send(producer, topic, [self._keyed(f"key-{number}", turn) for number in range(4)])
            self._end(producer, commit=turn % 2 == 0)
        send(self._producer(), topic, [self._keyed("key-0", 9)])
        self._wait(lambda: self._last_stable_offset(topic) == self._end_offset(topic), "the markers are written")
        self._wait(lambda: self._is_cleaned(topic), "the cleaner has cleaned")

    def _retained(self) -> None:
        """The first segments are gone: the log start offset is the base offset of a segment."""
        self._topic("retained", {**SMALL_SEGMENTS, "retention.bytes": "2500"})
        for _ in range(20):
            send(self._producer(), "retained", self._some(6))
        self._wait(lambda: self._is_retained("retained", 2500), "retention has deleted segments")

    def _deleted_records(self) -> None:
        """The log start offset lies inside a batch, inside a segment."""
        topic = "deleted-records"
        self._topic(topic, SMALL_SEGMENTS)
        for _ in range(8):
            send(self._producer(), topic, self._some(4))
        partition = TopicPartition(topic, 0, 18)
        self.admin.delete_records([partition])[partition].result(CALL_SECONDS_MAX)
        checkpoint = self.kafka.data_directory / "log-start-offset-checkpoint"
        self._wait(lambda: f"{topic} 0 18\n" in checkpoint.read_text(), "the log start offset is checkpointed")

    # -- conditions on the broker's files

    def _is_cleaned(self, topic: str) -> bool:
        """Cleaned up to the active segment, and the replaced files are gone."""
        directory = self.kafka.data_directory / f"{topic}-0"
        active_base = max(int(path.stem) for path in directory.glob("*.log"))
        cleaned = re.search(
            rf"^{topic} 0 (\d+)$", (self.kafka.data_directory / "cleaner-offset-checkpoint").read_text(), re.MULTILINE
        )
        replaced = any(path.suffix in (".deleted", ".cleaned", ".swap") for path in directory.iterdir())
        return cleaned is not None and int(cleaned[1]) == active_base > 0 and not replaced

    def _is_retained(self, topic: str, retention_bytes: int) -> bool:
        """Retention has nothing left to do, and the files that it renamed are gone."""
        directory = self.kafka.data_directory / f"{topic}-0"
        sizes = [path.stat().st_size for path in sorted(directory.glob("*.log"))]
        return sum(sizes) - sizes[0] < retention_bytes and not any(directory.glob("*.deleted"))

    def _end_offset(self, topic: str) -> int:
        return read_partition(self.kafka.bootstrap_servers, topic, 0, committed_only=False).end_offset

    def _last_stable_offset(self, topic: str) -> int:
        return read_partition(self.kafka.bootstrap_servers, topic, 0, committed_only=True).end_offset

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Later: the broker works on all topics at once."""
        self._waits.append((condition, what))

    # -- producers and records

    def _topic(self, name: str, configs: dict[str, str] | None = None, partitions: int = 1) -> None:
        create_topic(self.admin, name, configs, partitions)
        self.partitions += [(name, partition) for partition in range(partitions)]

    def _producer(self, **settings: str) -> Producer:
        return make_producer(self.kafka.bootstrap_servers, **settings)

    def _transactional(self, transactional_id: str) -> Producer:
        producer = self._producer(**{"transactional.id": transactional_id, "transaction.timeout.ms": "600000"})
        producer.init_transactions(CALL_SECONDS_MAX)
        # A transaction left open must not end because its producer was collected.
        self._open_producers.append(producer)
        return producer

    def _end(self, producer: Producer, *, commit: bool) -> None:
        end = producer.commit_transaction if commit else producer.abort_transaction
        end(CALL_SECONDS_MAX)

    def _some(self, count: int, prefix: str = "") -> list[SentRecord]:
        records = []
        for number in range(count):
            timestamp = self._next_ms()
            value = f"{prefix}record {timestamp - self.made_ms} " + "tide " * (number % 4)
            records.append(SentRecord(f"key-{number % 5}".encode(), value.encode(), timestamp))
        return records

    def _keyed(self, key: str, turn: int) -> SentRecord:
        return SentRecord(key.encode(), f"{key} in turn {turn}".encode(), self._next_ms())

    def _tombstone(self, key: str) -> SentRecord:
        return SentRecord(key.encode(), None, self._next_ms())

    def _next_ms(self) -> int:
        self._records_made += 1
        return self.made_ms + self._records_made


def make_fixture(name: str, root: Path) -> None:
    kafka = ApacheKafka(root, configs=BROKER_CONFIGS)
    with kafka:
        workload = Workload(kafka, made_ms=time.time_ns() // 1_000_000)
        workload.write_all()
        expected = workload.read_all()
        if name == KILLED:
            kafka.kill()
    pack(name, kafka.data_directory)
    write_expected(name, expected)


def main() -> None:
    for name in (CLEAN, KILLED):
        with tempfile.TemporaryDirectory(prefix="tidelog-kafka-") as root:
            make_fixture(name, Path(root))


if __name__ == "__main__":
    main()
