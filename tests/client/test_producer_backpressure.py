"""A full buffer: senders wait, then are told; low-value topics are dropped and counted; memory stays bounded."""

import signal
import threading
from collections.abc import Iterator
from os import kill
from time import monotonic

import pytest

from tests.client.producing import new_topic, read, values
from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.errors import BufferFull, DeliveryFailed, Shed, TimedOut, UnknownTopic
from tidelog.client.futures import Delivery
from tidelog.client.producer import Producer
from tidelog.testing import Broker

# Nothing leaves the buffer by itself within a test.
NEVER_MS = 60_000
# Long enough for a broker that is there, however busy the machine.
DELIVERY_MS = 5_000


def fill(producer: Producer, topic: str, value: bytes) -> None:
    for _ in range(1000):
        producer.send(topic, value)


def test_a_full_buffer_makes_a_sender_wait_until_there_is_room(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    with Producer(kafka.bootstrap, buffer_messages=10, linger_ms=20) as producer:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(100)]
        producer.flush(30)
        assert [delivery.result(0).offset for delivery in deliveries] == list(range(100))
        assert producer.metrics().sent == 100
    assert values(read(kafka, topic, 100)) == [b"%d" % number for number in range(100)]


def test_a_buffer_that_stays_full_is_an_error_in_time(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    with Producer(kafka.bootstrap, buffer_messages=10, linger_ms=NEVER_MS, max_block_ms=200) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
        began = monotonic()
        with pytest.raises(BufferFull, match=rf"send to {topic}: the producer's buffer was full for 200 ms \(10 messages"):
            producer.send(topic, b"one too many")
        assert 0.2 <= monotonic() - began < 5
        assert producer.metrics().buffered == 10
    assert values(read(kafka, topic, 10)) == [b"%d" % number for number in range(10)]


def test_bytes_are_bounded_too(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    with Producer(kafka.bootstrap, buffer_bytes=100_000, linger_ms=NEVER_MS, max_block_ms=0) as producer:
        for _ in range(8):
            producer.send(topic, b"x" * 10_000)
        with pytest.raises(BufferFull):
            fill(producer, topic, b"x" * 10_000)
        assert producer.metrics().sent <= 10


def test_topics_of_low_value_are_dropped_and_the_others_wait(kafka: ToolkitBroker) -> None:
    orders, clicks, traces = (new_topic(kafka) for _ in range(3))
    low_value: dict[str, str | float] = {clicks: "shed", traces: 0.5}
    with Producer(
        kafka.bootstrap, buffer_messages=10, linger_ms=NEVER_MS, max_block_ms=0, low_value_topics=low_value
    ) as producer:
        assert not producer.send(clicks, b"there is room").done()
        for _ in range(9):
            producer.send(orders, b"order")
        shed = producer.send(clicks, b"no room")
        assert isinstance(shed.exception(0), Shed)
        assert "low-value" in str(shed.exception(0))
        with pytest.raises(BufferFull) as caught:
            producer.send(orders, b"no room")
        assert not isinstance(caught.value, Shed)
        refused = 0
        for _ in range(200):
            try:
                assert isinstance(producer.send(traces, b"trace").exception(0), Shed)
            except BufferFull:
                refused += 1
        metrics = producer.metrics()
        assert metrics.shed == 1
        assert metrics.sampled == 200 - refused
        assert 50 < refused < 150
        assert metrics.sent == 10
    assert values(read(kafka, clicks, 1)) == [b"there is room"]
    read(kafka, orders, 9)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One that may be stopped and killed; every test leaves it running."""
    with Broker(configs={"auto.create.topics.enable": False}) as started:
        yield started


@pytest.mark.tidelog_only
def test_a_broker_that_does_not_answer_fills_the_buffer_and_then_takes_all(broker: Broker) -> None:
    kafka = ToolkitBroker(broker.bootstrap_servers)
    topic = new_topic(kafka)
    producer = Producer(kafka.bootstrap, buffer_messages=50, max_block_ms=300)
    producer.send(topic, b"first").result(30)
    kill(broker.pid, signal.SIGSTOP)
    try:
        with pytest.raises(BufferFull):
            fill(producer, topic, b"more")
        with pytest.raises(TimedOut, match=r"50 messages were not acknowledged within 0\.1 s"):
            producer.flush(0.1)
    finally:
        kill(broker.pid, signal.SIGCONT)
    producer.close()
    assert values(read(kafka, topic, 51)) == [b"first"] + [b"more"] * 50


@pytest.mark.tidelog_only
def test_a_killed_broker_loses_and_doubles_nothing(broker: Broker) -> None:
    kafka = ToolkitBroker(broker.bootstrap_servers)
    topic = new_topic(kafka)
    with Producer(kafka.bootstrap, linger_ms=1) as producer:
        stop = threading.Event()
        sent: list[Delivery] = []

        def work() -> None:
            while not stop.is_set():
                sent.append(producer.send(topic, b"%d" % len(sent)))
                stop.wait(0.0005)

        thread = threading.Thread(target=work)
        thread.start()
        wait_until(lambda: producer.metrics().delivered > 100, "messages are under way")
        broker.kill()
        at_least = producer.metrics().delivered + 100
        broker.start()
        wait_until(lambda: producer.metrics().delivered > at_least, "the producer found the broker again")
        stop.set()
        thread.join()
        producer.flush(60)
        assert [delivery.result(0).offset for delivery in sent] == list(range(len(sent)))
    assert values(read(kafka, topic, len(sent))) == [b"%d" % number for number in range(len(sent))]


@pytest.mark.tidelog_only
def test_a_topic_that_there_is_not_fails_the_message_in_time(broker: Broker) -> None:
    config = {"topic.metadata.propagation.max.ms": 500}
    with Producer(broker.bootstrap_servers, config=config) as producer:
        began = monotonic()
        error = producer.send("no-such-topic", b"x").exception(30)
        assert isinstance(error, UnknownTopic)
        assert "send to no-such-topic: " in str(error)
        assert "admin.create_topic" in str(error)
        assert monotonic() - began < 10
    with (
        Producer(broker.bootstrap_servers, partitioner="round_robin", max_block_ms=500) as producer,
        pytest.raises(UnknownTopic, match="no-such-topic"),
    ):
        producer.send("no-such-topic", b"x")


@pytest.mark.tidelog_only
def test_a_message_that_is_not_acknowledged_in_time_names_the_broker(broker: Broker) -> None:
    producer = Producer(broker.bootstrap_servers, delivery_timeout_ms=DELIVERY_MS)
    topic = new_topic(ToolkitBroker(broker.bootstrap_servers))
    producer.send(topic, b"x").result(30)
    broker.kill()
    error = producer.send(topic, b"x").exception(30)
    assert isinstance(error, DeliveryFailed)
    assert broker.bootstrap_servers in str(error)
    assert error.retriable
    producer.close()
    broker.start()
