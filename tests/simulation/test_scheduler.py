"""The event queue: order, time, cancelling, and the trace."""

from functools import partial

import pytest

from simulation.scheduler import NeverReachedError, Scheduler


def test_events_run_by_time_then_by_order_of_scheduling() -> None:
    scheduler = Scheduler()
    order: list[str] = []
    for name, delay_us in (("c", 20), ("a", 10), ("d", 20), ("b", 10)):
        scheduler.schedule(delay_us, name, partial(order.append, name))

    def nested() -> None:
        scheduler.schedule(5, "later", partial(order.append, "later"))

    scheduler.schedule(5, "nested", nested)
    scheduler.run_all()
    assert order == ["a", "b", "later", "c", "d"]
    assert scheduler.now_us == 20
    assert list(scheduler.trace) == ["5 nested", "10 a", "10 b", "10 later", "20 c", "20 d"]


def test_a_cancelled_event_does_not_run() -> None:
    scheduler = Scheduler()
    ran: list[str] = []
    event = scheduler.schedule(1, "a", lambda: ran.append("a"))
    scheduler.schedule(2, "b", lambda: ran.append("b"))
    event.cancel()
    assert scheduler.step()
    assert not scheduler.step()
    assert ran == ["b"]


def test_run_until_stops_as_soon_as_the_condition_holds() -> None:
    scheduler = Scheduler()
    ran: list[int] = []
    for number in range(10):
        scheduler.schedule(number, "tick", lambda: ran.append(1))
    scheduler.run_until(lambda: len(ran) == 4)
    assert len(ran) == 4
    with pytest.raises(NeverReachedError, match="no event is left"):
        scheduler.run_until(lambda: False)


def test_a_run_that_never_ends_is_given_up() -> None:
    scheduler = Scheduler()

    def again() -> None:
        scheduler.schedule(1, "again", again)

    again()
    with pytest.raises(NeverReachedError, match="after 50 events"):
        scheduler.run_until(lambda: False, events_max=50)
    with pytest.raises(NeverReachedError, match="left after 50"):
        scheduler.run_all(events_max=50)


def test_run_for_lets_time_pass() -> None:
    scheduler = Scheduler()
    ran: list[str] = []
    scheduler.schedule(10, "in time", lambda: ran.append("in time"))
    scheduler.schedule(11, "too late", lambda: ran.append("too late"))
    scheduler.run_for(10)
    assert ran == ["in time"]
    assert scheduler.now_us == 10
    scheduler.run_for(100)
    assert scheduler.now_us == 110


def test_the_past_is_refused() -> None:
    with pytest.raises(ValueError, match="past"):
        Scheduler().schedule(-1, "a", lambda: None)


def test_the_hash_follows_every_line() -> None:
    hashes = []
    for lines in (("a", "b"), ("a", "b"), ("b", "a"), ("ab",)):
        scheduler = Scheduler()
        for line in lines:
            scheduler.record(line)
        hashes.append(scheduler.trace_hash())
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
