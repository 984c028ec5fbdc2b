"""What requests are counted by: where the time of each API goes, errors, and what topics take and give.

A request's time has four parts that can be told apart for nothing but reading the clock:

    received        handling begins      handler returns               answered
       |-- queue --------|---- handling -------|---- wait ------------------|
       |------------------------------- total ------------------------------|

*queue*: behind other requests that arrived in the same turn. *handling*: decoding, deciding, appending; of a request that is
answered at once encoding too. *wait*: for the disk, for other replicas, for data, for a group to form; only requests that do
wait have it. What comes after that, sending, is the server's, which does not know which API its bytes are of.

Produce-to-ack is a produce request's total. Its topic has it, and when it is among the worst, the partition that it waited for
last. Names of topics come from outside, so only the first ``TOPICS_MAX`` have their own numbers.
"""

from tidelog.metrics.histogram import Histogram
from tidelog.metrics.labelled import Labelled
from tidelog.metrics.slowest import Slowest
from tidelog.ports.clock import Clock
from tidelog.wire.errors import ErrorCode

TOPICS_MAX = 200
SLOWEST_PARTITIONS_MAX = 10
SLOWEST_WINDOW_MS = 30_000
# Of a response with more parts than this the rest is not looked through for errors.
ERROR_PARTS_MAX = 1_000

NO_ERROR = ErrorCode.NONE


class ApiTimings:
    __slots__ = ("handling", "queue", "total", "wait")

    def __init__(self) -> None:
        self.queue = Histogram()
        self.handling = Histogram()
        self.wait = Histogram()
        self.total = Histogram()


class ApiTimingsByKey(dict[int, ApiTimings]):
    """Made when an API is first used; only keys of the broker's table are asked for."""

    __slots__ = ()

    def __missing__(self, key: int) -> ApiTimings:
        timings = self[key] = ApiTimings()
        return timings


class TopicTraffic:
    __slots__ = ("fetched_bytes", "produce_to_ack", "produced_bytes")

    def __init__(self) -> None:
        self.produce_to_ack = Histogram()
        self.produced_bytes = 0
        self.fetched_bytes = 0


class RequestMetrics:
    __slots__ = ("_clock", "_turned_ms", "errors", "slowest_partitions", "timings", "topics")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_ms = clock.monotonic_ms()
        self.timings = ApiTimingsByKey()
        self.topics: Labelled[TopicTraffic] = Labelled(TopicTraffic, TOPICS_MAX)
        self.slowest_partitions: Slowest[tuple[str, int]] = Slowest(SLOWEST_PARTITIONS_MAX)
        self.errors: dict[tuple[int, int], int] = {}
        """API key and error code -> how often a response said so."""

    def tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._turned_ms >= SLOWEST_WINDOW_MS:
            self._turned_ms = now_ms
            self.slowest_partitions.turn()

    def acknowledged(self, topic: str, partition: int, elapsed_ns: int) -> None:
        """A produce request was answered, ``elapsed_ns`` after it arrived."""
        self.topics.of(topic).produce_to_ack.observe(elapsed_ns)
        slowest = self.slowest_partitions
        if elapsed_ns > slowest.threshold:
            slowest.note((topic, partition), elapsed_ns)

    def count_error(self, api_key: int, code: int) -> None:
        key = api_key, code
        self.errors[key] = self.errors.get(key, 0) + 1

    def count_errors_in(self, api_key: int, fields: object) -> None:
        """Every error code in the fields of a response, at any depth."""
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
