import pytest

from tidelog.metrics.histogram import COUNTS, Histogram
from tidelog.metrics.labelled import OTHER
from tidelog.metrics.registry import SLICE_SAMPLES, Description, Family, Kind, Registry, Rest, Sample


def families_of(registry: Registry) -> dict[str, Family]:
    *slices, families = registry.snapshot()
    assert all(one is None for one in slices)
    assert families is not None
    return {family.description.name: family for family in families}


def registry_of(samples: list[Sample], description: Description) -> Registry:
    registry = Registry()
    registry.add([description], lambda: samples)
    return registry


@pytest.mark.parametrize(("rest", "expected"), [(Rest.SUM, 30 + 5 + 7), (Rest.MAX, 30), (Rest.MIN, 5)])
def test_series_beyond_the_maximum_become_one(rest: Rest, expected: float) -> None:
    description = Description("lag", Kind.GAUGE, "Lag.", ("group", "topic"), 2, rest)
    samples: list[Sample] = [
        (description, (group, "t"), value) for group, value in (("a", 1), ("b", 2), ("c", 30), ("d", 5), ("e", 7))
    ]
    family = families_of(registry_of(samples, description))["lag"]
    assert family.series == [(("a", "t"), 1), (("b", "t"), 2), ((OTHER, OTHER), expected)]


def test_histograms_beyond_the_maximum_are_joined() -> None:
    description = Description("sizes", Kind.HISTOGRAM, "Sizes.", ("topic",), 1)
    histograms = [Histogram() for _ in range(3)]
    for number, histogram in enumerate(histograms):
        histogram.observe(number + 1)
    samples: list[Sample] = [(description, (str(number),), one.value(COUNTS)) for number, one in enumerate(histograms)]
    series = dict(families_of(registry_of(samples, description))["sizes"].series)
    both = series[(OTHER,)]
    assert not isinstance(both, float)
    assert (both.total, both.sum) == (2, 5)


def test_a_series_that_is_called_other_is_the_rest() -> None:
    description = Description("size", Kind.GAUGE, "Size.", ("topic",), 1)
    samples: list[Sample] = [(description, (name,), 1) for name in (OTHER, "a", "b")]
    assert families_of(registry_of(samples, description))["size"].series == [((OTHER,), 2), (("a",), 1)]


def test_a_moment_is_taken_in_slices() -> None:
    description = Description("size", Kind.GAUGE, "Size.", ("topic",), 10)
    taken: list[int] = []

    def collect() -> list[Sample]:
        return [(description, (str(number),), number) for number in range(3 * SLICE_SAMPLES + 1)]

    registry = Registry()
    registry.add([description], lambda: (taken.append(1) or sample for sample in collect()))  # type: ignore[func-returns-value]  # counts
    slices = 0
    for families in registry.snapshot():
        if families is None:
            slices += 1
            assert len(taken) == slices * SLICE_SAMPLES
    assert slices == 3


def test_a_metric_is_described_once() -> None:
    registry = Registry()
    registry.add_value(Kind.GAUGE, "size", "Size.", lambda: 1)
    with pytest.raises(AssertionError, match="described twice"):
        registry.add_value(Kind.GAUGE, "size", "Size.", lambda: 1)
    assert [description.name for description in registry.descriptions] == ["size"]


def test_a_metric_without_samples_is_there_without_series() -> None:
    description = Description("errors_total", Kind.COUNTER, "Errors.", ("code",), 5)
    assert families_of(registry_of([], description))["errors_total"].series == []
