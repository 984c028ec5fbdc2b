"""The counts of a worker, and a snapshot of them as plain data and as Prometheus' text.

The polling thread counts, without locks; each slot has a histogram of the time per message. The lag of a partition is what the
group has not finished: its end as the last fetch saw it, minus the position.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, get_args

from tidelog.metrics.exposition import render
from tidelog.metrics.histogram import SECONDS, Histogram
from tidelog.metrics.registry import Description, Kind, Moment, Sample

SERIES_MAX = 1000
NANOSECONDS_PER_SECOND = 1_000_000_000


CountName = Literal["handled", "failed", "retried", "dead", "duplicates", "skipped", "waited", "put_back"]


class WorkerCounts:
    """Counts since the worker was made."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[CountName, int] = dict.fromkeys(get_args(CountName), 0)

    def add(self, name: CountName, count: int = 1) -> None:
        self._counts[name] += count

    def __getitem__(self, name: CountName) -> int:
        return self._counts[name]


class WorkerMetrics(NamedTuple):
    """A snapshot of a worker. Counts are since it was made."""

    handled: int
    """Messages whose handler succeeded."""
    failed: int
    """Rounds of handling that failed."""
    retried: int
    """Letters written to retry topics after a failure."""
    dead: int
    """Dead letters."""
    duplicates: int
    """Messages that deduplication recognised."""
    skipped: int
    """Messages that an earlier run had finished above its commit, or second copies."""
    waited: int
    """Messages that waited behind an earlier one of their key."""
    put_back: int
    """Failures that the circuit breaker took back."""
    queued: int
    """Messages that wait for a slot."""
    in_flight: int
    """Messages that were read and are not finished."""
    lag: Mapping[tuple[str, int], int]
    """The lag by topic and partition, including retry topics."""
    breakers: Mapping[str, str]
    """The state of each handler's circuit breaker."""
    seconds_total: float
    """Time spent in handlers, of all slots together."""
    seconds_p50: float
    seconds_p99: float
    longest_running_seconds: float
    """The time for which the slowest message has been running."""
    histogram: Histogram

    def text(self, group: str) -> bytes:
        """Render the metrics in Prometheus' text format."""
        moment = Moment(_DESCRIPTIONS)
        for sample in self._samples(group):
            moment.take(sample)
        return render(moment.families(), lambda: None)

    def _samples(self, group: str) -> Iterable[Sample]:
        for description in _COUNTERS:
            yield description, (group,), float(getattr(self, description.name.removeprefix(_PREFIX).removesuffix("_total")))
        yield _SECONDS, (group,), self.histogram.value(SECONDS)
        yield _IN_FLIGHT, (group,), float(self.in_flight)
        for (topic, partition), lag in sorted(self.lag.items()):
            yield _LAG, (group, topic, str(partition)), float(lag)
        for handler, state in sorted(self.breakers.items()):
            yield _BREAKER, (group, handler), float(state != "closed")


_PREFIX = "tidelog_worker_"
_COUNTERS = [
    Description(f"{_PREFIX}{name}_total", Kind.COUNTER, documentation, ("group",))
    for name, documentation in (
        ("handled", "Messages whose handler succeeded."),
        ("failed", "Rounds of handling that failed."),
        ("retried", "Letters written to retry topics after a failure."),
        ("dead", "Dead letters written."),
        ("duplicates", "Messages that deduplication recognised."),
        ("skipped", "Messages that were finished above the commit of a run before."),
        ("waited", "Messages written behind an earlier one of their key."),
        ("put_back", "Failures that the circuit breaker took back."),
    )
]
_SECONDS = Description(f"{_PREFIX}message_seconds", Kind.HISTOGRAM, "Time per message, tries in place included.", ("group",))
_IN_FLIGHT = Description(f"{_PREFIX}in_flight_messages", Kind.GAUGE, "Messages read and not finished.", ("group",))
_LAG = Description(
    f"{_PREFIX}lag_messages",
    Kind.GAUGE,
    "Messages of the partition that are not finished.",
    ("group", "topic", "partition"),
    SERIES_MAX,
)
_BREAKER = Description(
    f"{_PREFIX}breaker_open",
    Kind.GAUGE,
    "1 while the circuit breaker of the handler is not closed.",
    ("group", "handler"),
    SERIES_MAX,
)
_DESCRIPTIONS = [*_COUNTERS, _SECONDS, _IN_FLIGHT, _LAG, _BREAKER]


def joined(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of the histograms, as they are now."""
    total = Histogram()
    for histogram in list(histograms):
        total.add(histogram)
    return total


def quantile_seconds(histogram: Histogram, share: float) -> float:
    """An upper bound, accurate within a factor of two."""
    wanted = histogram.count * share
    seen = 0
    for bits, count in enumerate(histogram.counts):
        seen += count
        if count and seen >= wanted:
            return float((1 << bits) - 1) / NANOSECONDS_PER_SECOND
    return 0.0
