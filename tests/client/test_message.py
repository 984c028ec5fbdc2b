"""Views of messages, with no broker."""

import copy
import pickle

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE
from confluent_kafka.cimpl import Message as KafkaMessage

from tidelog.client.errors import SerializationError
from tidelog.client.message import Message, Messages


def test_fields_as_given() -> None:
    message = Message.of(
        "hello",
        topic="orders",
        partition=3,
        offset=42,
        key="customer-1",
        headers={"trace": b"1", "none": None},
        timestamp=1_700_000_000_123,
        leader_epoch=7,
    )
    assert (message.topic, message.partition, message.offset) == ("orders", 3, 42)
    assert (message.key, message.value) == (b"customer-1", b"hello")
    assert message.headers == {"trace": b"1", "none": None}
    assert (message.timestamp, message.timestamp_type, message.leader_epoch) == (1_700_000_000_123, "create", 7)
    assert message.text() == "hello"
    assert repr(message) == "<Message orders[3]@42 key=b'customer-1' value=5 bytes>"


def test_defaults_are_a_tombstone_without_key() -> None:
    message = Message.of()
    assert (message.key, message.value, message.text(), message.json()) == (None, None, None, None)
    assert (message.headers, message.headers_list) == ({}, [])


def test_no_timestamp_is_none() -> None:
    raw = KafkaMessage(topic="t", partition=0, offset=0, timestamp=(TIMESTAMP_NOT_AVAILABLE, 0))
    [message] = Messages([raw])
    assert (message.timestamp, message.timestamp_type) == (None, None)
    assert Message.of(timestamp=5, timestamp_type="log-append").timestamp_type == "log-append"


def test_a_header_twice_the_last_wins_and_all_are_kept() -> None:
    message = Message.of(headers=[("a", b"1"), ("b", b"2"), ("a", b"3")])
    assert message.headers == {"a": b"3", "b": b"2"}
    assert message.headers_list == [("a", b"1"), ("b", b"2"), ("a", b"3")]


def test_empty_is_not_none() -> None:
    message = Message.of(b"", key=b"")
    assert (message.key, message.value) == (b"", b"")


def test_it_cannot_be_changed() -> None:
    message = Message.of("x")
    for name in ("value", "topic", "something"):
        with pytest.raises(AttributeError):
            setattr(message, name, b"other")


def test_json_and_what_is_none() -> None:
    assert Message.of('{"a": 1}').json() == {"a": 1}
    with pytest.raises(SerializationError, match=r"orders\[2\]@9: the value is not JSON: b'\{'"):
        Message.of("{", topic="orders", partition=2, offset=9).json()
    with pytest.raises(SerializationError, match="not UTF-8"):
        Message.of(b"\xff").text()
    with pytest.raises(SerializationError, match="not JSON"):
        Message.of(b"\xff").json()


def test_equal_is_the_same_place() -> None:
    one, same, other = Message.of("a", offset=1), Message.of("b", offset=1), Message.of("a", offset=2)
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != (None, b"a", None)
    assert len({one, same, other}) == 2


@pytest.mark.parametrize("timestamp", [None, 99])
def test_it_goes_to_another_process(timestamp: int | None) -> None:
    message = Message.of("v", topic="t", partition=1, offset=2, key="k", headers=[("a", b"1"), ("a", None)], timestamp=timestamp)
    for twin in (pickle.loads(pickle.dumps(message)), copy.deepcopy(message)):
        assert twin == message
        assert (twin.key, twin.value, twin.headers_list) == (b"k", b"v", [("a", b"1"), ("a", None)])
        assert twin.timestamp == message.timestamp


def test_a_batch_is_a_sequence() -> None:
    raw_messages = [KafkaMessage(topic="t", partition=0, offset=n, key=b"%d" % n, value=b"v%d" % n) for n in range(5)]
    batch = Messages(raw_messages)
    assert [(message.key, message.value, message.offset) for message in batch] == [(b"%d" % n, b"v%d" % n, n) for n in range(5)]
    assert batch[3].raw is raw_messages[3]
    assert (batch[-1].key, batch[-1].value) == (b"4", b"v4")
    assert [message.offset for message in batch[1:3]] == [1, 2]
    assert len(batch) == 5
    assert batch == list(batch)
    assert batch != list(batch)[:4]
    assert batch != [*list(batch)[:4], Message.of(offset=99)]
    assert batch != 5
    assert Messages([]) == []
    assert not Messages([])
    assert batch[2] in batch
    with pytest.raises(IndexError):
        batch[5]
    assert repr(batch) == "<5 messages>"
