"""``tidelog pipeline list`` and ``tidelog pipeline run NAME ...``: the pipelines on Spark.

Each pipeline defines its own options, so the words after its name are parsed once the pipeline is known, and only that one is
loaded. A run exits with 0, or with 3 if an audit found a difference.
"""

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import JsonOption, KafkaCluster, choose_bootstrap, remember_properties
from tidelog.cli.look import ReadableCommand
from tidelog.cli.output import make_console, say, show_json, show_table
from tidelog.client.errors import TidelogError
from tidelog.spark.pipelines.command_line import CommandLineWrong, Surroundings, find, run_words
from tidelog.spark.pipelines.pipeline import MODULES, UnknownPipeline

if TYPE_CHECKING:
    from tidelog.spark.pipelines.options import ClusterOptions

app = typer.Typer(help="Run a pipeline on Spark: topics to tables and back.", no_args_is_help=True)

# All words after the name belong to the pipeline, --help included.
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


def _connected(options: "ClusterOptions") -> "ClusterOptions":
    """With the properties of the profile in use, and a broker that answers."""
    cluster = KafkaCluster(options.bootstrap, options.kafka)
    cluster.check_reachable()
    return replace(options, kafka=tuple(f"{name}={value}" for name, value in cluster.properties.items()))


_SURROUNDINGS = Surroundings(
    command_class=ReadableCommand,
    callbacks={"bootstrap": choose_bootstrap, "kafka": remember_properties},
    connect=_connected,
)


@app.callback()
def pipeline_group() -> None:
    """Run a pipeline on Spark: topics to tables and back."""


@app.command("list", epilog="Example: tidelog pipeline list")
def list_command(as_json: JsonOption = False) -> None:
    """List the pipelines."""
    try:
        found = [(name, find(name)) for name in MODULES]
    except TidelogError as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        for name, pipeline in found:
            show_json({"name": name, "summary": pipeline.SUMMARY, "example": pipeline.EXAMPLE})
        return
    console = make_console()
    show_table(console, ("Name", "What it does"), [(name, pipeline.SUMMARY) for name, pipeline in found])
    say(console, "To see the options of one: tidelog pipeline run NAME --help")


@app.command(
    "run",
    context_settings=_PASSED_ON,
    epilog="Example: tidelog pipeline run archive --topic orders --table lake/orders",
)
def run_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(MODULES)}.")] = "--help",
    words: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS]", help="Its options; NAME --help shows them.")] = None,
) -> int:
    """Run a pipeline and report how it went. A second run continues where the first one ended."""
    if name in ("--help", "-h"):
        typer.echo(context.get_help())
        return 0
    try:
        return run_words(name, words or [], program="tidelog pipeline run", surroundings=_SURROUNDINGS)
    except UnknownPipeline as error:
        raise CommandLineWrong(str(error)) from error
    except TidelogError as error:
        raise CommandFailed(str(error)) from error


@app.command(
    "submit-file", epilog="Example: spark-submit $(tidelog pipeline submit-file) archive --topic orders --table lake/orders"
)
def submit_file_command(as_json: JsonOption = False) -> None:
    """Print the path of the file to give to spark-submit."""
    found = find_spec("tidelog.spark.pipelines.__main__")
    assert found is not None
    if as_json:
        show_json({"path": found.origin})
        return
    typer.echo(found.origin)
