"""Who holds the loop for long pays with rest, so that the others are served.

A turn of a connection is some requests, and ends early when they took long. But one request may take long by itself: to ask
for ten thousand topics by name costs a tenth of a second each time. Many such clients would leave nothing to others, since
each of them is as entitled to its turn as they are. So after a turn that took the processor for more than ``HOG_NS_MIN`` a
connection rests, before its next request is looked at: twice as long, times those that rest already. All of them together
then have the loop for at most half of the time, and somebody else's request waits for one or two of them and not for all.

What counts is processor time: a machine with other things to do makes everybody's turns long. To ask for it before and after each
turn would cost as much as some turns do. So it is looked at now and then, and a turn that took long is taken to have had its
share of what the thread had since.
"""

from collections.abc import Callable
from time import thread_time_ns

# Ordinary requests take a hundredth of it.
HOG_NS_MIN = 20_000_000
REST_FACTOR = 2
REST_SECONDS_MAX = 10.0
SAMPLE_NS = 50_000_000


class LoopShare:
    __slots__ = ("_call_later", "_processor_ns", "_sampled_ns", "_sampled_processor_ns", "resting", "rests")

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], object], processor_ns: Callable[[], int] = thread_time_ns
    ) -> None:
        """``processor_ns`` is what this thread has had."""
        self._call_later = call_later
        self._processor_ns = processor_ns
        self._sampled_ns = 0
        self._sampled_processor_ns = 0
        self.resting = 0
        """Connections that rest now."""
        self.rests = 0
        """In all."""

    def sample(self, now_ns: int) -> None:
        """Call it often; it does something now and then."""
        if now_ns - self._sampled_ns >= SAMPLE_NS:
            self._sampled_ns = now_ns
            self._sampled_processor_ns = self._processor_ns()

    def rest(self, began_ns: int, ended_ns: int, resume: Callable[[], None]) -> bool:
        """After a turn that took long: whether the connection is to rest. If so ``resume`` is called when that is over."""
        spent_ns = self._spent_ns(began_ns, ended_ns)
        if spent_ns <= HOG_NS_MIN:
            return False
        self.resting += 1
        self.rests += 1
        seconds = min(REST_FACTOR * self.resting * spent_ns / 1e9, REST_SECONDS_MAX)

        def rested() -> None:
            self.resting -= 1
            resume()

        self._call_later(seconds, rested)
        return True

    def _spent_ns(self, began_ns: int, ended_ns: int) -> float:
        turn_ns = ended_ns - began_ns
        elapsed_ns = max(ended_ns - self._sampled_ns, turn_ns)
        return turn_ns * min((self._processor_ns() - self._sampled_processor_ns) / elapsed_ns, 1.0)
