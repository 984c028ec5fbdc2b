"""What a broker shows: name and labels -> value."""

from tests.broker.harness import Machine
from tidelog.broker.metric_sources import add_broker_metrics
from tidelog.metrics.histogram import HistogramValue
from tidelog.metrics.registry import Labels, Registry


class Shown:
    def __init__(self, machine: Machine) -> None:
        registry = Registry()
        add_broker_metrics(registry, machine.broker)
        *_, families = registry.snapshot()
        assert families is not None
        self.series = {(family.description.name, labels): value for family in families for labels, value in family.series}

    def value(self, name: str, *labels: str) -> float:
        value = self.series[name, labels]
        assert not isinstance(value, HistogramValue)
        return value

    def histogram(self, name: str, *labels: str) -> HistogramValue:
        value = self.series[name, labels]
        assert isinstance(value, HistogramValue)
        return value

    def labels(self, name: str) -> list[Labels]:
        return [labels for shown, labels in self.series if shown == name]
