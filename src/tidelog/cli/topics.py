"""``tidelog topics``: list, create, describe, alter and delete topics, and find their hot keys, on any Kafka.

``hotkeys`` works on a sample: the newest messages of every partition, in proportion to what the partition holds, so that a key's
share of the sample is its share of the topic. The sample is counted in bounded memory.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from tidelog.cli.completion import complete_topics
from tidelog.cli.configs import setting_text
from tidelog.cli.errors import CommandFailed, warn
from tidelog.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    KafkaCluster,
    PropertiesOption,
    no_such_topic,
    partitions_of,
    read_pairs,
)
from tidelog.cli.output import (
    bytes_text,
    confirm,
    count_of,
    json_field,
    make_console,
    say,
    show_json,
    show_table,
)
from tidelog.cli.times import read_timestamp
from tidelog.client.admin import Admin, IsolationName, PartitionBounds, PartitionDescription
from tidelog.client.hot_keys import HotKey, HotKeys, PartitionShare
from tidelog.client.message import Message
from tidelog.client.raw_consumer import RawConsumer
from tidelog.client.topic_partition import TopicPartition

app = typer.Typer(
    help="List, create, describe, alter and delete topics, delete their oldest messages, and find their hot keys.",
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topics)]
NamesArgument = Annotated[
    list[str], typer.Argument(metavar="TOPIC...", help="The topics' names.", autocompletion=complete_topics)
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
# Topics that brokers keep for themselves, such as __consumer_offsets.
INTERNAL_PREFIX = "__"
# Arguments of ``Admin.create_topic``, which takes settings as keyword arguments as well.
_CREATE_ARGUMENTS = frozenset(("name", "partitions", "replication_factor", "exists_ok"))

SAMPLE_MESSAGES = 100_000
SAMPLE_MESSAGES_MAX = 10_000_000
BATCH_MESSAGES = 2_000
POLL_SECONDS = 0.5
# A broker that sends nothing for so long is gone.
SILENCE_SECONDS_MAX = 10.0
KEY_CHARACTERS_MAX = 60


@app.command("list", epilog="Example: tidelog topics list")
def list_command(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    internal: Annotated[bool, typer.Option("--internal", help="Include the topics that brokers keep for themselves.")] = False,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the topics."""
    cluster = KafkaCluster(bootstrap, properties)
    with cluster.errors(), cluster.admin() as admin:
        found = admin.describe_cluster().topics
    rows = [
        (name, len(partitions), max((len(partition.replicas) for partition in partitions), default=0))
        for name, partitions in found.items()
        if internal or not name.startswith(INTERNAL_PREFIX)
    ]
    if as_json:
        for name, count, replication_factor in rows:
            show_json({"topic": name, "partitions": count, "replication_factor": replication_factor})
        return
    console = make_console()
    if rows:
        show_table(console, ("Topic", "Partitions", "Replicas"), rows)
    else:
        say(console, "There are no topics yet. To create one: tidelog topics create greetings")


