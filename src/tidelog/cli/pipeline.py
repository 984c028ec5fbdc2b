"""``tidelog pipeline list`` and ``tidelog pipeline run NAME ...``: the pipelines on Spark.

A pipeline says itself which options it has, so what comes after its name is read only when it is known which one it is, and only
that one is loaded. Exit codes of a run are the outcome's: 0, and 3 where an audit found a difference.
"""

from importlib.util import find_spec
from typing import Annotated

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import JsonOption
from tidelog.cli.output import make_console, say, show_json, show_table
from tidelog.client.errors import TidelogError
from tidelog.spark.pipelines.command_line import CommandLineWrong, find, run_words
from tidelog.spark.pipelines.pipeline import MODULES, UnknownPipeline

app = typer.Typer(help="Run a pipeline on Spark: topics to tables and back.", no_args_is_help=True)

# What comes after the name belongs to the pipeline, --help as well.
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@app.callback()
def pipeline_group() -> None:
    """Run a pipeline on Spark: topics to tables and back."""


@app.command("list", epilog="Example: tidelog pipeline list")
def list_command(as_json: JsonOption = False) -> None:
    """What pipelines there are."""
    try:
        found = [(name, find(name)) for name in MODULES]
    except TidelogError as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        for name, pipeline in found:
            show_json({"name": name, "summary": pipeline.SUMMARY, "example": pipeline.EXAMPLE})
        return
    console = make_console()
    show_table(console, ("name", "what it does"), [(name, pipeline.SUMMARY) for name, pipeline in found])
    say(console, "tidelog pipeline run NAME --help has the options of each")


@app.command(
    "run",
    context_settings=_PASSED_ON,
    epilog="Example: tidelog pipeline run archive --topic orders --table lake/orders",
)
def run_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(MODULES)}.")] = "--help",
    words: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS]", help="Its options: NAME --help shows them.")] = None,
) -> int:
    """Run one, and say how it went. Run again, it goes on where it was."""
    if name in ("--help", "-h"):
        typer.echo(context.get_help())
        return 0
    try:
        return run_words(name, words or [], program="tidelog pipeline run")
    except UnknownPipeline as error:
        raise CommandLineWrong(str(error)) from error
    except TidelogError as error:
        raise CommandFailed(str(error)) from error


@app.command(
    "submit-file", epilog="Example: spark-submit $(tidelog pipeline submit-file) archive --topic orders --table lake/orders"
)
def submit_file_command() -> None:
    """Where the file is that spark-submit takes."""
    found = find_spec("tidelog.spark.pipelines.__main__")
    assert found is not None
    typer.echo(found.origin)
