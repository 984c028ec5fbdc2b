import gc
import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

import pytest

from tidelog.config.broker import BROKER
from tidelog.config.definition import parse
from tidelog.server.limits import (
    EXEMPT_SECONDS_MAX,
    PENALTY_SECONDS_MAX,
    WHEEL_SLOT_COUNT,
    ConnectionLimits,
    MemoryBudget,
    SlowTurnPenalty,
    TimingWheel,
    WorkTime,
)


def test_the_defaults_of_the_settings_are_those_of_the_limits() -> None:
    assert ConnectionLimits.from_config(parse(BROKER, {})) == ConnectionLimits()


def test_settings_become_limits() -> None:
    texts = {
        "max.connections": "5",
        "max.connections.per.ip": "2",
        "socket.request.max.bytes": "2000000",
        "connections.max.idle.ms": "1000",
        "queued.max.request.bytes": "3000000",
        "socket.send.buffer.bytes": "-1",
    }
    limits = ConnectionLimits.from_config(parse(BROKER, texts))
    assert (limits.connections_max, limits.connections_per_address_max) == (5, 2)
    assert (limits.frame_bytes_max, limits.first_frame_bytes_max) == (2_000_000, 2_000_000)
    assert (limits.idle_ms_max, limits.memory_bytes_max, limits.send_buffer_bytes) == (1000, 3_000_000, -1)


def test_the_shortest_limit_on_time() -> None:
    assert ConnectionLimits().shortest_ms() == 30_000
    assert ConnectionLimits(idle_ms_max=5).shortest_ms() == ConnectionLimits(frame_stall_ms_max=5).shortest_ms() == 5


class Holder:
    def __init__(self) -> None:
        self.resumed = 0

    def resume(self) -> None:
        self.resumed += 1


def run_now(callback: Callable[[], None]) -> None:
    callback()


def never() -> float:
    """A clock that stands still."""
    return 0.0


def test_below_the_budget_everybody_may_grow() -> None:
    memory = MemoryBudget(100, 50, run_now, never)
    memory.change(99)
    assert memory.may_grow(Holder(), None)
    assert memory.waiting_count == 0


def test_who_waits_is_resumed_when_a_good_part_is_free_again() -> None:
    memory = MemoryBudget(100, 50, run_now, never)
    memory.change(100)
    holder = Holder()
    assert not memory.may_grow(holder, None)
    memory.change(-10)
    assert holder.resumed == 0
    memory.change(-15)
    assert holder.resumed == 1
    assert memory.waiting_count == 0


def test_one_in_the_middle_of_a_frame_is_let_through_at_a_time() -> None:
    memory = MemoryBudget(100, 50, run_now, never)
    memory.change(100)
    first, second, third = Holder(), Holder(), Holder()
    assert memory.may_grow(first, 30)
    assert not memory.may_grow(second, 30)
    assert not memory.may_grow(third, None)
    assert memory.may_grow(first, 30)
    memory.reading_stopped(third, 30)
    assert second.resumed == 0
    memory.forget(first)
    assert second.resumed == third.resumed == 1
    assert memory.may_grow(second, 30)


def test_the_exemption_is_for_one_frame() -> None:
    memory = MemoryBudget(100, 50, run_now, never)
    memory.change(100)
    first, second = Holder(), Holder()
    assert memory.may_grow(first, 30)
    assert not memory.may_grow(second, 30)
    memory.all_answered(first)
    memory.frame_is_whole(second)
    assert (second.resumed, memory.may_grow(first, 30)) == (0, True)
    memory.change(30)
    memory.frame_is_whole(first)
    assert second.resumed == 1


def test_frames_that_are_exempt_and_unanswered_are_together_as_large_as_the_largest() -> None:
    memory = MemoryBudget(100, 50, run_now, never)
    memory.change(100)
    first, second = Holder(), Holder()
    assert memory.may_grow(first, 30)
    memory.change(30)
    memory.frame_is_whole(first)
    assert memory.may_grow(second, 20)
    memory.forget(second)
    assert not memory.may_grow(first, 21)
    assert not memory.may_grow(second, 21)
    memory.all_answered(first)
    assert first.resumed == second.resumed == 1
    assert memory.may_grow(second, 21)


