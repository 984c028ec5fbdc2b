"""Clients that are not read from for a while: muted, with enough in flight, deaf to their responses, or out of memory."""

import threading
from contextlib import ExitStack

from tests.server.harness import IN_FLIGHT_MAX, MIB, Client, RunningServer, framed, running_server, wait_until
from tidelog.server.limits import Limits

# Less than a turn of the deadline wheel, which would find out by itself.
UNMUTED_SECONDS_MAX = 5.0


# -- muted -------------------------------------------------------------------------------------------------------------------


def test_a_muted_session_is_answered_and_not_read_from_until_it_wants_more(running: RunningServer) -> None:
    """What had arrived with the request that muted it waits too."""
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
        assert running.server.hub.throttled_reads == 0
        client.send(*[b"hold"] * (IN_FLIGHT_MAX + 1))
        wait_until(lambda: running.server.hub.throttled_reads >= 1 and len(running.broker.held) == IN_FLIGHT_MAX)
        running.call(running.broker.release)
        for _ in range(IN_FLIGHT_MAX):
            assert client.receive() == b"released"
        wait_until(lambda: len(running.broker.held) == 1)
        running.call(running.broker.release)
        assert client.receive() == b"released"
    assert running.server.hub.throttled_reads == 1


def test_bytes_in_flight_are_bounded_per_connection() -> None:
    with running_server(Limits(in_flight_bytes_max=10_000)) as running, running.client() as client:
        client.send(*[b"hold " + bytes(3_000)] * 10)
        wait_until(lambda: len(running.broker.received) == 4)
        assert running.server.hub.memory.used_bytes >= 4 * 3_005
        running.call(running.broker.release)
        wait_until(lambda: len(running.broker.received) == 8)
        running.call(running.broker.release)
        wait_until(lambda: len(running.broker.received) == 10)
        running.call(running.broker.release)
        assert [client.receive() for _ in range(10)] == [b"released"] * 10
        wait_until(lambda: running.server.hub.memory.used_bytes == 0)


# -- readers that do not read ------------------------------------------------------------------------------------------------


def test_a_reader_that_never_reads_costs_little_and_others_are_served() -> None:
    limits = Limits(unsent_bytes_max=1 * MIB)
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
        assert running.server.hub.memory.used_bytes <= 2 * MIB
        assert running.broker.received.count(b"size 100000") < 200


def test_a_reader_that_never_reads_is_dropped_after_a_time() -> None:
    with running_server(Limits(send_stall_ms_max=100)) as running:
        with running.client(receive_buffer_bytes=4096) as deaf, running.client() as other:
            deaf.send(*[b"size 1000000"] * 10)
            wait_until(lambda: len(running.reasons) == 1)
            assert other.ask(b"echo still here") == b"echo still here"
            assert running.reasons == ["the client does not read its responses for 100 ms"]
        wait_until(lambda: running.server.hub.memory.used_bytes == 0)


def test_a_slow_reader_is_not_dropped() -> None:
    limits = Limits(send_stall_ms_max=400)
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

    with running_server(Limits(memory_bytes_max=2 * MIB)) as running, ExitStack() as stack:
        clients = [stack.enter_context(running.client()) for _ in range(20)]
        senders = [threading.Thread(target=send, args=(client,)) for client in clients]
        for sender in senders:
            sender.start()
        try:
            wait_until(lambda: running.server.hub.memory.waiting_count > 0)
            # The last buffer that doubled may have gone beyond the budget, and one connection is let through.
            assert running.server.hub.memory.used_bytes < 4 * MIB
            with running.client() as small:
                assert small.ask(b"echo quick") == b"echo quick"
        finally:
            go_on.set()
        peak = 0
        for client in clients:
            assert client.receive() == b"%d" % MIB
            peak = max(peak, running.server.hub.memory.used_bytes)
        assert peak < 5 * MIB
        for sender in senders:
            sender.join()


def test_who_is_let_through_beyond_the_memory_and_then_muted_lets_others_through() -> None:
    """An answer may mute a connection in the middle of its next frame, for as long as a quota says."""
    frame = framed(b"length " + bytes(4 * MIB))
    with running_server(Limits(memory_bytes_max=MIB)) as running, running.client() as muted, running.client() as other:
        memory, broker = running.server.hub.memory, running.broker

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
