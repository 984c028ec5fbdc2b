"""The metrics of share groups on this broker: of the partitions that it leads, while members fetch from them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.metrics.registry import Description, Kind, Registry, Sample

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

GROUPS_MAX = 200

ACQUIRED = Description(
    "tidelog_share_acquired", Kind.GAUGE, "Records that members of a share group hold.", ("group",), GROUPS_MAX
)
BACKLOG = Description(
    "tidelog_share_backlog", Kind.GAUGE, "Records that a share group has not settled, held ones included.", ("group",), GROUPS_MAX
)

DELAYED = Description(
    "tidelog_share_delayed",
    Kind.GAUGE,
    "Records of queue topics that a share group has looked at and that are not due yet.",
    ("group",),
    GROUPS_MAX,
)


def add_share_metrics(registry: Registry, broker: "BrokerNode") -> None:
    shares = broker.share_sessions.share_partitions
    registry.add([ACQUIRED, BACKLOG, DELAYED], lambda: _collect(broker))
    registry.add_value(
        Kind.GAUGE, "tidelog_share_sessions", "Members of share groups that fetch here.", lambda: len(broker.share_sessions)
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_share_lock_expiries_total",
        "Records whose locks ended before their members settled them.",
        lambda: shares.counters.expired,
    )
    registry.add_value(
        Kind.COUNTER, "tidelog_share_releases_total", "Records that members have released.", lambda: shares.counters.released
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_share_outlived_total",
        "Records of queue topics that nobody received before their time to live was over.",
        lambda: shares.counters.outlived,
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_share_dead_letters_total",
        "Dead letters that share groups have written.",
        lambda: shares.dead_letter_count,
    )


def _collect(broker: "BrokerNode") -> Iterator[Sample]:
    for group_id, leaders in broker.share_sessions.share_partitions.by_group():
        yield ACQUIRED, (group_id,), sum(each.engine.acquired_count for each in leaders if each.engine is not None)
        yield BACKLOG, (group_id,), sum(each.backlog() for each in leaders)
        yield DELAYED, (group_id,), sum(each.engine.delayed_count for each in leaders if each.engine is not None)