def test_one_that_is_gone_is_not_resumed_and_lets_the_next_one_through() -> None:
    memory = MemoryBudget(100, 50, run_now, never)
    memory.change(100)
    first, second, third = Holder(), Holder(), Holder()
    assert memory.may_grow(first, 30)
    assert not memory.may_grow(second, 30)
    assert not memory.may_grow(third, 30)
    memory.forget(second)
    memory.forget(first)
    assert (second.resumed, third.resumed) == (0, 1)


def test_one_that_stops_in_the_middle_of_its_frame_keeps_the_place_for_the_rest() -> None:
    """Otherwise each of a thousand connections could leave most of a frame behind."""
    memory = MemoryBudget(100, 50, run_now, never)
    memory.change(100)
    first, second, third = Holder(), Holder(), Holder()
    assert memory.may_grow(first, 50)
    assert not memory.may_grow(second, 50)
    memory.change(20)
    memory.reading_stopped(first, 30)
    assert second.resumed == 1, "somebody smaller may have room"
    assert not memory.may_grow(second, 50)
    assert not memory.may_grow(third, 1)
    assert memory.may_grow(first, 50), "it goes on whenever it can"
    memory.change(30)
    memory.frame_is_whole(first)
    assert not memory.may_grow(second, 50), "its request is not answered yet"
    memory.change(-50)
    memory.all_answered(first)
    assert memory.may_grow(second, 50)


def test_the_place_of_one_that_is_gone_is_free() -> None:
    memory = MemoryBudget(100, 50, run_now, never)
    memory.change(100)
    first, second = Holder(), Holder()
    assert memory.may_grow(first, 50)
    memory.reading_stopped(first, 50)
    assert not memory.may_grow(second, 50)
    memory.forget(first)
    assert second.resumed == 1
    assert memory.may_grow(second, 50)


def test_one_that_had_a_place_and_did_not_need_it_has_none_for_its_next_frame() -> None:
    memory = MemoryBudget(100, 50, run_now, never)
    memory.change(100)
    first, second = Holder(), Holder()
    assert memory.may_grow(first, 50)
    memory.reading_stopped(first, 40)
    memory.change(-60)
    memory.frame_is_whole(first)
    memory.change(60)
    memory.all_answered(first)
    assert memory.may_grow(second, 50)
    memory.reading_stopped(second, 50)
    assert not memory.may_grow(first, 50)


def test_whom_others_wait_for_has_limited_time_for_a_frame() -> None:
    now = [100.0]
    memory = MemoryBudget(100, 50, run_now, lambda: now[0])
    memory.change(100)
    first, second = Holder(), Holder()
    assert memory.may_grow(first, 50)
    assert memory.late_since(first) is None, "nobody waits"
    assert not memory.may_grow(second, 30)
    late_since = memory.late_since(first)
    assert late_since == pytest.approx(100 + EXEMPT_SECONDS_MAX, abs=0.01)
    now[0] = 105.0
    assert memory.may_grow(first, 50)
    assert memory.late_since(first) == late_since, "a few bytes now and then give it no more time"
    assert memory.late_since(second) is None


def test_tight_is_more_than_half() -> None:
    memory = MemoryBudget(100, 50, run_now, never)
    memory.change(50)
    assert not memory.is_tight
    memory.change(1)
    assert memory.is_tight


