"""``tidelog drain``: move every replica of a broker to the others, so that it can be removed."""

from typing import Annotated

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, PlaintextOption
from tidelog.cli.reassign import ThrottleOption, operated_cluster, read_rate, show_plan
from tidelog.client.balance import balanced

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
        held = {key: replicas for key, replicas in current.items() if broker in replicas}
        if broker not in description.brokers and not held:
            running = ", ".join(map(str, sorted(description.brokers)))
            raise CommandFailed(f"there is no broker {broker}, and nothing is on it; running are {running}")
        plan = balanced(held, description.brokers, leaving=(broker,))
        changes = cluster.begin(plan, current, rate, description.brokers)
    show_plan(changes, current, "begun", as_json)
