"""Transactions on a real broker: all or nothing, whoever dies; fenced is not failed."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.client.producing import new_topic, read, values
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.admin import Admin
from tidelog.client.consumer import Consumer as OurConsumer
from tidelog.client.errors import (
    DeliveryFailed,
    Fenced,
    InvalidArgument,
    TransactionFailed,
    TransactionFatal,
    TransactionOutcomeUnknown,
)
from tidelog.client.producer import Producer
from tidelog.testing import Broker


def new_id() -> str:
    return f"transactional-{secrets.token_hex(4)}"


@pytest.fixture
def producer(kafka: ToolkitBroker) -> Iterator[Producer]:
    with Producer(kafka.bootstrap, transactional_id=new_id()) as opened:
        yield opened


def reader(kafka: ToolkitBroker, group: str, topic: str) -> Any:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    return consumer


def test_the_end_of_the_block_commits(kafka: ToolkitBroker, producer: Producer) -> None:
    one, other = new_topic(kafka), new_topic(kafka)
    for number in range(3):
        with producer.transaction() as tx:
            delivery = tx.send(one, b"%d" % number, key="k", headers={"a": b"1"})
            tx.send(other, b"%d" % number)
        assert delivery.done()
    assert values(read(kafka, one, 3)) == values(read(kafka, other, 3)) == [b"0", b"1", b"2"]


def test_an_exception_aborts(kafka: ToolkitBroker, producer: Producer) -> None:
    topic = new_topic(kafka)

    def attempt() -> None:
        with producer.transaction() as tx:
            tx.send(topic, b"written").result(30)
            tx.send(topic, b"in the buffer")
            raise KeyError

    with pytest.raises(KeyError):
        attempt()
    with producer.transaction() as tx:
        tx.send(topic, b"seen")
    assert values(read(kafka, topic, 1)) == [b"seen"]
    assert b"written" in values(read(kafka, topic, 2, isolation="read_uncommitted"))
    producer.flush(30)


def test_sending_is_only_within_a_transaction_and_there_is_one_at_a_time(kafka: ToolkitBroker, producer: Producer) -> None:
    topic = new_topic(kafka)
    with pytest.raises(InvalidArgument, match="sends within a transaction"):
        producer.send(topic, b"outside")
    with producer.transaction() as tx:
        with pytest.raises(InvalidArgument, match="open already"):
            producer.transaction().begin()
        with pytest.raises(InvalidArgument, match='acks="all"'):
            tx.send(topic, b"x", acks=1)
        tx.send(topic, b"inside")
    for late in (lambda: tx.send(topic, b"late"), lambda: producer.send(topic, b"late"), tx.commit):
        with pytest.raises(InvalidArgument):
            late()
    assert values(read(kafka, topic, 1)) == [b"inside"]


def test_a_message_that_is_refused_fails_the_whole_and_it_can_be_done_again(kafka: ToolkitBroker, producer: Producer) -> None:
    good, small = new_topic(kafka), new_topic(kafka, config={"max.message.bytes": "1000"})

    def attempt() -> None:
        with producer.transaction() as tx:
            tx.send(good, b"first try")
            tx.send(small, secrets.token_bytes(5000))

    with pytest.raises(TransactionFailed, match="nothing of it becomes visible") as caught:
        attempt()
    assert caught.value.retriable
    with producer.transaction() as tx:
        tx.send(good, b"second try")
    assert values(read(kafka, good, 1)) == [b"second try"]
    read(kafka, small, 0)


def test_a_second_instance_fences_the_first(kafka: ToolkitBroker) -> None:
    topic, transactional_id = new_topic(kafka), new_id()
    first = Producer(kafka.bootstrap, transactional_id=transactional_id)
    first.transaction().begin()
    first.send(topic, b"of the first").result(30)
    second = Producer(kafka.bootstrap, transactional_id=transactional_id)
    with second.transaction() as other:
        other.send(topic, b"of the second")
    with pytest.raises(Fenced, match="another instance") as caught:
        first.transaction().commit()
    assert not caught.value.retriable
    with pytest.raises(Fenced):
        first.transaction().begin()
    with pytest.raises(Fenced):
        first.send(topic, b"never")
    with second.transaction() as other:
        other.send(topic, b"again")
    first.close()
    second.close()
    assert values(read(kafka, topic, 2)) == [b"of the second", b"again"]


def test_what_waits_in_a_producer_that_was_fenced_fails_at_once(kafka: ToolkitBroker) -> None:
    topic, transactional_id = new_topic(kafka, 2), new_id()
    for linger_ms in (0, 5, 50):
        with Producer(kafka.bootstrap, transactional_id=transactional_id, linger_ms=linger_ms) as first:
            tx = first.transaction()
            tx.begin()
            tx.send(topic, b"x")
            first.flush(20)
            with Producer(kafka.bootstrap, transactional_id=transactional_id):
                deliveries = []
                try:
                    for _ in range(2_000):
                        deliveries.append(tx.send(topic, b"y"))
                except Fenced:
                    pass
                # Some failed before it was known why; all of them fail long before their delivery timeout.
                for delivery in deliveries:
                    assert isinstance(delivery.exception(20), Fenced | DeliveryFailed)
                first.flush(20)


def test_what_librdkafka_still_has_when_it_has_ended_is_given_up(broker: Broker) -> None:
    with Producer(broker.bootstrap_servers, linger_ms=60_000) as producer:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("orders", exists_ok=True)
        delivery = producer.send("orders", b"x")
        assert not delivery.done()
        producer._handle._keep_fatal(KafkaException(KafkaError(KafkaError._FENCED)))
        assert isinstance(delivery.exception(10), Fenced)
        # As Python shows it when a callback was called with it set.
        confused = SystemError("returned a result with an exception set")
        confused.__cause__ = KafkaException(KafkaError(KafkaError._FENCED))
        producer._handle._keep_fatal(confused)
        with pytest.raises(SystemError):
            producer._handle._keep_fatal(SystemError("something else"))


def test_fenced_is_told_also_when_the_block_failed_by_itself(kafka: ToolkitBroker) -> None:
    topic, transactional_id = new_topic(kafka), new_id()
    first = Producer(kafka.bootstrap, transactional_id=transactional_id)

    def attempt() -> None:
        with first.transaction() as tx:
            tx.send(topic, b"x").result(30)
            Producer(kafka.bootstrap, transactional_id=transactional_id).close()
            raise KeyError("the application's own")

    with pytest.raises(Fenced) as caught:
        attempt()
    assert isinstance(caught.value.__cause__, KeyError)
    first.close()
    read(kafka, topic, 0)


def test_closing_aborts_what_is_open(kafka: ToolkitBroker) -> None:
    topic, transactional_id = new_topic(kafka), new_id()
    producer = Producer(kafka.bootstrap, transactional_id=transactional_id)
    producer.transaction().begin()
    producer.send(topic, b"never seen").result(30)
    producer.close()
    read(kafka, topic, 0)


def test_consume_transform_produce(kafka: ToolkitBroker, producer: Producer) -> None:
    source, target, group = new_topic(kafka, partitions=2), new_topic(kafka), f"group-{secrets.token_hex(4)}"
    with Producer(kafka.bootstrap) as plain:
        for number in range(20):
            plain.send(source, b"%d" % number, partition=number % 2)
    # Every transaction is tried twice: the first try fails after its offsets were sent.
    consumer = reader(kafka, group, source)
    seen, attempt = 0, 0
    while seen < 20:
        messages = consumer.consume(5, timeout=10)
        attempt += 1
        try:
            with producer.transaction() as tx:
                for message in messages:
                    tx.send(target, b"done " + message.value())
                tx.send_offsets(consumer)
                if attempt % 2:
                    raise ConnectionError("a hiccup")
        except ConnectionError:
            # Nothing was committed: back to what the group has.
            for place in consumer.committed(consumer.assignment(), timeout=10):
                consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))
        else:
            seen += len(messages)
    consumer.close()
    assert sorted(values(read(kafka, target, 20)), key=str) == sorted((b"done %d" % number for number in range(20)), key=str)
    with Admin(kafka.bootstrap) as admin:
        assert admin.group_offsets(group) == {(source, 0): 10, (source, 1): 10}


def test_consume_transform_produce_with_our_consumer(kafka: ToolkitBroker, producer: Producer) -> None:
    """Its polls hand out fewer messages than have arrived: what counts is what was handed out."""
    source, target, group = new_topic(kafka, partitions=2), new_topic(kafka), f"group-{secrets.token_hex(4)}"
    with Producer(kafka.bootstrap) as plain:
        for number in range(20):
            plain.send(source, b"%d" % number, partition=number % 2)
    seen, attempt = 0, 0
    with OurConsumer(kafka.bootstrap, group=group, topics=[source], guarantee="exactly-once") as consumer:
        while seen < 20:
            messages = consumer.poll(3, timeout=10)
            attempt += 1
            try:
                with producer.transaction() as tx:
                    for message in messages:
                        tx.send(target, b"done " + (message.value or b""))
                    tx.send_offsets(consumer)
                    if attempt % 2:
                        raise ConnectionError("a hiccup")
            except ConnectionError:
                consumer.rewind()
            else:
                seen += len(messages)
    assert sorted(values(read(kafka, target, 20)), key=str) == sorted((b"done %d" % number for number in range(20)), key=str)
    with Admin(kafka.bootstrap) as admin:
        assert admin.group_offsets(group) == {(source, 0): 10, (source, 1): 10}


def test_offsets_of_a_consumer_without_a_place_in_its_group_fail_the_transaction(
    kafka: ToolkitBroker, producer: Producer
) -> None:
    source, target, group = new_topic(kafka), new_topic(kafka), f"group-{secrets.token_hex(4)}"
    with Producer(kafka.bootstrap) as plain:
        plain.send(source, b"x")
    consumer = reader(kafka, group, source)
    (message,) = consumer.consume(1, timeout=30)
    offsets = [TopicPartition(source, 0, message.offset() + 1)]
    stale = _GroupOf(consumer)
    consumer.close()
    tx = producer.transaction()
    tx.begin()
    tx.send(target, b"never seen")
    with pytest.raises(TransactionFailed):
        tx.send_offsets(stale, offsets)
    read(kafka, target, 0)
    with producer.transaction() as tx:
        tx.send(target, b"the next one is fine")
    read(kafka, target, 1)


class _GroupOf:
    """A consumer that was removed from its group and does not know."""

    def __init__(self, consumer: Any) -> None:
        self._metadata = consumer.consumer_group_metadata()

    def consumer_group_metadata(self) -> Any:
        return self._metadata


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One that may be killed; every test leaves it running."""
    with Broker() as started:
        yield started


