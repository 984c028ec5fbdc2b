"""``tidelog groups reset``: move a group's committed offsets. The flags are those of Kafka's own tool.

Nothing is changed without ``--execute``. A group that is in use is refused, because its members would commit over the change.
The file of ``--from-file`` and ``--export`` is CSV without a header, as Kafka's tool has it: ``topic,partition,offset``, or with
the group in front.
"""

import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import typer

from tidelog.cli.completion import complete_groups
from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    KafkaCluster,
    PropertiesOption,
    choose_one,
    existing_bounds,
)
from tidelog.cli.output import count_of, make_console, say, show_json, show_table
from tidelog.cli.share_groups import ShareGroups
from tidelog.cli.times import ago_ms, read_timestamp
from tidelog.client.admin import Admin, CommittedOffset, GroupDescription, PartitionBounds
from tidelog.client.topic_partition import TopicPartition

EPILOG = "Example: tidelog groups reset billing --topic orders --to-datetime 2026-01-31T12:00:00Z --execute"
# An error is one line, and it should stay readable.
CLIENTS_SHOWN_MAX = 3

# The names of Kafka's tools for the states of librdkafka.
STATE_NAMES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "DEAD": "Dead",
    "EMPTY": "Empty",
}
# librdkafka has no names for the states of a group of the new protocol that is between two assignments.
OTHER_STATE = "Rebalancing"

NameArgument = Annotated[str | None, typer.Argument(metavar="GROUP", help="The group's name.", autocompletion=complete_groups)]
GroupOption = Annotated[
    str | None, typer.Option("--group", "-g", metavar="NAME", help="The same as GROUP.", autocompletion=complete_groups)
]


class OffsetReset(NamedTuple):
    topic: str
    partition: int
    before: int | None
    """The committed offset; None if there is no commit."""
    after: int
    note: str = ""
    """Why it differs from what the user asked for."""


def bounded(partition: TopicPartition, before: int | None, wanted: int, bounds: PartitionBounds) -> OffsetReset:
    """An offset outside the log becomes the nearest one inside."""
    after = min(max(wanted, bounds.start), bounds.end)
    note = "" if after == wanted else f"{wanted} is {'below the start' if wanted < bounds.start else 'beyond the end'}"
    return OffsetReset(*partition, before, after, note)


def shifted(partition: TopicPartition, before: int | None, by: int, bounds: PartitionBounds) -> OffsetReset:
    if before is None:
        raise CommandFailed(
            f"{partition[0]}-{partition[1]} has no committed offset to shift; use --to-earliest or another target"
        )
    return bounded(partition, before, before + by, bounds)


class ResetTarget(NamedTuple):
    """Where the offsets go: the option that was given, and its value."""

    option: str
    value: Any


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """One command line, checked."""

    group_id: str
    target: ResetTarget
    topics: Sequence[str]


