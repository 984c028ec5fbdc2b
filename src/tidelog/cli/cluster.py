"""``tidelog cluster``: lists the brokers of a cluster."""

from collections import Counter

import typer

from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, KafkaCluster, PropertiesOption
from tidelog.cli.output import count_of, make_console, say, show_json, show_table

app = typer.Typer(help="Describe the cluster.", no_args_is_help=True)


@app.callback()
def _cluster() -> None:
    """Describe the cluster."""


@app.command("describe", epilog="Example: tidelog cluster describe --bootstrap 127.0.0.1:9092")
def describe_command(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the cluster's id, its brokers, and how many topics and partitions it has."""
    cluster = KafkaCluster(bootstrap, properties)
    with cluster.errors(), cluster.admin() as admin:
        found = admin.identify_cluster()
        topics = admin.describe_cluster().topics
    led = Counter(partition.leader for partitions in topics.values() for partition in partitions)
    partition_count = sum(map(len, topics.values()))
    if as_json:
        brokers = [
            {"id": each.broker_id, "host": each.host, "port": each.port, "rack": each.rack, "leads": led[each.broker_id]}
            for each in found.brokers
        ]
        document = {"cluster_id": found.cluster_id, "controller": found.controller, "topics": len(topics)}
        show_json({**document, "partitions": partition_count, "brokers": brokers})
        return
    console = make_console()
    say(console, f"Cluster {found.cluster_id}: {count_of(len(topics), 'topic')}, {count_of(partition_count, 'partition')}")
    rows = [
        (
            each.broker_id,
            f"{each.host}:{each.port}",
            each.rack,
            led[each.broker_id],
            "yes" if each.broker_id == found.controller else "",
        )
        for each in found.brokers
    ]
    show_table(console, ("Broker", "Address", "Rack", "Leads", "Controller"), rows)
