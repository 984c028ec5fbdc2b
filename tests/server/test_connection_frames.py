"""Frames on real sockets: cut anywhere, as large as they may be, too large, and never finished."""

import random
import socket
import struct

import pytest

from tests.server.harness import MIB, RunningServer, framed, running_server, wait_until
from tidelog.server.limits import Limits


def test_frames_byte_by_byte_and_cut_anywhere(running: RunningServer) -> None:
    stream = framed(b"echo a") + framed(b"echo bc") + framed(b"echo ")
    with running.client() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(len(stream)):
            client.socket.sendall(stream[position : position + 1])
        assert [client.receive() for _ in range(3)] == [b"echo a", b"echo bc", b"echo "]
    for cut in range(1, len(stream)):
        with running.client() as client:
            client.socket.sendall(stream[:cut])
            client.socket.sendall(stream[cut:])
            assert [client.receive() for _ in range(3)] == [b"echo a", b"echo bc", b"echo "]


def test_large_frames_arrive_whole(running: RunningServer) -> None:
    data = random.Random(1).randbytes(3 * MIB)
    with running.client() as client:
        client.send(b"echo " + data, b"echo small", b"echo " + data)
        assert client.receive() == b"echo " + data
        assert client.receive() == b"echo small"
        assert client.receive() == b"echo " + data


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1])
def test_a_frame_that_may_not_be_is_the_end(running: RunningServer, size: int) -> None:
    with running.client() as client:
        client.send(b"echo first")
        assert client.receive() == b"echo first"
        client.socket.sendall(struct.pack(">i", size))
        assert client.is_closed_by_server()
    wait_until(lambda: len(running.reasons) == 1)
    assert f"a frame of {size} bytes" in running.reasons[0]


def test_a_stranger_is_believed_less_than_a_client() -> None:
    with running_server(Limits(first_frame_bytes_max=1000, frame_bytes_max=100_000)) as running:
        with running.client() as stranger:
            stranger.socket.sendall(b"GET / HTTP/1.1\r\nHost: tidelog\r\n\r\n")
            assert stranger.is_closed_by_server()
        with running.client() as stranger:
            stranger.socket.sendall(struct.pack(">i", 1001))
            assert stranger.is_closed_by_server()
        with running.client() as client:
            assert client.ask(b"echo hello") == b"echo hello"
            assert len(client.ask(b"echo " + bytes(90_000))) == 90_005
            client.socket.sendall(struct.pack(">i", 100_001))
            assert client.is_closed_by_server()


def test_a_connection_cut_in_mid_frame_leaves_nothing(running: RunningServer) -> None:
    with running.client() as client:
        client.socket.sendall(framed(b"echo x" * 50_000)[:100_000])
        wait_until(lambda: running.server.hub.memory.used_bytes > 0)
    wait_until(lambda: running.connection_count() == 0)
    assert running.reasons == ["closed by the client in the middle of a frame"]
    assert running.server.hub.memory.used_bytes == 0
    assert not running.broker.received
    assert running.broker.sessions[0].is_closed


def test_a_connection_that_has_ended_holds_no_buffer_while_others_hold_it(running: RunningServer) -> None:
    with running.client() as client:
        client.socket.sendall(framed(b"echo x" * 50_000)[:100_000])
        wait_until(lambda: running.server.hub.memory.used_bytes > 0)
        (connection,) = running.connections()
    wait_until(lambda: running.connection_count() == 0)
    assert running.call(lambda: connection._frames.buffer_size) == 0