def reset_command(
    name: NameArgument = None,
    group: GroupOption = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:0,1]", help="A topic, or some of its partitions; repeatable."),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Every topic in which the group has offsets.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="Move to this offset.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Move to the oldest message.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Move to the end, to read only new messages.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="Stay, but within the log; useful with --export.")] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", help="Move to the first message of this time: ISO 8601 or milliseconds since 1970."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", help="Move to the first message that is not older: PT1H30M, P7D, 90m.")
    ] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by", help="Move by this many offsets; negative is back.")] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from-file", metavar="CSV", help="Read topic,partition,offset from a file; - is standard input."),
    ] = None,
    export: Annotated[bool, typer.Option("--export", help="Print the new offsets as such a file.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Change the offsets. Without this, only show the change.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the change. This is the default.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a group's committed offsets. Shows what would change, and changes it with --execute."""
    group_id = choose_one(name, group, "group")
    if execute and dry_run:
        raise CommandFailed("give only one of --execute and --dry-run")
    target = _target(
        {
            "--to-offset": to_offset,
            "--to-earliest": to_earliest or None,
            "--to-latest": to_latest or None,
            "--to-current": to_current or None,
            "--to-datetime": None if to_datetime is None else read_timestamp(to_datetime, "--to-datetime"),
            "--by-duration": None if by_duration is None else ago_ms(by_duration),
            "--shift-by": shift_by,
            "--from-file": from_file,
        }
    )
    if target.option != "--from-file" and bool(topic) == all_topics:
        raise CommandFailed("which topics? Give --topic TOPIC, or --all-topics for those in which the group has offsets")
    _reset(KafkaCluster(bootstrap, properties), ResetRequest(group_id, target, topic or ()), execute, export, as_json)


def _reset(cluster: KafkaCluster, request: ResetRequest, execute: bool, export: bool, as_json: bool) -> None:
    with cluster.errors(), cluster.admin() as admin, ShareGroups(cluster) as shares:
        shared = shares.find(request.group_id)
        refuse_live(admin.describe_groups([request.group_id])[request.group_id] if shared is None else shared.group, "reset")
        resets = _plan(admin, request, admin.committed_offsets(request.group_id) if shared is None else shared.starts)
        offsets = {(each.topic, each.partition): each.after for each in resets}
        if execute and shared is None:
            admin.set_group_offsets(request.group_id, offsets)
        elif execute:
            shares.set_offsets(request.group_id, offsets)
    if export:
        _print_csv(resets)
    else:
        _show(request.group_id, resets, execute, as_json)


def state_name(state: str) -> str:
    return STATE_NAMES.get(state, OTHER_STATE)


def refuse_live(group: GroupDescription, verb: str) -> None:
    """Refuse a group with members: they would continue from where they are and commit over the change."""
    if not group.members and group.state in ("EMPTY", "DEAD"):
        return
    clients = sorted({f"{member.client_id} at {member.host}" for member in group.members})
    who = f"{count_of(len(group.members), 'member')} ({', '.join(clients[:CLIENTS_SHOWN_MAX])})" if clients else "no members yet"
    raise CommandFailed(
        f"group {group.name} cannot be {verb} while it is in use: it is {state_name(group.state)} with {who}; "
        "stop its members first"
    )


def _target(options: dict[str, Any]) -> ResetTarget:
    given = [ResetTarget(option, value) for option, value in options.items() if value is not None]
    if len(given) == 1:
        return given[0]
    if given:
        raise CommandFailed(f"give only one of {', '.join(target.option for target in given)}")
    raise CommandFailed(f"where should the offsets go? Give one of {', '.join(options)}")


def _plan(admin: Admin, request: ResetRequest, before: Mapping[TopicPartition, CommittedOffset]) -> list[OffsetReset]:
    counts = {name: len(partitions) for name, partitions in admin.describe_cluster().topics.items()}
    chosen = read_topics(request.topics, counts)
    wanted: dict[TopicPartition, int] = {}
    if request.target.option == "--from-file":
        wanted = _read_file(request.target.value, request.group_id)
        partitions = sorted(partition for partition in wanted if not request.topics or partition in chosen)
    else:
        partitions = chosen if request.topics else sorted(before)
    if not partitions:
        raise CommandFailed(f"group {request.group_id} has no committed offsets to move; name the topics with --topic")
    bounds = existing_bounds(admin, partitions)
    for partition in partitions:
        if partition not in bounds:
            raise CommandFailed(f"there is no partition {partition} at {admin.addresses}")
    decide = _decision(admin, request.target, wanted, partitions)
    offsets = {partition: before[partition].offset if partition in before else None for partition in partitions}
    return [decide(partition, offsets[partition], bounds[partition]) for partition in partitions]


ResetDecision = Callable[[TopicPartition, int | None, PartitionBounds], OffsetReset]


def _decision(
    admin: Admin, target: ResetTarget, wanted: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition]
) -> ResetDecision:
    option, value = target
    if option == "--shift-by":
        return lambda partition, before, bounds: shifted(partition, before, value, bounds)
    if option == "--from-file":
        return lambda partition, before, bounds: bounded(partition, before, wanted[partition], bounds)
    if option == "--to-offset":
        return lambda partition, before, bounds: bounded(partition, before, value, bounds)
    if option == "--to-earliest":
        return lambda partition, before, bounds: OffsetReset(*partition, before, bounds.start)
    if option == "--to-latest":
        return lambda partition, before, bounds: OffsetReset(*partition, before, bounds.end)
    if option == "--to-current":
        return lambda partition, before, bounds: bounded(partition, before, bounds.end if before is None else before, bounds)
    at_time = admin.list_offsets(partitions, value)

    def by_time(partition: TopicPartition, before: int | None, bounds: PartitionBounds) -> OffsetReset:
        offset = at_time.get(partition)
        if offset is None:
            return OffsetReset(*partition, before, bounds.end, "every message is older")
        return OffsetReset(*partition, before, offset)

    return by_time


def read_topics(texts: Iterable[str], partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    """``orders`` means all partitions, ``orders:0,2`` some of them."""
    found: dict[TopicPartition, None] = {}
    for text in texts:
        topic, separator, indexes = text.rpartition(":")
        if not separator:
            topic, indexes = text, ""
        count = partition_counts.get(topic)
        if count is None:
            raise CommandFailed(f"there is no topic {topic}; to see the topics: tidelog topics list")
        for index in indexes.split(",") if separator else map(str, range(count)):
            if not (index.isascii() and index.isdigit()):
                raise CommandFailed(f"--topic {text}: expected TOPIC or TOPIC:0,1,2")
            if int(index) >= count:
                raise CommandFailed(f"{topic} has no partition {int(index)}, only 0 to {count - 1}")
            found[TopicPartition(topic, int(index))] = None
    return sorted(found)


def read_csv(path: str, lines: Iterable[str], group_id: str) -> dict[TopicPartition, int]:
    """The offsets that the file has for this group; lines about other groups are skipped."""
    found: dict[TopicPartition, int] = {}
    others: set[str] = set()
    for number, fields in enumerate(csv.reader(lines), start=1):
        if not fields:
            continue
        if len(fields) not in (3, 4):
            raise CommandFailed(f"{path}, line {number}: expected topic,partition,offset")
        *group, topic, partition, offset = (field.strip() for field in fields)
        if not all(text.isascii() and text.isdigit() for text in (partition, offset)):
            raise CommandFailed(f"{path}, line {number}: expected whole numbers for partition and offset")
        if group and group[0] != group_id:
            others.add(group[0])
        elif TopicPartition(topic, int(partition)) in found:
            raise CommandFailed(f"{path}, line {number}: {topic}-{int(partition)} occurs twice")
        else:
            found[TopicPartition(topic, int(partition))] = int(offset)
    if not found:
        known = f", only for {', '.join(sorted(others))}" if others else ""
        raise CommandFailed(f"{path} has no offsets for group {group_id}{known}")
    return found


def _read_file(path: str, group_id: str) -> dict[TopicPartition, int]:
    if path == "-":
        return read_csv("standard input", sys.stdin, group_id)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return read_csv(path, file, group_id)
    except UnicodeDecodeError:
        raise CommandFailed(f"{path} is not a text file") from None


def _print_csv(resets: Sequence[OffsetReset]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([reset.topic, reset.partition, reset.after] for reset in resets)
    sys.stdout.write(text.getvalue())


def _show(group_id: str, resets: Sequence[OffsetReset], is_done: bool, as_json: bool) -> None:
    if as_json:
        for reset in resets:
            show_json({"group": group_id, **reset._asdict(), "executed": is_done})
        return
    console = make_console()
    rows = [
        (reset.topic, reset.partition, "-" if reset.before is None else reset.before, reset.after, _change(reset), reset.note)
        for reset in resets
    ]
    show_table(console, ("Topic", "Partition", "Committed", "New", "Change", ""), rows)
    if is_done:
        say(console, f"Reset {count_of(len(resets), 'partition')} of {group_id}.")
    else:
        say(console, "Nothing was changed. To apply it, repeat the command with --execute.")


def _change(reset: OffsetReset) -> str:
    return "-" if reset.before is None else f"{reset.after - reset.before:+,}"
