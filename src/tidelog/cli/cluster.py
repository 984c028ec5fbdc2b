"""``tidelog cluster``: lists the brokers of a cluster, tells whether it is healthy and which node may be stopped, elects leaders,
and removes brokers that are gone."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console

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
from tidelog.client.admin import ClusterDescription
from tidelog.client.balance import BrokerPlaces
from tidelog.client.quorum import METADATA_TOPIC
from tidelog.client.reassignment import MovingPartition
from tidelog.client.topic_partition import TopicPartition

app = typer.Typer(
    help="Describe the cluster, show whether it is healthy, elect leaders, and remove brokers.", no_args_is_help=True
)


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
        typer.Option("--safe-to-stop", metavar="ID", help="Also tell whether the others can do without this node."),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show whether every broker and voter is there and every partition has its replicas; exit code 3 if not."""
    with operated_cluster(bootstrap, properties) as cluster:
        description = cluster.admin.describe_cluster()
        moving = cluster.reassignments.ongoing()
        minimums = cluster.reassignments.min_insync_replicas(description.topics)
        registered = cluster.brokers.describe()
        quorum = cluster.quorum.describe()
        current = {(topic, each.partition): each.replicas for topic, parts in description.topics.items() for each in parts}
        places = BrokerPlaces(description.brokers, {each.broker_id: each.rack for each in registered.values()})
        has_few_internal = not moving and internal_plan(places, current) != current
    nodes = set(description.brokers) | {voter.node_id for voter in quorum.voters}
    if safe_to_stop is not None and safe_to_stop not in nodes:
        running = ", ".join(map(str, sorted(description.brokers)))
        raise CommandFailed(f"there is no broker {safe_to_stop} to stop; running are {running}")
    findings = _findings(description, moving, minimums, safe_to_stop)
    if safe_to_stop is not None and not quorum.has_majority_without(safe_to_stop):
        # The name of the only partition of the quorum.
        findings[f"cannot_do_without_{safe_to_stop}"].append(f"{METADATA_TOPIC}-0")
    # Clients are not told of a broker that stops or is down; older clusters than Kafka 4.0 list no others.
    held_by = {replica for replicas in current.values() for replica in replicas}
    down = sorted(({each.broker_id for each in registered.values()} | held_by) - set(description.brokers))
    voters, silent = [voter.node_id for voter in quorum.voters], sorted(quorum.silent_voters())
    count = len(current)
    if as_json:
        document: dict[str, object] = {"brokers": sorted(description.brokers), "brokers_down": down}
        document |= {"voters": voters, "voters_silent": silent}
        document |= {"partitions": count, "moving": len(moving), **findings, "internal_topics_need_replicas": has_few_internal}
        show_json(document)
    else:
        console = make_console()
        brokers = count_of(len(description.brokers), "broker")
        say(console, f"{brokers}, {count_of(count, 'partition')}, {len(moving)} moving")
        say(console, f"{count_of(len(voters), 'voter')} of the metadata: {', '.join(map(str, voters))}")
        shown = {"brokers_down": [str(each) for each in down], "voters_silent": [str(each) for each in silent], **findings}
        for name, places_found in shown.items():
            _say_finding(console, name.replace("_", " "), places_found)
        if has_few_internal:
            say(console, "internal topics have fewer replicas than they could: tidelog reassign --execute --internal")
        for line in advice_on_voters(len(voters), len(description.brokers), silent):
            say(console, line)
    return ExitCode.FOUND if down or silent or any(findings.values()) else ExitCode.SUCCESS


PLACES_SHOWN_MAX = 5
# As many voters survive the loss of one of them.
VOTERS_WANTED = 3


def advice_on_voters(voter_count: int, broker_count: int, silent: Sequence[int]) -> Iterator[str]:
    if silent:
        yield (
            f"voter {', '.join(map(str, silent))} does not answer the leader: start it, or replace it (tidelog quorum "
            "remove, then add); to see the quorum: tidelog quorum status"
        )
    elif broker_count >= VOTERS_WANTED and voter_count < VOTERS_WANTED:
        lost = "that one" if voter_count == 1 else "one of the two"
        yield (
            f"nothing can be decided without {lost}: let controllers join until there are three voters "
            "(controller.quorum.auto.join.enable, or tidelog quorum add)"
        )
    elif not voter_count % 2:
        yield f"{voter_count} voters survive no more losses than {voter_count - 1}: add or remove one (tidelog quorum)"


def _say_finding(console: Console, name: str, found: Sequence[str]) -> None:
    shown = ", ".join(found[:PLACES_SHOWN_MAX]) + (" and others" if len(found) > PLACES_SHOWN_MAX else "")
    say(console, f"{name}: {len(found)}" + (f" ({shown})" if found else ""))


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


