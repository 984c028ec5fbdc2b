"""``tidelog groups reset``: where a group goes on reading. The flags are those of Kafka's own tool.

Nothing is changed without ``--execute``. A group that is in use is refused: its members would commit over it.
"""

import csv
import io
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import OffsetSpec

from tidelog.cli.consume import read_timestamp
from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_facts import Committed, Partition, Span, committed, describe, offsets_by, refuse_live, spans
from tidelog.cli.groups_reset_plan import Reset, bounded, read_csv, read_duration, read_topics, shifted
from tidelog.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    REQUEST_SECONDS_MAX,
    BootstrapOption,
    Cluster,
    JsonOption,
    PropertiesOption,
)
from tidelog.cli.output import count_of, make_console, say, show_json, show_table

EPILOG = "Example: tidelog groups reset billing --topic orders --to-datetime 2026-01-31T12:00:00Z --execute"


class Target(NamedTuple):
    """What was asked for: the option's name, and its value where it has one."""

    option: str
    value: Any = None


def reset_command(
    name: Annotated[str | None, typer.Argument(metavar="GROUP", help="The group's name.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", metavar="NAME", help="As GROUP.")] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC[:0,1]", help="A topic, or some of its partitions.")
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Every topic that the group has offsets of.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest message.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: only what comes from now on.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To where it is: for --export, and to bring offsets in.")
    ] = False,
    to_datetime: Annotated[
        str | None, typer.Option("--to-datetime", help="To the first message of this time: ISO 8601 or milliseconds since 1970.")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", help="To the first message that is not older: PT1H30M, P7D, 90m.")
    ] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by", help="So many on; with a minus, back.")] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from-file", metavar="CSV", help="To what the file says: topic,partition,offset; - reads stdin."),
    ] = None,
    export: Annotated[bool, typer.Option("--export", help="Print what would be, as such a file.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without this, only show it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it, as is the default.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a group's committed offsets. Shows what would change; changes it with --execute."""
    if name is not None and group is not None and name != group:
        raise CommandFailed(f"which group, {name} or {group}?")
    group_id = name or group
    if not group_id:
        raise CommandFailed("which group? Give its name")
    if execute and dry_run:
        raise CommandFailed("give only one of --execute and --dry-run")
    target = _target(
        {
            "--to-offset": to_offset,
            "--to-earliest": to_earliest or None,
            "--to-latest": to_latest or None,
            "--to-current": to_current or None,
            "--to-datetime": None if to_datetime is None else read_timestamp(to_datetime, "--to-datetime"),
            "--by-duration": None if by_duration is None else _ago_ms(by_duration),
            "--shift-by": shift_by,
            "--from-file": from_file,
        }
    )
    if target.option != "--from-file" and bool(topic) == all_topics:
        raise CommandFailed("which topics? Give --topic TOPIC, or --all-topics for those that the group has offsets of")
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    (found,) = describe(cluster, admin, [group_id])
    refuse_live(found, "reset")
    before = committed(cluster, admin, group_id)
    resets = _plan(cluster, admin, group_id, target, topic, before)
    if execute:
        _commit(cluster, admin, group_id, resets)
    if export:
        _print_csv(resets)
    else:
        _show(group_id, resets, execute, as_json)


def _target(options: dict[str, Any]) -> Target:
    given = [Target(option, value) for option, value in options.items() if value is not None]
    if len(given) == 1:
        return given[0]
    if given:
        raise CommandFailed(f"give only one of {', '.join(target.option for target in given)}")
    raise CommandFailed(f"where to? Give one of {', '.join(options)}")


def _ago_ms(text: str) -> int:
    return max(0, int(time.time() * 1000) - int(read_duration(text).total_seconds() * 1000))


def _plan(
    cluster: Cluster,
    admin: Any,
    group_id: str,
    target: Target,
    topics: list[str] | None,
    before: dict[Partition, Committed],
) -> list[Reset]:
    if target.option == "--from-file":
        wanted = _read_file(target.value, group_id)
        if topics:
            chosen = read_topics(topics, _partition_counts(cluster, admin))
            wanted = {partition: offset for partition, offset in wanted.items() if partition in chosen}
        partitions = sorted(wanted)
    else:
        wanted = {}
        partitions = read_topics(topics, _partition_counts(cluster, admin)) if topics else sorted(before)
    if not partitions:
        raise CommandFailed(f"group {group_id} has no committed offsets: name the topics, with --topic")
    found = spans(cluster, admin, partitions)
    for topic, partition in partitions:
        if (topic, partition) not in found:
            raise CommandFailed(f"there is no partition {topic}-{partition} at {cluster.bootstrap}")
    decide = _decision(cluster, admin, target, wanted, partitions)
    offsets = {partition: before[partition].offset if partition in before else None for partition in partitions}
    return [decide(partition, offsets[partition], found[partition]) for partition in partitions]


Decision = Callable[[Partition, int | None, Span], Reset]


def _decision(
    cluster: Cluster, admin: Any, target: Target, wanted: dict[Partition, int], partitions: list[Partition]
) -> Decision:
    option, value = target
    if option == "--shift-by":
        return lambda partition, before, span: shifted(partition, before, value, span)
    if option == "--from-file":
        return lambda partition, before, span: bounded(partition, before, wanted[partition], span)
    if option == "--to-offset":
        return lambda partition, before, span: bounded(partition, before, value, span)
    if option == "--to-earliest":
        return lambda partition, before, span: Reset(*partition, before, span.start)
    if option == "--to-latest":
        return lambda partition, before, span: Reset(*partition, before, span.end)
    if option == "--to-current":
        return lambda partition, before, span: bounded(partition, before, span.end if before is None else before, span)
    at_time = offsets_by(cluster, admin, partitions, OffsetSpec.for_timestamp(value))

    def by_time(partition: Partition, before: int | None, span: Span) -> Reset:
        offset = at_time.get(partition, -1)
        if offset < 0:
            return Reset(*partition, before, span.end, "no message is so young")
        return Reset(*partition, before, offset)

    return by_time


def _partition_counts(cluster: Cluster, admin: Any) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in cluster.metadata(admin).topics.items()}


def _read_file(path: str, group_id: str) -> dict[Partition, int]:
    if path == "-":
        return read_csv("standard input", sys.stdin, group_id)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return read_csv(path, file, group_id)
    except UnicodeDecodeError:
        raise CommandFailed(f"{path} is not text") from None


def _commit(cluster: Cluster, admin: Any, group_id: str, resets: list[Reset]) -> None:
    places = [Place(reset.topic, reset.partition, reset.after) for reset in resets]
    asked = ConsumerGroupTopicPartitions(group_id, places)
    with cluster.errors():
        done = admin.alter_consumer_group_offsets([asked], request_timeout=REQUEST_SECONDS_MAX)[group_id].result()
    for place in done.topic_partitions:
        if place.error is not None:
            raise CommandFailed(f"{place.topic}-{place.partition} was not reset: {cluster.reason(place.error)}")


def _print_csv(resets: list[Reset]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([reset.topic, reset.partition, reset.after] for reset in resets)
    sys.stdout.write(text.getvalue())


def _show(group_id: str, resets: list[Reset], is_done: bool, as_json: bool) -> None:
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
        say(console, "Nothing was changed. To do it: the same with --execute")


def _change(reset: Reset) -> str:
    return "-" if reset.before is None else f"{reset.after - reset.before:+,}"
