from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

import pytest

from tidelog.server.loop_share import REST_SECONDS_MAX, LoopShare

MILLISECOND_NS = 1_000_000


class Processor:
    """Of a thread that has it for ``share`` of the time."""

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
    share = LoopShare(later, processor)
    processor.now_ns = 100 * MILLISECOND_NS
    assert share.rest(0, 100 * MILLISECOND_NS, lambda: resumed.append(1))
    ((seconds, callback),) = later.calls
    assert seconds == pytest.approx(0.2)
    assert (share.resting, resumed) == (1, [])
    callback()
    assert (share.resting, share.rests, resumed) == (0, 1, [1])


def test_many_that_take_long_have_half_of_the_loop_together() -> None:
    """Twenty that always want 100 ms more, played through on a loop that does one thing at a time."""
    events: list[tuple[float, int, Callable[[], None]]] = []
    numbers = count()
    processor = Processor()
    now = busy = 0.0

    def later(seconds: float, callback: Callable[[], None]) -> None:
        heappush(events, (now + seconds, next(numbers), callback))

    share = LoopShare(later, processor)

    def work() -> None:
        nonlocal now, busy
        now, busy = now + 0.1, busy + 0.1
        processor.now_ns = round(now * 1e9)
        assert share.rest(processor.now_ns - 100 * MILLISECOND_NS, processor.now_ns, work)

    for _ in range(20):
        later(0.0, work)
    while now < 200.0:
        due, _, callback = heappop(events)
        now = max(now, due)
        callback()
    assert 0.3 < busy / now < 0.55


def test_nobody_rests_for_ever() -> None:
    later, processor = Later(), Processor()
    share = LoopShare(later, processor)
    for _ in range(1_000):
        processor.now_ns += 1_000 * MILLISECOND_NS
        assert share.rest(processor.now_ns - 1_000 * MILLISECOND_NS, processor.now_ns, lambda: None)
    assert max(seconds for seconds, _ in later.calls) == REST_SECONDS_MAX


def test_who_only_waited_for_the_processor_does_not_rest() -> None:
    later, processor = Later(), Processor(share=0.25)
    share = LoopShare(later, processor)
    processor.now_ns = 1_000 * MILLISECOND_NS
    share.sample(processor.now_ns)
    # Sampled now and then only.
    processor.now_ns += 10 * MILLISECOND_NS
    share.sample(processor.now_ns)
    assert share._sampled_ns == 1_000 * MILLISECOND_NS
    processor.now_ns += 60 * MILLISECOND_NS
    assert not share.rest(processor.now_ns - 60 * MILLISECOND_NS, processor.now_ns, lambda: None)
    assert (later.calls, share.resting) == ([], 0)
    processor.now_ns += 100 * MILLISECOND_NS
    assert share.rest(processor.now_ns - 100 * MILLISECOND_NS, processor.now_ns, lambda: None)
    ((seconds, _),) = later.calls
    assert seconds == pytest.approx(2 * 0.025, rel=0.01)
