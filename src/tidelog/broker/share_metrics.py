"""The metrics of share groups on this broker.

What is not settled, and for how long, comes from the states that this broker keeps as the share coordinator, so it is known with
or without members. What members hold, and what is delayed, only the leader of a partition knows, while members fetch from it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.metadata.topics import SHARE_STATES_TOPIC
from tidelog.metrics.registry import Description, Kind, Registry, Rest, Sample

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

GROUPS_MAX = 200

# A group reads few topics.
QUEUES_MAX = 500

ACQUIRED = Description(
    "tidelog_share_acquired", Kind.GAUGE, "Records that members of a share group hold.", ("group",), GROUPS_MAX
)
DELAYED = Description(
    "tidelog_share_delayed",
    Kind.GAUGE,
    "Records of queue topics that a share group has looked at and that are not due yet.",
    ("group",),
    GROUPS_MAX,
)
REDELIVERED = Description(
    "tidelog_share_redelivered",
    Kind.GAUGE,
    "Records that a share group has not settled, and whose first delivery has failed.",
    ("group",),
    GROUPS_MAX,
)
BACKLOG = Description(
    "tidelog_share_backlog",
    Kind.GAUGE,
    "Records that a share group has not settled, held and delayed ones included.",
    ("group", "topic"),
    QUEUES_MAX,
)
OLDEST = Description(
    "tidelog_share_oldest_seconds",
    Kind.GAUGE,
    "Age of the oldest record that a share group has not settled; while members fetch, of the oldest one that is due.",
    ("group", "topic"),
    QUEUES_MAX,
    Rest.MAX,
)


def add_share_metrics(registry: Registry, broker: "BrokerNode") -> None:
    shares = broker.share_sessions.share_partitions
    registry.add([ACQUIRED, DELAYED, REDELIVERED], lambda: _collect_leaders(broker))
    registry.add([BACKLOG, OLDEST], lambda: _collect_backlog(broker))
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
    registry.add_value(
        Kind.GAUGE,
        "tidelog_share_state_bytes",
        "Size of the logs with the states of share groups that this broker leads.",
        lambda: _state_bytes(broker),
    )


def _collect_leaders(broker: "BrokerNode") -> Iterator[Sample]:
    for group_id, leaders in broker.share_sessions.share_partitions.by_group():
        engines = [each.engine for each in leaders if each.engine is not None]
        yield ACQUIRED, (group_id,), sum(engine.acquired_count for engine in engines)
        yield DELAYED, (group_id,), sum(engine.delayed_count for engine in engines)
        yield REDELIVERED, (group_id,), sum(engine.redelivered_count for engine in engines)


def _collect_backlog(broker: "BrokerNode") -> Iterator[Sample]:
    for group_id, partitions in broker.lag.each_share_group():
        for one in partitions:
            labels = (group_id, one.topic)
            yield BACKLOG, labels, one.lag_messages
            if one.lag_seconds is not None:
                yield OLDEST, labels, one.lag_seconds


def _state_bytes(broker: "BrokerNode") -> int:
    return sum(partition.log.size for partition in list(broker.partitions) if partition.topic == SHARE_STATES_TOPIC)
