"""Putting a broker together: what is refused before anything is touched, and what is derived."""

import resource
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
from tidelog.log.durability.checkpoints import MetaProperties, write_meta_properties
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.server.process import OPEN_FILES_DERIVED_MAX, derive_open_files_max, find_cluster_id, run_broker


class PlannedRandomness(RealRandomness):
    def __init__(self, *tokens: bytes) -> None:
        super().__init__()
        self._tokens = list(tokens)

    def token(self, length: int) -> bytes:
        return self._tokens.pop(0)


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


def test_a_cluster_id_is_made_once(tmp_path: Path) -> None:
    disk = RealDisk()
    made = find_cluster_id(disk, PlannedRandomness(b"\x01" * 16), str(tmp_path))
    assert made == "AQEBAQEBAQEBAQEBAQEBAQ"
    write_meta_properties(disk, str(tmp_path / "meta.properties"), MetaProperties("theirs", 1, None))
    assert find_cluster_id(disk, PlannedRandomness(), str(tmp_path)) == "theirs"


def test_no_cluster_id_looks_like_an_option(tmp_path: Path) -> None:
    made = find_cluster_id(RealDisk(), PlannedRandomness(b"\xf8" * 16, b"\x02" * 16), str(tmp_path))
    assert made == "AgICAgICAgICAgICAgICAg"


@pytest.mark.parametrize(
    ("limit", "connections_max", "expected"),
    [
        (20_128, 10_000, 10_000),
        (1024, 10_000, 448),
        (100, 10_000, 16),
        (1_000_000, 10, OPEN_FILES_DERIVED_MAX),
        (resource.RLIM_INFINITY, 10, OPEN_FILES_DERIVED_MAX),
    ],
)
def test_open_files_fit_beside_the_connections(
    limit: int, connections_max: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert derive_open_files_max({"max.connections": connections_max}) == expected


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
