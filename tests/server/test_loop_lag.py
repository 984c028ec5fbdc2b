"""A minute of values, on a clock that the test moves."""

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from tests.server.harness import running_server, wait_until
from tidelog.server.loop_lag import (
    BUCKETS_MS,
    INTERVAL_SECONDS,
    REPORT_MS,
    REPORT_SECONDS,
    SLOT_COUNT,
    SLOT_SECONDS,
    LoopLag,
    RecentHistogram,
)


class FakeLoop:
    """Time stands until the test lets the timer run, as late as it likes."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.due: float | None = None
        self.events: list[tuple[str, dict[str, object]]] = []
        self.lag = LoopLag(lambda: self.now, self._schedule, lambda event, facts: self.events.append((event, facts)))
        self.lag.start()

    def _schedule(self, seconds: float, callback: object) -> "FakeLoop":
        self.due = self.now + seconds
        return self

    def cancel(self) -> None:
        self.due = None

    def run_late(self, lag_ms: float) -> None:
        assert self.due is not None
        self.now = self.due + lag_ms / 1000
        self.lag._observe()


@pytest.fixture
def loop() -> Iterator[FakeLoop]:
    loop = FakeLoop()
    yield loop
    loop.lag.stop()


def test_the_lag_is_how_late_the_timer_was(loop: FakeLoop) -> None:
    for lag_ms in (0.0, 30.0, 4.0):
        loop.run_late(lag_ms)
    assert round(loop.lag.lag.max_ms(loop.now)) == 30
    assert loop.lag.lag.total == 3
    assert loop.lag.lag_ns.count == 3
    assert round(loop.lag.lag_ns.sum / 1e6) == 34
    assert loop.events == []


def test_what_held_the_loop_is_counted_since_the_start(loop: FakeLoop) -> None:
    loop.lag.observe_background(0.25)
    loop.now += 3600
    loop.lag.observe_background(0.5)
    assert loop.lag.background_ns.count == 2
    assert loop.lag.background_ns.sum == 750_000_000


def test_a_long_lag_is_reported_at_most_every_ten_seconds(loop: FakeLoop) -> None:
    loop.run_late(REPORT_MS + 50)
    assert [(event, facts["lag_ms"], facts["times"]) for event, facts in loop.events] == [("loop_lag", REPORT_MS + 50, 1)]
    loop.run_late(REPORT_MS + 400)
    loop.run_late(REPORT_MS + 100)
    assert len(loop.events) == 1
    for _ in range(round(REPORT_SECONDS / INTERVAL_SECONDS)):
        loop.run_late(0)
    assert [(facts["lag_ms"], facts["times"]) for _, facts in loop.events[1:]] == [(REPORT_MS + 400, 2)]


def test_a_collection_is_counted_and_named_by_the_report(loop: FakeLoop) -> None:
    before = loop.lag.collections.total
    gc.collect()
    assert loop.lag.collections.total > before
    loop.run_late(REPORT_MS + 50)
    assert [facts["collection_ms_max"] for _, facts in loop.events] == [loop.lag.facts()["collection_ms_max"]]
    loop.lag.stop()
    at_stop = loop.lag.collections.total
    gc.collect()
    assert loop.lag.collections.total == at_stop


def test_a_loop_that_ended_without_a_stop_is_freed() -> None:
    ended = FakeLoop()
    freed, collections = weakref.ref(ended), ended.lag.collections
    del ended
    gc.collect()
    collections.stop()
    assert freed() is None


def test_the_facts_name_both_figures(loop: FakeLoop) -> None:
    loop.run_late(3)
    loop.lag.observe_background(0.0064)
    facts = loop.lag.facts()
    assert (facts["lag_ms_max"], facts["background_ms_max"]) == (3.0, 6.4)
    assert facts["lag_counts"] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert facts["background_counts"] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]


def test_a_real_loop_that_is_held_is_late() -> None:
    async def run() -> LoopLag:
        loop = asyncio.get_running_loop()
        lag = LoopLag(loop.time, loop.call_later)
        lag.start()
        # Past the moment at which it was due.
        until = time.monotonic() + 0.25
        wait_until(lambda: time.monotonic() > until)
        while not lag.lag.total:
            await asyncio.sleep(0.005)
        lag.stop()
        lag.stop()
        assert lag.lag.max_ms(loop.time()) >= 140
        return lag

    asyncio.run(run())


def test_a_server_measures_its_loop_and_its_background_work() -> None:
    with running_server() as running:
        lag = running.server.lag
        wait_until(lambda: lag.lag.total > 1)
        before = lag.background.total
        running.call(lambda: running.server.reactor.deliver(lambda: time.sleep(0.002)))  # a completion that takes its time
        assert lag.background.total == before + 1
        assert running.call(lag.facts)["background_ms_max"] >= 2


START = 12_345.0


def test_values_fall_into_their_buckets() -> None:
    figure = RecentHistogram()
    for value_ms in (0.0, 1.0, 1.1, 10.0, 10.1, 1000.0, 1000.1, 60_000.0):
        figure.observe(value_ms, START)
    counted = dict(zip((*BUCKETS_MS, None), figure.counts(START), strict=True))
    assert {bucket: count for bucket, count in counted.items() if count} == {1: 2, 2: 1, 10: 1, 20: 1, 1000: 1, None: 2}
    assert figure.max_ms(START) == 60_000.0
    assert figure.total == 8


def test_a_minute_later_it_is_forgotten() -> None:
    figure = RecentHistogram()
    figure.observe(70.0, START)
    figure.observe(30.0, START + 3 * SLOT_SECONDS)
    nearly = START + (SLOT_COUNT - 1) * SLOT_SECONDS
    assert (figure.max_ms(nearly), sum(figure.counts(nearly))) == (70.0, 2)
    minute = START + SLOT_COUNT * SLOT_SECONDS
    assert (figure.max_ms(minute), sum(figure.counts(minute))) == (30.0, 1)
    assert (figure.max_ms(START + 3600), sum(figure.counts(START + 3600))) == (0.0, 0)
    assert figure.total == 2


def test_a_clock_that_stands_or_goes_back_loses_nothing() -> None:
    figure = RecentHistogram()
    figure.observe(5.0, START)
    figure.observe(7.0, START - 2 * SLOT_SECONDS)
    assert (figure.max_ms(START), sum(figure.counts(START))) == (7.0, 2)
