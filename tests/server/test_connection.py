"""Connections on real sockets: responses in order, frames, slices of files, backpressure, and how a connection ends."""

import os
import random
import socket
import struct
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.server.harness import IMPORTED_MODULE, IN_FLIGHT_MAX, MIB, Client, RunningServer, framed, running_server, wait_until
from tidelog.metrics.registry import Registry
from tidelog.ports.real_disk import RealDisk
from tidelog.server.connection import FRAMES_PER_TURN
from tidelog.server.limits import SLOW_TURN_NS_MIN, ConnectionLimits
from tidelog.server.monitoring import add_server_metrics

# -- answers -----------------------------------------------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order(running: RunningServer) -> None:
    count = 20 * FRAMES_PER_TURN
    with running.client() as client:
        client.send(*(b"echo %d" % number for number in range(count)))
        assert [client.receive() for _ in range(count)] == [b"echo %d" % number for number in range(count)]
    assert len(running.broker.received) == count


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
        assert running.server.reactor.send_ns.count == 0
        running.call(running.broker.release)
        assert client.receive() == b"released"
    wait_until(lambda: running.server.reactor.send_ns.count == 1)
    assert 0 < running.server.reactor.send_ns.sum < time.monotonic_ns() - began_ns


@pytest.mark.parametrize("send_buffer_bytes", [64 * 1024, -1])
def test_the_kernel_holds_as_much_of_a_response_as_the_limit_says(send_buffer_bytes: int) -> None:
    """A response that waits in the kernel as a whole leaves the processor's cache before the client reads it."""
    with running_server(ConnectionLimits(send_buffer_bytes=send_buffer_bytes)) as running, running.client() as client:
        assert client.ask(b"echo 1") == b"echo 1"
        (connection,) = running.connections()
        held = connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        # Linux doubles the value to make room for its own bookkeeping.
        assert (held == 2 * send_buffer_bytes) == (send_buffer_bytes > 0)


def test_requests_that_take_long_are_handled_one_a_turn_and_others_come_between(running: RunningServer) -> None:
    """And with a rest in between: the others have the loop for half of the time."""
    work = b"work %d" % (2 * SLOW_TURN_NS_MIN // 1_000_000)
    with running.client() as hog, running.client() as other:
        hog.send(*[work] * 10)
        words = 0
        while running.broker.received.count(work) < 10:
            assert other.ask(b"echo other") == b"echo other"
            words += 1
        assert [hog.receive() for _ in range(10)] == [b"worked"] * 10
    assert words >= 9
    registry = Registry()
    add_server_metrics(registry, running.server)
    (families,) = [found for found in registry.snapshot() if found is not None]
    ((_, count),) = next(series for description, series in families if description.name == "tidelog_loop_rests_total")
    assert count == running.server.reactor.penalty.count
    assert running.server.reactor.penalty.count >= 9
    # One of them is reported, and the others are counted in the next report.
    ((_, facts),) = [(event, facts) for event, facts in running.events if event == "client_paused"]
    assert (str(facts["client"]).startswith("127.0.0.1:"), facts["times"]) == (True, 1)
    wait_until(lambda: running.server.reactor.penalty.paused_count == 0)


@pytest.mark.parametrize("word", [b"block 60", b"collect 60", b"import"])
def test_what_is_not_the_clients_work_is_not_charged_to_it(running: RunningServer, word: bytes) -> None:
    """A blocked system call, a collection, a first import; after turns of others that used the processor."""
    with running.client() as client, running.client() as other:
        assert other.ask(b"work 15") == b"worked"
        assert client.ask(word) == b"done"
        assert client.ask(b"echo at once") == b"echo at once"
    sys.modules.pop(IMPORTED_MODULE, None)
    assert running.server.reactor.penalty.count == 0


def test_a_thousand_idle_connections(running: RunningServer) -> None:
    clients = [running.client() for _ in range(1000)]
    try:
        wait_until(lambda: running.connection_count() == 1000)
        with running.client() as speaker:
            assert speaker.ask(b"echo hello") == b"echo hello"
        # Nothing is taken from the shared memory by connections that only exist.
        wait_until(lambda: running.server.reactor.memory.used_bytes == 0)
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
        (ConnectionLimits(handshake_ms_max=60), b"", "no valid request after the connection for 60 ms"),
        (ConnectionLimits(handshake_ms_max=60), b"\0\0\1\0half", "no valid request after the connection for 60 ms"),
        (ConnectionLimits(idle_ms_max=60), framed(b"echo x"), "idle for 60 ms"),
        (
            ConnectionLimits(frame_stall_ms_max=60),
            framed(b"echo x") + b"\0\0\1\0half",
            "the client stopped in the middle of a frame for 60 ms",
        ),
    ],
)
def test_time_limits(limits: ConnectionLimits, sent: bytes, reason: str) -> None:
    with running_server(limits) as running, running.client() as client:
        client.socket.sendall(sent)
        wait_until(lambda: running.connection_count() == 0 and len(running.reasons) == 1)
        assert running.reasons == [reason]


