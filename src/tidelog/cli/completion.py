"""``tidelog completion``: the script that makes a shell complete commands, options, and the names of topics and groups.

The script asks ``tidelog`` itself at every Tab, with the words so far in the environment; typer answers for commands and options,
and ``complete_topics`` and ``complete_groups`` ask the cluster that the command line names. A shell must not hang at a Tab, so a
cluster that does not answer at once completes nothing.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # typer does not list it, but documents no other way

from tidelog.cli.errors import CommandFailed

if TYPE_CHECKING:  # A Tab on a command's name should not wait for a Kafka client to load.
    from tidelog.client.admin import Admin

app = typer.Typer()

SHELLS = ("bash", "zsh", "fish")
# A person who pressed Tab does not wait longer.
SECONDS_MAX = 1.0


@app.command("completion", epilog='Example: eval "$(tidelog completion bash)"')
def completion_command(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help=f"One of {', '.join(SHELLS)}.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts, one document per line.")] = False,
) -> None:
    """Print the script that completes commands, topics and groups in a shell."""
    if shell not in SHELLS:
        raise CommandFailed(f"{shell}: there is no completion for this shell, only for {', '.join(SHELLS)}")
    script = get_completion_script(prog_name="tidelog", complete_var="_TIDELOG_COMPLETE", shell=shell)
    if as_json:
        from tidelog.cli.output import show_json

        show_json({"shell": shell, "script": script})
        return
    typer.echo(script)


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda admin: admin.describe_cluster().topics)


def complete_dead_letter_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return [name for name in complete_topics(ctx, incomplete) if name.endswith(".dlq")]


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda admin: [listing.name for listing in admin.list_groups()])


def _names(context: Any, incomplete: str, names: "Callable[[Admin], Collection[str]]") -> list[str]:
    """Nothing at all if the cluster cannot be asked: an error message would end up in the middle of the command line."""
    from tidelog.cli.kafka import KafkaCluster

    try:
        cluster = KafkaCluster(context.params["bootstrap"], context.params.get("properties"))
        cluster.check_reachable(SECONDS_MAX)
        with cluster.admin() as admin:
            return sorted(name for name in names(admin) if name.startswith(incomplete))
    except Exception:
        return []
