"""What can go wrong on a connection, each with its own exception and one clear line."""

import socket
import struct
import time
from contextlib import closing

import pytest

from tests.client.wire.fake_broker import HANG_UP, SILENCE, FakeBroker
from tidelog.client.wire.connection import VERSIONS, BrokerConnection, parse_addresses
from tidelog.client.wire.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    InvalidAddress,
    InvalidAnswer,
    RequestTimedOut,
    SecurityRequired,
    UnsupportedByBroker,
)
from tidelog.testing import Broker
from tidelog.wire.protocol import ApiKey

LIST = {"error_code": 0, "unknown_state_filters": [], "transaction_states": []}


def connect(fake: FakeBroker, seconds_max: float = 10.0) -> BrokerConnection:
    return BrokerConnection("127.0.0.1", fake.port, "test", 3.0, seconds_max)


def ask(fake: FakeBroker, api: ApiKey, version_min: int = 0) -> None:
    with closing(connect(fake)) as connection:
        connection.request(api, {}, 10.0, version_min)


@pytest.mark.parametrize(
    ("hello", "kind", "words"),
    [
        (HANG_UP, SecurityRequired, "may require TLS or SASL"),
        (b"\x15\x03\x03\x00\x02\x02\x50", SecurityRequired, "speaks TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", InvalidAnswer, "is it a Kafka broker"),
        (b"\xff\xff\xff\xff", InvalidAnswer, "a frame of -1 bytes"),
        (struct.pack(">iih", 6, 1, 35), UnsupportedByBroker, "older than Kafka 2.4"),
        (struct.pack(">iihB", 7, 1, 42, 1), ClientError, "invalid response"),
        (struct.pack(">iih", 6, 2, 0), InvalidAnswer, "it is for request 2, not 1"),
        ({"error_code": 58, "api_keys": []}, BrokerError, "SASL_AUTHENTICATION_FAILED"),
        (SILENCE, RequestTimedOut, "did not answer API_VERSIONS within 0.2 s"),
    ],
)
def test_the_first_answer(fake: FakeBroker, hello: object, kind: type[ClientError], words: str) -> None:
    fake.answer(ApiKey.API_VERSIONS, hello)
    with pytest.raises(kind, match=words) as raised:
        connect(fake, 0.2 if hello is SILENCE else 10.0)
    assert "\n" not in str(raised.value)
    assert fake.bootstrap_servers in str(raised.value)


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BrokerUnreachable, match=f"no broker answers at 127.0.0.1:{port}: connection refused"):
        BrokerConnection("127.0.0.1", port, "test", 3.0, 3.0)


def test_a_name_that_is_none() -> None:
    with pytest.raises(BrokerUnreachable, match="no broker answers at"):
        BrokerConnection("x" * 64 + ".invalid", 1, "test", 3.0, 3.0)


def test_who_answers_nothing_but_the_greeting_wants_sasl(fake: FakeBroker) -> None:
    fake.answer(ApiKey.METADATA, HANG_UP)
    with pytest.raises(SecurityRequired, match="TLS or SASL"):
        ask(fake, ApiKey.METADATA)


def test_a_connection_that_is_lost_later_is_lost(fake: FakeBroker) -> None:
    fake.answer(ApiKey.LIST_TRANSACTIONS, LIST, HANG_UP)
    connection = connect(fake)
    connection.request(ApiKey.LIST_TRANSACTIONS, {}, 10.0)
    with pytest.raises(ConnectionLost):
        connection.request(ApiKey.LIST_TRANSACTIONS, {}, 10.0)


def test_a_late_answer_is_never_taken_for_another(fake: FakeBroker) -> None:
    fake.answer(ApiKey.LIST_TRANSACTIONS, LIST, SILENCE)
    connection = connect(fake)
    connection.request(ApiKey.LIST_TRANSACTIONS, {}, 10.0)
    started = time.monotonic()
    with pytest.raises(RequestTimedOut, match=r"LIST_TRANSACTIONS within 0\.1 s"):
        connection.request(ApiKey.LIST_TRANSACTIONS, {}, 0.1)
    assert time.monotonic() - started < 5
    with pytest.raises(ConnectionLost):
        connection.request(ApiKey.LIST_TRANSACTIONS, {}, 10.0)


@pytest.mark.parametrize(("theirs", "version"), [((0, 9), 2), ((0, 1), 1), ((0, 0), 0), ((2, 2), 2)])
def test_the_newest_version_that_both_have(fake: FakeBroker, theirs: tuple[int, int], version: int) -> None:
    fake.versions[ApiKey.LIST_TRANSACTIONS] = theirs
    fake.answer(ApiKey.LIST_TRANSACTIONS, LIST)
    ask(fake, ApiKey.LIST_TRANSACTIONS)
    assert fake.requests[-1][:2] == (ApiKey.LIST_TRANSACTIONS, version)


@pytest.mark.parametrize("theirs", [(3, 4), None])
def test_no_version_that_both_have(fake: FakeBroker, theirs: tuple[int, int] | None) -> None:
    del fake.versions[ApiKey.LIST_TRANSACTIONS]
    if theirs is not None:
        fake.versions[ApiKey.LIST_TRANSACTIONS] = theirs
    with pytest.raises(UnsupportedByBroker, match="LIST_TRANSACTIONS"):
        ask(fake, ApiKey.LIST_TRANSACTIONS)


def test_a_field_that_the_broker_does_not_have_is_not_left_out(fake: FakeBroker) -> None:
    fake.versions[ApiKey.LIST_TRANSACTIONS] = (0, 0)
    with pytest.raises(UnsupportedByBroker, match="v0 to v0, and this takes v1 to v2"):
        ask(fake, ApiKey.LIST_TRANSACTIONS, version_min=1)


def test_our_broker_has_all_of_it(tidelog_broker: Broker) -> None:
    connection = BrokerConnection("127.0.0.1", tidelog_broker.port, "test", 3.0, 10.0)
    # The quorum's voters are changed on the listener of the controllers.
    on_brokers = {
        api: last for api, (_, last) in VERSIONS.items() if api not in (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER)
    }
    try:
        assert {api: connection.version_of(api) for api in on_brokers} == on_brokers
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:1234", [("localhost", 1234)]),
        ("localhost", [("localhost", 9092)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
        ("[::1]:1", [("::1", 1)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", ",", "a:", "a:b", "a:0", "a:65536", ":1", "a:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidAddress):
        parse_addresses(text)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "sasl_ssl"])
def test_a_secure_listener_is_refused(protocol: str) -> None:
    with pytest.raises(SecurityRequired, match=f"security.protocol {protocol}: .* plaintext only"):
        parse_addresses(f"{protocol}://a:1")
