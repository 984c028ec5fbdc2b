"""Round-robin, sticky, by hash, by a callable; and what they know of partition counts."""

from collections import Counter
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from hypothesis import given
from hypothesis import strategies as st

from tests.client.producing import new_topic, read
from tests.toolkit_broker import ToolkitBroker
from tidelog.client import partitioners
from tidelog.client.errors import InvalidArgument, TidelogError, TimedOut, UnknownTopic
from tidelog.client.partitioners import PartitionCounts, RoundRobin, Sticky, key_hash, murmur2, murmur2_partition, partitioner_of
from tidelog.client.producer_handle import ProducerHandle


def test_round_robin_takes_each_topics_partitions_in_turn() -> None:
    turn = RoundRobin()
    first = [turn("orders", b"same key", 3) for _ in range(6)]
    assert [(partition - first[0]) % 3 for partition in first] == [0, 1, 2, 0, 1, 2]
    second = [turn("payments", None, 2) for _ in range(2)]
    assert sorted(second) == [0, 1]
    assert (turn("orders", None, 3) - first[0]) % 3 == 0, "a topic's turn is its own"


def test_sticky_stays_for_a_while_and_then_goes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(partitioners, "monotonic", lambda: clock[0])
    sticky = Sticky()
    first = sticky("orders", b"a", 5)
    assert {sticky("orders", b"%d" % number, 5) for number in range(100)} == {first}
    clock[0] += partitioners.STICKY_SECONDS
    second = sticky("orders", b"a", 5)
    assert second != first
    seen = [sticky("orders", None, 5) for _ in range(partitioners.STICKY_MESSAGES_MAX)]
    assert set(seen[:-1]) == {second}
    assert seen[-1] != second, "full, though the time is not over"


def test_sticky_survives_a_topic_with_fewer_partitions() -> None:
    sticky = Sticky()
    sticky("orders", None, 50)
    assert all(sticky("orders", None, 1) == 0 for _ in range(10))


def test_a_key_is_hashed_as_by_default_and_none_is_random() -> None:
    assert key_hash("orders", b"customer-42", 12) == murmur2_partition(b"customer-42", 12)
    assert len(Counter(key_hash("orders", None, 4) for _ in range(200))) == 4


def test_names() -> None:
    assert partitioner_of("key_hash") is None
    assert isinstance(partitioner_of("round_robin"), RoundRobin)
    assert isinstance(partitioner_of("sticky"), Sticky)
    assert partitioner_of(key_hash) is key_hash
    with pytest.raises(InvalidArgument, match='"key_hash", "round_robin", "sticky" or a callable'):
        partitioner_of("murmur3")


def test_state_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioners, "TOPICS_MAX", 10)
    turn, sticky = RoundRobin(), Sticky()
    for number in range(100):
        turn(f"topic-{number}", None, 2)
        sticky(f"topic-{number}", None, 2)
    assert len(turn._turns) <= 10
    assert len(sticky._kept) <= 10


class Slow:
    """A client whose cluster knows no topic, and whose last question is answered too late."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self.now = 0.0

    def list_topics(self, topic: str, timeout: float) -> Any:
        if not self._answers:
            self.now += timeout
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self._answers -= 1
        unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown", retriable=True)
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={}, error=unknown)})

    def poll(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("answers", "expected"), [(3, UnknownTopic), (0, TimedOut)])
def test_a_topic_that_there_was_not_is_unknown_also_when_the_last_answer_does_not_come(
    answers: int, expected: type[TidelogError], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(answers)
    monkeypatch.setattr(partitioners, "monotonic", lambda: slow.now)
    with pytest.raises(expected):
        PartitionCounts().ask(slow, "127.0.0.1:1", "orders", 0.2)


class JustCreated:
    """Its first answers say that the topic has no leaders yet."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.answers -= 1
        leaderless = KafkaError(KafkaError.LEADER_NOT_AVAILABLE) if self.answers >= 0 else None
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={} if leaderless else {0: None}, error=leaderless)})

    def poll(self, seconds: float) -> None:
        pass


def test_a_topic_without_leaders_yet_is_waited_for() -> None:
    assert PartitionCounts().ask(JustCreated(3), "127.0.0.1:1", "orders", 30.0) == 1
    with pytest.raises(TidelogError, match="LEADER_NOT_AVAILABLE") as raised:
        PartitionCounts().ask(JustCreated(3), "127.0.0.1:1", "orders", 0.0)
    assert raised.value.retriable
    assert not isinstance(raised.value, UnknownTopic)


def test_counts_are_asked_for_and_believed_for_a_minute(kafka: ToolkitBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(kafka, partitions=3)
    handle = ProducerHandle({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    try:
        counts = PartitionCounts()
        assert counts.known(topic) is None
        assert counts.ask(handle.raw, handle.addresses, topic, 10) == 3
        assert counts.known(topic) == 3
        later = monotonic() + partitioners.COUNT_SECONDS_MAX
        monkeypatch.setattr(partitioners, "monotonic", lambda: later)
        assert counts.known(topic) is None
    finally:
        handle.close()


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
