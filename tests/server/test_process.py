"""Putting a broker together: what is refused before anything is touched, and what is derived."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.harness import WAIT_SECONDS, Client
from tidelog.config.broker import METRICS_LISTENER
from tidelog.config.types import InvalidSetting
from tidelog.server.process import OPEN_FILES_DERIVED_MAX, divide_descriptors, run_broker


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listeners": "10.0.0.1:9092"}, r"^listeners=10\.0\.0\.1:9092: everyone who reaches .* add --insecure$"),
        ({METRICS_LISTENER: "0.0.0.0:0"}, r"^tidelog\.metrics\.listener=0\.0\.0\.0:0: everyone who reaches .* add --insecure$"),
        ({METRICS_LISTENER: "127.0.0.1"}, r"^tidelog\.metrics\.listener=127\.0\.0\.1: the port is missing"),
        ({METRICS_LISTENER: "SSL://127.0.0.1:1"}, r"^tidelog\.metrics\.listener=SSL"),
        ({"log.retention.mss": "1"}, r"did you mean log\.retention\.ms\?$"),
        ({"log.cleaner.max.compaction.lag.ms": "1", "log.cleaner.min.compaction.lag.ms": "2"}, r"compaction\.lag\.ms"),
    ],
)
def test_what_is_refused(settings: dict[str, str], message: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pytest.raises(InvalidSetting, match=message):
        run_broker({**settings, "log.dirs": str(data)}, report=lambda *_: None, on_serving=lambda _: None)
    assert not data.exists()


@pytest.mark.parametrize(
    ("limit", "connections_max", "open_files_max", "shares"),
    [
        (20_128, 10_000, None, (10_000, 10_000)),
        (1024, 10_000, None, (448, 448)),
        (1024, 10_000, 4096, (224, 672)),
        (1024, 100, 50, (100, 50)),
        (256, 2**31 - 1, None, (96, 96)),
        (40, 10_000, None, (14, 16)),
        (1_000_000, 10, None, (10, OPEN_FILES_DERIVED_MAX)),
    ],
)
def test_connections_and_open_segments_leave_descriptors_for_the_logs(
    limit: int, connections_max: int, open_files_max: int | None, shares: tuple[int, int]
) -> None:
    divided = divide_descriptors(limit, connections_max, open_files_max)
    assert (divided.connections_max, divided.open_files_max) == shares
    assert sum(shares) <= limit - min(128, limit // 4)


ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def process(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.server.serve_words", *arguments]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def port_of(started: "subprocess.Popen[str]") -> int:
    assert started.stdout is not None
    return int(started.stdout.readline())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_in_order(number: signal.Signals) -> None:
    with process() as started, Client(("127.0.0.1", port_of(started))) as client:
        assert client.ask(b"echo hello") == b"echo hello"
        started.send_signal(number)
        assert client.is_closed_by_server()
        assert started.wait(WAIT_SECONDS) == 0


def test_a_second_signal_stops_at_once() -> None:
    with process() as started, Client(("127.0.0.1", port_of(started))) as client, Client(client.socket.getpeername()) as idle:
        client.send(b"hold")
        assert idle.ask(b"echo hello") == b"echo hello"
        started.send_signal(signal.SIGTERM)
        # The idle one is closed: the stop has begun, and waits for the other.
        assert idle.is_closed_by_server()
        started.send_signal(signal.SIGTERM)
        assert started.wait(WAIT_SECONDS) == 1


def test_a_broker_that_cannot_start_says_why() -> None:
    with process("fail") as started:
        _, errors = started.communicate(timeout=WAIT_SECONDS)
        assert started.returncode == 1
        assert errors.splitlines()[-1] == "RuntimeError: cannot start"


CHECK = """
import gc
from tidelog.server.process import GC_YOUNG_THRESHOLD, tune_garbage_collection
tune_garbage_collection()
assert gc.isenabled()
assert gc.get_threshold()[0] == GC_YOUNG_THRESHOLD
assert gc.get_freeze_count() > 1000
assert len(gc.get_objects()) < 1000
"""


def test_what_exists_at_the_start_is_not_walked_again() -> None:
    """In a process of its own: freezing this one would hide leaks from other tests."""
    subprocess.run([sys.executable, "-c", CHECK], check=True)
