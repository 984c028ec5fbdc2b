"""A reset is noticed at once, whatever the loop polls for at that moment, and the descriptor can be used again."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.server.harness import Client, RunningServer, framed, running_server, wait_until
from tidelog.ports import system
from tidelog.ports.clock import RealClock
from tidelog.ports.real_network import ResetWatch
from tidelog.server.limits import ConnectionLimits


def test_one_burst_for_all_that_was_ready() -> None:
    with running_server() as running, running.client() as client:
        assert client.ask(b"echo first") == b"echo first"
        before = running.broker.bursts
        client.send(*[b"echo x"] * 30)
        for _ in range(30):
            client.receive()
        # One, or a few if the bytes came in pieces; not one per request.
        assert 1 <= running.broker.bursts - before <= 5


def test_a_burst_ends_after_each_completion() -> None:
    with running_server() as running:
        wait_until(lambda: not running.server.reactor._is_burst_end_scheduled)
        before = running.broker.bursts
        done: list[int] = []
        running.call(lambda: running.server.reactor.deliver(lambda: done.append(running.broker.bursts)))
        wait_until(lambda: running.broker.bursts > before)
        assert done == [before]


def test_the_broker_ticks_at_its_deadline_and_not_before() -> None:
    clock = RealClock()
    with running_server() as running:
        due_ms = clock.monotonic_ms() + 60
        running.broker.deadline_ms = due_ms
        running.call(running.server.reactor.wake)
        wait_until(lambda: running.broker.ticks > 0)
        assert clock.monotonic_ms() >= due_ms - 2


def test_a_nearer_deadline_moves_the_timer() -> None:
    clock = RealClock()
    with running_server() as running:
        running.broker.deadline_ms = clock.monotonic_ms() + 3_600_000
        running.call(running.server.reactor.wake)
        wait_until(lambda: running.server.reactor._timer is not None)
        running.broker.deadline_ms = clock.monotonic_ms() + 10
        running.call(running.server.reactor.wake)
        wait_until(lambda: running.broker.ticks == 1)


def test_what_a_failing_burst_leaves_unsent_is_sent() -> None:
    with running_server() as running, running.client() as client:
        assert client.ask(b"echo before") == b"echo before"

        def fail() -> None:
            raise RuntimeError("told to")

        running.broker.end_of_burst = fail  # type: ignore[method-assign]  # one that fails
        assert client.ask(b"echo after") == b"echo after"
        wait_until(lambda: len(running.errors) > 0)
        del running.broker.end_of_burst
        assert all("told to" in str(context["exception"]) for context in running.errors)
        # A burst that was woken before may still come.
        running.call(lambda: time.monotonic())
        running.errors.clear()


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


class Watched:
    def __init__(self) -> None:
        self.loop = system.new_event_loop()
        self.watch = ResetWatch(self.loop)
        self.reasons: list[str] = []
        self.near, self.far = _connected()

    def turn_until(self, is_done: Callable[[], bool]) -> None:
        deadline = self.loop.time() + 10

        def look() -> None:
            if is_done() or self.loop.time() > deadline:
                self.loop.stop()
            else:
                self.loop.call_later(0.001, look)

        self.loop.call_soon(look)
        self.loop.run_forever()
        assert is_done()


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        far = socket.create_connection(listening.getsockname())
        near, _ = listening.accept()
    near.setblocking(False)
    return near, far


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.watch.close()
    watched.near.close()
    watched.far.close()
    watched.loop.close()


def test_a_reset_is_told_once_though_nobody_polls(watched: Watched) -> None:
    watched.watch.watch(watched.near, watched.reasons.append)
    reset(watched.far)
    watched.turn_until(lambda: bool(watched.reasons))
    watched.loop.run_until_complete(_a_few_turns())
    assert watched.reasons == ["Connection reset by peer"]


def test_data_and_an_orderly_end_are_not_told(watched: Watched) -> None:
    watched.watch.watch(watched.near, watched.reasons.append)
    watched.far.sendall(b"data")
    watched.far.close()
    watched.loop.run_until_complete(_a_few_turns())
    assert watched.reasons == []


def test_who_was_forgotten_is_not_told(watched: Watched) -> None:
    watched.watch.watch(watched.near, watched.reasons.append)
    watched.watch.forget(watched.near.fileno())
    watched.watch.forget(watched.near.fileno())
    reset(watched.far)
    watched.loop.run_until_complete(_a_few_turns())
    assert watched.reasons == []


async def _a_few_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


@pytest.fixture
def running() -> Iterator[RunningServer]:
    with running_server(ConnectionLimits(unsent_bytes_max=1 << 16)) as running:
        yield running


def reset_in_the_middle_of_a_frame(client: Client) -> None:
    client.socket.sendall(framed(b"echo x")[:5])


def reset_while_answers_wait(client: Client) -> None:
    """They fill the socket: the broker waits to write, and no longer reads."""
    client.socket.sendall(framed(b"echo " + bytes(100_000)) * 60)


def reset_while_reading_and_writing(client: Client) -> None:
    """Less is unsent than stops the reading, but the socket takes no more."""
    client.socket.sendall(framed(b"echo " + bytes(30_000)) * 5)


@pytest.mark.parametrize(
    "before",
    [reset_in_the_middle_of_a_frame, reset_while_answers_wait, reset_while_reading_and_writing],
    ids=lambda before: before.__name__,
)
def test_a_connection_that_was_reset_is_gone_and_its_descriptor_works_again(
    running: RunningServer, before: Callable[[Client], None]
) -> None:
    for _ in range(20):
        client = running.client(receive_buffer_bytes=4096)
        assert client.ask(b"echo hello") == b"echo hello"
        client.socket.settimeout(0.2)
        with suppress(TimeoutError):
            before(client)
        reset(client.socket)
        wait_until(lambda: running.connection_count() == 0)
    assert running.server.reactor.memory.used_bytes == 0
