"""Connections on real sockets: answers in order, and how a connection ends."""

import time

import pytest

from tests.server.harness import RunningServer, framed, running_server, wait_until
from tidelog.server.connection import FRAMES_PER_TURN
from tidelog.server.limits import Limits
from tidelog.server.loop_share import HOG_NS_MIN

# -- answers -----------------------------------------------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order(running: RunningServer) -> None:
    count = 20 * FRAMES_PER_TURN
    with running.client() as client:
        client.send(*(b"echo %d" % number for number in range(count)))
        assert [client.receive() for _ in range(count)] == [b"echo %d" % number for number in range(count)]
    assert running.server.hub.requests == count


def test_later_answers_wait_for_earlier_ones(running: RunningServer) -> None:
    with running.client() as client:
        client.send(b"hold", b"echo 1", b"nothing", b"hold", b"echo 2")
        wait_until(lambda: len(running.broker.received) == 5)
        client.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.receive()
        client.socket.settimeout(20)
        running.call(running.broker.release)
        assert [client.receive() for _ in range(4)] == [b"released", b"echo 1", b"released", b"echo 2"]


def test_the_session_knows_when_its_frames_arrived_and_sending_is_timed(running: RunningServer) -> None:
    with running.client() as client:
        began_ns = time.monotonic_ns()
        client.send(b"hold")
        wait_until(lambda: len(running.broker.held) == 1)
        session, _ = running.broker.held[0]
        assert began_ns <= session.received_ns <= time.monotonic_ns()
        assert running.server.hub.send_ns.count == 0
        running.call(running.broker.release)
        assert client.receive() == b"released"
    wait_until(lambda: running.server.hub.send_ns.count == 1)
    assert 0 < running.server.hub.send_ns.sum < time.monotonic_ns() - began_ns


def test_requests_that_take_long_are_handled_one_a_turn_and_others_come_between(running: RunningServer) -> None:
    """And with a rest in between: the others have the loop for half of the time."""
    work = b"work %d" % (2 * HOG_NS_MIN // 1_000_000)
    with running.client() as hog, running.client() as other:
        hog.send(*[work] * 10)
        words = 0
        while running.broker.received.count(work) < 10:
            assert other.ask(b"echo other") == b"echo other"
            words += 1
        assert [hog.receive() for _ in range(10)] == [b"worked"] * 10
    assert words >= 9
    # Of the first one nobody knows what it had of the processor.
    assert running.server.hub.share.rests >= 8
    wait_until(lambda: running.server.hub.share.resting == 0)


def test_a_thousand_idle_connections(running: RunningServer) -> None:
    clients = [running.client() for _ in range(1000)]
    try:
        wait_until(lambda: running.connection_count() == 1000)
        with running.client() as speaker:
            assert speaker.ask(b"echo hello") == b"echo hello"
        # Nothing is taken from the shared memory by connections that only exist.
        wait_until(lambda: running.server.hub.memory.used_bytes == 0)
    finally:
        for client in clients:
            client.socket.close()
    wait_until(lambda: running.connection_count() == 0)


# -- ends --------------------------------------------------------------------------------------------------------------------


def test_what_the_session_closes_is_closed_and_an_exception_of_ours_too(
    running: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    expected: list[str] = []
    for word, reason in ((b"close", "told to"), (b"raise", "internal error")):
        with running.client() as client:
            client.send(b"echo before", word, b"echo after")
            while client.socket.recv(1000):
                pass
        expected.append(reason)
        wait_until(lambda: running.reasons == expected)
    assert b"echo after" not in running.broker.received
    assert "failed outside of its handler" in caplog.text


@pytest.mark.parametrize(
    ("limits", "sent", "reason"),
    [
        (Limits(handshake_ms_max=60), b"", "no valid request after the connection for 60 ms"),
        (Limits(handshake_ms_max=60), b"\0\0\1\0half", "no valid request after the connection for 60 ms"),
        (Limits(idle_ms_max=60), framed(b"echo x"), "idle for 60 ms"),
        (
            Limits(frame_stall_ms_max=60),
            framed(b"echo x") + b"\0\0\1\0half",
            "the client stopped in the middle of a frame for 60 ms",
        ),
    ],
)
def test_time_limits(limits: Limits, sent: bytes, reason: str) -> None:
    with running_server(limits) as running, running.client() as client:
        client.socket.sendall(sent)
        wait_until(lambda: running.connection_count() == 0 and len(running.reasons) == 1)
        assert running.reasons == [reason]


def test_who_waits_for_the_broker_is_not_idle() -> None:
    limits = Limits(idle_ms_max=60)
    with running_server(limits) as running, running.client() as waiting, running.client() as idle:
        waiting.send(b"hold")
        idle.send(b"echo x")
        wait_until(lambda: len(running.reasons) == 1)
        assert running.connection_count() == 1
        running.call(running.broker.release)
        assert waiting.receive() == b"released"
