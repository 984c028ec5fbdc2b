"""Connections are kept from one task to the next, for each way of connecting."""

from collections.abc import Iterator

import pytest

from tidelog.spark import clients
from tidelog.spark.clients import CLIENTS_MAX, fetch_client, forget_client
from tidelog.spark.options import SourceOptions


@pytest.fixture(autouse=True)
def _no_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(clients, "_clients", {})
    yield
    for client in clients._clients.values():
        client.close()


def options(bootstrap: str = "h:1", **given: str) -> SourceOptions:
    return SourceOptions.parse({"bootstrap": bootstrap, "subscribe": "a", **given}, is_stream=True)


def test_the_same_cluster_is_the_same_client_until_it_is_forgotten() -> None:
    first = fetch_client(options())
    assert fetch_client(options(startingOffsets="earliest")) is first
    assert fetch_client(options(**{"kafka.client.id": "me"})) is not first
    assert fetch_client(options(**{"kafka.isolation.level": "read_uncommitted"})) is not first
    assert fetch_client(options(fetcher="librdkafka")) is not first
    forget_client(options())
    forget_client(options())
    assert fetch_client(options()) is not first


def test_a_forked_process_has_clients_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch_client(options())
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert fetch_client(options()) is not first


def test_their_number_is_bounded() -> None:
    made = [fetch_client(options(f"h:{port}")) for port in range(1, CLIENTS_MAX + 2)]
    assert len(clients._clients) == CLIENTS_MAX
    assert fetch_client(options(f"h:{CLIENTS_MAX + 1}")) is made[-1]
    assert fetch_client(options("h:1")) is not made[0]