class Loop:
    """A clock and one timer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        assert self.timer is None, "one timer is enough"
        self.timer = self.now + seconds, callback

    def run_until(self, end: float) -> None:
        while self.timer is not None and self.timer[0] <= end:
            self.now, callback = self.timer
            self.timer = None
            callback()
        self.now = max(self.now, end)


class Deadline:
    def __init__(self, at: float) -> None:
        self.at = at
        self.asked: list[float] = []

    def check(self, now: float) -> float | None:
        self.asked.append(now)
        return self.at if now < self.at else None


def test_a_deadline_is_seen_within_a_slot() -> None:
    loop = Loop()
    wheel = TimingWheel(loop.time, loop.call_later, shortest_seconds=64.0)
    deadlines = [Deadline(at) for at in (31.0, 40.0, 40.5, 64.0, 100.0, 1000.0)]
    for deadline in deadlines:
        wheel.add(deadline)
    loop.run_until(2000.0)
    assert [deadline.asked[-1] - deadline.at for deadline in deadlines] == [0.0, 0.0, 0.5, 0.0, 0.0, 0.0]
    # A far deadline is asked once a turn, not once a slot.
    assert len(deadlines[-1].asked) <= 1000 / (WHEEL_SLOT_COUNT - 1) + 2


def test_the_timer_runs_only_while_something_is_watched() -> None:
    loop = Loop()
    wheel = TimingWheel(loop.time, loop.call_later, shortest_seconds=1.0)
    assert loop.timer is None
    wheel.add(Deadline(0.1))
    assert len(wheel) == 1
    loop.run_until(10.0)
    assert len(wheel) == 0
    assert loop.timer is None
    later = Deadline(11.0)
    wheel.add(later)
    loop.run_until(20.0)
    assert later.asked


def test_a_deadline_that_came_nearer_is_seen_within_a_turn() -> None:
    loop = Loop()
    wheel = TimingWheel(loop.time, loop.call_later, shortest_seconds=64.0)
    deadline = Deadline(10_000.0)
    wheel.add(deadline)
    loop.run_until(500.0)
    deadline.at = 501.0
    loop.run_until(501.0 + WHEEL_SLOT_COUNT)
    assert len(wheel) == 0


def test_the_shortest_limit_decides_how_fine_the_ring_is() -> None:
    loop = Loop()
    wheel = TimingWheel(loop.time, loop.call_later, shortest_seconds=0.64)
    deadline = Deadline(0.64)
    wheel.add(deadline)
    loop.run_until(1.0)
    assert 0.64 <= deadline.asked[-1] <= 0.66


MILLISECOND_NS = 1_000_000
CLIENT = "127.0.0.1:50000"


class Processor:
    """The processor time of a thread that runs for ``share`` of the time."""

    def __init__(self, share: float = 1.0) -> None:
        self.share = share
        self.now_ns = 0

    def __call__(self) -> int:
        return int(self.now_ns * self.share)


class Later:
    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.calls.append((seconds, callback))


def test_alone_a_connection_rests_twice_as_long_as_it_took() -> None:
    later, processor = Later(), Processor()
    resumed: list[int] = []
    penalty = SlowTurnPenalty(later, processor)
    processor.now_ns = 100 * MILLISECOND_NS
    assert penalty.impose(0, 100 * MILLISECOND_NS, CLIENT, lambda: resumed.append(1))
    ((seconds, callback),) = later.calls
    assert seconds == pytest.approx(0.2)
    assert (penalty.paused_count, resumed) == (1, [])
    callback()
    assert (penalty.paused_count, penalty.count, resumed) == (0, 1, [1])


def test_many_that_take_long_have_half_of_the_loop_together() -> None:
    """Twenty that always want 100 ms more, played through on a loop that does one thing at a time."""
    events: list[tuple[float, int, Callable[[], None]]] = []
    numbers = count()
    processor = Processor()
    now = busy = 0.0

    def later(seconds: float, callback: Callable[[], None]) -> None:
        heappush(events, (now + seconds, next(numbers), callback))

    penalty = SlowTurnPenalty(later, processor)

    def work() -> None:
        nonlocal now, busy
        now, busy = now + 0.1, busy + 0.1
        processor.now_ns = round(now * 1e9)
        assert penalty.impose(processor.now_ns - 100 * MILLISECOND_NS, processor.now_ns, CLIENT, work)

    for _ in range(20):
        later(0.0, work)
    while now < 200.0:
        due, _, callback = heappop(events)
        now = max(now, due)
        callback()
    assert 0.3 < busy / now < 0.55


def test_nobody_rests_for_ever() -> None:
    later, processor = Later(), Processor()
    penalty = SlowTurnPenalty(later, processor)
    for _ in range(1_000):
        processor.now_ns += 1_000 * MILLISECOND_NS
        assert penalty.impose(processor.now_ns - 1_000 * MILLISECOND_NS, processor.now_ns, CLIENT, lambda: None)
    assert max(seconds for seconds, _ in later.calls) == PENALTY_SECONDS_MAX


def test_who_only_waited_for_the_processor_does_not_rest() -> None:
    later, processor = Later(), Processor(share=0.25)
    penalty = SlowTurnPenalty(later, processor)
    processor.now_ns = 1_000 * MILLISECOND_NS
    penalty.sample(processor.now_ns)
    processor.now_ns += 60 * MILLISECOND_NS
    assert not penalty.impose(processor.now_ns - 60 * MILLISECOND_NS, processor.now_ns, CLIENT, lambda: None)
    assert (later.calls, penalty.paused_count) == ([], 0)
    processor.now_ns += 100 * MILLISECOND_NS
    assert penalty.impose(processor.now_ns - 100 * MILLISECOND_NS, processor.now_ns, CLIENT, lambda: None)
    ((seconds, _),) = later.calls
    assert seconds == pytest.approx(2 * 0.025, rel=0.01)


def test_a_blocked_turn_is_not_charged_for_what_others_did_before_it() -> None:
    """The turns before it used the processor, this one waited for the disk."""
    later, processor = Later(), Processor()
    penalty = SlowTurnPenalty(later, processor)
    processor.now_ns = 100 * MILLISECOND_NS
    assert penalty.impose(0, 100 * MILLISECOND_NS, CLIENT, lambda: None)
    assert not penalty.impose(100 * MILLISECOND_NS, 300 * MILLISECOND_NS, CLIENT, lambda: None)
    assert len(later.calls) == 1


def test_a_turn_that_imported_a_module_is_not_charged() -> None:
    later, processor, modules = Later(), Processor(), [100]
    penalty = SlowTurnPenalty(later, processor, module_count=lambda: modules[0])
    penalty.sample(0)
    processor.now_ns, modules[0] = 50 * MILLISECOND_NS, 103
    assert not penalty.impose(0, 50 * MILLISECOND_NS, CLIENT, lambda: None)
    processor.now_ns = 100 * MILLISECOND_NS
    assert penalty.impose(50 * MILLISECOND_NS, 100 * MILLISECOND_NS, CLIENT, lambda: None)


def test_pauses_are_reported_now_and_then() -> None:
    processor = Processor()
    events: list[tuple[str, dict[str, object]]] = []
    penalty = SlowTurnPenalty(Later(), processor, lambda event, facts: events.append((event, facts)))
    for second in (0, 1, 2, 3, 12):
        began_ns = second * 1_000 * MILLISECOND_NS
        processor.now_ns = began_ns
        penalty.sample(began_ns)
        processor.now_ns += 100 * MILLISECOND_NS
        assert penalty.impose(began_ns, processor.now_ns, CLIENT, lambda: None)
    assert penalty.count == 5
    assert events == [
        ("client_paused", {"client": CLIENT, "spent_ms": 100, "paused_ms": 200, "times": 1}),
        ("client_paused", {"client": CLIENT, "spent_ms": 100, "paused_ms": 1000, "times": 4}),
    ]


def test_work_time_leaves_out_the_collector() -> None:
    """A collection of a large heap takes milliseconds of the processor, and none of them is the client's."""
    heap = [[number] for number in range(200_000)]
    work_time = WorkTime()
    try:
        processor_ns, work_ns = time.thread_time_ns(), work_time()
        for _ in range(5):
            gc.collect()
        processor_ns, work_ns = time.thread_time_ns() - processor_ns, work_time() - work_ns
        assert 0 <= work_ns < processor_ns / 10
        began_ns = work_time()
        until_ns = time.thread_time_ns() + 5 * MILLISECOND_NS
        while time.thread_time_ns() < until_ns:
            pass
        assert work_time() - began_ns >= 4 * MILLISECOND_NS
    finally:
        work_time.close()
        work_time.close()
    assert work_time._on_collection not in gc.callbacks
    assert len(heap) == 200_000


def test_a_collection_in_another_thread_takes_nothing_from_this_one() -> None:
    heap = [[number] for number in range(200_000)]
    work_time = WorkTime()
    try:
        before_ns = work_time()
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        assert work_time() >= before_ns
    finally:
        work_time.close()
    assert len(heap) == 200_000
