"""``tidelog groups``: list, describe, offsets, reset, delete and desired, on any Kafka.

``groups_lag`` measures, ``groups_reset`` and ``groups_desired`` are the two commands that decide something; all the rest, with
its text, tables and JSON documents, is here.
"""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console

from tidelog.cli import groups_desired, groups_reset
from tidelog.cli.completion import complete_groups
from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_lag import GroupLag, LagMeter, LagRow, find_group
from tidelog.cli.groups_reset import STATE_NAMES, refuse_live, state_name
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, KafkaCluster, PropertiesOption, existing_bounds
from tidelog.cli.output import confirm, count_of, make_console, partitions_text, say, show_json, show_table
from tidelog.cli.share_groups import SHARE, ShareGroups
from tidelog.cli.times import UNKNOWN, duration_text
from tidelog.client.admin import Admin, CommittedOffset, GroupDescription, GroupListing, PartitionBounds
from tidelog.client.errors import TidelogError
from tidelog.client.topic_partition import TopicPartition

app = typer.Typer(
    help="List, describe, reset and delete consumer groups; show their offsets, their lag and how many consumers they need.",
    no_args_is_help=True,
)

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="GROUP...", help="The groups' names.", autocompletion=complete_groups)
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", metavar="NAME", help="The same as GROUP; repeatable.", autocompletion=complete_groups),
]
AllGroupsOption = Annotated[bool, typer.Option("--all-groups", help="Every group of the cluster.")]

TYPE_NAMES = {"CONSUMER": "consumer", "CLASSIC": "classic", SHARE: "share"}
NO_GROUPS = "There are no groups yet. A consumer creates one: tidelog consume TOPIC --group NAME"


