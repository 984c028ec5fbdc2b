"""``tidelog cluster``: who is in it."""

import typer

from tidelog.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    REQUEST_SECONDS_MAX,
    BootstrapOption,
    Cluster,
    JsonOption,
    PropertiesOption,
)
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
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    with cluster.errors():
        found = admin.describe_cluster(request_timeout=REQUEST_SECONDS_MAX).result()
    topics = cluster.metadata(admin).topics.values()
    led: dict[int, int] = {}
    for topic in topics:
        for partition in topic.partitions.values():
            led[partition.leader] = led.get(partition.leader, 0) + 1
    partition_count = sum(len(topic.partitions) for topic in topics)
    controller = found.controller.id if found.controller is not None else None
    brokers = sorted(found.nodes, key=lambda node: node.id)
    if as_json:
        show_json(
            {
                "cluster_id": found.cluster_id,
                "controller": controller,
                "topics": len(topics),
                "partitions": partition_count,
                "brokers": [
                    {"id": node.id, "host": node.host, "port": node.port, "rack": node.rack, "leads": led.get(node.id, 0)}
                    for node in brokers
                ],
            }
        )
        return
    console = make_console()
    say(console, f"Cluster {found.cluster_id}: {count_of(len(topics), 'topic')}, {count_of(partition_count, 'partition')}")
    rows = [
        (node.id, f"{node.host}:{node.port}", node.rack, led.get(node.id, 0), "yes" if node.id == controller else "")
        for node in brokers
    ]
    show_table(console, ("Broker", "Address", "Rack", "Leads", "Controller"), rows)
