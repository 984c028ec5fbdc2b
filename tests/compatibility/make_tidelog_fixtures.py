"""Makes the fixtures of ``tidelog_fixtures.py``, once, by hand: ``python -m tests.compatibility.make_tidelog_fixtures``.

Every kind of file that a data directory may hold is there: segments with indexes (they roll by the records' times), a compacted
topic, markers of commits and aborts, producer state, the metadata log, committed offsets, transactional ids. In the killed one a
transaction is open: whoever opens it must abort it, for its time has run out.
"""

import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.compatibility.apache_kafka import wait_until
from tests.compatibility.kafka_client import CALL_SECONDS_MAX, admin_client, create_topic, make_producer, read_partition, send
from tests.compatibility.kafka_fixtures import Expected, ExpectedPartition, pack, write_expected
from tests.compatibility.kafka_records import SentRecord
from tests.compatibility.tidelog_fixtures import BROKER_ID, CLEAN, GROUP, KILLED, NEVER_EXPIRES, read_state, write_state
from tidelog import __version__
from tidelog.testing import Broker

TOPICS = {
    "plain": {"segment.ms": "50"},
    "several": {"retention.ms": "-1"},
    "compacted": {"cleanup.policy": "compact", "segment.ms": "50", "min.cleanable.dirty.ratio": "0.01"},
    "transactions": {"flush.messages": "100"},
    "empty": {},
}
PARTITIONS = {"several": 3}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BROKER_CONFIGS = {
    **NEVER_EXPIRES,
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "2",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.backoff.ms": "100",
}


def write_all(broker: Broker, made_ms: int) -> None:
    servers = broker.bootstrap_servers
    admin = admin_client(servers)
    for topic, configs in TOPICS.items():
        create_topic(admin, topic, configs, PARTITIONS.get(topic, 1))
    for number, codec in enumerate(CODECS * 4):
        send(make_producer(servers, **{"compression.type": codec}), "plain", some(made_ms + number * 10, 8))
    for partition in range(3):
        send(make_producer(servers), "several", some(made_ms, partition + 1), partition)
    for turn in range(30):
        send(make_producer(servers), "compacted", some(made_ms + turn * 10, 3 + turn % 4))
    send(make_producer(servers), "compacted", [SentRecord(b"key-0", None, made_ms + 900)])
    _transactions(servers, made_ms)
    resource = ConfigResource(ResourceType.BROKER, BROKER_ID)
    resource.add_incremental_config(ConfigEntry("log.retention.bytes", "1000000000", incremental_operation=AlterConfigOpType.SET))
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(CALL_SECONDS_MAX)
    _commit_offsets(servers)


def _transactions(servers: str, made_ms: int) -> None:
    for name, turns in (("first", 3), ("second", 2)):
        producer = transactional(servers, name)
        for turn in range(turns):
            producer.begin_transaction()
            send(producer, "transactions", some(made_ms + turn, 3))
            send(producer, "several", some(made_ms + turn, 1), turn)
            end = producer.commit_transaction if turn % 2 == 0 else producer.abort_transaction
            end(CALL_SECONDS_MAX)


def _commit_offsets(servers: str) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": GROUP, "log_level": 0})
    offsets = [TopicPartition("plain", 0, 17, metadata="seventeen"), TopicPartition("transactions", 0, 4)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def transactional(servers: str, name: str) -> Producer:
    producer = make_producer(servers, **{"transactional.id": name, "transaction.timeout.ms": "20000"})
    producer.init_transactions(CALL_SECONDS_MAX)
    return producer


def some(first_ms: int, count: int) -> list[SentRecord]:
    headers = (("trace", b"\x00\xff"), ("none", None))
    return [
        SentRecord(
            f"key-{number % 5}".encode(), f"value {first_ms} {number}".encode() * (number % 3 + 1), first_ms + number, headers
        )
        for number in range(count)
    ]


def read_all(servers: str, made_ms: int) -> Expected:
    found = []
    for topic in TOPICS:
        for partition in range(PARTITIONS.get(topic, 1)):
            everything = read_partition(servers, topic, partition, committed_only=False)
            committed = read_partition(servers, topic, partition, committed_only=True)
            offsets = [record.offset for record in committed.records]
            ends = (everything.log_start_offset, everything.end_offset, committed.end_offset)
            found.append(ExpectedPartition(topic, partition, *ends, everything.records, offsets))
    return Expected(__version__, made_ms, found)


def is_compacted(path: Path) -> bool:
    """The cleaner has done its work, and what it replaced is gone."""
    directory = path / "compacted-0"
    names = [file.name for file in directory.iterdir()]
    checkpoint = path / "cleaner-offset-checkpoint"
    cleaned = checkpoint.exists() and "compacted 0" in checkpoint.read_text()
    return cleaned and not any(name.endswith((".deleted", ".cleaned", ".swap")) for name in names)


def make_fixture(name: str, path: Path) -> None:
    made_ms = time.time_ns() // 1_000_000
    with Broker(persist=path, configs=BROKER_CONFIGS) as broker:
        write_all(broker, made_ms)
        wait_until(lambda: is_compacted(path), "the compacted topic is compacted")
        expected, state = read_all(broker.bootstrap_servers, made_ms), read_state(broker.bootstrap_servers, list(TOPICS))
        if name == KILLED:
            left_open = transactional(broker.bootstrap_servers, "left-open")
            left_open.begin_transaction()
            send(left_open, "transactions", some(made_ms + 500, 2))
            broker.kill()
    pack(name, path)
    write_expected(name, expected)
    write_state(name, state)


def main() -> None:
    for name in (CLEAN, KILLED):
        with tempfile.TemporaryDirectory(prefix="tidelog-fixture-") as root:
            make_fixture(name, Path(root) / "data")


if __name__ == "__main__":
    main()
