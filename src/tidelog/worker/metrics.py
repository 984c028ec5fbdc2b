"""What a worker counts about itself, and one moment of it as plain data and as Prometheus' text.

Counted by the polling thread, without locks; time per message by each slot in a histogram of its own. Lag is what the group has
not finished of a partition: its end as the last fetch saw it, minus the position.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.metrics.exposition import render
from tidelog.metrics.histogram import SECONDS, Histogram
from tidelog.metrics.registry import Description, Kind, Moment, Sample

SERIES_MAX = 1000
NANOSECONDS_PER_SECOND = 1_000_000_000


class Counts:
    __slots__ = ("dead", "duplicates", "failed", "handled", "put_back", "retried", "skipped", "waited")

    def __init__(self) -> None:
        self.handled = 0
        self.failed = 0
        self.retried = 0
        self.dead = 0
        self.duplicates = 0
        self.skipped = 0
        self.waited = 0
        self.put_back = 0


class WorkerMetrics(NamedTuple):
    """One moment of a worker. Counts are since it was started."""

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
    """Messages that a run before had finished above its commit."""
    waited: int
    """Messages written behind an earlier one of their key."""
    put_back: int
    """Failures that the circuit breaker took back."""
    queued: int
    """Messages that wait for a slot."""
    in_flight: int
    """Messages that were read and are not finished."""
    lag: Mapping[tuple[str, int], int]
    """By topic and partition, retry topics too."""
    breakers: Mapping[str, str]
    """State of the circuit breaker of each handler."""
    seconds_total: float
    """Spent in handlers, all slots together."""
    seconds_p50: float
    seconds_p99: float
    longest_running_seconds: float
    """For how long the slowest message is being handled now."""
    histogram: Histogram

    def text(self, group: str) -> bytes:
        """In Prometheus' text format."""
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
    """All of them together, as they are now."""
    total = Histogram()
    for histogram in list(histograms):
        total.counts = [mine + theirs for mine, theirs in zip(total.counts, histogram.counts, strict=True)]
        total.sum += histogram.sum
    return total


def quantile_seconds(histogram: Histogram, share: float) -> float:
    """An upper bound, exact to a factor of two."""
    wanted = histogram.count * share
    seen = 0
    for bits, count in enumerate(histogram.counts):
        seen += count
        if count and seen >= wanted:
            return float((1 << bits) - 1) / NANOSECONDS_PER_SECOND
    return 0.0