@app.command("list", epilog="Example: tidelog groups list --state Empty")
def list_command(
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only groups in this state, such as Stable or Empty.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--type", metavar="classic|consumer|share", help="Only groups of this type.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the groups with their states and types."""
    states, kinds = _chosen(state, STATE_NAMES, "--state"), _chosen(kind, TYPE_NAMES, "--type")
    cluster = KafkaCluster(bootstrap, properties)
    others = [each for each in kinds if each != SHARE]
    listings: list[GroupListing] = []
    with cluster.errors(), cluster.admin() as admin, ShareGroups(cluster) as shares:
        if others or not kinds:
            listings += admin.list_groups(states=states, types=others)
        if SHARE in kinds or not kinds:
            listings += [each for each in shares.listings() if not states or each.state in states]
    listings.sort()
    rows = [(listing.name, state_name(listing.state), type_name(listing.type)) for listing in listings]
    if as_json:
        for name, state_text, type_text in rows:
            show_json({"group": name, "state": state_text, "type": type_text})
        return
    console = make_console()
    if rows:
        show_table(console, ("Group", "State", "Type"), rows)
    else:
        say(console, "No group matches. To see all groups: tidelog groups list" if states or kinds else NO_GROUPS)


@app.command("describe", epilog="Example: tidelog groups describe billing --watch")
def describe_command(
    names: NamesArgument = None,
    group: GroupOption = None,
    all_groups: AllGroupsOption = False,
    members: Annotated[bool, typer.Option("--members", help="Show the members and what each is assigned.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show one line for each group.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Show the partitions with their lag. This is the default.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the partitions and the members.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat, with rates, until interrupted.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks with --watch.")] = 2.0,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a group's members, its partitions with committed offsets, and its lag in messages and seconds."""
    cluster = KafkaCluster(bootstrap, properties)
    console = make_console()
    is_with_members, is_with_partitions = members or verbose, offsets or verbose or not (members or state)

    def show(found: GroupLag) -> None:
        if as_json:
            show_json(group_document(found))
            return
        say(console, group_line(found))
        if is_with_partitions:
            show_partitions(console, found, with_rates=watch)
        if is_with_members:
            show_members(console, found.group)

    with cluster.errors(), cluster.admin() as admin, ShareGroups(cluster) as shares:
        wanted = _names(admin, shares, names, group, all_groups)
        meter = LagMeter(cluster, admin, shares)
        while True:
            measured = [meter.measure(name) for name in wanted]
            if watch and console.is_terminal and not as_json:
                console.clear()
            if not measured and not as_json:
                say(console, NO_GROUPS)
            for each in measured:
                show(each)
            sys.stdout.flush()  # A pipe would keep the lines until its buffer is full.
            if not watch:
                return
            time.sleep(interval)


@app.command("offsets", epilog="Example: tidelog groups offsets billing --json")
def offsets_command(
    names: NamesArgument = None,
    group: GroupOption = None,
    all_groups: AllGroupsOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the committed offsets as they are stored, with leader epochs and metadata."""
    cluster = KafkaCluster(bootstrap, properties)
    console = make_console()
    with cluster.errors(), cluster.admin() as admin, ShareGroups(cluster) as shares:
        for name in _names(admin, shares, names, group, all_groups):
            found = find_group(admin, shares, name).offsets
            bounds = existing_bounds(admin, found)
            if as_json:
                for partition, at in found.items():
                    show_json(committed_document(name, partition, at, bounds.get(partition)))
            elif found:
                say(console, f"{name}:")
                show_committed(console, found, bounds)
            else:
                say(
                    console,
                    f"{name} has not committed any offsets. To set them: tidelog groups reset {name} --topic TOPIC --to-earliest",
                )


app.command("reset", epilog=groups_reset.EPILOG)(groups_reset.reset_command)


@app.command("delete", epilog="Example: tidelog groups delete billing")
def delete_command(
    names: NamesArgument = None,
    group: GroupOption = None,
    all_groups: AllGroupsOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete groups with their committed offsets. A group that has members is refused."""
    cluster = KafkaCluster(bootstrap, properties)
    console = make_console()
    with cluster.errors(), cluster.admin() as admin, ShareGroups(cluster) as shares:
        wanted = _names(admin, shares, names, group, all_groups)
        if not wanted:
            if not as_json:
                say(console, NO_GROUPS)
            return
        shared = set()
        for name in wanted:
            found = find_group(admin, shares, name)
            refuse_live(found.group, "deleted")
            if found.is_shared:
                shared.add(name)
        confirm(f"Delete {', '.join(wanted)} with all committed offsets? This cannot be undone.", yes)
        for name in wanted:
            try:
                if name in shared:
                    shares.delete(name)
                else:
                    admin.delete_group(name)
            except TidelogError as error:
                raise CommandFailed(f"group {name} was not deleted: {cluster.reason(error)}") from error
            if as_json:
                show_json({"group": name, "deleted": True})
            else:
                say(console, f"Deleted {name}.")


app.command("desired", epilog=groups_desired.EPILOG)(groups_desired.desired_command)


def _names(
    admin: Admin, shares: ShareGroups, names: Sequence[str] | None, options: Sequence[str] | None, is_all: bool
) -> list[str]:
    given = list(dict.fromkeys([*(names or ()), *(options or ())]))
    if is_all and given:
        raise CommandFailed("give either the names of groups or --all-groups, not both")
    if is_all:
        return sorted(listing.name for listing in [*admin.list_groups(), *shares.listings()])
    if not given:
        raise CommandFailed("no group is given; add its name, or --all-groups")
    return given


def type_name(kind: str) -> str:
    return TYPE_NAMES.get(kind, "classic") if kind else ""


def _chosen(texts: Sequence[str] | None, known: Mapping[str, str], option: str) -> list[str]:
    """Parse names in any case, also several separated by commas, as Kafka's tools accept them."""
    by_word = {name.lower(): value for value, name in known.items()}
    words = [word.strip().lower() for text in texts or () for word in text.split(",")]
    for word in words:
        if word not in by_word:
            raise CommandFailed(f"{option} {word}: expected any of {', '.join(by_word)}")
    return [by_word[word] for word in words]


# -- text ------------------------------------------------------------------------------------------------------------------------


def group_line(found: GroupLag) -> str:
    group = found.group
    parts = [state_name(group.state)]
    if group.type:
        parts.append(f"{type_name(group.type)} protocol" + (f" ({group.assignor})" if group.assignor else ""))
    parts.append(count_of(len(group.members), "member"))
    if group.coordinator:
        parts.append(f"coordinated by {_coordinator_text(group)}")
    behind = f"{count_of(found.messages, 'message')} behind" if found.messages else "nothing unread"
    if found.messages and found.seconds is not None:
        behind += f", {duration_text(found.seconds)}"
    lost = sum(lag.lost_messages for lag in found.lags)
    if lost:
        behind += f"; {count_of(lost, 'message')} deleted unread"
    return f"{group.name}: {', '.join(parts)}; {behind if found.lags else 'no committed offsets'}"


def show_partitions(console: Console, found: GroupLag, *, with_rates: bool) -> None:
    if not found.rows:
        say(
            console,
            f"No offsets are committed and no partitions assigned. "
            f"To set offsets: tidelog groups reset {found.group.name} --topic TOPIC --to-earliest",
        )
        return
    columns = ["Topic", "Partition", "Committed", "End", "Lag", "Behind", "Deleted in"]
    columns += ["In/s", "Out/s", "Caught up in"] if with_rates else []
    show_table(console, [*columns, "Member"], [_partition_row(row, with_rates) for row in found.rows])


def _partition_row(row: LagRow, with_rates: bool) -> list[object]:
    lag = row.lag
    cells: list[object] = [
        row.topic,
        row.partition,
        UNKNOWN if row.committed is None else row.committed.offset,
        "no such partition" if row.bounds is None else row.bounds.end,
        UNKNOWN if lag is None else lag.lag_messages,
        UNKNOWN if lag is None else duration_text(lag.lag_seconds),
        UNKNOWN if lag is None else f"{lag.lost_messages:,} lost" if lag.lost_messages else duration_text(lag.deletion_seconds),
    ]
    if with_rates:
        cells += [
            _rate(lag.produced_per_second if lag else None),
            _rate(lag.consumed_per_second if lag else None),
            duration_text(lag.drain_seconds if lag else None),
        ]
    return [*cells, UNKNOWN if row.member is None else f"{row.member.client_id} {row.member.host}"]


def _rate(per_second: float | None) -> str:
    return UNKNOWN if per_second is None else f"{per_second:,.1f}"


def _coordinator_text(group: GroupDescription) -> str:
    if group.coordinator is None:
        return ""
    broker_id, host, port = group.coordinator
    return f"broker {broker_id} ({host}:{port})"


def show_members(console: Console, group: GroupDescription) -> None:
    if not group.members:
        say(console, f"{group.name} has no members. To read with it: tidelog consume TOPIC --group {group.name}")
        return
    rows = [
        (
            member.member_id,
            member.client_id,
            member.host,
            member.group_instance_id or UNKNOWN,
            len(member.partitions),
            partitions_text(member.partitions),
        )
        for member in group.members
    ]
    show_table(console, ("Member", "Client", "Host", "Instance", "Partitions", "Assignment"), rows)


def show_committed(
    console: Console,
    offsets: Mapping[TopicPartition, CommittedOffset],
    bounds: Mapping[TopicPartition, PartitionBounds],
) -> None:
    rows = []
    for partition, at in offsets.items():
        start, end = bounds.get(partition, (UNKNOWN, UNKNOWN))
        rows.append((*partition, at.offset, start, end, _epoch(at), at.metadata))
    show_table(console, ("Topic", "Partition", "Committed", "Start", "End", "Leader epoch", "Metadata"), rows)


def _epoch(at: CommittedOffset) -> object:
    return UNKNOWN if at.leader_epoch is None else at.leader_epoch


def committed_document(
    group_id: str, partition: tuple[str, int], at: CommittedOffset, bounds: PartitionBounds | None
) -> dict[str, object]:
    return {
        "group": group_id,
        "topic": partition[0],
        "partition": partition[1],
        "committed_offset": at.offset,
        "start_offset": bounds.start if bounds else None,
        "end_offset": bounds.end if bounds else None,
        "leader_epoch": at.leader_epoch,
        "metadata": at.metadata,
    }


def group_document(found: GroupLag) -> dict[str, object]:
    group = found.group
    return {
        "group": group.name,
        "state": state_name(group.state),
        "type": type_name(group.type),
        "assignor": group.assignor,
        "coordinator": _coordinator_text(group),
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


def _partition_document(row: LagRow) -> dict[str, object]:
    lag = row.lag
    return {
        "topic": row.topic,
        "partition": row.partition,
        "committed_offset": row.committed.offset if row.committed else None,
        "start_offset": row.bounds.start if row.bounds else None,
        "end_offset": row.bounds.end if row.bounds else None,
        "lag_messages": lag.lag_messages if lag else None,
        "lag_seconds": lag.lag_seconds if lag else None,
        "lost_messages": lag.lost_messages if lag else None,
        "deletion_seconds": lag.deletion_seconds if lag else None,
        "produced_per_second": lag.produced_per_second if lag else None,
        "consumed_per_second": lag.consumed_per_second if lag else None,
        # JSON has no infinity: a lag that does not drain is null, and the rates tell why.
        "drain_seconds": lag.drain_seconds
        if lag and lag.drain_seconds is not None and not math.isinf(lag.drain_seconds)
        else None,
        "member_id": row.member.member_id if row.member else None,
    }
