"""Stopping in order."""

import threading

import pytest

from tests.server.harness import WAIT_SECONDS, running_server, wait_until
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
