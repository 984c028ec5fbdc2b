"""Execution: threads and tasks run every job, what is slow holds up nobody, failed lanes are held, halted means halted."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tests.compatibility.apache_kafka import wait_until
from tests.worker.fakes import assigned, job
from tidelog.ports.clock import RealClock
from tidelog.worker.assigned import Assigned
from tidelog.worker.attempt import Failure, Outcome
from tidelog.worker.dispatch_lanes import LaneDispatch
from tidelog.worker.dispatch_none import UnorderedDispatch
from tidelog.worker.execution import SLICE_NS, Dispatch, Execution, Report
from tidelog.worker.execution_asyncio import AsyncioSlots, LoopThread
from tidelog.worker.execution_threads import ThreadSlots
from tidelog.worker.job import Job

Attempt = Callable[[Job], Outcome]


class Bench:
    """An execution, its slots, and its reports."""

    def __init__(
        self, attempt: Attempt, dispatch: Dispatch, *, holds: bool = False, concurrency: int = 4, is_async: bool = False
    ) -> None:
        self.reports: deque[Report] = deque()
        self.dispatch = dispatch
        self.execution = Execution(dispatch, holds_failed_lanes=holds, reports=self.reports)
        self.partition = assigned()
        self._loop = LoopThread("test") if is_async else None
        if self._loop is None:
            self.execution.slots = ThreadSlots(self.execution, attempt, concurrency, "test")
        else:

            async def attempt_async(each: Job) -> Outcome:
                await asyncio.sleep(0)
                return attempt(each)

            self.execution.slots = AsyncioSlots(self.execution, attempt_async, concurrency, self._loop.loop)

    def add(self, keys: list[object], first: int = 0, of: Assigned | None = None) -> None:
        with self.execution.adding() as dispatch:
            dispatch.add([job(dispatch.lane_of(key), first + number, of or self.partition) for number, key in enumerate(keys)])

    def handled(self) -> list[int]:
        return [each.offset for report in list(self.reports) for each in report.handled]

    def close(self) -> None:
        assert self.execution.slots is not None
        self.execution.slots.close()
        if self._loop is not None:
            self._loop.close()


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for each in made:
        each.close()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("dispatch", [LaneDispatch, UnorderedDispatch])
def test_everything_is_run_once(benches: list[Bench], dispatch: type[Dispatch], is_async: bool) -> None:
    bench = Bench(lambda _: None, dispatch(), is_async=is_async)
    benches.append(bench)
    for number in range(20):
        bench.add([key % 7 for key in range(50)], number * 50)
    wait_until(lambda: len(bench.handled()) == 1000, "all are handled", 20)
    assert sorted(bench.handled()) == list(range(1000))
    wait_until(lambda: bench.execution.running == 0, "nothing runs", 5)
    assert bench.execution.queued == 0
    if dispatch is LaneDispatch:
        for key in range(7):
            mine = [offset for offset in bench.handled() if offset % 50 % 7 == key]
            assert mine == sorted(mine)


def test_what_waits_behind_a_slow_message_in_its_bundle_is_rescued_and_what_was_handled_is_reported(benches: list[Bench]) -> None:
    release = threading.Event()

    def attempt(each: Job) -> None:
        if each.offset == 3:
            release.wait(30)

    bench = Bench(attempt, UnorderedDispatch(), concurrency=2)
    benches.append(bench)
    # One bundle has them all.
    bench.execution._average_ns = 1.0
    bench.add([None] * 10)
    wait_until(lambda: bench.execution.oldest_ns(bench_now()) > SLICE_NS, "it is slow", 10)
    bench.execution.rescue(bench_now())
    wait_until(lambda: len(bench.handled()) == 9, "all others are handled", 10)
    release.set()
    wait_until(lambda: len(bench.handled()) == 10, "it is handled too", 10)
    assert sorted(bench.handled()) == list(range(10))


def bench_now() -> int:
    return RealClock().monotonic_ns()


def test_a_failed_lane_is_held_and_others_go_on(benches: list[Bench]) -> None:
    def attempt(each: Job) -> Outcome:
        return Failure(each, OSError("x"), 1, True) if each.offset == 1 else None

    bench = Bench(attempt, LaneDispatch(), holds=True)
    benches.append(bench)
    bench.execution._average_ns = 1.0
    bench.add(["a", "a", "a", "b", "a"])
    wait_until(lambda: sorted(bench.handled()) == [0, 3], "the other lane is handled", 10)
    wait_until(lambda: bench.execution.running == 0, "nothing runs", 5)
    (failure,) = [each for report in bench.reports for each in report.failures]
    bench.add(["a"], 9)
    assert [each.offset for each in bench.execution.drain(failure.job.lane)] == [2, 4, 9]
    assert sorted(bench.handled()) == [0, 3]


def test_halted_means_that_nothing_is_begun_but_a_probe(benches: list[Bench]) -> None:
    bench = Bench(lambda _: None, LaneDispatch())
    benches.append(bench)
    bench.execution.halt()
    assert not bench.execution.probe()
    bench.add([0, 1, 2])
    assert bench.execution.probe()
    wait_until(lambda: len(bench.handled()) == 1, "one is tried", 10)
    wait_until(lambda: bench.execution.running == 0, "nothing runs", 5)
    assert len(bench.handled()) == 1
    bench.execution.resume()
    wait_until(lambda: len(bench.handled()) == 3, "all are handled", 10)


def test_partitions_that_are_being_taken_away_are_not_begun(benches: list[Bench]) -> None:
    bench = Bench(lambda _: None, LaneDispatch())
    benches.append(bench)
    gone = assigned(partition=1)
    gone.is_stopping = True
    bench.add([0, 1], of=gone)
    bench.add([0, 1], 5)
    wait_until(lambda: sorted(bench.handled()) == [5, 6], "the others are handled", 10)
    assert not bench.execution.is_at(gone)


def test_what_was_handled_and_is_not_reported_is_under_way(benches: list[Bench]) -> None:
    release = threading.Event()

    def attempt(each: Job) -> None:
        if each.offset == 9:
            release.wait(30)

    bench = Bench(attempt, UnorderedDispatch(), concurrency=1)
    benches.append(bench)
    other = assigned(partition=1)
    # One bundle has them all.
    bench.execution._average_ns = 1.0
    with bench.execution.adding() as dispatch:
        lane = dispatch.lane_of(None)
        dispatch.add([job(lane, 1, other), job(lane, 9, bench.partition)])
    wait_until(lambda: bench.execution.oldest_ns(bench_now()) > SLICE_NS, "the second is slow", 10)
    assert bench.handled() == []
    assert bench.execution.is_at(other)
    bench.execution.rescue(bench_now())
    assert bench.handled() == [1]
    assert not bench.execution.is_at(other)
    release.set()


def test_a_probe_that_was_taken_away_is_missed(benches: list[Bench]) -> None:
    release = threading.Event()

    def attempt(_: Job) -> None:
        release.wait(30)

    bench = Bench(attempt, LaneDispatch())
    benches.append(bench)
    bench.execution.halt()
    bench.add([0])
    assert bench.execution.probe()
    assert not bench.execution.has_no_probe
    release.set()
    wait_until(lambda: bool(bench.reports), "it has ended", 10)
    # What it says is still to be settled.
    assert not bench.execution.has_no_probe
    bench.reports.clear()
    assert bench.execution.has_no_probe


def test_what_ends_the_program_is_reported(benches: list[Bench]) -> None:
    def attempt(_: Job) -> Outcome:
        raise SystemExit(3)

    bench = Bench(attempt, LaneDispatch())
    benches.append(bench)
    bench.add([0])
    wait_until(lambda: bool(bench.reports), "it is reported", 10)
    assert isinstance(bench.reports[0].fatal, SystemExit)
