"""A broker in a thread: the same interface, nothing of the process is its own."""

import gc
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tidelog.testing import BrokerFailed, ThreadBroker


def broker_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tidelog-broker"]


def test_it_serves_when_it_has_started_and_is_gone_afterwards() -> None:
    handler, threshold = signal.getsignal(signal.SIGTERM), gc.get_threshold()
    # Another test's broker may serve in this process too.
    others = broker_threads()
    with ThreadBroker() as broker:
        socket.create_connection(("127.0.0.1", broker.port), timeout=10).close()
        was_running = broker.is_running
        assert broker.pid == os.getpid()
        data = Path(broker.data_path)
        assert (data / "meta.properties").is_file()
        assert (signal.getsignal(signal.SIGTERM), gc.get_threshold()) == (handler, threshold)
    assert (was_running, broker.is_running) == (True, False)
    assert broker_threads() == others
    assert not data.parent.exists()


def test_a_restart_keeps_address_and_data(tmp_path: Path) -> None:
    with ThreadBroker(persist=tmp_path / "data") as broker:
        port = broker.port
        broker.restart()
        assert broker.port == port
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").is_file()


def test_the_reason_of_a_failed_start() -> None:
    with pytest.raises(BrokerFailed, match=r"^num\.partition: there is no such setting"):
        ThreadBroker(configs={"num.partition": 1}).__enter__()


def test_what_makes_no_sense_is_refused() -> None:
    with ThreadBroker() as broker:
        with pytest.raises(BrokerFailed, match="running already"):
            broker.start()
        broker.stop()
        with pytest.raises(BrokerFailed, match="not running"):
            broker.stop()