@app.command("create", epilog="Example: tidelog topics create orders --partitions 12 --config retention.ms=86400000")
def create_command(
    topic: NameArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=-1, help="How many partitions; -1 is the broker's default.")
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option("--replication-factor", "-r", min=-1, help="How many replicas of each; -1 is the broker's default."),
    ] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting of the topic; repeatable.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Accept a topic that already exists.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a topic."""
    configs: dict[str, Any] = {**read_pairs(config or [], "--config")}
    for name in _CREATE_ARGUMENTS.intersection(configs):
        raise CommandFailed(f"--config {name}: there is no such setting; use the option --{name.replace('_', '-')}")
    cluster = KafkaCluster(bootstrap, properties)
    with cluster.errors(), cluster.admin() as admin:
        is_new = not (if_not_exists and topic in admin.describe_cluster().topics)
        if is_new:
            admin.create_topic(topic, partitions=partitions, replication_factor=replication_factor, **configs)
        partition_count = len(partitions_of(admin, topic, is_new=is_new))
    if as_json:
        show_json({"topic": topic, "partitions": partition_count, "created": is_new})
        return
    count = count_of(partition_count, "partition")
    say(make_console(), f"Created {topic} with {count}." if is_new else f"{topic} already exists, with {count}.")


@app.command("describe", epilog="Example: tidelog topics describe orders")
def describe_command(
    topics: NamesArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a topic's partitions with their leaders, replicas and offsets, and its settings that are not defaults."""
    cluster = KafkaCluster(bootstrap, properties)
    console = make_console()
    with cluster.errors(), cluster.admin() as admin:
        for name in topics:
            found = admin.describe_cluster().topics.get(name)
            if found is None:
                raise no_such_topic(admin, name)
            bounds = admin.bounds([(name, each.partition) for each in found])
            documents = [_partition_document(each, bounds[TopicPartition(name, each.partition)]) for each in found]
            settings = admin.describe_configs("topic", name).values()
            configs = {each.name: setting_text(each) for each in settings if not each.is_default}
            if as_json:
                show_json({"topic": name, "partitions": documents, "configs": configs})
                continue
            changes = ", ".join(f"{key}={value}" for key, value in configs.items()) or "all settings are defaults"
            say(console, f"{name}: {count_of(len(found), 'partition')}; {changes}")
            rows = [tuple(_listed(value) for value in document.values()) for document in documents]
            show_table(console, ("Partition", "Leader", "Replicas", "In sync", "Start", "End", "Messages"), rows)


@app.command("alter", epilog="Example: tidelog topics alter orders --partitions 24 --config retention.ms=3600000")
def alter_command(
    topic: NameArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="How many partitions the topic will have in all.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="Change a setting; repeatable.")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="NAME", help="Restore a default; repeatable.")
    ] = None,
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add partitions to a topic, or change its settings."""
    if partitions is None and not config and not delete_config:
        raise CommandFailed("there is nothing to alter: add --partitions, --config or --delete-config")
    values: dict[str, str | None] = {**read_pairs(config or [], "--config"), **dict.fromkeys(delete_config or ())}
    cluster = KafkaCluster(bootstrap, properties)
    console = make_console()
    with cluster.errors(), cluster.admin() as admin:
        before = len(partitions_of(admin, topic))
        if partitions is not None:
            _confirm_partitions(topic, before, partitions, yes)
        if values:
            admin.alter_configs("topic", topic, values)
        if partitions is not None:
            admin.add_partitions(topic, partitions)
    if as_json:
        show_json({"topic": topic, "partitions": before if partitions is None else partitions, "changed": values})
        return
    if values:
        say(console, f"Changed the settings of {topic}.")
    if partitions is not None:
        say(console, f"{topic} now has {count_of(partitions, 'partition')}.")


def _confirm_partitions(topic: str, before: int, partitions: int, is_sure: bool) -> None:
    if partitions < before:
        raise CommandFailed(f"{topic} has {before} partitions, and partitions cannot be removed from a topic")
    if partitions > before:
        warn(
            f"keys move: with {partitions} partitions instead of {before}, most keys map to another partition, so the messages "
            "of a key from before and after the change are in different partitions and their order is lost"
        )
        confirm("Add the partitions?", is_sure)


@app.command("delete", epilog="Example: tidelog topics delete orders")
def delete_command(
    topics: NamesArgument,
    yes: YesOption = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Ignore topics that do not exist.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete topics with all their messages."""
    cluster = KafkaCluster(bootstrap, properties)
    with cluster.errors(), cluster.admin() as admin:
        existing = admin.describe_cluster().topics
        wanted = [name for name in topics if not if_exists or name in existing]
        for name in wanted:
            if name not in existing:
                raise no_such_topic(admin, name)
        if wanted:
            confirm(f"Delete {', '.join(wanted)} with all messages? This cannot be undone.", yes)
        for name in wanted:
            admin.delete_topic(name)
            if as_json:
                show_json({"topic": name, "deleted": True})
    if wanted and not as_json:
        say(make_console(), f"Deleted {', '.join(wanted)}.")