def test_who_waits_for_the_broker_is_not_idle() -> None:
    limits = ConnectionLimits(idle_ms_max=60)
    with running_server(limits) as running, running.client() as waiting, running.client() as idle:
        waiting.send(b"hold")
        idle.send(b"echo x")
        wait_until(lambda: len(running.reasons) == 1)
        assert running.connection_count() == 1
        running.call(running.broker.release)
        assert waiting.receive() == b"released"


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
    with running_server(ConnectionLimits(first_frame_bytes_max=1000, frame_bytes_max=100_000)) as running:
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
        wait_until(lambda: running.server.reactor.memory.used_bytes > 0)
    wait_until(lambda: running.connection_count() == 0)
    assert running.reasons == ["closed by the client in the middle of a frame"]
    assert running.server.reactor.memory.used_bytes == 0
    assert not running.broker.received
    assert running.broker.sessions[0].is_closed


def test_a_connection_that_has_ended_holds_no_buffer_while_others_hold_it(running: RunningServer) -> None:
    with running.client() as client:
        client.socket.sendall(framed(b"echo x" * 50_000)[:100_000])
        wait_until(lambda: running.server.reactor.memory.used_bytes > 0)
        (connection,) = running.connections()
    wait_until(lambda: running.connection_count() == 0)
    assert running.call(lambda: connection._frames.buffer_size) == 0


# What was just written or read is in the page cache, unless the kernel took it out again at this moment.
TRIES = 5


@pytest.fixture
def data(running: RunningServer, tmp_path: Path) -> bytes:
    """The bytes of the broker's file."""
    content = random.Random(5).randbytes(MIB) * 51
    path = tmp_path / "segment.log"
    path.write_bytes(content)
    running.broker.file = RealDisk().open(str(path), "read")
    os.fsync(running.broker.file.descriptor())
    return content


@pytest.mark.parametrize("length", [1, 2, 4095, 4096, 4097, 65_536, 524_288, 524_289, MIB, 10 * MIB + 7, 50 * MIB])
@pytest.mark.parametrize("is_cold", [False, True])
def test_slices_arrive_intact(running: RunningServer, data: bytes, length: int, is_cold: bool) -> None:
    assert running.broker.file is not None
    if is_cold:
        RealDisk().drop_cache(running.broker.file.path)
    cold_reads = []
    with running.client() as client:
        for _ in range(TRIES):
            before = running.server.reactor.cold_reads
            client.send(b"echo before", b"both 12345 %d" % length, b"slice 7 %d" % length, b"echo after")
            assert client.receive() == b"echo before"
            assert client.receive() == b"<" + data[12345 : 12345 + length] + b">"
            assert client.receive() == data[7 : 7 + length]
            assert client.receive() == b"echo after"
            cold_reads.append(running.server.reactor.cold_reads - before)
            if not cold_reads[-1]:
                break
    if is_cold and length > MIB:
        assert cold_reads[0] > 0
    if not is_cold:
        assert cold_reads[-1] == 0


