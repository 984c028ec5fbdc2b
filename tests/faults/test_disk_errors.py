"""A full disk and a failing one, under load.

Clients hear KAFKA_STORAGE_ERROR, the broker stays up, goes on when it can, and nothing acknowledged is lost.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.faults.faulty_broker import FaultyBroker
from tests.faults.faulty_disk import SYNC_ERROR, WRITE_ERROR, DiskFaults
from tests.faults.load import COMMON, reader, wait_until
from tests.faults.peers import Peer, Probe, api_versions_request
from tests.faults.rounds import create_topic
from tidelog.testing import Broker

MEBIBYTE = 1 << 20
DISK_BYTES = 48 * MEBIBYTE
FILLER_BYTES = 24 * MEBIBYTE
VALUE_BYTES = 100_000
TOPIC = "orders"
# librdkafka asks for metadata after each refusal and takes its time.
REFUSED = 3
# A broker that waited for room would take a minute.
STOP_SECONDS_MAX = 30
CONFIGS = {"log.segment.bytes": MEBIBYTE}


class Writer:
    """Sends numbered values one by one and knows what became of each."""

    def __init__(self, broker: Broker, topic: str = TOPIC) -> None:
        self._topic = topic
        settings: dict[str, object] = {
            "acks": "all",
            "enable.idempotence": False,
            "retries": 0,
            "linger.ms": 0,
            "message.timeout.ms": 20_000,
        }
        settings |= {"topic.metadata.refresh.fast.interval.ms": 20}
        self._producer = Producer({**COMMON, **settings, "bootstrap.servers": broker.bootstrap_servers})
        self._count = 0
        self.acknowledged: dict[tuple[int, int], bytes] = {}

    def send(self, partition: int = 0) -> KafkaError | None:
        """The error, if it was not acknowledged."""
        value = b"%d " % self._count + os.urandom(VALUE_BYTES)
        self._count += 1
        outcomes: list[KafkaError | None] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            outcomes.append(error)
            if error is None:
                self.acknowledged[partition, message.offset()] = value

        self._producer.produce(self._topic, value, partition=partition, on_delivery=on_delivery)
        assert self._producer.flush(30) == 0, "neither acknowledged nor refused"
        return outcomes[0]

    def send_until_refused(self, partition: int = 0) -> KafkaError:
        for _ in range(10_000):
            error = self.send(partition)
            if error is not None:
                return error
        raise AssertionError("never refused")

    def send_some(self, count: int) -> None:
        for _ in range(count):
            assert self.succeeds()

    def succeeds(self, partition: int = 0) -> bool:
        return self.send(partition) is None


def read_back(broker: Broker, partitions: int) -> dict[tuple[int, int], bytes]:
    consumer = reader(broker.bootstrap_servers)
    found: dict[tuple[int, int], bytes] = {}
    try:
        for partition in range(partitions):
            _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=10)
            consumer.assign([TopicPartition(TOPIC, partition, 0)])
            read = 0
            while read < end:
                messages = consumer.consume(min(100, end - read), 10)
                assert messages, "the reader gets nothing"
                for message in messages:
                    if message.error() is not None:
                        raise KafkaException(message.error())
                    found[partition, message.offset()] = message.value()
                    read += 1
    finally:
        consumer.close()
    return found


def assert_all_there(broker: Broker, writer: Writer, partitions: int = 1) -> None:
    found = read_back(broker, partitions)
    lost = [place for place, value in writer.acknowledged.items() if found.get(place) != value]
    assert lost == []


def assert_nothing_unexpected(broker: Broker) -> None:
    assert [line for line in broker.log_lines if not line.startswith("{")] == []
    assert [event for event in broker.events if event["event"] == "unexpected_error"] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that can really be full."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}; tests/log has the simulated disk")
    if mounted.returncode:
        pytest.skip(f"no file system may be mounted here: {mounted.stderr.strip()}; tests/log has the simulated disk")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def fill(path: Path) -> None:
    """To the last byte."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left"):
            os.write(descriptor, bytes(DISK_BYTES)) and os.write(descriptor, bytes(4096))
    finally:
        os.close(descriptor)


