"""The way to a cluster: nobody there is said at once, in one line that names the address."""

import socket
import time
from collections.abc import Iterator

import pytest

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import REQUEST_SECONDS_MAX, KafkaCluster
from tidelog.cli.main import main
from tidelog.testing import Broker


@pytest.fixture
def silent() -> Iterator[str]:
    """Somebody listens who never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "words", [["topics", "list"], ["cluster", "describe"], ["consume", "orders"], ["produce", "orders"], ["bench"]]
)
def test_nobody_is_there(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        assert main([*words, "--bootstrap", address]) == 1
    assert (
        capsys.readouterr().err
        == f"tidelog: no broker answers at {address}: connection refused; check the address, or start a broker: tidelog start\n"
    )


def test_somebody_who_never_answers(silent: str, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert main(["topics", "list", "--bootstrap", silent]) == 1
    assert time.monotonic() - started < REQUEST_SECONDS_MAX
    assert capsys.readouterr().err.startswith(f"tidelog: no broker answers at {silent} ")


def test_one_of_several_is_enough(tidelog_broker: Broker) -> None:
    KafkaCluster(f"127.0.0.1:1, {tidelog_broker.bootstrap_servers}", None).check_reachable()


@pytest.mark.parametrize(
    ("bootstrap", "reason"),
    [("127.0.0.1:nothing", "nothing is not a port"), ("no.such.host.invalid:9092", ""), ("127.0.0.1:99999", "")],
)
def test_addresses_that_are_none(bootstrap: str, reason: str) -> None:
    with pytest.raises(CommandFailed, match=f"^no broker answers at {bootstrap}: .*{reason}"):
        KafkaCluster(bootstrap, None).check_reachable()


def test_a_property_that_there_is_not(tidelog_broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "--bootstrap", tidelog_broker.bootstrap_servers, "-X", "no.such=1"]) == 1
    assert capsys.readouterr().err == 'tidelog: librdkafka refuses the settings: No such configuration property: "no.such"\n'