def test_a_large_slice_does_not_hold_up_others(running: RunningServer, data: bytes) -> None:
    with running.client() as greedy, running.client() as other:
        greedy.send(b"slice 0 %d" % (50 * MIB))
        assert other.ask(b"echo hello") == b"echo hello"
        assert greedy.receive() == data[: 50 * MIB]


def test_a_slice_of_a_file_that_was_cut_ends_the_connection(running: RunningServer, data: bytes) -> None:
    assert running.broker.file is not None
    os.truncate(running.broker.file.path, 1000)
    with running.client() as client:
        client.send(b"slice 0 2000")
        with pytest.raises(EOFError):
            client.receive()
    wait_until(lambda: len(running.reasons) == 1)
    assert "ends before byte 1000" in running.reasons[0]


def test_a_disk_that_cannot_read_ends_the_connection(
    running: RunningServer, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tidelog.server.reactor.read_ahead", fail)
    monkeypatch.setattr("tidelog.server.send_queue.is_cached", lambda *_: False)
    with running.client() as client:
        client.send(b"slice 0 20000")
        with pytest.raises(EOFError):
            client.receive()
    wait_until(lambda: len(running.reasons) == 1)
    assert "Input/output error" in running.reasons[0]


# Less than a turn of the deadline wheel, which would find out by itself.
UNMUTED_SECONDS_MAX = 5.0


# -- muted -------------------------------------------------------------------------------------------------------------------


def test_a_muted_session_is_answered_and_not_read_from_until_it_wants_more(running: RunningServer) -> None:
    """Requests that had arrived with the one that muted the connection wait too."""
    with running.client() as client:
        client.send(b"hold", b"mute", b"echo together", b"echo with it")
        wait_until(lambda: len(running.broker.received) == 2)
        running.call(running.broker.release)
        assert [client.receive(), client.receive()] == [b"released", b"muted"]
        client.send(b"echo later")
        with running.client() as other:
            assert other.ask(b"echo others") == b"echo others"
        assert running.broker.received == [b"hold", b"mute", b"echo others"]
        client.socket.settimeout(UNMUTED_SECONDS_MAX)
        running.call(running.broker.sessions[0].unmute)
        assert [client.receive() for _ in range(3)] == [b"echo together", b"echo with it", b"echo later"]


def test_a_muted_session_without_a_backlog_is_read_from_again(running: RunningServer) -> None:
    with running.client() as client:
        assert client.ask(b"mute") == b"muted"
        client.send(b"echo later")
        with running.client() as other:
            assert other.ask(b"echo others") == b"echo others"
        assert running.broker.received == [b"mute", b"echo others"]
        client.socket.settimeout(UNMUTED_SECONDS_MAX)
        running.call(running.broker.sessions[0].unmute)
        assert client.receive() == b"echo later"


def test_a_muted_client_does_not_hold_up_a_stop(running: RunningServer) -> None:
    with running.client() as client:
        assert client.ask(b"mute") == b"muted"
        running.stop()
        assert client.is_closed_by_server()


# -- in flight ---------------------------------------------------------------------------------------------------------------


def test_a_session_that_has_enough_in_flight_is_not_read_from(running: RunningServer) -> None:
    with running.client() as client, running.client() as other:
        client.send(*[b"hold"] * IN_FLIGHT_MAX, *[b"echo later"] * 1000)
        wait_until(lambda: len(running.broker.received) == IN_FLIGHT_MAX)
        assert other.ask(b"echo hello") == b"echo hello"
        assert running.broker.received.count(b"echo later") == 0
        running.call(running.broker.release)
        assert [client.receive() for _ in range(IN_FLIGHT_MAX)] == [b"released"] * IN_FLIGHT_MAX
        assert [client.receive() for _ in range(1000)] == [b"echo later"] * 1000


def test_a_client_that_is_not_read_from_for_a_while_is_counted(running: RunningServer) -> None:
    with running.client() as client:
        assert client.ask(b"echo 1") == b"echo 1"
        assert running.server.reactor.throttled_reads == 0
        client.send(*[b"hold"] * (IN_FLIGHT_MAX + 1))
        wait_until(lambda: running.server.reactor.throttled_reads >= 1 and len(running.broker.held) == IN_FLIGHT_MAX)
        running.call(running.broker.release)
        for _ in range(IN_FLIGHT_MAX):
            assert client.receive() == b"released"
        wait_until(lambda: len(running.broker.held) == 1)
        running.call(running.broker.release)
        assert client.receive() == b"released"
    assert running.server.reactor.throttled_reads == 1


def test_bytes_in_flight_are_bounded_per_connection() -> None:
    with running_server(ConnectionLimits(in_flight_bytes_max=10_000)) as running, running.client() as client:
        client.send(*[b"hold " + bytes(3_000)] * 10)
        wait_until(lambda: len(running.broker.received) == 4)
        assert running.server.reactor.memory.used_bytes >= 4 * 3_005
        running.call(running.broker.release)
        wait_until(lambda: len(running.broker.received) == 8)
        running.call(running.broker.release)
        wait_until(lambda: len(running.broker.received) == 10)
        running.call(running.broker.release)
        assert [client.receive() for _ in range(10)] == [b"released"] * 10
        wait_until(lambda: running.server.reactor.memory.used_bytes == 0)


# -- readers that do not read ------------------------------------------------------------------------------------------------


def test_a_reader_that_never_reads_costs_little_and_others_are_served() -> None:
    limits = ConnectionLimits(unsent_bytes_max=1 * MIB)
    with running_server(limits) as running, running.client(receive_buffer_bytes=4096) as deaf, running.client() as other:
        deaf.socket.setblocking(False)
        requests = framed(b"size 100000") * 200
        sent = 0
        while sent < len(requests):
            try:
                sent += deaf.socket.send(requests[sent:])
            except BlockingIOError:
                break
        wait_until(lambda: max((c.unsent_bytes for c in running.connections()), default=0) >= 1 * MIB)
        for number in range(50):
            assert other.ask(b"echo %d" % number) == b"echo %d" % number
        # One response may be beyond the limit.
        assert max(c.unsent_bytes for c in running.connections()) <= 1 * MIB + 100_004
        assert running.server.reactor.memory.used_bytes <= 2 * MIB
        assert running.broker.received.count(b"size 100000") < 200


def test_a_reader_that_never_reads_is_dropped_after_a_time() -> None:
    with running_server(ConnectionLimits(send_stall_ms_max=100)) as running:
        with running.client(receive_buffer_bytes=4096) as deaf, running.client() as other:
            deaf.send(*[b"size 1000000"] * 10)
            wait_until(lambda: len(running.reasons) == 1)
            assert other.ask(b"echo still here") == b"echo still here"
            assert running.reasons == ["the client does not read its responses for 100 ms"]
        wait_until(lambda: running.server.reactor.memory.used_bytes == 0)


def test_a_slow_reader_is_not_dropped() -> None:
    limits = ConnectionLimits(send_stall_ms_max=400)
    with running_server(limits) as running, running.client(receive_buffer_bytes=4096) as slow:
        slow.send(b"size 20000000")
        received = 0
        while received < 20_000_004:
            received += len(slow.socket.recv(100_000))
        assert running.reasons == []


# -- shared memory -----------------------------------------------------------------------------------------------------------


def test_memory_of_all_together_is_bounded_and_everybody_finishes() -> None:
    """Twenty clients send a large frame each, where only a few fit: they take turns, and those that send little go on."""
    frame = framed(b"length " + bytes(MIB))
    go_on = threading.Event()

    def send(client: Client) -> None:
        client.socket.sendall(frame[: MIB // 2])
        go_on.wait()
        client.socket.sendall(frame[MIB // 2 :])

    with running_server(ConnectionLimits(memory_bytes_max=2 * MIB)) as running, ExitStack() as stack:
        clients = [stack.enter_context(running.client()) for _ in range(20)]
        senders = [threading.Thread(target=send, args=(client,)) for client in clients]
        for sender in senders:
            sender.start()
        try:
            wait_until(lambda: running.server.reactor.memory.waiting_count > 0)
            # The last buffer that doubled may have gone beyond the budget, and one connection is let through.
            assert running.server.reactor.memory.used_bytes < 4 * MIB
            with running.client() as small:
                assert small.ask(b"echo quick") == b"echo quick"
        finally:
            go_on.set()
        peak = 0
        for client in clients:
            assert client.receive() == b"%d" % MIB
            peak = max(peak, running.server.reactor.memory.used_bytes)
        assert peak < 5 * MIB
        for sender in senders:
            sender.join()


def test_who_is_let_through_beyond_the_memory_and_then_muted_lets_others_through() -> None:
    """An answer may mute a connection in the middle of its next frame, for as long as a quota says."""
    frame = framed(b"length " + bytes(4 * MIB))
    with running_server(ConnectionLimits(memory_bytes_max=MIB)) as running, running.client() as muted, running.client() as other:
        memory, broker = running.server.reactor.memory, running.broker

        def mute_and_release() -> None:
            broker.sessions[0].is_muted = True
            broker.release()

        muted.send(b"hold")
        assert other.ask(b"echo x") == b"echo x"
        muted.socket.sendall(frame[: 2 * MIB])
        wait_until(lambda: memory.used_bytes > MIB)
        sender = threading.Thread(target=other.socket.sendall, args=(frame,))
        sender.start()
        wait_until(lambda: memory.waiting_count == 1)
        running.call(mute_and_release)
        assert muted.receive() == b"released"
        assert other.receive() == b"%d" % (4 * MIB)
        sender.join()
        running.call(broker.sessions[0].unmute)
        muted.socket.sendall(frame[2 * MIB :])
        assert muted.receive() == b"%d" % (4 * MIB)


def test_large_frames_that_are_answered_at_once_follow_each_other_beyond_the_memory() -> None:
    """The next frame has begun when the one before it is answered, so that the connection holds as much as before."""
    frame = framed(b"length " + bytes(4 * MIB))
    limits = ConnectionLimits(memory_bytes_max=MIB, frame_bytes_max=4 * MIB + 1024)
    with running_server(limits) as running, running.client() as client:
        assert client.ask(b"echo x") == b"echo x"
        sender = threading.Thread(target=client.socket.sendall, args=(frame * 8,))
        sender.start()
        assert [client.receive() for _ in range(8)] == [b"%d" % (4 * MIB)] * 8
        sender.join()
        wait_until(lambda: running.server.reactor.memory.used_bytes == 0)


def test_who_sends_a_byte_now_and_then_does_not_keep_others_from_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.limits.EXEMPT_SECONDS_MAX", 0.0)
    monkeypatch.setattr("tidelog.server.limits.EXEMPT_BYTES_PER_SECOND", 8 * MIB)
    frame = framed(b"length " + bytes(4 * MIB))
    limits = ConnectionLimits(memory_bytes_max=MIB, frame_bytes_max=4 * MIB + 1024, frame_stall_ms_max=4_000)
    with running_server(limits) as running, running.client() as slow, running.client() as other:
        memory = running.server.reactor.memory
        assert slow.ask(b"echo x") == other.ask(b"echo x") == b"echo x"
        slow.socket.sendall(frame[: 2 * MIB])
        wait_until(lambda: memory.used_bytes > MIB)
        sender = threading.Thread(target=other.socket.sendall, args=(frame,))
        sender.start()
        answers: list[bytes] = []
        receiver = threading.Thread(target=lambda: answers.append(other.receive()))
        receiver.start()
        sent = 2 * MIB
        with suppress(OSError):
            while receiver.is_alive():
                slow.socket.sendall(frame[sent : sent + 1])
                sent += 1
                receiver.join(0.1)
                assert sent < 3 * MIB
        receiver.join()
        sender.join()
        assert answers == [b"%d" % (4 * MIB)]
        assert slow.is_closed_by_server()
