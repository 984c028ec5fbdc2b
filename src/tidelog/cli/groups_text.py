"""Groups as lines, tables and JSON documents."""

import math
from collections.abc import Mapping

from rich.console import Console

from tidelog.cli.groups_facts import Committed, Group, Partition, Span
from tidelog.cli.groups_lag import GroupLag, Row
from tidelog.cli.output import count_of, say, show_table

MINUTE, HOUR, DAY = 60, 3600, 86400
_UNKNOWN = "-"


def duration(seconds: float | None) -> str:
    """To two units at most: ``3d 4h``, ``2m 5s``, ``0.4 s``."""
    if seconds is None:
        return _UNKNOWN
    if math.isinf(seconds):
        return "never"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller_unit in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "m"), (MINUTE, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size}{unit} {rest}{smaller_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def group_line(found: GroupLag) -> str:
    group = found.group
    parts = [group.state]
    if group.type:
        parts.append(f"{group.type} protocol" + (f" ({group.assignor})" if group.assignor else ""))
    parts.append(count_of(len(group.members), "member"))
    if group.coordinator:
        parts.append(f"coordinated by {group.coordinator}")
    behind = f"{count_of(found.messages, 'message')} behind" if found.messages else "nothing unread"
    if found.messages and found.seconds is not None:
        behind += f", {duration(found.seconds)}"
    lost = sum(lag.lost_messages for lag in found.lags)
    if lost:
        behind += f"; {count_of(lost, 'message')} deleted before they were read"
    return f"{group.group_id}: {', '.join(parts)}; {behind if found.lags else 'no committed offsets'}"


def show_partitions(console: Console, found: GroupLag, *, with_rates: bool) -> None:
    if not found.rows:
        say(
            console,
            f"Nothing is committed or assigned. Set its offsets: tidelog groups reset {found.group.group_id} --topic TOPIC",
        )
        return
    columns = ["Topic", "Partition", "Committed", "End", "Lag", "Behind", "Deleted in"]
    columns += ["In/s", "Out/s", "Caught up in"] if with_rates else []
    show_table(console, [*columns, "Member"], [_partition_row(row, with_rates) for row in found.rows])


def _partition_row(row: Row, with_rates: bool) -> list[object]:
    lag = row.lag
    cells: list[object] = [
        row.topic,
        row.partition,
        _UNKNOWN if row.committed is None else row.committed.offset,
        "no such partition" if row.span is None else row.span.end,
        _UNKNOWN if lag is None else lag.lag_messages,
        _UNKNOWN if lag is None else duration(lag.lag_seconds),
        _UNKNOWN if lag is None else f"{lag.lost_messages:,} lost" if lag.lost_messages else duration(lag.deletion_seconds),
    ]
    if with_rates:
        cells += [
            _rate(lag.produced_per_second if lag else None),
            _rate(lag.consumed_per_second if lag else None),
            duration(lag.drain_seconds if lag else None),
        ]
    return [*cells, _UNKNOWN if row.member is None else f"{row.member.client_id} {row.member.host}"]


def _rate(per_second: float | None) -> str:
    return _UNKNOWN if per_second is None else f"{per_second:,.1f}"


def show_members(console: Console, group: Group) -> None:
    if not group.members:
        say(console, f"{group.group_id} has no members. To read with it: tidelog consume TOPIC --group {group.group_id}")
        return
    rows = [
        (
            member.member_id,
            member.client_id,
            member.host,
            member.group_instance_id or _UNKNOWN,
            len(member.partitions),
            assignment_text(member.partitions),
        )
        for member in group.members
    ]
    show_table(console, ("Member", "Client", "Host", "Instance", "Partitions", "Assignment"), rows)


def assignment_text(partitions: tuple[Partition, ...]) -> str:
    """``orders(0,1,2), returns(4)``, as Kafka's tools write it."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(str(partition))
    return ", ".join(f"{topic}({','.join(indexes)})" for topic, indexes in by_topic.items()) or _UNKNOWN


def show_committed(console: Console, offsets: Mapping[Partition, Committed], ends: Mapping[Partition, Span]) -> None:
    rows = [
        (topic, partition, at.offset, span.start if span else _UNKNOWN, span.end if span else _UNKNOWN, _epoch(at), at.metadata)
        for (topic, partition), at in offsets.items()
        for span in (ends.get((topic, partition)),)
    ]
    show_table(console, ("Topic", "Partition", "Committed", "Start", "End", "Leader epoch", "Metadata"), rows)


def _epoch(at: Committed) -> object:
    return _UNKNOWN if at.leader_epoch is None else at.leader_epoch


def committed_document(group_id: str, partition: Partition, at: Committed, span: Span | None) -> dict[str, object]:
    return {
        "group": group_id,
        "topic": partition[0],
        "partition": partition[1],
        "committed_offset": at.offset,
        "start_offset": span.start if span else None,
        "end_offset": span.end if span else None,
        "leader_epoch": at.leader_epoch,
        "metadata": at.metadata,
    }


def group_document(found: GroupLag) -> dict[str, object]:
    group = found.group
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "lag_messages": found.messages,
        "lag_seconds": found.seconds,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "group_instance_id": member.group_instance_id,
                "partitions": [{"topic": topic, "partition": partition} for topic, partition in member.partitions],
            }
            for member in group.members
        ],
        "partitions": [_partition_document(row) for row in found.rows],
    }


def _partition_document(row: Row) -> dict[str, object]:
    lag = row.lag
    return {
        "topic": row.topic,
        "partition": row.partition,
        "committed_offset": row.committed.offset if row.committed else None,
        "start_offset": row.span.start if row.span else None,
        "end_offset": row.span.end if row.span else None,
        "lag_messages": lag.lag_messages if lag else None,
        "lag_seconds": lag.lag_seconds if lag else None,
        "lost_messages": lag.lost_messages if lag else None,
        "deletion_seconds": lag.deletion_seconds if lag else None,
        "produced_per_second": lag.produced_per_second if lag else None,
        "consumed_per_second": lag.consumed_per_second if lag else None,
        # JSON has no infinity: what does not drain is null, and the rates say so.
        "drain_seconds": lag.drain_seconds
        if lag and lag.drain_seconds is not None and not math.isinf(lag.drain_seconds)
        else None,
        "member_id": row.member.member_id if row.member else None,
    }
