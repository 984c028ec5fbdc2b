"""Metrics: histograms joined, quantiles as upper bounds."""

from tidelog.metrics.histogram import Histogram
from tidelog.worker.metrics import joined, quantile_seconds


def test_quantiles_are_upper_bounds_within_a_factor_of_two() -> None:
    one, other = Histogram(), Histogram()
    for _ in range(90):
        one.observe(1_000_000)
    for _ in range(10):
        other.observe(1_000_000_000)
    both = joined([one, other])
    assert both.count == 100
    assert both.sum == 90 * 1_000_000 + 10 * 1_000_000_000
    assert 0.001 <= quantile_seconds(both, 0.5) < 0.002
    assert 1 <= quantile_seconds(both, 0.99) < 2
    assert quantile_seconds(Histogram(), 0.5) == 0
