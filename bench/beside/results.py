"""What was measured: per measurement and durability one value a round for each broker, and what becomes of them in a table."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.measure import Figure, Row, Target


@dataclass(frozen=True, slots=True)
class Measurement:
    """``targets`` by durability; one that is missing was not asked for. ``limits`` judge our own figure, whatever the target
    judges. ``compiled`` has the targets that are others for the compiled build."""

    what: str
    unit: str
    targets: Mapping[str, Target]
    judges: Literal["ratio", "ours"] = "ratio"
    limits: Mapping[str, Target] = field(default_factory=dict)
    compiled: Mapping[str, Target] = field(default_factory=dict)


@dataclass(slots=True)
class Results:
    """``labels`` names the brokers, ours first. Values of one round stand at the same place for both, so ratios are of pairs."""

    measurements: Sequence[Measurement]
    labels: list[str]
    values: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    percentiles: dict[tuple[str, str], list[dict[str, float]]] = field(default_factory=dict)
    over_time: dict[tuple[str, str], list[tuple[float, float, float]]] = field(default_factory=dict)
    """The last round, as (second, p99, maximum) of each interval."""

    def of(self, labels: Sequence[str], measurements: Sequence[Measurement]) -> "Results":
        """The same values as a comparison of these brokers alone."""
        return Results(measurements, list(labels), self.values, self.percentiles, self.over_time)

    def add(self, what: str, durability: str, label: str, value: float) -> None:
        self.values.setdefault((what, durability, label), []).append(value)

    def add_percentiles(self, what: str, label: str, found: dict[str, float]) -> None:
        self.percentiles.setdefault((what, label), []).append(found)

    def set_over_time(self, what: str, label: str, intervals: list[tuple[float, float, float]]) -> None:
        self.over_time[what, label] = intervals

    def percentiles_of(self, what: str, label: str) -> dict[str, float] | None:
        """The median of each percentile over the rounds."""
        samples = self.percentiles.get((what, label))
        if not samples:
            return None
        return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}

    def rows(self) -> Iterator[tuple[str, Row]]:
        """(durability, row), in the order of the measurements."""
        durabilities = dict.fromkeys(durability for _, durability, _ in self.values)
        for durability in durabilities:
            for measurement in self.measurements:
                if ours := self.values.get((measurement.what, durability, self.labels[0])):
                    yield durability, self._row(measurement, durability, ours)

    def _row(self, measurement: Measurement, durability: str, ours: list[float]) -> Row:
        theirs = self.values.get((measurement.what, durability, self.labels[1])) if len(self.labels) > 1 else None
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)] if theirs else None
        target = measurement.targets.get(durability)
        return Row(
            measurement.what,
            Figure.of(ours),
            measurement.unit,
            Figure.of(theirs) if theirs else None,
            Figure.of(ratios) if ratios else None,
            # A ratio without the other one judges nothing.
            target if theirs or measurement.judges == "ours" else None,
            measurement.judges,
            measurement.limits.get(durability),
        )

    def to_json(self) -> str:
        values = [
            {"what": what, "durability": durability, "label": label, "values": values}
            for (what, durability, label), values in self.values.items()
        ]
        percentiles = [{"what": what, "label": label, "rounds": found} for (what, label), found in self.percentiles.items()]
        over_time = [{"what": what, "label": label, "intervals": found} for (what, label), found in self.over_time.items()]
        return json.dumps({"values": values, "percentiles": percentiles, "over_time": over_time}, indent=1)
