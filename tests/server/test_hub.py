import time

from tests.server.harness import running_server, wait_until
from tidelog.ports.clock import RealClock


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
        wait_until(lambda: not running.server.hub._is_woken)
        before = running.broker.bursts
        done: list[int] = []
        running.call(lambda: running.server.hub.run(lambda: done.append(running.broker.bursts)))
        wait_until(lambda: running.broker.bursts > before)
        assert done == [before]


def test_the_broker_ticks_at_its_deadline_and_not_before() -> None:
    clock = RealClock()
    with running_server() as running:
        due_ms = clock.monotonic_ms() + 60
        running.broker.deadline_ms = due_ms
        running.call(running.server.hub.wake)
        wait_until(lambda: running.broker.ticks > 0)
        assert clock.monotonic_ms() >= due_ms - 2


def test_a_nearer_deadline_moves_the_timer() -> None:
    clock = RealClock()
    with running_server() as running:
        running.broker.deadline_ms = clock.monotonic_ms() + 3_600_000
        running.call(running.server.hub.wake)
        wait_until(lambda: running.server.hub._timer is not None)
        running.broker.deadline_ms = clock.monotonic_ms() + 10
        running.call(running.server.hub.wake)
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