@app.command("elect", epilog="Example: tidelog cluster elect orders-3")
def elect_command(
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC-PARTITION...", help="As cluster status shows them; all if none is given."),
    ] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Let any replica that is there lead partitions that have no leader.")
    ] = False,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="With --unclean: what the new leaders lack is lost.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Return partitions to their preferred leaders or, where no replica in sync is left, let another one lead."""
    wanted = [_parse_place(text) for text in partitions or ()]
    with operated_cluster(bootstrap, properties) as cluster:
        if unclean:
            _check_unclean(cluster.admin.describe_cluster(), wanted, accept_data_loss)
            problems = cluster.elections.elect_unclean(wanted)
        else:
            problems = cluster.elections.elect_preferred(wanted or None)
        topics = cluster.admin.describe_cluster().topics if problems else {}
    leaders = {(topic, each.partition): each.leader for topic, parts in topics.items() for each in parts}
    if as_json:
        elected = [
            {"topic": place.topic, "partition": place.partition, "leader": leaders.get(place), "error": problem}
            for place, problem in sorted(problems.items())
        ]
        show_json({"partitions": elected})
    elif not problems:
        say(make_console(), "There is nothing to change: every partition that has a leader is led by its preferred replica.")
    else:
        rows = [(str(place), leaders.get(place), problem or "") for place, problem in sorted(problems.items())]
        show_table(make_console(), ("Partition", "Leader", "Problem"), rows)
    return ExitCode.FOUND if any(problems.values()) else ExitCode.SUCCESS


def _parse_place(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    if not topic or not (number.isascii() and number.isdigit()):
        raise typer.BadParameter(f"{text!r}: expected TOPIC-PARTITION such as orders-3", param_hint="TOPIC-PARTITION")
    return TopicPartition(topic, int(number))


def _check_unclean(description: ClusterDescription, wanted: Sequence[TopicPartition], is_accepted: bool) -> None:
    """Say what an unclean election may lose, and refuse it unless that is accepted."""
    if not wanted:
        raise CommandFailed("--unclean: name the partitions, because each of them may lose messages")
    for place in wanted:
        found = next((each for each in description.topics.get(place.topic, ()) if each.partition == place.partition), None)
        if found is None:
            raise CommandFailed(f"there is no partition {place}")
        if found.leader >= 0:
            raise CommandFailed(f"{place} is led by broker {found.leader}: --unclean is for partitions without a leader")
        there = ", ".join(str(each) for each in sorted(found.replicas) if each in description.brokers)
        absent = ", ".join(str(each) for each in sorted(found.replicas) if each not in description.brokers)
        if not there:
            raise CommandFailed(f"{place}: of its brokers {absent} none is there; start one of them")
        if not is_accepted:
            hope = f"Broker {absent} may have all that was acknowledged: start it first, if you can. " if absent else ""
            raise CommandFailed(
                f"{place} has no leader. {hope}What broker {there} lacks of it would be lost for good. Nothing was changed; to "
                "go ahead, add --accept-data-loss"
            )


@app.command("remove", epilog="Example: tidelog cluster remove 4")
def remove_command(
    broker: Annotated[int, typer.Argument(metavar="ID", min=0, help="The id of a broker that was stopped, or is lost.")],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the cluster forget a broker that is down and holds nothing."""
    with operated_cluster(bootstrap, properties) as cluster:
        registered = cluster.brokers.describe()
        description = cluster.admin.describe_cluster()
        found = registered.get(broker)
        if found is None:
            raise CommandFailed(f"there is no broker {broker}; registered are {', '.join(map(str, registered))}")
        if not found.is_down:
            raise CommandFailed(f"broker {broker} is running: stop it first, once tidelog drain {broker} has emptied it")
        held = [
            (f"{topic}-{each.partition}", len(each.replicas))
            for topic, partitions in description.topics.items()
            for each in partitions
            if broker in each.replicas
        ]
        if held:
            only = [place for place, count in held if count == 1]
            lost = f", of {count_of(len(only), 'partition')} ({only[0]}) the only one" if only else ""
            what = f"broker {broker} holds {count_of(len(held), 'replica')} ({held[0][0]}){lost}"
            raise CommandFailed(f"{what}; move them to other brokers first: tidelog drain {broker}")
        if any(voter.node_id == broker for voter in cluster.quorum.describe().voters):
            what = f"node {broker} is a voter of the quorum"
            raise CommandFailed(f"{what}; take its vote away first: tidelog quorum remove {broker}")
        cluster.brokers.unregister(broker)
    if as_json:
        show_json({"broker": broker, "is_registered": False})
    else:
        say(make_console(), f"Broker {broker} is removed.")