@pytest.mark.tidelog_only
def test_a_broker_that_is_killed_in_the_middle_leaves_all_or_nothing(broker: Broker) -> None:
    kafka = ToolkitBroker(broker.bootstrap_servers)
    topic = new_topic(kafka)
    committed = []
    with Producer(kafka.bootstrap, transactional_id="accounts") as producer:
        for number in range(6):
            try:
                with producer.transaction() as tx:
                    tx.send(topic, b"%d a" % number)
                    if number == 1:
                        broker.kill()
                        broker.start()
                    tx.send(topic, b"%d b" % number)
                    if number == 3:
                        tx.send(topic, b"%d c" % number).result(30)
                        broker.kill()
                        broker.start()
            except TransactionFailed:
                continue
            committed.append(number)
    found = [value.split() for value in values(read(kafka, topic, sum(3 if number == 3 else 2 for number in committed))) if value]
    assert {int(number) for number, _ in found} == set(committed)
    assert {0, 2, 4, 5} <= set(committed), "what no kill touched is committed"


@pytest.mark.tidelog_only
def test_a_commit_that_nobody_answers_has_an_unknown_outcome(broker: Broker) -> None:
    kafka = ToolkitBroker(broker.bootstrap_servers)
    topic = new_topic(kafka)
    producer = Producer(kafka.bootstrap, transactional_id="accounts", transaction_timeout_ms=5000)
    tx = producer.transaction()
    tx.begin()
    tx.send(topic, b"x").result(30)
    broker.kill()
    with pytest.raises(TransactionOutcomeUnknown) as caught:
        tx.commit()
    assert broker.bootstrap_servers in str(caught.value)
    with pytest.raises(TransactionFatal):
        producer.transaction().begin()
    with pytest.raises(TransactionFatal):
        producer.send(topic, b"x")
    producer.close()
    broker.start()
    with Producer(kafka.bootstrap, transactional_id="accounts") as next_one, next_one.transaction() as tx:
        tx.send(topic, b"y")
    # The broker may have kept the request of a client that was gone by then; what it must not do is to leave it open.
    found = values(read(kafka, topic, None))
    assert found in ([b"y"], [b"x", b"y"])


def test_a_future_of_an_aborted_message_fails(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    with Producer(kafka.bootstrap, transactional_id=new_id(), linger_ms=30_000) as producer:
        tx = producer.transaction()
        tx.begin()
        delivery = tx.send(topic, b"in the buffer")
        tx.abort()
        assert isinstance(delivery.exception(30), DeliveryFailed)
        producer.flush(30)
