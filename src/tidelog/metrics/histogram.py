"""A histogram of whole numbers (nanoseconds, counts) whose buckets are powers of two.

The bucket of a number is its length in bits, so that counting one is an addition to a list and needs no search: about 0.1
microseconds. Bucket ``n`` holds numbers from ``2 ** (n - 1)`` up to ``2 ** n - 1``, which is its bound in Prometheus' sense. A
``Scale`` selects the bounds that are shown, and their unit: a histogram per topic shows fewer than one per API.
"""

from typing import NamedTuple

# No clock shows a number of nanoseconds with more bits.
BITS_MAX = 64

NANOSECONDS_PER_SECOND = 1_000_000_000


class Scale(NamedTuple):
    """Bounds of ``bits_min``, ``bits_min + bits_step``, ... up to ``bits_max`` bits, divided by ``unit``."""

    bits_min: int
    bits_max: int
    bits_step: int
    unit: int

    def bounds(self) -> list[float]:
        return [((1 << bits) - 1) / self.unit for bits in self._bits()]

    def _bits(self) -> range:
        return range(self.bits_min, self.bits_max + 1, self.bits_step)

    def cumulated(self, counts: list[int]) -> list[int]:
        """The number of values at or below each bound."""
        cumulated: list[int] = []
        total = 0
        start = 0
        for bits in self._bits():
            total += sum(counts[start : bits + 1])
            start = bits + 1
            cumulated.append(total)
        return cumulated


# 33 microseconds to 17 seconds: less is one turn of the loop, more is a time-out.
SECONDS = Scale(15, 34, 1, NANOSECONDS_PER_SECOND)
# 131 microseconds to 8.6 seconds in less than half as many bounds, where there is one histogram for each of many things.
SECONDS_COARSE = Scale(17, 33, 2, NANOSECONDS_PER_SECOND)
# 1 to 65,535 things.
COUNTS = Scale(1, 16, 1, 1)


class HistogramValue(NamedTuple):
    """The contents of a histogram at one moment, as it is shown."""

    bounds: list[float]
    cumulated: list[int]
    total: int
    sum: float

    def joined(self, other: "HistogramValue") -> "HistogramValue":
        """The sum of two histograms of the same scale."""
        cumulated = [mine + theirs for mine, theirs in zip(self.cumulated, other.cumulated, strict=True)]
        return HistogramValue(self.bounds, cumulated, self.total + other.total, self.sum + other.sum)


class Histogram:
    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (BITS_MAX + 1)
        self.sum = 0

    def observe(self, value: int, weight: int = 1) -> None:
        """Count ``value``, which is not negative and has at most ``BITS_MAX`` bits, ``weight`` times."""
        self.counts[value.bit_length()] += weight
        self.sum += value * weight

    def add_to_sum(self, total: int) -> None:
        """Add the sum of values that a loop has counted in ``counts`` itself."""
        self.sum += total

    def add(self, other: "Histogram") -> None:
        """Count everything that ``other`` has counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    @property
    def count(self) -> int:
        return sum(self.counts)

    def value(self, scale: Scale) -> HistogramValue:
        return HistogramValue(scale.bounds(), scale.cumulated(self.counts), self.count, self.sum / scale.unit)
