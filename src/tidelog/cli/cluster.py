"""``tidelog cluster``: lists the brokers of a cluster, and tells whether it is healthy and which broker may be stopped."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

import typer

from tidelog.cli.errors import CommandFailed, ExitCode
from tidelog.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    KafkaCluster,
    PlaintextOption,
    PropertiesOption,
)
from tidelog.cli.output import count_of, make_console, say, show_json, show_table
from tidelog.cli.reassign import internal_plan, operated_cluster
from tidelog.client.admin import Admin, ClusterDescription
from tidelog.client.reassignment import MovingPartition

app = typer.Typer(help="Describe the cluster, and show whether it is healthy.", no_args_is_help=True)


@app.callback()
def _cluster() -> None:
    """Describe the cluster, and show whether it is healthy."""


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


@app.command("status", epilog="Example: tidelog cluster status --safe-to-stop 2")
def status_command(
    safe_to_stop: Annotated[
        int | None,
        typer.Option("--safe-to-stop", metavar="ID", help="Also tell whether the others can do without this broker."),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show whether every partition has its leader and its replicas; exit code 3 if not."""
    with operated_cluster(bootstrap, properties) as cluster:
        description = cluster.admin.describe_cluster()
        moving = cluster.reassignments.ongoing()
        minimums = _minimums(cluster.admin, description)
    if safe_to_stop is not None and safe_to_stop not in description.brokers:
        running = ", ".join(map(str, sorted(description.brokers)))
        raise CommandFailed(f"there is no broker {safe_to_stop} to stop; running are {running}")
    findings = _findings(description, moving, minimums, safe_to_stop)
    count = sum(map(len, description.topics.values()))
    current = {(topic, each.partition): each.replicas for topic, parts in description.topics.items() for each in parts}
    has_few_internal = not moving and internal_plan(description, current) != current
    if as_json:
        document = {"brokers": sorted(description.brokers), "partitions": count, "moving": len(moving), **findings}
        show_json({**document, "internal_topics_need_replicas": has_few_internal})
    else:
        console = make_console()
        brokers = count_of(len(description.brokers), "broker")
        say(console, f"{brokers}, {count_of(count, 'partition')}, {len(moving)} moving")
        for name, places in findings.items():
            shown = ", ".join(places[:PLACES_SHOWN_MAX]) + (" and others" if len(places) > PLACES_SHOWN_MAX else "")
            say(console, f"{name.replace('_', ' ')}: {len(places)}" + (f" ({shown})" if places else ""))
        if has_few_internal:
            say(console, "internal topics have fewer replicas than they could: tidelog reassign --execute --internal")
    return ExitCode.FOUND if any(findings.values()) else ExitCode.SUCCESS


PLACES_SHOWN_MAX = 5


def _minimums(admin: Admin, description: ClusterDescription) -> dict[str, int]:
    """``min.insync.replicas`` of each topic."""
    found = {}
    for topic in description.topics:
        found[topic] = int(admin.describe_configs("topic", topic)["min.insync.replicas"].value or 1)
    return found


def _findings(
    description: ClusterDescription,
    moving: Mapping[tuple[str, int], MovingPartition],
    minimums: Mapping[str, int],
    stopping: int | None,
) -> dict[str, list[str]]:
    """What is wrong, and the partitions of which that is true. Replicas that a move is adding do not count yet."""
    findings: dict[str, list[str]] = {"without_leader": [], "under_replicated": [], "under_min_isr": []}
    if stopping is not None:
        findings[f"cannot_do_without_{stopping}"] = []
    for topic, partitions in description.topics.items():
        for each in partitions:
            place = f"{topic}-{each.partition}"
            move = moving.get((topic, each.partition))
            count = len(each.replicas) - (len(move.adding) if move is not None else 0)
            minimum = min(minimums[topic], count)
            if each.leader < 0:
                findings["without_leader"].append(place)
            if len(each.isr) < count:
                findings["under_replicated"].append(place)
            if len(each.isr) < minimum:
                findings["under_min_isr"].append(place)
            if stopping is not None and stopping in each.isr and len(each.isr) - 1 < minimum:
                findings[f"cannot_do_without_{stopping}"].append(place)
    return findings
