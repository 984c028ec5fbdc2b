import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.harness import WAIT_SECONDS, Client

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
