"""``tidelog drain``: move every replica of a broker to the others, so that it can be removed."""

from typing import Annotated

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, PlaintextOption
from tidelog.cli.reassign import ThrottleOption, operated_cluster, read_rate, show_plan
from tidelog.client.admin import ClusterDescription
from tidelog.client.balance import drained

app = typer.Typer()


@app.command("drain", epilog="Example: tidelog drain 3")
def drain_command(
    broker: Annotated[int, typer.Argument(metavar="ID", min=0, help="The id of the broker, which may be down.")],
    throttle_rate: ThrottleOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move all replicas of a broker to the others."""
    rate = read_rate(throttle_rate)
    with operated_cluster(bootstrap, properties) as cluster:
        description = cluster.admin.describe_cluster()
        current = cluster.assignment(description)
        if broker not in description.brokers and not any(broker in replicas for replicas in current.values()):
            running = ", ".join(map(str, sorted(description.brokers)))
            raise CommandFailed(f"there is no broker {broker}, and nothing is on it; running are {running}")
        if broker not in description.brokers:
            _check_copies(description, broker)
        plan = drained(current, cluster.places(description), broker)
        changes = cluster.begin(plan, current, rate, description.brokers)
    show_plan(changes, current, "begun", as_json)


def _check_copies(description: ClusterDescription, broker: int) -> None:
    """A broker that is down has nothing to copy from: each of its partitions needs a copy elsewhere."""
    for topic, partitions in description.topics.items():
        for each in partitions:
            if broker in each.replicas and set(each.isr) <= {broker}:
                place = f"{topic}-{each.partition}"
                raise CommandFailed(f"only broker {broker}, which is down, has all of {place}: start it first; nothing was moved")
