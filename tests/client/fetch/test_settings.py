"""Which settings our own connection takes, and what it makes of them."""

import pytest

from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.settings import OwnSettings, librdkafka_settings, own_settings


def test_nothing_given() -> None:
    assert own_settings({}) == OwnSettings()


def test_those_that_are_known() -> None:
    settings = {
        "client.id": "audit",
        "security.protocol": "plaintext",
        "check.crcs": "False",
        "socket.timeout.ms": "1500",
        "socket.connection.setup.timeout.ms": "700",
        "fetch.message.max.bytes": "65536",
        "fetch.wait.max.ms": "20",
    }
    assert own_settings(settings) == OwnSettings("audit", 700, 1500, 65536, 20, False)


def test_kafkas_own_names() -> None:
    settings = {"request.timeout.ms": "1500", "max.partition.fetch.bytes": "65536", "fetch.max.wait.ms": "20"}
    assert own_settings(settings) == OwnSettings(timeout_ms=1500, fetch_bytes_max=65536, wait_ms_max=20)
    assert librdkafka_settings({**settings, "sasl.username": "me"}) == {
        "socket.timeout.ms": "1500",
        "max.partition.fetch.bytes": "65536",
        "fetch.wait.max.ms": "20",
        "sasl.username": "me",
    }


@pytest.mark.parametrize(
    ("name", "value"), [("security.protocol", "SASL_SSL"), ("ssl.ca.location", "ca.pem"), ("client.rack", "a"), ("whatever", "1")]
)
def test_what_is_beyond_it(name: str, value: str) -> None:
    assert own_settings({"client.id": "audit", name: value}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("check.crcs", "perhaps"),
        ("socket.timeout.ms", "soon"),
        ("socket.timeout.ms", "-1"),
        ("fetch.message.max.bytes", str(1 << 40)),
        ("fetch.wait.max.ms", ""),
    ],
)
def test_values_that_are_none(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        own_settings({name: value})
