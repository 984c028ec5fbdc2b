import errno
import socket
import time

import pytest

from tests.server.harness import running_server, wait_until
from tidelog.server.connection import ClientConnection
from tidelog.server.limits import ConnectionLimits
from tidelog.server.listener import PAUSE_SECONDS, SocketListener, bind, bind_all


@pytest.mark.parametrize("limits", [ConnectionLimits(connections_max=3), ConnectionLimits(connections_per_address_max=3)])
def test_connections_beyond_the_limit_are_closed_at_once_and_room_comes_back(limits: ConnectionLimits) -> None:
    with running_server(limits) as running:
        clients = [running.client() for _ in range(3)]
        for client in clients:
            assert client.ask(b"echo in") == b"echo in"
        with running.client() as refused:
            assert refused.is_closed_by_server()
        assert running.server.admission.refused == 1
        clients.pop().socket.close()
        wait_until(lambda: running.connection_count() == 2)
        with running.client() as accepted:
            assert accepted.ask(b"echo in") == b"echo in"
        for client in clients:
            client.socket.close()
        wait_until(lambda: running.connection_count() == 0)
        assert not running.server.admission._per_address


def test_a_flood_that_is_refused_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with running_server(ConnectionLimits(connections_max=1)) as running, running.client() as only:
        assert only.ask(b"echo in") == b"echo in"
        for _ in range(20):
            with running.client() as refused:
                assert refused.is_closed_by_server()
        assert running.server.admission.refused == 20
    assert len([record for record in caplog.records if "refused a connection" in record.message]) == 1


def test_a_connection_of_an_address_with_too_many_is_left_alone_and_then_ended() -> None:
    with running_server(ConnectionLimits(connections_max=2)) as running:
        admission = running.server.admission
        running.broker.connection_throttles = [60_000, 0]
        with running.client() as left_alone, running.client() as welcome:
            left_alone.send(b"echo in")
            assert welcome.ask(b"echo in") == b"echo in"
            assert running.broker.received == [b"echo in"]
            assert (admission.throttled, running.connection_count()) == (1, 1)
            # It counts.
            with running.client() as refused:
                assert refused.is_closed_by_server()
            for listener in running.server.listeners:
                running.call(listener.close)
            assert left_alone.is_closed_by_server()
            assert welcome.ask(b"echo still") == b"echo still"
        wait_until(lambda: running.connection_count() == 0)
        assert not admission._per_address


def test_it_is_ended_when_its_time_is_up() -> None:
    with running_server() as running:
        running.broker.connection_throttles = [20]
        with running.client() as left_alone:
            assert left_alone.is_closed_by_server()
        with running.client() as welcome:
            assert welcome.ask(b"echo in") == b"echo in"


def test_a_connection_that_cannot_be_set_up_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server(ConnectionLimits(connections_per_address_max=1)) as running:

        def fail(*_: object) -> ClientConnection:
            raise OSError(errno.EINVAL, "Invalid argument")

        monkeypatch.setattr("tidelog.server.listener.ClientConnection", fail)
        with running.client() as client:
            assert client.is_closed_by_server()
        monkeypatch.undo()
        with running.client() as client:
            assert client.ask(b"echo in") == b"echo in"


def test_an_address_that_is_taken_is_named_and_nothing_stays_bound() -> None:
    with running_server() as running:
        host, port = running.address
        with pytest.raises(OSError, match=f"{host}:{port}") as caught:
            bind_all([("127.0.0.1", 0), running.address])
        assert caught.value.errno == errno.EADDRINUSE


def test_ipv6_where_there_is_one() -> None:
    try:
        bound = bind("::1", 0)
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    assert bound.family is socket.AF_INET6
    bound.close()


def test_out_of_descriptors_accepting_pauses_and_goes_on() -> None:
    """The kernel's answer is played: to use up all descriptors of this process would hit other threads too."""
    failures = 0

    class Exhausted:
        """A listening socket, at first out of descriptors."""

        def __init__(self, listening: socket.socket) -> None:
            self._listening = listening

        def __getattr__(self, name: str) -> object:
            return getattr(self._listening, name)

        def accept(self) -> tuple[socket.socket, object]:
            nonlocal failures
            if failures < 3:
                failures += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self._listening.accept()

    with running_server() as running:
        listener: SocketListener = running.server.listeners[0]
        listener._listening = Exhausted(listener._listening)  # type: ignore[assignment]  # stands for the socket
        began = time.monotonic()
        with running.client() as client:
            assert client.ask(b"echo patience") == b"echo patience"
        # Not a spin: one failure per pause.
        assert time.monotonic() - began >= 3 * PAUSE_SECONDS
