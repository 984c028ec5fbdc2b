"""``tidelog topics``: list, create, describe, alter, delete, hot keys, on any Kafka."""

from typing import Annotated, Any

import typer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from tidelog.cli import topics_hotkeys
from tidelog.cli.configs import alter_configs, changed_configs
from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    REQUEST_SECONDS_MAX,
    BootstrapOption,
    Cluster,
    JsonOption,
    PropertiesOption,
    read_pairs,
)
from tidelog.cli.output import confirm, count_of, make_console, say, show_json, show_table, warn

app = typer.Typer(help="List, create, describe, alter and delete topics, and find their hot keys.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
NamesArgument = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics' names.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
# A prefix that brokers keep for themselves, as __consumer_offsets.
INTERNAL_PREFIX = "__"


@app.command("list", epilog="Example: tidelog topics list")
def list_command(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    internal: Annotated[bool, typer.Option("--internal", help="Also the topics that brokers keep for themselves.")] = False,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the topics."""
    cluster = Cluster(bootstrap, properties)
    metadata = cluster.metadata(cluster.admin())
    topics = [topic for name, topic in sorted(metadata.topics.items()) if internal or not name.startswith(INTERNAL_PREFIX)]
    if as_json:
        for topic in topics:
            show_json(
                {"topic": topic.topic, "partitions": len(topic.partitions), "replication_factor": _replication_factor(topic)}
            )
        return
    console = make_console()
    if not topics:
        say(console, "There are no topics. Create one: tidelog topics create greetings")
        return
    rows = [(topic.topic, len(topic.partitions), _replication_factor(topic)) for topic in topics]
    show_table(console, ("Topic", "Partitions", "Replicas"), rows)


@app.command("create", epilog="Example: tidelog topics create orders --partitions 12 --config retention.ms=86400000")
def create_command(
    topic: NameArgument,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=-1, help="How many; -1 is the broker's default.")] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", min=-1, help="How many replicas each; -1 is the broker's default.")
    ] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting of the topic; several are fine.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="A topic that is there already is fine.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a topic."""
    configs = read_pairs(config or [], "--config")
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    is_new = not (if_not_exists and topic in cluster.metadata(admin).topics)
    if is_new:
        with cluster.errors():
            new = NewTopic(topic, num_partitions=partitions, replication_factor=replication_factor, config=configs)
            admin.create_topics([new], request_timeout=REQUEST_SECONDS_MAX)[topic].result()
    partition_count = len(cluster.topic(admin, topic).partitions)
    if as_json:
        show_json({"topic": topic, "partitions": partition_count, "created": is_new})
    else:
        say(make_console(), f"{'Created' if is_new else 'There is'} {topic} with {count_of(partition_count, 'partition')}.")


@app.command("describe", epilog="Example: tidelog topics describe orders")
def describe_command(
    topics: NamesArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a topic's partitions, with their leaders, replicas and offsets, and its settings that are not defaults."""
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    console = make_console()
    for name in topics:
        found = cluster.topic(admin, name)
        offsets = _offsets(cluster, admin, found)
        configs = changed_configs(cluster, admin, ConfigResource(ResourceType.TOPIC, name))
        if as_json:
            show_json({"topic": name, "partitions": _partition_documents(found, offsets), "configs": configs})
            continue
        settings = ", ".join(f"{key}={value}" for key, value in configs.items()) or "all settings are defaults"
        say(console, f"{name}: {count_of(len(found.partitions), 'partition')}; {settings}")
        rows = [tuple(_listed(value) for value in document.values()) for document in _partition_documents(found, offsets)]
        show_table(console, ("Partition", "Leader", "Replicas", "In sync", "Start", "End", "Messages"), rows)


@app.command("alter", epilog="Example: tidelog topics alter orders --partitions 24 --config retention.ms=3600000")
def alter_command(
    topic: NameArgument,
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", min=1, help="How many it shall have in all.")] = None,
    config: Annotated[list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="Set a setting.")] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="NAME", help="Give a setting its default back.")
    ] = None,
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
) -> None:
    """Add partitions to a topic, or change its settings."""
    if partitions is None and not config and not delete_config:
        raise CommandFailed("nothing to alter: give --partitions, --config or --delete-config")
    configs = read_pairs(config or [], "--config")
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    console = make_console()
    found = cluster.topic(admin, topic)
    if configs or delete_config:
        alter_configs(cluster, admin, ConfigResource(ResourceType.TOPIC, topic), configs, delete_config or [])
        say(console, f"Changed the settings of {topic}.")
    if partitions is not None:
        _add_partitions(cluster, admin, found, partitions, yes)
        say(console, f"{topic} has {count_of(partitions, 'partition')} now.")


def _add_partitions(cluster: Cluster, admin: Any, topic: Any, partitions: int, is_sure: bool) -> None:
    before = len(topic.partitions)
    if partitions < before:
        raise CommandFailed(f"{topic.topic} has {before} partitions: a topic's partitions can be added to, not taken away")
    if partitions > before:
        warn(
            f"keys move: with {partitions} partitions instead of {before} most keys get another one, "
            "so messages of a key from before and after the change are in different partitions and their order is lost"
        )
        confirm("Add them?", is_sure)
    with cluster.errors():
        admin.create_partitions([NewPartitions(topic.topic, partitions)], request_timeout=REQUEST_SECONDS_MAX)[
            topic.topic
        ].result()


@app.command("delete", epilog="Example: tidelog topics delete orders")
def delete_command(
    topics: NamesArgument,
    yes: YesOption = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A topic that is not there is fine.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
) -> None:
    """Delete topics with all that is in them."""
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    existing = cluster.metadata(admin).topics
    wanted = [name for name in topics if not if_exists or name in existing]
    for name in wanted:
        if name not in existing:
            raise CommandFailed(f"there is no topic {name} at {bootstrap}")
    if not wanted:
        return
    confirm(f"Delete {', '.join(wanted)} with all messages, for good?", yes)
    with cluster.errors():
        for future in admin.delete_topics(wanted, request_timeout=REQUEST_SECONDS_MAX).values():
            future.result()
    say(make_console(), f"Deleted {', '.join(wanted)}.")


app.command("hotkeys", epilog=topics_hotkeys.EPILOG)(topics_hotkeys.hotkeys_command)


def _replication_factor(topic: Any) -> int:
    return max((len(partition.replicas) for partition in topic.partitions.values()), default=0)


def _offsets(cluster: Cluster, admin: Any, topic: Any) -> dict[int, tuple[int, int]]:
    """Log start offset and high watermark of each partition."""
    found: dict[int, list[int]] = {}
    with cluster.errors():
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
            asked = {TopicPartition(topic.topic, partition): spec for partition in topic.partitions}
            for partition, future in admin.list_offsets(asked, request_timeout=REQUEST_SECONDS_MAX).items():
                found.setdefault(partition.partition, []).append(future.result().offset)
    return {partition: (start, end) for partition, (start, end) in found.items()}


def _partition_documents(topic: Any, offsets: dict[int, tuple[int, int]]) -> list[dict[str, object]]:
    documents: list[dict[str, object]] = []
    for index, partition in sorted(topic.partitions.items()):
        start, end = offsets[index]
        documents.append(
            {
                "partition": index,
                "leader": partition.leader,
                "replicas": list(partition.replicas),
                "isr": list(partition.isrs),
                "start_offset": start,
                "end_offset": end,
                "messages": end - start,
            }
        )
    return documents


def _listed(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value