@app.command("delete-records", epilog="Example: tidelog topics delete-records orders --partition 0 --before-offset 1000")
def delete_records_command(
    topic: NameArgument,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable.")
    ] = None,
    before_offset: Annotated[
        int | None, typer.Option("--before-offset", min=0, help="Delete what is before this offset in each partition.")
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Delete what is before the first message of this time.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all messages; the topic stays.")] = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete the oldest messages of a topic, up to an offset or a time."""
    if sum((before_offset is not None, before is not None, everything)) != 1:
        raise CommandFailed("delete up to where? Give one of --before-offset, --before and --all")
    cluster = KafkaCluster(bootstrap, properties)
    with cluster.errors(), cluster.admin() as admin:
        existing = partitions_of(admin, topic)
        for index in partition or ():
            if index >= len(existing):
                raise CommandFailed(f"{topic} has no partition {index}, only 0 to {len(existing) - 1}")
        bounds = admin.bounds([each for each in existing if not partition or each.partition in partition])
        targets = {each: end for each, (_, end) in bounds.items()}
        if before is not None:
            found = admin.list_offsets(bounds, read_timestamp(before, "--before"))
            targets = {each: targets[each] if offset is None else offset for each, offset in found.items()}
        elif before_offset is not None:
            targets = {each: min(end, before_offset) for each, end in targets.items()}
        count = sum(max(0, targets[each] - start) for each, (start, _) in bounds.items())
        confirm(f"Delete {count_of(count, 'message')} of {topic}? This cannot be undone.", yes)
        starts = admin.delete_records(targets)
    if as_json:
        for each, start in sorted(starts.items()):
            show_json({"topic": each.topic, "partition": each.partition, "start_offset": start})
        return
    say(make_console(), f"Deleted {count_of(count, 'message')} of {topic}.")


def _partition_document(partition: PartitionDescription, bounds: PartitionBounds) -> dict[str, object]:
    return {
        "partition": partition.partition,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "start_offset": bounds.start,
        "end_offset": bounds.end,
        "messages": bounds.end - bounds.start,
    }


def _listed(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value


# -- hot keys --------------------------------------------------------------------------------------------------------------------


@app.command("hotkeys", epilog="Example: tidelog topics hotkeys orders --since 2026-01-31T12:00:00Z --top 5")
def hotkeys_command(
    topic: NameArgument,
    sample: Annotated[
        int, typer.Option("--sample", "-s", min=1, max=SAMPLE_MESSAGES_MAX, help="How many of the newest messages to read.")
    ] = SAMPLE_MESSAGES,
    top: Annotated[int, typer.Option("--top", "-n", min=1, max=100, help="How many keys to show.")] = 10,
    since: Annotated[
        str | None, typer.Option("--since", help="Only messages from this time on: ISO 8601 or milliseconds since 1970.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the keys with the most messages, and how evenly the partitions are used, from a sample."""
    since_ms = None if since is None else read_timestamp(since, "--since")
    cluster = KafkaCluster(bootstrap, properties)
    with cluster.errors(), cluster.admin() as admin:
        partitions = partitions_of(admin, topic)
        bounds = _bounds_since(admin, partitions, since_ms, cluster.isolation)
        found = HotKeys(partition.partition for partition in partitions)
        with cluster.consumer() as consumer:
            _read_sample(cluster, consumer, sampled(bounds, sample), found)
    keys = found.keys(top)
    if as_json:
        show_json(_hot_keys_document(topic, found, keys))
    else:
        _show_hot_keys(topic, found, keys)


def _bounds_since(
    admin: Admin, partitions: Sequence[TopicPartition], since_ms: int | None, isolation: IsolationName
) -> dict[TopicPartition, PartitionBounds]:
    bounds = admin.bounds(partitions, isolation=isolation)
    if since_ms is None:
        return bounds
    starts = admin.list_offsets(partitions, since_ms, isolation=isolation)
    return {each: PartitionBounds(end if starts[each] is None else starts[each] or 0, end) for each, (_, end) in bounds.items()}


def sampled(bounds: Mapping[TopicPartition, PartitionBounds], sample: int) -> dict[TopicPartition, PartitionBounds]:
    """The newest messages of each partition in proportion, and at least one of each partition that has any."""
    counts = {partition: end - start for partition, (start, end) in bounds.items() if end > start}
    total = sum(counts.values())
    if total <= sample:
        return {partition: bounds[partition] for partition in counts}
    return {
        partition: PartitionBounds(bounds[partition].end - max(1, count * sample // total), bounds[partition].end)
        for partition, count in counts.items()
    }


def _read_sample(
    cluster: KafkaCluster, consumer: RawConsumer, bounds: Mapping[TopicPartition, PartitionBounds], found: HotKeys
) -> None:
    ends = {partition.partition: end for partition, (_, end) in bounds.items()}
    unfinished = set(ends)
    silence_seconds = 0.0
    consumer.assign({partition: start for partition, (start, _) in bounds.items()})
    while unfinished:
        batch = consumer.consume(BATCH_MESSAGES, POLL_SECONDS)
        silence_seconds = 0.0 if batch else silence_seconds + POLL_SECONDS
        if silence_seconds > SILENCE_SECONDS_MAX:
            raise CommandFailed(f"no broker answers at {cluster.bootstrap}: nothing came for {SILENCE_SECONDS_MAX:.0f} s")
        for each in batch:
            index = each.partition
            if isinstance(each, Message) and index in unfinished and each.offset < ends[index]:
                found.add(index, each.key, len(each.key or b"") + len(each.value or b""))
            if not isinstance(each, Message) or each.offset + 1 >= ends[index]:
                unfinished.discard(index)


def _hot_keys_document(topic: str, found: HotKeys, keys: list[HotKey]) -> dict[str, object]:
    return {
        "topic": topic,
        "messages": found.messages,
        "without_key": found.without_key,
        "keys": [
            {**json_field("key", key.key), "messages": key.messages, "error": key.error, "share": round(key.share, 6)}
            for key in keys
        ],
        "partitions": [
            {
                "partition": share.partition,
                "messages": share.messages,
                "bytes": share.bytes,
                "share": round(share.share, 6),
                "skew": round(share.skew, 3),
            }
            for share in found.partitions()
        ],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _show_hot_keys(topic: str, found: HotKeys, keys: list[HotKey]) -> None:
    console = make_console()
    if not found.messages:
        say(console, f"{topic} has no messages, or none since that time.")
        return
    partitions = found.partitions()
    say(console, f"{topic}: {count_of(found.messages, 'message')} sampled, {found.without_key:,} of them without a key")
    if keys:
        rows = [(_key_text(key.key), key.messages, key.error, f"{key.share:.1%}") for key in keys]
        show_table(console, ("Key", "Messages", "Error at most", "Share"), rows)
    rows_of_partitions = [
        (share.partition, share.messages, share.bytes, f"{share.share:.1%}", f"{share.skew:.2f}x") for share in partitions
    ]
    show_table(console, ("Partition", "Messages", "Bytes", "Share", "Of the mean"), rows_of_partitions)
    for line in _advice(keys, partitions):
        say(console, line)


def _advice(keys: Sequence[HotKey], partitions: Sequence[PartitionShare]) -> list[str]:
    """A key is hot if it alone has more than an even share of a partition: more partitions cannot balance it."""
    fair = 1 / len(partitions)
    hot = [key for key in keys if key.share > fair] if len(partitions) > 1 else []
    return [
        f"{_key_text(key.key)} has {key.share:.0%} of the messages, and an even share of a partition is {fair:.0%}: "
        f"spread it over {min(len(partitions), max(2, round(key.share / fair + 0.5)))} partitions or more (tidelog.client.spread)"
        for key in hot
    ]


def _key_text(key: bytes) -> str:
    text = bytes_text(key)
    return text if len(text) <= KEY_CHARACTERS_MAX else text[: KEY_CHARACTERS_MAX - 1] + "…"
