"""Listeners are read as Kafka writes them, and what cannot be served is refused by name."""

import pytest

from tidelog.config.listeners import ListenerAddress, read_listener
from tidelog.config.types import InvalidSetting


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("PLAINTEXT://127.0.0.1:9092", "127.0.0.1", 9092),
        ("plaintext://kafka.example:0", "kafka.example", 0),
        ("localhost:65535", "localhost", 65535),
        ("[::1]:9092", "::1", 9092),
        ("PLAINTEXT://:9092", "0.0.0.0", 9092),
    ],
)
def test_what_is_read(text: str, host: str, port: int) -> None:
    assert read_listener("listeners", text) == ("PLAINTEXT", ListenerAddress(host, port))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SASL_SSL://127.0.0.1:9092", "SASL_SSL is not served yet, only PLAINTEXT is"),
        ("http://127.0.0.1:9092", "http is not a protocol"),
        ("127.0.0.1", "the port is missing"),
        ("127.0.0.1:", "expected a port from 0 to 65535"),
        ("127.0.0.1:65536", "expected a port from 0 to 65535"),
        ("127.0.0.1:-1", "expected a port from 0 to 65535"),
        ("127.0.0.1:٣", "expected a port from 0 to 65535"),
        ("::1:9092", "write an IPv6 address in brackets"),
        ("[127.0.0.1]:9092", "expected an IPv6 address within the brackets"),
        ("[nonsense]:9092", "expected an IPv6 address within the brackets"),
        ("me@there:9092", "expected host:port"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        read_listener("listeners", text)
    assert caught.value.name == "listeners"
    assert reason in caught.value.reason


def test_who_can_reach_it() -> None:
    assert [ListenerAddress(host, 1).is_loopback for host in ("localhost", "127.9.9.9", "::1")] == [True] * 3
    assert [ListenerAddress(host, 1).is_loopback for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example")] == [False] * 4
    assert [ListenerAddress(host, 1).is_every_address for host in ("0.0.0.0", "::", "127.0.0.1", "name")] == [
        True,
        True,
        False,
        False,
    ]


def test_as_text_it_can_be_connected_to() -> None:
    assert str(ListenerAddress("127.0.0.1", 9092)) == "127.0.0.1:9092"
    assert str(ListenerAddress("::1", 9092)) == "[::1]:9092"