def test_a_full_disk(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(FILLER_BYTES))
    with Broker(persist=small_disk / "data", configs=CONFIGS) as broker:
        create_topic(broker, TOPIC, 1)
        writer = Writer(broker)
        with Probe(broker):
            error = writer.send_until_refused()
            assert error.code() == KafkaError.KAFKA_STORAGE_ERROR
            for _ in range(REFUSED):
                refused = writer.send()
                assert refused is None or refused.code() == KafkaError.KAFKA_STORAGE_ERROR
            assert_all_there(broker, writer)
            filler.unlink()
            wait_until(writer.succeeds, "room was made: the broker takes records again", 10)
            for _ in range(20):
                assert writer.succeeds()
        assert_all_there(broker, writer)
        broker.kill()
        broker.start()
        assert_all_there(broker, writer)
        assert_nothing_unexpected(broker)


def test_a_crash_on_a_full_disk(small_disk: Path) -> None:
    """Without a free byte the broker starts, is read, and deletes what it is told to; then it takes records again."""
    (small_disk / "filler").write_bytes(bytes(FILLER_BYTES))
    with Broker(persist=small_disk / "data", configs={**CONFIGS, "log.segment.delete.delay.ms": 0}) as broker:
        create_topic(broker, TOPIC, 1)
        create_topic(broker, "old", 1)
        Writer(broker, "old").send_some(100)
        writer = Writer(broker)
        writer.send_until_refused()
        broker.kill()
        fill(small_disk / "rest")
        broker.start()
        error = writer.send()
        assert error is not None
        assert error.code() == KafkaError.KAFKA_STORAGE_ERROR
        assert_all_there(broker, writer)
        began = time.monotonic()
        broker.stop()
        assert time.monotonic() - began < STOP_SECONDS_MAX
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics(["old"])["old"].result(30)
        wait_until(writer.succeeds, "the deleted topic made room: the broker takes records again", 20)
        assert_all_there(broker, writer)
        broker.restart()
        assert_all_there(broker, writer)
        assert_nothing_unexpected(broker)


@pytest.mark.parametrize("switch", [WRITE_ERROR, SYNC_ERROR])
def test_a_disk_that_fails_for_one_partition(tmp_path: Path, switch: str) -> None:
    switches = tmp_path / "switches"
    switches.mkdir()
    with FaultyBroker(tmp_path / "data", CONFIGS, DiskFaults(switches=str(switches))) as broker:
        create_topic(broker, TOPIC, 2)
        writer = Writer(broker)
        for _ in range(5):
            assert writer.succeeds(0)
            assert writer.succeeds(1)
        with Probe(broker):
            (switches / switch).write_text(f"/{TOPIC}-0/")
            assert writer.send_until_refused(0).code() == KafkaError.KAFKA_STORAGE_ERROR
            for _ in range(REFUSED):
                refused = writer.send(0)
                assert refused is not None
                assert refused.code() == KafkaError.KAFKA_STORAGE_ERROR
                assert writer.succeeds(1), "the other partition's disk is well"
            with Peer(broker) as peer:
                peer.send(api_versions_request(1))
                assert peer.read_response() is not None
        (switches / switch).unlink()
        broker.kill()
        broker.start()
        assert writer.succeeds(0)
        assert_all_there(broker, writer, 2)
        offline = [event for event in broker.events if event["event"] == "log_offline"]
        assert [event["partition"] for event in offline] == [f"{TOPIC}-0"]
        assert_nothing_unexpected(broker)


@pytest.mark.parametrize("switch", [WRITE_ERROR, SYNC_ERROR])
def test_a_disk_that_fails_for_the_metadata(tmp_path: Path, switch: str) -> None:
    """No topic can be made any more, and that is said; what is there is served."""
    switches = tmp_path / "switches"
    switches.mkdir()
    with FaultyBroker(tmp_path / "data", CONFIGS, DiskFaults(switches=str(switches))) as broker:
        create_topic(broker, TOPIC, 1)
        writer = Writer(broker)
        assert writer.succeeds()
        (switches / switch).write_text("/__cluster_metadata-0/")
        with pytest.raises(KafkaException):
            create_topic(broker, "another", 1)
        assert writer.succeeds()
        (switches / switch).unlink()
        broker.kill()
        broker.start()
        create_topic(broker, "third", 1)
        assert writer.succeeds()
        assert_all_there(broker, writer)
        assert_nothing_unexpected(broker)
