"""RawProducer and RawConsumer on a real broker: bytes in, bytes out, ends of partitions and typed errors."""

import signal

import pytest

from tests.client.producing import new_topic
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.errors import BrokerUnavailable, DeliveryFailed, InvalidArgument, MessageTooLarge, TidelogError
from tidelog.client.message import Message
from tidelog.client.raw_consumer import EndOfPartition, RawConsumer
from tidelog.client.raw_producer import RawProducer
from tidelog.client.topic_partition import TopicPartition

Report = tuple[TidelogError | None, int, int]


def test_messages_go_in_and_come_out_with_the_end_of_their_partition(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, partitions=2)
    reports: list[Report] = []

    def delivered(error: TidelogError | None, message: Message) -> None:
        reports.append((error, message.partition, message.offset))

    producer = RawProducer(kafka.bootstrap, on_delivery=delivered)
    producer.produce(topic, b"one", b"key", headers=[("a", b"b")], partition=1, timestamp=5)
    producer.produce(topic, None, b"key", partition=1, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert reports == [(None, 1, 0), (None, 1, 1)]
    assert producer.partitions(topic, 10) == 2

    with RawConsumer(kafka.bootstrap, connect_timeout=10) as consumer:
        assert consumer.partitions(topic, 10) == 2
        consumer.assign({TopicPartition(topic, 1): 0})
        first, second, end = [consumer.poll(10) for _ in range(3)]
        assert isinstance(first, Message)
        assert (first.value, first.key, first.headers_list, first.timestamp) == (b"one", b"key", [("a", b"b")], 5)
        assert isinstance(second, Message)
        assert second.value is None
        assert end == EndOfPartition(topic, 1, 2)
        consumer.incremental_assign({TopicPartition(topic, 0): 0})
        assert consumer.consume(1, 10) == [EndOfPartition(topic, 0, 0)]
        consumer.pause([TopicPartition(topic, 0)])
        consumer.incremental_unassign([TopicPartition(topic, 0)])
        assert consumer.poll(0) is None


def test_what_is_refused_is_typed(kafka: ToolkitBroker) -> None:
    producer = RawProducer(kafka.bootstrap, {"message.max.bytes": 2000})
    with pytest.raises(MessageTooLarge):
        producer.produce(new_topic(kafka), bytes(3000))
    for raw in (RawProducer, RawConsumer):
        with pytest.raises(InvalidArgument, match=r"no\.such\.setting"):
            raw(kafka.bootstrap, {"no.such.setting": 1})
        with pytest.raises(BrokerUnavailable, match="127"):
            raw("127.0.0.1:1", connect_timeout=0.2)


def test_a_full_buffer_is_waited_for(kafka: ToolkitBroker) -> None:
    waits: list[None] = []
    producer = RawProducer(kafka.bootstrap, {"queue.buffering.max.messages": 1, "linger.ms": 20})
    topic = new_topic(kafka)
    for _ in range(3):
        producer.produce(topic, b"x", while_full=lambda: waits.append(None))
    assert producer.flush(30) == 0
    assert waits


def test_a_transaction_that_is_aborted_is_not_read(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    producer = RawProducer(kafka.bootstrap, {"transactional.id": topic})
    producer.begin_transaction(30)
    producer.produce(topic, b"x")
    producer.abort_transaction(30)
    with RawConsumer(kafka.bootstrap, {"isolation.level": "read_committed"}) as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        assert isinstance(consumer.poll(10), EndOfPartition)


def test_a_transaction_that_does_not_begin_names_its_id() -> None:
    producer = RawProducer("127.0.0.1:1", {"transactional.id": "payments"})
    with pytest.raises(TidelogError, match="begin a transaction as payments"):
        producer.begin_transaction(0.5)


def test_ctrl_c_within_a_callback_is_an_interruption(kafka: ToolkitBroker) -> None:
    """confluent-kafka loses it and ends with a SystemError, which no caller expects."""
    producer = RawProducer(kafka.bootstrap, on_delivery=lambda *_: signal.raise_signal(signal.SIGINT))
    producer.produce(new_topic(kafka), b"a")
    # An earlier test in this process may have left another handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            producer.flush(30)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_closed_producer_sends_nothing_more(kafka: ToolkitBroker) -> None:
    reports: list[TidelogError | None] = []
    producer = RawProducer(kafka.bootstrap, {"linger.ms": 60_000}, on_delivery=lambda error, _: reports.append(error))
    producer.produce(new_topic(kafka), b"a")
    producer.close(30)
    assert len(reports) == 1
    assert isinstance(reports[0], DeliveryFailed)
