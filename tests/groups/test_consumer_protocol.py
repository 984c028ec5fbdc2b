"""The protocol that classic consumers embed in JoinGroup and SyncGroup: Kafka's bytes, and bytes of anybody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.groups.assignors.strategies import patient
from tidelog.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    MalformedProtocol,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    subscribed_topics,
)

# As clients write them: version, topics, user data; from 1 on what they own, from 2 the generation, from 3 the rack.
TOPICS = b"\0\0\0\x01\0\x06orders"
OWNED = b"\0\0\0\x01\0\x06orders\0\0\0\x02\0\0\0\x03\0\0\0\x01"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\0\0" + TOPICS + b"\xff\xff\xff\xff", ConsumerProtocolSubscription(0, ("orders",), {}, None)),
        (b"\0\x01" + TOPICS + b"\0\0\0\x02hi" + OWNED, ConsumerProtocolSubscription(1, ("orders",), {"orders": (1, 3)}, None)),
        (
            b"\0\x02" + TOPICS + b"\0\0\0\0" + OWNED + b"\0\0\0\x07",
            ConsumerProtocolSubscription(2, ("orders",), {"orders": (1, 3)}, None),
        ),
        (
            b"\0\x03" + TOPICS + b"\0\0\0\0" + OWNED + b"\0\0\0\x07\0\x04east",
            ConsumerProtocolSubscription(3, ("orders",), {"orders": (1, 3)}, "east"),
        ),
        (
            b"\0\x03" + TOPICS + b"\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\x07\xff\xff",
            ConsumerProtocolSubscription(3, ("orders",), {}, None),
        ),
        (b"\0\x09" + TOPICS + b"\0\0\0\0\0\0\0\0\0\0\0\x07\xff\xffmore", ConsumerProtocolSubscription(9, ("orders",), {}, None)),
    ],
)
def test_subscriptions(data: bytes, expected: ConsumerProtocolSubscription) -> None:
    assert decode_subscription(data) == expected


def test_assignments() -> None:
    data = b"\0\x01\0\0\0\x01\0\x06orders\0\0\0\x02\0\0\0\0\0\0\0\x02\xff\xff\xff\xff"
    assert encode_assignment({"orders": (0, 2)}, 1) == data
    assert decode_assignment(data) == ConsumerProtocolAssignment({"orders": (0, 2)}, b"")
    assert decode_assignment(data[:-4] + b"\0\0\0\x03own") == ConsumerProtocolAssignment({"orders": (0, 2)}, b"own")
    assert decode_assignment(b"") == ConsumerProtocolAssignment({}, b"")
    assert encode_assignment({}, 99)[:2] == b"\0\x03", "the newest that there is"


@patient
@given(st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 2**31 - 1), unique=True).map(sorted)))
def test_round_trips(partitions: dict[str, list[int]]) -> None:
    expected = {topic: tuple(indexes) for topic, indexes in partitions.items()}
    assert decode_assignment(encode_assignment(partitions, 1)).partitions == expected


@patient
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except MalformedProtocol:
            continue


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\x01\x7f\xff\xff\xff", b"\xff\xff" + TOPICS, b"\0\0\0\0\0\x01\0\x02\xff\xfe\0\0\0\0"]
)
def test_malformed_subscriptions(data: bytes) -> None:
    with pytest.raises(MalformedProtocol):
        decode_subscription(data)


def encode(topics: list[str], version: int = 0, rest: bytes = b"") -> bytes:
    encoded = [topic.encode() for topic in topics]
    body = b"".join(len(topic).to_bytes(2, "big") + topic for topic in encoded)
    return version.to_bytes(2, "big") + len(topics).to_bytes(4, "big") + body + rest


@given(st.lists(st.text(max_size=20), max_size=5), st.integers(0, 3), st.binary(max_size=20))
def test_topics_are_read_whatever_follows(topics: list[str], version: int, rest: bytes) -> None:
    assert subscribed_topics(encode(topics, version, rest)) == topics


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        encode(["orders"])[:-1],
        b"\x00\x00\xff\xff\xff\xff",
        b"\x00\x00\x7f\xff\xff\xff",
        encode([""])[:-1] + b"\xff" * 2,
    ],
)
def test_what_is_no_subscription_is_not_known(data: bytes) -> None:
    assert subscribed_topics(data) is None


@given(st.binary(max_size=60))
def test_any_bytes_do_no_harm(data: bytes) -> None:
    subscribed_topics(data)
