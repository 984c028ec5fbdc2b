"""Stopping in order, and warming up."""

import threading
import time
from collections.abc import Iterator

import pytest

from tests.server.harness import WAIT_SECONDS, running_server, wait_until
from tidelog.server import server
from tidelog.server.limits import ConnectionLimits

# Longer than a test waits: what ends in time ended by itself.
PATIENT = ConnectionLimits(stop_ms_max=60_000)


def test_a_stop_answers_what_is_in_flight_and_takes_nothing_more() -> None:
    with running_server(PATIENT) as running, running.client() as busy, running.client() as idle:
        assert idle.ask(b"echo x") == b"echo x"
        busy.send(b"hold")
        wait_until(lambda: b"hold" in running.broker.received)
        stopped = threading.Event()
        running.loop.call_soon_threadsafe(running.server.begin_stop, lambda _: stopped.set())
        assert idle.is_closed_by_server()
        with pytest.raises(ConnectionRefusedError):
            running.client()
        busy.send(b"echo too late")
        assert not stopped.is_set()
        assert running.broker.stops == 0
        running.call(running.broker.release)
        assert busy.receive() == b"released"
        assert busy.is_closed_by_server()
        assert stopped.wait(WAIT_SECONDS)
        assert running.broker.stops == 1
        assert b"echo too late" not in running.broker.received


def test_clients_are_served_until_the_broker_has_left_its_cluster() -> None:
    with running_server(PATIENT) as running, running.client() as client:
        running.broker.leaves_slowly = True
        stopped = threading.Event()
        running.loop.call_soon_threadsafe(running.server.begin_stop, lambda _: stopped.set())
        wait_until(lambda: running.broker.on_left is not None)
        with running.client() as another:
            for each in (client, another):
                assert each.ask(b"echo still") == b"echo still"
        assert running.broker.stops == 0
        assert running.broker.on_left is not None
        running.loop.call_soon_threadsafe(running.broker.on_left)
        assert stopped.wait(WAIT_SECONDS)
        assert running.broker.stops == 1


def test_a_stop_sends_what_is_unsent() -> None:
    with running_server(PATIENT) as running, running.client(receive_buffer_bytes=4096) as slow:
        slow.send(b"size 10000000")
        wait_until(lambda: any(connection.unsent_bytes for connection in running.connections()))
        stopped = threading.Event()
        running.loop.call_soon_threadsafe(running.server.begin_stop, lambda _: stopped.set())
        assert len(slow.receive()) == 10_000_000
        assert slow.is_closed_by_server()
        assert stopped.wait(WAIT_SECONDS)


def test_a_stop_does_not_wait_for_ever() -> None:
    with running_server(ConnectionLimits(stop_ms_max=50)) as running, running.client() as client:
        client.send(b"hold")
        wait_until(lambda: running.broker.received == [b"hold"])
        running.stop()
        assert client.is_closed_by_server()
        assert running.broker.stops == 1


def test_a_broker_that_cannot_stop_says_so() -> None:
    with running_server() as running:
        error = OSError(28, "No space left on device")
        running.broker.stop_error = error
        outcome: list[Exception | None] = []
        running.loop.call_soon_threadsafe(running.server.begin_stop, outcome.append)
        wait_until(lambda: outcome == [error])


class Slices:
    """Counts the slices that ran; it has ``left`` more."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.ran = 0

    def __iter__(self) -> Iterator[None]:
        return self

    def __next__(self) -> None:
        if not self.left:
            raise StopIteration
        self.left -= 1
        self.ran += 1


def test_a_warm_up_runs_in_slices_while_nobody_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WARM_UP_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(server, "WARM_UP_PATIENCE_SECONDS", 60.0)
    with running_server() as running, running.client() as client:
        assert client.ask(b"echo x") == b"echo x"
        slices = Slices(5)

        def begin() -> int:
            running.server.warm_up(slices)
            return slices.ran

        assert running.call(begin) == 1
        wait_until(lambda: slices.ran == 5)
        assert client.ask(b"echo x") == b"echo x"


def test_a_warm_up_waits_while_a_client_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WARM_UP_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(server, "WARM_UP_IDLE_SECONDS", 0.2)
    monkeypatch.setattr(server, "WARM_UP_PATIENCE_SECONDS", 60.0)
    with running_server() as running, running.client() as client:
        slices = Slices(3)
        running.call(lambda: running.server.warm_up(slices))
        began = asked = time.monotonic()
        gap_max = 0.0
        while asked < began + 0.8:
            assert client.ask(b"echo x") == b"echo x"
            gap_max = max(gap_max, time.monotonic() - asked)
            asked = time.monotonic()
        # On a busy machine the client itself may pause.
        assert slices.ran == 1 or gap_max > 0.1
        wait_until(lambda: slices.ran == 3)


def test_a_warm_up_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WARM_UP_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(server, "WARM_UP_IDLE_SECONDS", 0.1)
    monkeypatch.setattr(server, "WARM_UP_PATIENCE_SECONDS", 0.0)
    with running_server() as running, running.client() as client:
        slices = Slices(3)
        running.call(lambda: running.server.warm_up(slices))
        deadline = time.monotonic() + WAIT_SECONDS
        while slices.ran < 3 and time.monotonic() < deadline:
            assert client.ask(b"echo x") == b"echo x"
        assert slices.ran == 3


def test_a_stop_ends_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WARM_UP_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(server, "WARM_UP_IDLE_SECONDS", 0.0)
    with running_server() as running:
        slices = Slices(5)
        stopped = threading.Event()

        def begin() -> None:
            running.server.warm_up(slices)
            running.server.begin_stop(lambda _: stopped.set())

        running.call(begin)
        assert stopped.wait(WAIT_SECONDS)
        assert slices.ran == 1
