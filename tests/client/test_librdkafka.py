"""Settings: ours, then the caller's, and what would break a promise is refused."""

import inspect
import socket

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidelog.client import librdkafka
from tidelog.client.admin import Admin
from tidelog.client.asyncio_admin import AsyncAdmin
from tidelog.client.consumer import Consumer
from tidelog.client.errors import BrokerUnavailable, InvalidArgument
from tidelog.client.librdkafka import (
    CONNECT_TIMEOUT_SECONDS,
    ConnectionProblems,
    bootstrap_addresses,
    librdkafka_configuration,
    nobody_listens,
    wait_for_broker,
)
from tidelog.client.producer import Producer
from tidelog.client.table import Table


def test_the_callers_settings_win_over_ours() -> None:
    found = librdkafka_configuration("host:9092", {"linger.ms": 7}, {"linger.ms": 5, "acks": -1})
    assert found["linger.ms"] == 7
    assert found["acks"] == -1
    assert found["bootstrap.servers"] == "host:9092"
    assert found["log_level"] == 0


def test_addresses_come_in_one_text_or_in_several() -> None:
    assert bootstrap_addresses(" one:9092, two:9092 ") == "one:9092,two:9092"
    assert bootstrap_addresses(["one:9092", "two:9092"]) == "one:9092,two:9092"


@pytest.mark.parametrize("bootstrap", ["", " ", ",", "one:9092,", [], ["one:9092", ""]])
def test_no_address_is_refused(bootstrap: str | list[str]) -> None:
    with pytest.raises(InvalidArgument, match="host:port"):
        bootstrap_addresses(bootstrap)


def test_a_setting_that_would_break_a_promise_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"must not have enable\.idempotence: use idempotent="):
        librdkafka_configuration("h:1", {"enable.idempotence": False}, {}, refused={"enable.idempotence": "use idempotent="})
    with pytest.raises(InvalidArgument, match=r"bootstrap\.servers: it is the first argument"):
        librdkafka_configuration("h:1", {"bootstrap.servers": "other:1"}, {})
    with pytest.raises(InvalidArgument, match="names of librdkafka's settings"):
        librdkafka_configuration("h:1", {7: "x"}, {})  # type: ignore[dict-item]  # what a caller without types may do


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
def test_where_nobody_listens_is_told_with_the_address(kind: type[Producer | Consumer | Admin]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # Bound and not listening: it refuses, and nobody else gets it.
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(BrokerUnavailable, match=rf"no broker answers at {address} .*check the address"):
            kind(address)


class Unreachable:
    """A client of librdkafka that never finds a broker. Its clock advances only while somebody waits for it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def list_topics(self, timeout: float) -> None:
        self.seconds += timeout
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def poll(self, timeout: float) -> None:
        self.seconds += timeout


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin, Table, AsyncAdmin])
def test_where_nobody_listens_a_person_waits_two_seconds(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a clock of this machine, which may be busy: with the time-out that the class passes."""
    timeout = inspect.signature(kind).parameters["connect_timeout"].default
    handle = Unreachable()
    monkeypatch.setattr(librdkafka, "monotonic", lambda: handle.seconds)
    with pytest.raises(BrokerUnavailable):
        wait_for_broker(handle, "127.0.0.1:1", ConnectionProblems(), timeout)
    assert handle.seconds <= 2
    # One that is silent may be starting, and has more time.
    handle.seconds = 0.0
    monkeypatch.setattr(librdkafka, "nobody_listens", lambda addresses: False)
    with pytest.raises(BrokerUnavailable):
        wait_for_broker(handle, "127.0.0.1:1", ConnectionProblems(), timeout)
    assert handle.seconds == pytest.approx(CONNECT_TIMEOUT_SECONDS, abs=0.01)


def test_who_is_silent_may_be_slow() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert not nobody_listens(address)
        assert not nobody_listens(f"127.0.0.1:1,{address}")
    assert nobody_listens("127.0.0.1:1,[::1]:1")
    assert nobody_listens("no-such-host.invalid")
