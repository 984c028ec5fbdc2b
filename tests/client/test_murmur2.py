"""Kafka's own test values of its hash, and where librdkafka puts the same keys."""

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from tests.client.producing import new_topic, read
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.murmur2 import murmur2, murmur2_partition

# From UtilsTest of Apache Kafka; signed, as Java's are.
KAFKA_VALUES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "value"), KAFKA_VALUES.items())
def test_hashes_are_those_of_kafka(key: bytes, value: int) -> None:
    assert murmur2(key) == value % (1 << 32)


@given(st.binary(max_size=50), st.integers(min_value=1, max_value=1000))
def test_a_partition_is_one_that_there_is(key: bytes, count: int) -> None:
    assert 0 <= murmur2_partition(key, count) < count


def test_librdkafka_puts_keys_on_the_same_partitions(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, partitions=7)
    keys = [*KAFKA_VALUES, *(f"customer-{number}".encode() for number in range(50)), b"", bytes(range(128, 256))]
    bare = Producer({"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random", "log_level": 0})
    for key in keys:
        bare.produce(topic, b"x", key)
    assert bare.flush(30) == 0
    placed = {message.key(): message.partition() for message in read(kafka, topic, len(keys))}
    assert {key or b"": partition for key, partition in placed.items()} == {key: murmur2_partition(key, 7) for key in keys}
