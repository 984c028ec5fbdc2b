"""``tidelog groups``: list, describe, offsets, reset, delete, desired, on any Kafka."""

import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaException

from tidelog.cli import groups_desired, groups_reset
from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_facts import committed, describe, find, no_such_group, refuse_live, spans, state_name, type_name
from tidelog.cli.groups_lag import GroupLag, LagMeter
from tidelog.cli.groups_text import (
    committed_document,
    group_document,
    group_line,
    show_committed,
    show_members,
    show_partitions,
)
from tidelog.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    REQUEST_SECONDS_MAX,
    BootstrapOption,
    Cluster,
    JsonOption,
    PropertiesOption,
)
from tidelog.cli.output import confirm, make_console, say, show_json, show_table

app = typer.Typer(
    help="List, describe, reset and delete consumer groups; their offsets, lag and how many consumers they need.",
    no_args_is_help=True,
)

NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="GROUP...", help="The groups' names.")]
GroupOption = Annotated[list[str] | None, typer.Option("--group", "-g", metavar="NAME", help="As GROUP; several are fine.")]
AllGroupsOption = Annotated[bool, typer.Option("--all-groups", help="Every group there is.")]

_STATES = {state_name(state).lower(): state for state in ConsumerGroupState if state is not ConsumerGroupState.UNKNOWN}
_TYPES = {type_name(kind): kind for kind in ConsumerGroupType if kind is not ConsumerGroupType.UNKNOWN}
NO_GROUPS = "There are no groups. A consumer makes one: tidelog consume TOPIC --group NAME"


@app.command("list", epilog="Example: tidelog groups list --state Empty")
def list_command(
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only those in this state, say Stable or Empty.")
    ] = None,
    kind: Annotated[list[str] | None, typer.Option("--type", metavar="classic|consumer", help="Only those of this type.")] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the groups, with their states and types."""
    states, kinds = _chosen(state, _STATES, "--state"), _chosen(kind, _TYPES, "--type")
    cluster = Cluster(bootstrap, properties)
    listings = _list(cluster, cluster.admin(), states, kinds)
    rows = [(listing.group_id, state_name(listing.state), type_name(listing.type)) for listing in listings]
    if as_json:
        for group_id, state_text, kind_text in rows:
            show_json({"group": group_id, "state": state_text, "type": kind_text})
        return
    console = make_console()
    if rows:
        show_table(console, ("Group", "State", "Type"), rows)
    else:
        say(console, "No group is like that. All of them: tidelog groups list" if states or kinds else NO_GROUPS)


@app.command("describe", epilog="Example: tidelog groups describe billing --watch")
def describe_command(
    names: NamesArgument = None,
    group: GroupOption = None,
    all_groups: AllGroupsOption = False,
    members: Annotated[bool, typer.Option("--members", help="Who is in it, and what each has been assigned.")] = False,
    state: Annotated[bool, typer.Option("--state", help="One line for each group.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Its partitions with their lag; what is shown by default.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="The partitions and the members.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again, with rates, until interrupted.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks of --watch.")] = 2.0,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a group's members, its partitions with committed offsets, and its lag in messages and seconds."""
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    wanted = _names(cluster, admin, names, group, all_groups)
    meter = LagMeter(cluster, admin)
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

    def look() -> None:
        found = [_measure(cluster, admin, meter, name) for name in wanted]
        if watch and console.is_terminal and not as_json:
            console.clear()
        if not found and not as_json:
            say(console, NO_GROUPS)
        for each in found:
            show(each)
        sys.stdout.flush()  # A pipe would keep it until it is full.

    look()
    while watch:
        time.sleep(interval)
        look()


@app.command("offsets", epilog="Example: tidelog groups offsets billing --json")
def offsets_command(
    names: NamesArgument = None,
    group: GroupOption = None,
    all_groups: AllGroupsOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the committed offsets as they are kept, with leader epochs and metadata."""
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    console = make_console()
    for name in _names(cluster, admin, names, group, all_groups):
        found = find(cluster, admin, name)[1]
        ends = spans(cluster, admin, found)
        if as_json:
            for partition, at in found.items():
                show_json(committed_document(name, partition, at, ends.get(partition)))
        elif not found:
            say(
                console,
                f"{name} has committed nothing yet. To set it: tidelog groups reset {name} --topic TOPIC --to-earliest",
            )
        else:
            say(console, f"{name}:")
            show_committed(console, found, ends)


app.command("reset", epilog=groups_reset.EPILOG)(groups_reset.reset_command)


@app.command("delete", epilog="Example: tidelog groups delete billing")
def delete_command(
    names: NamesArgument = None,
    group: GroupOption = None,
    all_groups: AllGroupsOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
) -> None:
    """Delete groups with their committed offsets. One that has members is refused."""
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    wanted = _names(cluster, admin, names, group, all_groups)
    console = make_console()
    if not wanted:
        say(console, NO_GROUPS)
        return
    for found in describe(cluster, admin, wanted):
        if found.state == "Dead" and not committed(cluster, admin, found.group_id):
            raise no_such_group(cluster, found.group_id)
        refuse_live(found, "deleted")
    confirm(f"Delete {', '.join(wanted)} with all committed offsets, for good?", yes)
    with cluster.errors():
        futures = admin.delete_consumer_groups(wanted, request_timeout=REQUEST_SECONDS_MAX)
    for name in wanted:
        try:
            futures[name].result()
        except KafkaException as error:
            raise CommandFailed(f"group {name} was not deleted: {cluster.reason(error.args[0])}") from error
        say(console, f"Deleted {name}.")


app.command("desired", epilog=groups_desired.EPILOG)(groups_desired.desired_command)


def _measure(cluster: Cluster, admin: Any, meter: LagMeter, name: str) -> GroupLag:
    group, offsets = find(cluster, admin, name)
    return meter.measure(group, offsets)


def _names(cluster: Cluster, admin: Any, names: Sequence[str] | None, options: Sequence[str] | None, is_all: bool) -> list[str]:
    given = list(dict.fromkeys([*(names or ()), *(options or ())]))
    if is_all and given:
        raise CommandFailed("give either groups or --all-groups")
    if is_all:
        return [listing.group_id for listing in _list(cluster, admin, set(), set())]
    if not given:
        raise CommandFailed("which group? Give its name, or --all-groups")
    return given


def _list(cluster: Cluster, admin: Any, states: set[Any], kinds: set[Any]) -> list[Any]:
    with cluster.errors():
        result = admin.list_consumer_groups(states=states, types=kinds, request_timeout=REQUEST_SECONDS_MAX).result()
        for error in result.errors:
            raise error
    return sorted(result.valid, key=lambda listing: listing.group_id)


def _chosen(texts: Sequence[str] | None, known: dict[str, Any], option: str) -> set[Any]:
    """Several, also with commas between them, as Kafka's tools take them."""
    words = [word.strip().lower() for text in texts or () for word in text.split(",")]
    for word in words:
        if word not in known:
            raise CommandFailed(f"{option} {word}: expected any of {', '.join(known)}")
    return {known[word] for word in words}
