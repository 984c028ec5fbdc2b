"""``tidelog configs``: describe and alter the settings of topics and brokers while they run, on any Kafka."""

from typing import Annotated, Literal

import typer

from tidelog.cli.completion import complete_topics
from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, KafkaCluster, PropertiesOption, read_pairs
from tidelog.cli.output import make_console, say, show_json, show_table
from tidelog.client.admin import Admin, ConfigSetting

app = typer.Typer(help="Describe and alter the settings of topics and brokers.", no_args_is_help=True)

TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="NAME", help="The topic whose settings are meant.", autocompletion=complete_topics),
]
BrokerOption = Annotated[str | None, typer.Option("--broker", metavar="ID", help="The broker whose settings are meant.")]

_SOURCES = {
    "DYNAMIC_TOPIC_CONFIG": "topic",
    "DYNAMIC_BROKER_CONFIG": "broker, dynamic",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "all brokers, dynamic",
    "STATIC_BROKER_CONFIG": "broker, at its start",
    "DEFAULT_CONFIG": "default",
}


@app.command("describe", epilog="Example: tidelog configs describe --topic orders --all")
def describe_command(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    show_all: Annotated[bool, typer.Option("--all", help="Include the settings that have their default values.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show settings and where each value comes from."""
    kind, name = _subject(topic, broker)
    cluster = KafkaCluster(bootstrap, properties)
    with cluster.errors(), cluster.admin() as admin:
        _check_broker(admin, broker)
        settings = list(admin.describe_configs(kind, name).values())
    shown = [setting for setting in settings if show_all or not setting.is_default]
    if as_json:
        for setting in shown:
            show_json({**setting._asdict(), "source": _source_text(setting)})
        return
    console = make_console()
    if not shown:
        say(console, f"All {len(settings)} settings have their default values. To see them, add --all.")
        return
    show_table(console, ("Setting", "Value", "From"), [(each.name, setting_text(each), _source_text(each)) for each in shown])


@app.command("alter", epilog="Example: tidelog configs alter --topic orders --set retention.ms=86400000 --delete segment.bytes")
def alter_command(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", "--add-config", metavar="NAME=VALUE", help="Change a setting; repeatable.")
    ] = None,
    deletions: Annotated[
        list[str] | None, typer.Option("--delete", "--delete-config", metavar="NAME", help="Restore a default; repeatable.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change settings. The changes take effect at once."""
    kind, name = _subject(topic, broker)
    values: dict[str, str | None] = {**read_pairs(assignments or [], "--set"), **dict.fromkeys(deletions or ())}
    if not values:
        raise CommandFailed("there is nothing to alter: add --set NAME=VALUE or --delete NAME")
    cluster = KafkaCluster(bootstrap, properties)
    with cluster.errors(), cluster.admin() as admin:
        _check_broker(admin, broker)
        admin.alter_configs(kind, name, values)
    if as_json:
        show_json({kind: name, "changed": values})
        return
    say(make_console(), f"Changed the settings of {kind} {name}.")


def setting_text(setting: ConfigSetting) -> str:
    return "[hidden]" if setting.is_sensitive else setting.value or ""


def _source_text(setting: ConfigSetting) -> str:
    return _SOURCES.get(setting.source, "unknown")


def _check_broker(admin: Admin, broker: str | None) -> None:
    """Check that the broker exists: librdkafka would look for a missing one until it times out."""
    if broker is not None and broker.isdigit() and int(broker) not in (known := sorted(admin.describe_cluster().brokers)):
        raise CommandFailed(f"there is no broker {broker} at {admin.addresses}, only {', '.join(map(str, known))}")


def _subject(topic: str | None, broker: str | None) -> tuple[Literal["topic", "broker"], str]:
    if topic is not None and broker is None:
        return "topic", topic
    if broker is not None and topic is None:
        return "broker", broker
    raise CommandFailed("whose settings? Give either --topic NAME or --broker ID")
