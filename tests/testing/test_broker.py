"""A broker in its own process: ready when start returns, gone when it should be, and the same after a restart."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidelog.testing import Broker, BrokerFailed


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def connect(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=10)


def test_it_serves_when_it_has_started_and_is_gone_afterwards() -> None:
    with Broker() as broker:
        was_running = broker.is_running
        assert broker.bootstrap_servers == f"127.0.0.1:{broker.port}"
        connect(broker).close()
        pid, data = broker.pid, Path(broker.data_path)
        assert (data / "meta.properties").is_file()
        assert pid != os.getpid()
        assert broker.events[0]["event"] == "started"
    assert (was_running, broker.is_running) == (True, False)
    assert not is_alive(pid)
    assert not data.parent.exists()


def test_two_at_once() -> None:
    with Broker() as one, Broker() as other:
        assert one.port != other.port
        assert one.data_path != other.data_path


def test_killed_and_started_again_at_the_same_address() -> None:
    with Broker() as broker:
        port, pid = broker.port, broker.pid
        broker.kill()
        assert not broker.is_running
        with pytest.raises(ConnectionRefusedError):
            connect(broker)
        broker.start()
        assert (broker.port, broker.pid == pid) == (port, False)
        connect(broker).close()
        started = [event for event in broker.events if event["event"] == "started"]
        assert [event["was_stopped_cleanly"] for event in started] == [False, False]
        assert started[0]["cluster_id"] == started[1]["cluster_id"]


def test_a_restart_is_clean() -> None:
    with Broker() as broker:
        broker.restart()
        started = [event for event in broker.events if event["event"] == "started"]
        assert [event["was_stopped_cleanly"] for event in started] == [False, True]


def test_the_port_is_nobody_elses_while_it_is_down() -> None:
    with Broker() as broker:
        broker.stop()
        others = [socket.socket() for _ in range(200)]
        for other in others:
            other.bind(("127.0.0.1", 0))
        assert broker.port not in {other.getsockname()[1] for other in others}
        for other in others:
            other.close()
        broker.start()


def test_data_that_is_kept(tmp_path: Path) -> None:
    data = tmp_path / "kept"
    with Broker(persist=data) as first:
        assert first.data_path == str(data)
    assert (data / ".kafka_cleanshutdown").is_file()
    with Broker(persist=data) as second:
        assert second.events[0]["cluster_id"] == first.events[0]["cluster_id"]


def test_settings_reach_the_broker() -> None:
    with Broker(configs={"log.flush.interval.messages": 1000, "auto.create.topics.enable": False}) as broker:
        assert broker.events[0]["flush_messages"] == 1000


def test_a_setting_that_is_none_is_the_reason() -> None:
    with pytest.raises(BrokerFailed, match=r"^num\.partition: there is no such setting; did you mean num\.partitions\?$"):
        Broker(configs={"num.partition": 1}).__enter__()


def test_a_directory_in_use_is_the_reason(tmp_path: Path) -> None:
    with Broker(persist=tmp_path / "data"), pytest.raises(BrokerFailed, match="is used by another process"):
        Broker(persist=tmp_path / "data").__enter__()


def test_what_makes_no_sense_is_refused() -> None:
    with Broker() as broker:
        with pytest.raises(BrokerFailed, match="running already"):
            broker.start()
        broker.stop()
        with pytest.raises(BrokerFailed, match="not running"):
            broker.kill()


def test_a_broker_that_ends_by_itself_is_noticed() -> None:
    with Broker() as broker:
        os.kill(broker.pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while broker.is_running:
            assert time.monotonic() < deadline
            time.sleep(0.005)


PARENT = """
import os, signal
from tidelog.testing import Broker
broker = Broker().start()
print(broker.pid, broker.data_path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_dies_with_its_parent() -> None:
    finished = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == -signal.SIGKILL, finished.stderr
    pid, data = finished.stdout.split()
    wait_until_gone(int(pid))
    subprocess.run(["rm", "-rf", str(Path(data).parent)], check=True)


def wait_until_gone(pid: int) -> None:
    """A zombie that its parent has not waited for yet counts as gone."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.005)
    raise AssertionError(f"{pid} is still there")
