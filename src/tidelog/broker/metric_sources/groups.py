"""Groups and how far they are behind, as the lag monitor last found them."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.metrics.registry import Description, Kind, Registry, Rest, Sample

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

GROUPS_MAX = 200
GROUP_PARTITIONS_MAX = 1_000
# There are seven.
STATES_MAX = 16

_LABELS = ("group", "topic", "partition")

GROUPS = Description("tidelog_groups", Kind.GAUGE, "Groups in each state.", ("state",), STATES_MAX)
MEMBERS = Description("tidelog_group_members", Kind.GAUGE, "Members of a group.", ("group",), GROUPS_MAX)
REBALANCES = Description(
    "tidelog_group_rebalances_total", Kind.COUNTER, "Rebalances of a group since it was loaded.", ("group",), GROUPS_MAX
)
REBALANCE_SECONDS = Description(
    "tidelog_group_rebalance_seconds_total", Kind.COUNTER, "Time that a group spent in rebalances.", ("group",), GROUPS_MAX
)
LOST = Description(
    "tidelog_group_lost_messages",
    Kind.GAUGE,
    "Records that were deleted before the group read them, in partitions where it has not gone on since.",
    ("group",),
    GROUPS_MAX,
)
DELETION = Description(
    "tidelog_group_deletion_seconds",
    Kind.GAUGE,
    "Until retention deletes a record that the group has not read, at the earliest; no series when none is in sight.",
    ("group",),
    GROUPS_MAX,
    Rest.MIN,
)
LAG_MESSAGES = Description(
    "tidelog_group_lag_messages", Kind.GAUGE, "High watermark minus committed offset.", _LABELS, GROUP_PARTITIONS_MAX
)
LAG_SECONDS = Description(
    "tidelog_group_lag_seconds", Kind.GAUGE, "Age of the next unread record.", _LABELS, GROUP_PARTITIONS_MAX, Rest.MAX
)


def add_group_metrics(registry: Registry, broker: "Broker") -> None:
    of_groups = [GROUPS, MEMBERS, REBALANCES, REBALANCE_SECONDS, LOST, DELETION]
    registry.add([*of_groups, LAG_MESSAGES, LAG_SECONDS], lambda: _collect(broker))
    lag = broker.lag
    registry.add_value(
        Kind.GAUGE, "tidelog_groups_losing", "Groups about to lose unread records to retention.", lambda: len(lag.groups_losing)
    )
    registry.add_value(
        Kind.GAUGE,
        "tidelog_groups_behind_log_start",
        "Groups that have lost unread records to retention.",
        lambda: len(lag.groups_behind_log_start),
    )
    registry.add_value(
        Kind.GAUGE,
        "tidelog_groups_behind_compaction",
        "Groups with unread records that compaction may have taken.",
        lambda: len(lag.groups_behind_compaction),
    )
    registry.add_value(
        Kind.GAUGE,
        "tidelog_lag_offsets_not_followed",
        "Committed offsets beyond what the lag monitor follows.",
        lambda: lag.not_followed,
    )


def _collect(broker: "Broker") -> Iterator[Sample]:
    states: Counter[str] = Counter()
    for group, offsets in broker.lag.each_group():
        states[group.state] += 1
        labels = (group.group_id,)
        yield MEMBERS, labels, group.members
        yield REBALANCES, labels, group.rebalances
        yield REBALANCE_SECONDS, labels, group.rebalance_ms_total / 1000
        yield LOST, labels, sum(one.lost_messages for one in offsets)
        deletions = [one.deletion_seconds for one in offsets if one.deletion_seconds is not None]
        if deletions:
            yield DELETION, labels, min(deletions)
        for one in offsets:
            place = (one.group_id, one.topic, str(one.partition))
            yield LAG_MESSAGES, place, one.lag_messages
            if one.lag_seconds is not None:
                yield LAG_SECONDS, place, one.lag_seconds
    for state, count in states.items():
        yield GROUPS, (state,), count
