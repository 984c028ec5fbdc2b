"""What a benchmark reports: rows, made of medians over rounds.

One slow round says nothing on a machine that does other things too, so every figure is the median of several, rounds of ours and
of the raw operation alternate, and the spread of the rounds (half the distance between the quartiles, relative to the median)
stands beside the figure.
"""

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """A median, and how far the rounds lie around it."""

    value: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        median = statistics.median(values)
        if len(values) < 2 or not median:
            return cls(median, 0.0)
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, (high - low) / 2 / median)


@dataclass(frozen=True, slots=True)
class Target:
    bound: Literal[">=", "<="]
    value: float

    def is_met_by(self, value: float) -> bool:
        return value >= self.value if self.bound == ">=" else value <= self.value


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. The target judges the ratio where there is one to judge, else our own figure; the limit judges our
    own figure in any case."""

    what: str
    ours: Figure
    unit: str
    raw: Figure | None = None
    ratio: Figure | None = None
    target: Target | None = None
    judges: Literal["ratio", "ours"] = "ours"
    limit: Target | None = None

    @property
    def verdict(self) -> str:
        if self.target is None and self.limit is None:
            return "-"
        judged = self.ratio if self.judges == "ratio" and self.ratio is not None else self.ours
        is_met = self.target is None or self.target.is_met_by(judged.value)
        return "ok" if is_met and (self.limit is None or self.limit.is_met_by(self.ours.value)) else "short"

    @classmethod
    def of_comparison(
        cls, what: str, compared: "Comparison", unit: str, target: Target | None, judges: Literal["ratio", "ours"] = "ratio"
    ) -> "Row":
        return cls(what, compared.ours, unit, compared.raw, compared.ratio, target, judges)


def seconds_of(work: Callable[[], object]) -> float:
    """How long ``work`` took. Without the garbage collector's pauses, which belong to whatever ran before."""
    gc.collect()
    gc.disable()
    try:
        start = perf_counter()
        work()
        return perf_counter() - start
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rates of both, and how many times ours is the raw one: the median over pairs that were measured one after the other."""

    ours: Figure
    raw: Figure
    ratio: Figure


def alternate(rounds: int, ours: Callable[[], float], raw: Callable[[], float]) -> Comparison:
    """``rounds`` values of each, in turns that begin with either, so that neither always meets the disk as the other left it."""
    ours_values, raw_values = [], []
    for number in range(rounds):
        if number % 2:
            raw_values.append(raw())
            ours_values.append(ours())
        else:
            ours_values.append(ours())
            raw_values.append(raw())
    ratios = [ours_value / raw_value for ours_value, raw_value in zip(ours_values, raw_values, strict=True)]
    return Comparison(Figure.of(ours_values), Figure.of(raw_values), Figure.of(ratios))
