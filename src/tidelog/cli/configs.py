"""``tidelog configs``: the settings of topics and brokers, described and altered while they run, on any Kafka."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, ResourceType

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
from tidelog.cli.output import make_console, say, show_json, show_table

app = typer.Typer(help="Describe and alter the settings of topics and brokers.", no_args_is_help=True)

TopicOption = Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="The topic whose settings they are.")]
BrokerOption = Annotated[str | None, typer.Option("--broker", metavar="ID", help="The broker whose settings they are.")]

_SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG.value: "broker, dynamic",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value: "all brokers, dynamic",
    ConfigSource.STATIC_BROKER_CONFIG.value: "broker, at its start",
    ConfigSource.DEFAULT_CONFIG.value: "default",
}


@app.command("describe", epilog="Example: tidelog configs describe --topic orders --all")
def describe_command(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    show_all: Annotated[bool, typer.Option("--all", help="Also the settings that have their defaults.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show settings, and where each value comes from."""
    resource = _resource(topic, broker)
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    _check_broker(cluster, admin, broker)
    entries = _describe(cluster, admin, resource)
    shown = [entry for entry in entries if show_all or not _is_default(entry)]
    if as_json:
        for entry in shown:
            document = {"name": entry.name, "value": entry.value, "source": _source(entry)}
            show_json({**document, "is_read_only": entry.is_read_only, "is_sensitive": entry.is_sensitive})
        return
    console = make_console()
    if not shown:
        say(console, f"All {len(entries)} settings have their defaults. To see them: --all")
        return
    show_table(console, ("Setting", "Value", "From"), [(entry.name, _shown(entry), _source(entry)) for entry in shown])


@app.command("alter", epilog="Example: tidelog configs alter --topic orders --set retention.ms=86400000 --delete segment.bytes")
def alter_command(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", "--add-config", metavar="NAME=VALUE", help="Set a setting; several are fine.")
    ] = None,
    deletions: Annotated[
        list[str] | None, typer.Option("--delete", "--delete-config", metavar="NAME", help="Give a setting its default back.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
) -> None:
    """Change settings. They are in force at once."""
    resource = _resource(topic, broker)
    values = read_pairs(assignments or [], "--set")
    if not values and not deletions:
        raise CommandFailed("nothing to alter: give --set NAME=VALUE or --delete NAME")
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    _check_broker(cluster, admin, broker)
    alter_configs(cluster, admin, resource, values, deletions or [])
    say(make_console(), f"Changed the settings of {'topic' if topic is not None else 'broker'} {resource.name}.")


def _check_broker(cluster: Cluster, admin: Any, broker: str | None) -> None:
    """The client would look for a broker that is not there until its time is up."""
    if broker is not None and broker.isdigit():
        brokers = sorted(cluster.metadata(admin).brokers)
        if int(broker) not in brokers:
            raise CommandFailed(f"there is no broker {broker} at {cluster.bootstrap}, only {', '.join(map(str, brokers))}")


def alter_configs(cluster: Cluster, admin: Any, resource: Any, values: Mapping[str, str], deletions: Sequence[str]) -> None:
    for name, value in values.items():
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    for name in deletions:
        resource.add_incremental_config(ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE))
    with cluster.errors():
        admin.incremental_alter_configs([resource], request_timeout=REQUEST_SECONDS_MAX)[resource].result()


def changed_configs(cluster: Cluster, admin: Any, resource: Any) -> dict[str, str]:
    """The settings that are not defaults."""
    return {entry.name: _shown(entry) for entry in _describe(cluster, admin, resource) if not _is_default(entry)}


def _describe(cluster: Cluster, admin: Any, resource: Any) -> list[Any]:
    with cluster.errors():
        entries = admin.describe_configs([resource], request_timeout=REQUEST_SECONDS_MAX)[resource].result()
    return [entry for _, entry in sorted(entries.items())]


def _resource(topic: str | None, broker: str | None) -> Any:
    if (topic is None) == (broker is None):
        raise CommandFailed("give either --topic NAME or --broker ID")
    if topic is not None:
        return ConfigResource(ResourceType.TOPIC, topic)
    return ConfigResource(ResourceType.BROKER, broker)


def _source_number(entry: Any) -> int:
    """librdkafka's answers have plain numbers here, its own objects an enum."""
    return int(getattr(entry.source, "value", entry.source))


def _source(entry: Any) -> str:
    return _SOURCES.get(_source_number(entry), "unknown")


def _is_default(entry: Any) -> bool:
    return bool(_source_number(entry) == ConfigSource.DEFAULT_CONFIG.value)


def _shown(entry: Any) -> str:
    return "[hidden]" if entry.is_sensitive else "" if entry.value is None else str(entry.value)
