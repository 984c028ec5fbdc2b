"""Execution: threads and tasks run every message, a slow one holds up nobody, failed lanes are held, halted means halted.
Dispatch: each lane's messages in order and one bundle at a time, all of them in the end; without order as they came."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compatibility.apache_kafka import wait_until
from tests.worker.fakes import assigned, work_item
from tidelog.ports.clock import RealClock
from tidelog.worker.breaker import Breaker, CircuitBreaker
from tidelog.worker.dispatch import Dispatch, Lane, LaneDispatch, UnorderedDispatch
from tidelog.worker.execution import SLICE_NS, BundleReport, HandlerExecution
from tidelog.worker.handler import AttemptOutcome, HandlerFailure
from tidelog.worker.partitions import AssignedPartition, WorkItem
from tidelog.worker.slots import AsyncioSlots, LoopThread, ThreadSlots

Attempt = Callable[[WorkItem], AttemptOutcome]


class Bench:
    """An execution, its slots, and its reports."""

    def __init__(
        self, attempt: Attempt, dispatch: Dispatch, *, holds: bool = False, concurrency: int = 4, is_async: bool = False
    ) -> None:
        self.reports: deque[BundleReport] = deque()
        self.dispatch = dispatch
        breaker = Breaker(CircuitBreaker(failures=1, pause=1))
        self.execution = HandlerExecution("test", dispatch, self.reports, holds_failed_lanes=holds, breaker=breaker)
        self.breaker = breaker
        self.partition = assigned()
        self._loop = LoopThread("test") if is_async else None
        if self._loop is None:
            self.execution.attach(ThreadSlots(self.execution, attempt, concurrency, "test"))
        else:

            async def attempt_async(each: WorkItem) -> AttemptOutcome:
                await asyncio.sleep(0)
                return attempt(each)

            self.execution.attach(AsyncioSlots(self.execution, attempt_async, concurrency, self._loop.loop))

    def add(self, keys: list[object], first: int = 0, of: AssignedPartition | None = None) -> None:
        with self.execution.adding() as dispatch:
            dispatch.add(
                [work_item(dispatch.lane_of(key), first + number, of or self.partition) for number, key in enumerate(keys)]
            )

    def handled(self) -> list[int]:
        return [each.offset for report in list(self.reports) for each in report.handled]

    def halt(self) -> None:
        self.breaker.failed(0)
        self.execution.follow_breaker()

    def resume(self) -> None:
        assert self.breaker.tick(1_000)
        self.breaker.succeeded(1, 1_000)
        self.execution.follow_breaker()

    def close(self) -> None:
        self.execution.close()
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
def test_everything_is_run_once(benches: list[Bench], dispatch: type[LaneDispatch | UnorderedDispatch], is_async: bool) -> None:
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

    def attempt(each: WorkItem) -> None:
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
    def attempt(each: WorkItem) -> AttemptOutcome:
        return HandlerFailure(each, OSError("x"), 1, True) if each.offset == 1 else None

    bench = Bench(attempt, LaneDispatch(), holds=True)
    benches.append(bench)
    bench.execution._average_ns = 1.0
    bench.add(["a", "a", "a", "b", "a"])
    wait_until(lambda: sorted(bench.handled()) == [0, 3], "the other lane is handled", 10)
    wait_until(lambda: bench.execution.running == 0, "nothing runs", 5)
    (failure,) = [each for report in bench.reports for each in report.failures]
    bench.add(["a"], 9)
    assert [each.offset for each in bench.execution.drain(failure.item.lane)] == [2, 4, 9]
    assert sorted(bench.handled()) == [0, 3]


def test_halted_means_that_nothing_is_begun_but_a_probe(benches: list[Bench]) -> None:
    bench = Bench(lambda _: None, LaneDispatch())
    benches.append(bench)
    bench.halt()
    assert not bench.execution.probe()
    bench.add([0, 1, 2])
    assert bench.execution.probe()
    wait_until(lambda: len(bench.handled()) == 1, "one is tried", 10)
    wait_until(lambda: bench.execution.running == 0, "nothing runs", 5)
    assert len(bench.handled()) == 1
    bench.resume()
    wait_until(lambda: len(bench.handled()) == 3, "all are handled", 10)


def test_partitions_that_are_being_taken_away_are_not_begun(benches: list[Bench]) -> None:
    bench = Bench(lambda _: None, LaneDispatch())
    benches.append(bench)
    gone = assigned(partition=1)
    gone.stop()
    bench.add([0, 1], of=gone)
    bench.add([0, 1], 5)
    wait_until(lambda: sorted(bench.handled()) == [5, 6], "the others are handled", 10)
    assert not bench.execution.is_busy_with(gone)


def test_what_was_handled_and_is_not_reported_is_under_way(benches: list[Bench]) -> None:
    release = threading.Event()

    def attempt(each: WorkItem) -> None:
        if each.offset == 9:
            release.wait(30)

    bench = Bench(attempt, UnorderedDispatch(), concurrency=1)
    benches.append(bench)
    other = assigned(partition=1)
    # One bundle has them all.
    bench.execution._average_ns = 1.0
    with bench.execution.adding() as dispatch:
        lane = dispatch.lane_of(None)
        dispatch.add([work_item(lane, 1, other), work_item(lane, 9, bench.partition)])
    wait_until(lambda: bench.execution.oldest_ns(bench_now()) > SLICE_NS, "the second is slow", 10)
    assert bench.handled() == []
    assert bench.execution.is_busy_with(other)
    bench.execution.rescue(bench_now())
    assert bench.handled() == [1]
    assert not bench.execution.is_busy_with(other)
    release.set()


def test_a_probe_that_was_taken_away_is_missed(benches: list[Bench]) -> None:
    release = threading.Event()

    def attempt(_: WorkItem) -> None:
        release.wait(30)

    bench = Bench(attempt, LaneDispatch())
    benches.append(bench)
    bench.halt()
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
    def attempt(_: WorkItem) -> AttemptOutcome:
        raise SystemExit(3)

    bench = Bench(attempt, LaneDispatch())
    benches.append(bench)
    bench.add([0])
    wait_until(lambda: bool(bench.reports), "it is reported", 10)
    assert isinstance(bench.reports[0].fatal, SystemExit)


@given(st.data())
def test_lanes_keep_their_order_and_have_one_bundle_at_a_time(data: st.DataObject) -> None:
    dispatch = LaneDispatch()
    partition = assigned()
    under_way: list[list[WorkItem]] = []
    done: dict[object, list[int]] = {}
    number = 0
    for _ in range(data.draw(st.integers(5, 40))):
        step = data.draw(st.sampled_from(["add", "take", "end", "give back"]))
        if step == "add":
            items = []
            for key in data.draw(st.lists(st.integers(0, 4), max_size=6)):
                items.append(work_item(dispatch.lane_of(key), number, partition))
                number += 1
            dispatch.add(items)
        elif step == "take":
            bundle = dispatch.take(data.draw(st.integers(1, 5)))
            busy = {id(each.lane) for other in under_way for each in other}
            assert not busy & {id(each.lane) for each in bundle}, "a lane has one bundle at a time"
            if bundle:
                under_way.append(bundle)
        elif under_way:
            bundle = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            cut = data.draw(st.integers(0, len(bundle))) if step == "give back" else len(bundle)
            for each in bundle[:cut]:
                done.setdefault(each.lane.key, []).append(each.offset)
            dispatch.give_back(bundle[cut:])
            dispatch.release(dict.fromkeys(each.lane for each in bundle))
        assert dispatch.queued == number - sum(map(len, done.values())) - sum(map(len, under_way))
    for bundle in under_way:
        for each in bundle:
            done.setdefault(each.lane.key, []).append(each.offset)
        dispatch.release(dict.fromkeys(each.lane for each in bundle))
    while bundle := dispatch.take(3):
        for each in bundle:
            done.setdefault(each.lane.key, []).append(each.offset)
        dispatch.release(dict.fromkeys(each.lane for each in bundle))
    assert all(offsets == sorted(offsets) for offsets in done.values())
    assert sorted(offset for offsets in done.values() for offset in offsets) == list(range(number))
    assert not dispatch._lanes, "lanes that are over are not kept"


def test_a_held_lane_is_drained_and_free_again() -> None:
    dispatch = LaneDispatch()
    lane = dispatch.lane_of("k")
    dispatch.add([work_item(lane, 0), work_item(lane, 1), work_item(lane, 2)])
    assert [each.offset for each in dispatch.take(1)] == [0]
    assert dispatch.take(5) == []
    assert [each.offset for each in dispatch.drain(lane)] == [1, 2]
    assert dispatch.queued == 0
    dispatch.add([work_item(dispatch.lane_of("k"), 3)])
    assert [each.offset for each in dispatch.take(5)] == [3]


def test_what_is_put_back_comes_first_and_does_not_free_a_lane_that_others_use() -> None:
    dispatch = LaneDispatch()
    lane = Lane()
    dispatch.add([work_item(lane, 0), work_item(lane, 1), work_item(lane, 2)])
    (first,) = dispatch.take(1)
    dispatch.release([lane])
    (second,) = dispatch.take(1)
    dispatch.put_back(first, False)
    assert dispatch.take(5) == [], "the second is under way"
    dispatch.release([second.lane])
    assert [each.offset for each in dispatch.take(5)] == [0, 2]


def test_partitions_that_were_taken_away_are_forgotten() -> None:
    gone, stays = assigned(partition=1), assigned(partition=2)
    for dispatch in (LaneDispatch(), UnorderedDispatch()):
        dispatch.add(
            [
                work_item(dispatch.lane_of("a"), 0, gone),
                work_item(dispatch.lane_of("b"), 1, stays),
                work_item(dispatch.lane_of("b"), 2, gone),
            ]
        )
        assert dispatch.discard(lambda each: each is gone) == 2
        assert [each.offset for each in dispatch.take(5)] == [1]


def test_without_order_all_come_as_they_came() -> None:
    dispatch = UnorderedDispatch()
    dispatch.add([work_item(dispatch.lane_of(None), number) for number in range(5)])
    assert [each.offset for each in dispatch.take(2)] == [0, 1]
    taken = dispatch.take(2)
    dispatch.give_back(taken)
    dispatch.put_back(work_item(dispatch.lane_of(None), 1), False)
    assert [each.offset for each in dispatch.take(9)] == [1, 2, 3, 4]
