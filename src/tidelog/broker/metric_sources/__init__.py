"""What a broker shows of itself, one file per part of it. docs/reference/metrics.md lists it all.

Everything is read where it is kept anyway, when somebody asks; nothing is counted here.
"""

from typing import TYPE_CHECKING

from tidelog.broker.metric_sources.coordinators import add_coordinator_metrics
from tidelog.broker.metric_sources.groups import add_group_metrics
from tidelog.broker.metric_sources.logs import add_log_metrics
from tidelog.broker.metric_sources.quotas import add_quota_metrics
from tidelog.broker.metric_sources.requests import add_request_metrics
from tidelog.broker.readiness import unready_reason
from tidelog.metrics.registry import Description, Kind, Registry

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def add_broker_metrics(registry: Registry, broker: "Broker") -> None:
    info = Description("tidelog_broker_info", Kind.GAUGE, "Always 1; its labels say which broker this is.", ("cluster", "broker"))
    registry.add([info], lambda: [(info, (broker.config.cluster_id, str(broker.config.node_id)), 1)])
    registry.add_value(
        Kind.GAUGE,
        "tidelog_ready",
        "1 when the broker serves everything that it leads, as /health/ready says.",
        lambda: int(unready_reason(broker) is None),
    )
    add_request_metrics(registry, broker)
    add_quota_metrics(registry, broker)
    add_log_metrics(registry, broker)
    add_group_metrics(registry, broker)
    add_coordinator_metrics(registry, broker)
