"""The future of a message without any broker: settled by hand, seen by callbacks and waiters, each once."""

import logging
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from tests.compatibility.apache_kafka import wait_until
from tests.memory_size import bytes_each
from tidelog.client.errors import DeliveryFailed, InvalidArgument, TidelogError, TimedOut
from tidelog.client.futures import Delivered, Delivery


class Report:
    """As much of confluent_kafka.Message as is read."""

    def __init__(self, partition: int, offset: int | None, timestamp: int) -> None:
        self._facts = (partition, offset, timestamp)

    def partition(self) -> int:
        return self._facts[0]

    def offset(self) -> int | None:
        return self._facts[1]

    def timestamp(self) -> tuple[int, int]:
        return 1, self._facts[2]


class Settler:
    def __init__(self) -> None:
        self.hurried = 0
        self.polls_here = False

    def failed(self, error: Any, message: Any) -> TidelogError:
        return DeliveryFailed(f"send to orders: {error} ({message!r})")

    def hurry(self) -> None:
        self.hurried += 1

    def is_poller(self) -> bool:
        return self.polls_here


def delivery_of(settler: Settler | None = None) -> Delivery:
    return Delivery("orders", settler or Settler())


def test_a_report_settles_it() -> None:
    delivery = delivery_of()
    assert not delivery.done()
    assert "pending" in repr(delivery)
    delivery(None, Report(3, 41, 1_700_000_000_000))
    assert delivery.done()
    assert delivery.result(0) == Delivered("orders", 3, 41, 1_700_000_000_000)
    assert delivery.exception(0) is None
    assert "41" in repr(delivery)


def test_without_acks_there_is_no_offset() -> None:
    delivery = delivery_of()
    delivery(None, Report(0, None, -1))
    assert delivery.result() == Delivered("orders", 0, None, None)


def test_a_failure_is_raised_or_returned_and_counts_as_seen() -> None:
    delivery = delivery_of()
    delivery("too late", Report(0, -1, -1))
    failure = delivery._state
    assert isinstance(failure, DeliveryFailed)
    assert [failure.is_seen] == [False]
    assert delivery.exception() is failure
    assert failure.is_seen
    with pytest.raises(DeliveryFailed, match="send to orders: too late"):
        delivery.result()


def test_who_waits_is_woken_and_hurries_the_poller() -> None:
    settler = Settler()
    delivery = delivery_of(settler)
    results: list[Delivered] = []
    threads = [threading.Thread(target=lambda: results.append(delivery.result(30)), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: settler.hurried == 3, "all of them wait", seconds_max=10)
    delivery(None, Report(1, 2, 3))
    for thread in threads:
        thread.join(30)
    assert results == [Delivered("orders", 1, 2, 3)] * 3


def test_no_report_in_time_leaves_the_message_under_way() -> None:
    delivery = delivery_of()
    with pytest.raises(TimedOut, match="still under way"):
        delivery.result(0.01)
    delivery(None, Report(0, 1, 2))
    assert delivery.result(0).offset == 1


def test_callbacks_run_once_in_order_and_their_errors_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    delivery = delivery_of()
    calls: list[str] = []
    delivery.add_done_callback(lambda done: calls.append(f"first {done.result().offset}"))
    delivery.add_done_callback(lambda _: 1 / 0)
    delivery.add_done_callback(lambda _: calls.append("second"))
    with caplog.at_level(logging.ERROR):
        delivery(None, Report(0, 7, 0))
    delivery.add_done_callback(lambda _: calls.append("late"))
    assert calls == ["first 7", "second", "late"]
    assert "a done callback of a message to orders failed" in caplog.text


def test_a_callback_that_is_added_while_it_is_settled_runs_once() -> None:
    for _ in range(300):
        delivery = delivery_of()
        calls: list[int] = []
        start = threading.Barrier(2)

        def add(delivery: Delivery = delivery, start: threading.Barrier = start, calls: list[int] = calls) -> None:
            start.wait()
            delivery.add_done_callback(lambda _: calls.append(1))

        thread = threading.Thread(target=add)
        thread.start()
        start.wait()
        delivery(None, Report(0, 1, 2))
        thread.join()
        assert calls == [1]


def test_the_poller_must_not_wait_for_itself() -> None:
    settler = Settler()
    settler.polls_here = True
    with pytest.raises(InvalidArgument, match="must not wait"):
        delivery_of(settler).result(1)


def test_one_that_never_left_is_failed_from_the_start() -> None:
    delivery = Delivery.already_failed("orders", Settler(), DeliveryFailed("dropped"))
    assert delivery.done()
    with pytest.raises(DeliveryFailed, match="dropped"):
        delivery.result(0)


def test_one_in_flight_takes_a_fraction_of_what_a_future_of_the_library_takes() -> None:
    settler = Settler()
    ours = bytes_each(lambda _: Delivery("orders", settler))
    assert ours <= 96, f"{ours} bytes: the module says 80"
    assert ours * 4 < bytes_each(lambda _: Future())
