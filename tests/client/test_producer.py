"""The producer on a real broker: what is sent is there, as it was sent; what cannot be sent says why."""

import json
import secrets
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, date, datetime
from typing import Any

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.producing import new_topic, read, values
from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.errors import (
    BrokerUnavailable,
    Closed,
    DeliveryFailed,
    InvalidArgument,
    MessageTooLarge,
    SerializationError,
    TidelogError,
    UnknownTopic,
)
from tidelog.client.partitioners import murmur2_partition
from tidelog.client.producer import LowValueTopics, Producer, serialize, serialized
from tidelog.client.tracing import extract, with_traceparent

NOBODY = "127.0.0.1:1"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def producer(kafka: ToolkitBroker) -> Any:
    with Producer(kafka.bootstrap) as opened:
        yield opened


def test_a_message_is_where_its_future_says(kafka: ToolkitBroker, producer: Producer) -> None:
    topic = new_topic(kafka, partitions=3)
    delivered = producer.send(topic, {"total": 7}, key="customer-42", headers={"a": b"1", "b": "2", "c": None}).result(30)
    (message,) = read(kafka, topic, 1)
    assert (message.partition(), message.offset(), message.timestamp()[1]) == delivered[1:]
    assert delivered.topic == topic
    assert delivered.partition == murmur2_partition(b"customer-42", 3)
    assert (message.key(), message.value()) == (b"customer-42", b'{"total":7}')
    assert message.headers() == [("a", b"1"), ("b", b"2"), ("c", None)]


def test_partition_timestamp_tombstone_and_repeated_headers(kafka: ToolkitBroker, producer: Producer) -> None:
    topic = new_topic(kafka, partitions=3)
    when = datetime(2026, 1, 2, tzinfo=UTC)
    producer.send(topic, None, key=b"k", partition=2, timestamp=when, headers=[("x", b"1"), ("x", b"2")])
    producer.send(topic, b"v", partition=2, timestamp=1_700_000_000_000)
    producer.flush(30)
    first, second = read(kafka, topic, 2)
    assert (first.partition(), first.value(), first.key()) == (2, None, b"k")
    assert first.timestamp()[1] == int(when.timestamp() * 1000)
    assert first.headers() == [("x", b"1"), ("x", b"2")]
    assert second.timestamp()[1] == 1_700_000_000_000


def test_order_is_kept_and_everything_is_counted(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    with Producer(kafka.bootstrap) as producer:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(5000)]
        producer.flush(30)
        assert [delivery.result(0).offset for delivery in deliveries] == list(range(5000))
        metrics = producer.metrics()
        assert (metrics.sent, metrics.delivered, metrics.failed, metrics.buffered) == (5000, 5000, 0, 0)
    assert values(read(kafka, topic, 5000)) == [b"%d" % number for number in range(5000)]


def test_futures_are_settled_while_the_application_does_nothing(kafka: ToolkitBroker, producer: Producer) -> None:
    topic = new_topic(kafka)
    done = threading.Event()
    producer.send(topic, b"x").add_done_callback(lambda _: done.set())
    assert done.wait(30)
    # And again, from sleep.
    wait_until(lambda: producer._handle.is_asleep, "the polling thread sleeps")
    assert producer.send(topic, b"x").result(30).offset == 1


def test_many_threads_send_at_once(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, partitions=2)
    with Producer(kafka.bootstrap) as producer:

        def work(number: int) -> None:
            for turn in range(500):
                delivery = producer.send(topic, b"%d-%d" % (number, turn), partition=number % 2)
                if turn % 250 == 0:
                    delivery.result(30)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        producer.flush(30)
        assert producer.metrics().delivered == 2000
    found = values(read(kafka, topic, 2000))
    for number in range(4):
        assert [value for value in found if value and value.startswith(b"%d-" % number)] == [
            b"%d-%d" % (number, turn) for turn in range(500)
        ]


