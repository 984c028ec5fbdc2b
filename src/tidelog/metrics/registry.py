"""All metrics by name, and snapshots of them as plain data.

A source describes its metrics and yields samples when asked. Sources are asked on the loop's thread, a slice at a time
(``snapshot`` stops after ``SLICE_SAMPLES``), so a source that walks over something that may change walks over a copy of its keys.
The result is numbers and strings that no longer change, so they can be rendered in another thread.

No metric has more than ``series_max`` series. The series beyond it become one whose labels are all ``OTHER``: their sum or, for a
figure that cannot be added, such as an age, the worst. Samples of one series are combined in the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from tidelog.metrics.histogram import HistogramValue
from tidelog.metrics.labelled import OTHER

# Some tenths of a millisecond.
SLICE_SAMPLES = 200


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Rest(Enum):
    """How the series beyond the maximum are combined."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Description(NamedTuple):
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    series_max: int = 1
    rest: Rest = Rest.SUM


Labels = tuple[str, ...]
Value = float | HistogramValue
Sample = tuple[Description, Labels, Value]
Collect = Callable[[], Iterable[Sample]]


class Family(NamedTuple):
    """One metric at one moment."""

    description: Description
    series: list[tuple[Labels, Value]]


class Registry:
    __slots__ = ("_by_name", "_sources")

    def __init__(self) -> None:
        self._by_name: dict[str, Description] = {}
        self._sources: list[Collect] = []

    @property
    def descriptions(self) -> list[Description]:
        return list(self._by_name.values())

    def add(self, descriptions: Sequence[Description], collect: Collect) -> None:
        """``collect`` yields samples of these."""
        for description in descriptions:
            assert description.name not in self._by_name, f"{description.name} is described twice"
            self._by_name[description.name] = description
        self._sources.append(collect)

    def add_value(self, kind: Kind, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Add a metric with a single number."""
        description = Description(name, kind, documentation)
        self.add([description], lambda: [(description, (), read())])

    def snapshot(self) -> Iterator[list[Family] | None]:
        """Yield None after each slice and, at the end, the families in the order of their descriptions."""
        moment = Moment(self._by_name.values())
        left = SLICE_SAMPLES
        for collect in self._sources:
            for sample in collect():
                moment.take(sample)
                left -= 1
                if not left:
                    yield None
                    left = SLICE_SAMPLES
        yield moment.families()


class Moment:
    """The samples of one moment, limited to their maximum."""

    __slots__ = ("_by_name",)

    def __init__(self, descriptions: Iterable[Description]) -> None:
        self._by_name: dict[str, tuple[Description, dict[Labels, Value]]] = {
            description.name: (description, {}) for description in descriptions
        }

    def take(self, sample: Sample) -> None:
        description, labels, value = sample
        assert len(labels) == len(description.labels), f"{description.name} has labels {description.labels}"
        series = self._by_name[description.name][1]
        if labels not in series:
            rest = (OTHER,) * len(labels)
            if len(series) - (rest in series) < description.series_max or labels == rest:
                series[labels] = value
                return
            labels = rest
        before = series.get(labels)
        series[labels] = value if before is None else _joined(description.rest, before, value)

    def families(self) -> list[Family]:
        return [Family(description, list(series.items())) for description, series in self._by_name.values()]


def _joined(rest: Rest, one: Value, other: Value) -> Value:
    if isinstance(one, HistogramValue) or isinstance(other, HistogramValue):
        assert isinstance(one, HistogramValue)
        assert isinstance(other, HistogramValue)
        return one.joined(other)
    return one + other if rest is Rest.SUM else max(one, other) if rest is Rest.MAX else min(one, other)
