"""Topics in a member's metadata, which may be any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.groups.consumer_protocol import subscribed_topics


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