def test_levels_of_acks(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    with Producer(kafka.bootstrap) as producer:
        assert list(producer._handles) == ["all"]
        assert producer.send(topic, b"none", acks=0).result(30).offset is None
        assert producer.send(topic, b"leader", acks=1).result(30).offset is not None
        assert producer.send(topic, b"all", acks=-1).result(30).offset is not None
        assert sorted(producer._handles) == ["0", "1", "all"]
        wait_until(lambda: producer.metrics().delivered == 3, "each level's message is counted")
        with pytest.raises(InvalidArgument, match='acks is "all", 1 or 0'):
            producer.send(topic, b"x", acks=2)
    assert set(values(read(kafka, topic, 3))) == {b"none", b"leader", b"all"}


@pytest.mark.parametrize("partitioner", ["round_robin", "sticky", lambda topic, key, count: len(key) % count])
def test_other_partitioners(kafka: ToolkitBroker, partitioner: Any) -> None:
    topic = new_topic(kafka, partitions=3)
    with Producer(kafka.bootstrap, partitioner=partitioner) as producer:
        for number in range(30):
            producer.send(topic, b"x", key=b"k" * (number % 4))
    placed = Counter(message.partition() for message in read(kafka, topic, 30))
    if partitioner == "round_robin":
        assert placed == {0: 10, 1: 10, 2: 10}
    elif partitioner == "sticky":
        assert max(placed.values()) >= 10
    else:
        assert placed == {0: 15, 1: 8, 2: 7}


def test_a_partitioner_that_chooses_nonsense_is_told(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    with (
        Producer(kafka.bootstrap, partitioner=lambda topic, key, count: 1) as producer,
        pytest.raises(InvalidArgument, match=r"chose 1 .* partitions 0 to 0"),
    ):
        producer.send(topic, b"x")


def test_serializers_of_the_callers_own(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    with Producer(
        kafka.bootstrap,
        key_serializer=lambda key, topic: b"key:" + key,
        value_serializer=lambda value, topic: None if value is None else f"{topic}:{value!r}".encode(),
    ) as producer:
        producer.send(topic, b"x", key=b"1")
        producer.send(topic, None)
    first, second = read(kafka, topic, 2)
    assert (first.key(), first.value()) == (b"key:1", f"{topic}:b'x'".encode())
    assert (second.key(), second.value()) == (None, None)


def test_the_trace_context_travels(kafka: ToolkitBroker, producer: Producer) -> None:
    topic = new_topic(kafka)
    with with_traceparent(TRACE):
        producer.send(topic, b"traced", headers={"a": b"1"})
        producer.send(topic, b"own", headers={"traceparent": TRACE})
    producer.send(topic, b"untraced")
    producer.flush(30)
    traced, own, untraced = read(kafka, topic, 3)
    found = extract(traced.headers())
    assert found is not None
    assert found.split("-")[1] == TRACE.split("-")[1]
    assert found != TRACE
    assert extract(own.headers()) == TRACE
    assert untraced.headers() is None


# -- what goes wrong ---------------------------------------------------------------------------------------------------------


def test_no_broker_is_named_with_its_reason() -> None:
    with pytest.raises(BrokerUnavailable, match=rf"no broker answers at {NOBODY} \(.*refused"):
        Producer(NOBODY, connect_timeout=1)


def test_values_that_cannot_be_sent(kafka: ToolkitBroker, producer: Producer) -> None:
    topic = new_topic(kafka)
    with pytest.raises(SerializationError, match=f"value for {topic} is a object"):
        producer.send(topic, object())
    with pytest.raises(SerializationError, match=f"key for {topic} is a set"):
        producer.send(topic, b"x", key={1})
    with pytest.raises(MessageTooLarge, match=rf"send to {topic}: .*message\.max\.bytes of this client.*max_message_bytes"):
        producer.send(topic, b"x" * 2_000_000)
    with pytest.raises(InvalidArgument, match="timestamp"):
        producer.send(topic, b"x", timestamp=datetime(2026, 1, 1))
    with pytest.raises(InvalidArgument, match="timestamp"):
        producer.send(topic, b"x", timestamp=-5)
    with pytest.raises(InvalidArgument, match=f"send to {topic}"):
        producer.send(topic, b"x", headers={"a": 7})  # type: ignore[dict-item]  # what a caller without types may do
    with pytest.raises(InvalidArgument):
        producer.send(7, b"x")  # type: ignore[arg-type]  # the same
    read(kafka, topic, 0)


def test_a_message_of_two_megabytes_goes_where_both_limits_allow_it(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, config={"max.message.bytes": "3000000"})
    value = secrets.token_bytes(2_000_000)
    with Producer(kafka.bootstrap, max_message_bytes=3_000_000) as producer:
        assert producer.send(topic, value).result(60).offset == 0
    assert [message.value() for message in read(kafka, topic, 1)] == [value]


def test_a_message_that_the_topic_refuses_fails_in_its_future(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, config={"max.message.bytes": "1000"})
    with Producer(kafka.bootstrap, compression="none") as producer:
        error = producer.send(topic, b"x" * 5000).exception(30)
        assert isinstance(error, MessageTooLarge)
        for part in ("has 5,000 bytes", f"max.message.bytes of topic {topic} (", "message.max.bytes of this client (1,000,000)"):
            assert part in str(error)
        assert producer.metrics().failed == 1


def test_a_failure_that_nobody_looked_at_comes_out_of_flush_and_close(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, config={"max.message.bytes": "1000"})
    producer = Producer(kafka.bootstrap, compression="none", linger_ms=0)
    producer.send(topic, b"x" * 5000)
    producer.send(topic, b"x" * 6000)
    with pytest.raises(MessageTooLarge) as caught:
        producer.flush(30)
    assert caught.value.__notes__ == ["2 messages failed since the last flush; this is the first."]
    producer.flush(30)
    told = producer.send(topic, b"x" * 5000)
    assert told.exception(30) is not None
    producer.flush(30)
    producer.send(topic, b"x" * 5000)
    with pytest.raises(MessageTooLarge):
        producer.close()
    producer.close()


def test_a_partition_that_there_is_not(kafka: ToolkitBroker, producer: Producer) -> None:
    topic = new_topic(kafka)
    producer.send(topic, b"x").result(30)
    with pytest.raises(UnknownTopic, match=topic):
        producer.send(topic, b"x", partition=7).result(30)


def test_a_closed_producer_says_so(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    producer = Producer(kafka.bootstrap)
    delivery = producer.send(topic, b"x")
    producer.close()
    producer.close()
    assert delivery.result(0).offset == 0
    for acks in (None, 0):
        with pytest.raises(Closed):
            producer.send(topic, b"x", acks=acks)
    assert not producer._handle._thread.is_alive()


def test_what_is_not_acknowledged_at_the_close_fails(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    producer = Producer(kafka.bootstrap, linger_ms=60_000)
    # A flush ends the linger, so nothing at all is waited for.
    delivery = producer.send(topic, b"x")
    with pytest.raises(DeliveryFailed, match="closed with 1 messages"):
        producer.close(timeout=0)
    assert isinstance(delivery.exception(0), DeliveryFailed)
    read(kafka, topic, 0)


def test_a_program_that_ends_without_closing_sends_what_it_has(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    code = (
        "import sys; from tidelog import Producer; producer = Producer(sys.argv[1], linger_ms=30_000)\n"
        "for number in range(100): producer.send(sys.argv[2], b'%d' % number)"
    )
    done = subprocess.run([sys.executable, "-c", code, kafka.bootstrap, topic], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert values(read(kafka, topic, 100)) == [b"%d" % number for number in range(100)]


def test_an_exception_in_the_block_is_the_one_that_is_seen(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, config={"max.message.bytes": "1000"})
    with pytest.raises(KeyError), Producer(kafka.bootstrap, compression="none") as producer:
        _send_and_fail(producer, topic)


def _send_and_fail(producer: Producer, topic: str) -> None:
    producer.send(topic, b"x" * 5000)
    raise KeyError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"acks": "some"}, "acks is"),
        ({"acks": True}, "acks is"),
        ({"compression": "rar"}, "compression is one of zstd"),
        ({"partitioner": "fair"}, "partitioner is"),
        ({"max_block_ms": -1}, "max_block_ms"),
        ({"buffer_bytes": 10}, "at least 1024 bytes"),
        ({"acks": 1, "transactional_id": "x"}, 'acks="all"'),
        ({"low_value_topics": {"clicks": 7}}, "clicks"),
        ({"config": {"acks": 1}}, "must not have acks: use the argument"),
        ({"config": {"delivery.report.only.error": True}}, "futures need every delivery report"),
        ({"config": {"no.such.setting": 1}}, r"librdkafka refuses .*no\.such\.setting"),
        ({"linger_ms": -7}, "librdkafka refuses .* value -7 is outside allowed range"),
    ],
)
def test_arguments_that_make_no_sense(kafka: ToolkitBroker, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Producer(kafka.bootstrap, **arguments)


def test_a_transaction_needs_an_id(producer: Producer) -> None:
    with pytest.raises(InvalidArgument, match="transactional_id"):
        producer.transaction()


def test_every_error_of_sending_is_ours(kafka: ToolkitBroker, producer: Producer) -> None:
    with pytest.raises(TidelogError):
        producer.send("no/such/name", b"x").result(30)
    assert not issubclass(TidelogError, confluent_kafka.KafkaException)


JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, None),
        (b"raw", b"raw"),
        (bytearray(b"raw"), b"raw"),
        (memoryview(b"raw"), b"raw"),
        ("Grüße", "Grüße".encode()),
        ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'.encode()),
        (7, b"7"),
        (False, b"false"),
    ],
)
def test_values_become_bytes(value: Any, data: bytes | None) -> None:
    assert serialize(value, "orders") == data


@given(JSON)
def test_json_comes_back(value: Any) -> None:
    data = serialize(value, "orders")
    assert data is not None
    assert json.loads(data) == value


@pytest.mark.parametrize("value", [object(), date(2026, 1, 1), {1, 2}, float("nan"), {"x": b"bytes"}, "\ud800"])
def test_what_cannot_become_bytes_names_its_type_and_the_topic(value: object) -> None:
    with pytest.raises(SerializationError, match=rf"the value for orders is a .*{type(value).__name__}, .*value_serializer"):
        serialized(serialize, value, "orders", "value")


def test_a_serializer_must_make_bytes() -> None:
    with pytest.raises(SerializationError, match="key_serializer returned a int for a str to orders"):
        serialized(lambda value, topic: 7, "x", "orders", "key")  # type: ignore[arg-type]  # that is what is tested


def test_an_error_of_a_serializer_is_kept_as_the_cause() -> None:
    def broken(value: Any, topic: str) -> bytes:
        raise KeyError("no schema")

    with pytest.raises(SerializationError, match="no schema") as caught:
        serialized(broken, "x", "orders", "value")
    assert isinstance(caught.value.__cause__, KeyError)


def test_only_marked_topics_are_dropped() -> None:
    topics = LowValueTopics({"clicks": "shed"})
    assert topics.drops("clicks")
    assert not topics.drops("orders")
    assert (topics.shed, topics.sampled) == (1, 0)


def test_a_fraction_is_kept_and_the_rest_counted() -> None:
    topics = LowValueTopics({"traces": 0.25})
    dropped = sum(topics.drops("traces") for _ in range(4000))
    assert 2800 < dropped < 3200
    assert (topics.shed, topics.sampled) == (0, dropped)


@pytest.mark.parametrize("rule", ["drop", 0, 1, 1.5, -0.1, True, None])
def test_other_rules_are_refused(rule: object) -> None:
    with pytest.raises(InvalidArgument, match=r'clicks is "shed", or the fraction'):
        LowValueTopics({"clicks": rule})  # type: ignore[dict-item]  # what a caller without types may do
