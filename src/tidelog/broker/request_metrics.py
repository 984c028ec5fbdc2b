"""Counts requests and errors, and measures where the time of each API goes and how long producers wait for their topics.

A request's time has four parts that can be told apart by reading the clock:

    received        handling begins      handler returns               answered
       |-- queue --------|---- handling -------|---- wait ------------------|
       |------------------------------- total ------------------------------|

*queue*: the request waits behind others that arrived in the same turn. *handling*: it is decoded, decided and appended, and
encoded too if it is answered at once. *wait*: it waits for the disk, other replicas, data, or a group to form; only requests that
do wait have this part. Sending comes after that and belongs to the server, which does not know the API of its bytes.

Timing a request costs some 4 microseconds, a tenth of the cheapest request. So all requests are counted, but if an API is used
more than ``TIMED_PER_SECOND_MAX`` times a second, only every ``TIMED_EVERY``th is timed, and it stands for those since the last
one.

Produce-to-ack is the total time of a produce request. It is recorded for the topic and, if it is among the worst, for the
partition that the request waited for last. Topic names come from outside, so only the first ``TOPICS_MAX`` have their own
numbers.
"""

from collections.abc import Iterable

from tidelog.metrics.histogram import Histogram
from tidelog.metrics.labelled import Labelled
from tidelog.metrics.slowest import Slowest
from tidelog.ports.clock import Clock
from tidelog.records.topic_partition import TopicPartition
from tidelog.wire.errors import ErrorCode

TOPICS_MAX = 200
SLOWEST_PARTITIONS_MAX = 10
SLOWEST_WINDOW_MS = 30_000
# A response with more parts than this is searched for errors only up to here.
ERROR_PARTS_MAX = 1_000
# This costs 0.2 % of the processor for each busy API.
TIMED_PER_SECOND_MAX = 500
# It is a power of two, so that one operation on a request's number tells whether to time it.
TIMED_EVERY = 32

NO_ERROR = ErrorCode.NONE


class ApiTimings:
    __slots__ = ("_adjusted_at", "_timed", "count", "handling", "queue", "total", "untimed_mask", "wait")

    def __init__(self) -> None:
        self.queue = Histogram()
        self.handling = Histogram()
        self.wait = Histogram()
        self.total = Histogram()
        self.count = 0
        """Requests received. A request is timed when its number has none of the bits of ``untimed_mask``."""
        self.untimed_mask = 0
        self._timed = 0
        self._adjusted_at = 0

    def begin(self, received_ns: int, began_ns: int) -> "RequestTiming":
        """Begin to time a request. ``received_ns`` is 0 when nobody knows it."""
        weight, self._timed = self.count - self._timed, self.count
        timing = RequestTiming(self, weight, received_ns or began_ns, began_ns)
        self.queue.observe(began_ns - timing.received_ns, weight)
        return timing

    def adjust(self, elapsed_ms: int) -> None:
        """Time all requests or a sample, depending on how many there were in the last ``elapsed_ms``."""
        recent, self._adjusted_at = self.count - self._adjusted_at, self.count
        self.untimed_mask = TIMED_EVERY - 1 if recent * 1000 > TIMED_PER_SECOND_MAX * elapsed_ms else 0


class RequestTiming:
    """One timed request, and the number of requests that it stands for."""

    __slots__ = ("_began_ns", "_handled_ns", "_timings", "elapsed_ns", "received_ns", "weight")

    def __init__(self, timings: ApiTimings, weight: int, received_ns: int, began_ns: int) -> None:
        self._timings = timings
        self.weight = weight
        self.received_ns = received_ns
        self._began_ns = began_ns
        self._handled_ns = 0
        self.elapsed_ns = 0
        """The time from arrival to answer, once it is answered."""

    def handled(self, now_ns: int, is_answered: bool) -> None:
        self._timings.handling.observe(now_ns - self._began_ns, self.weight)
        if not is_answered:
            self._handled_ns = now_ns

    def answered(self, now_ns: int) -> None:
        self.elapsed_ns = now_ns - self.received_ns
        self._timings.total.observe(self.elapsed_ns, self.weight)
        if self._handled_ns:
            self._timings.wait.observe(now_ns - self._handled_ns, self.weight)


class RequestMetrics:
    __slots__ = ("_adjusted_ms", "_clock", "_turned_ms", "errors", "produce_to_ack", "slowest_partitions", "timings")

    def __init__(self, clock: Clock, api_keys: Iterable[int]) -> None:
        self._clock = clock
        self._turned_ms = self._adjusted_ms = clock.monotonic_ms()
        self.timings = {key: ApiTimings() for key in api_keys}
        self.produce_to_ack: Labelled[Histogram] = Labelled(Histogram, TOPICS_MAX)
        """Produce-to-ack times by topic."""
        self.slowest_partitions: Slowest[TopicPartition] = Slowest(SLOWEST_PARTITIONS_MAX)
        self.errors: dict[tuple[int, int], int] = {}
        """Maps API key and error code to the number of responses with that error."""

    def tick(self) -> None:
        """Call it every few hundred milliseconds."""
        now_ms = self._clock.monotonic_ms()
        elapsed_ms, self._adjusted_ms = now_ms - self._adjusted_ms, now_ms
        for timings in self.timings.values():
            timings.adjust(elapsed_ms)
        if now_ms - self._turned_ms >= SLOWEST_WINDOW_MS:
            self._turned_ms = now_ms
            self.slowest_partitions.turn()

    def acknowledged(self, topic: str, partition: int, timing: RequestTiming, is_last: bool = True) -> None:
        """Record that a produce request was answered. ``is_last``: this is the partition that it waited for last."""
        elapsed_ns = timing.elapsed_ns
        self.produce_to_ack.of(topic).observe(elapsed_ns, timing.weight)
        if is_last and elapsed_ns > self.slowest_partitions.threshold:
            self.slowest_partitions.note((topic, partition), elapsed_ns)

    def count_error(self, api_key: int, code: int) -> None:
        key = api_key, code
        self.errors[key] = self.errors.get(key, 0) + 1

    def count_errors_in(self, api_key: int, fields: object) -> None:
        """Count every error code in the fields of a response, at any depth."""
        unseen: list[object] = [fields]
        left = ERROR_PARTS_MAX
        while unseen and left:
            left -= 1
            part = unseen.pop()
            if isinstance(part, dict):
                code = part.get("error_code", NO_ERROR)
                if code:
                    self.count_error(api_key, code)
                unseen.extend([value for value in part.values() if isinstance(value, dict | list | tuple)])
            elif isinstance(part, list | tuple):
                unseen.extend(part[:left])
