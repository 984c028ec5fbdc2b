"""Clients that were held because they were over a quota."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.broker.metric_sources.requests import APIS_MAX
from tidelog.metrics.registry import Description, Kind, Registry, Sample

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

KEYS_MAX = 5
THROTTLED = Description(
    "tidelog_throttled_requests_total",
    Kind.COUNTER,
    "Requests after which their client was held, because it was over a quota.",
    ("api", "quota"),
    APIS_MAX * KEYS_MAX,
)
THROTTLED_SECONDS = Description(
    "tidelog_throttled_seconds_total",
    Kind.COUNTER,
    "For how long clients were held because of that.",
    ("api", "quota"),
    APIS_MAX * KEYS_MAX,
)
TRACKED = Description(
    "tidelog_quota_clients", Kind.GAUGE, "Clients whose use is followed because they have such a quota.", ("quota",), KEYS_MAX
)


def add_quota_metrics(registry: Registry, broker: "Broker") -> None:
    registry.add([THROTTLED, THROTTLED_SECONDS, TRACKED], lambda: _collect(broker))


def _collect(broker: "Broker") -> Iterator[Sample]:
    for (key, quota), throttled in list(broker.throttling.by_api_and_key.items()):
        labels = broker.apis[key].name, quota
        yield THROTTLED, labels, throttled.count
        yield THROTTLED_SECONDS, labels, throttled.milliseconds / 1000
    for quota, count in broker.throttling.quotas.tracked().items():
        yield TRACKED, (quota,), count
