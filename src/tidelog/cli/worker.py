"""``tidelog worker run module:worker``: run an application's worker in the foreground until Ctrl-C or SIGTERM.

The module is imported as Python would import it from the working directory, with everything that it does at import. The first
signal drains and commits, the second stops at once. Exit codes: 0 if everything that was begun is finished, 1 for an error, 4 if
messages were still being handled; they will be handled again.
"""

import importlib
import json
import logging
import os
import sys
import traceback
from typing import Annotated

import typer

from tidelog.cli.errors import CommandFailed, ExitCode
from tidelog.cli.output import count_of, show_json
from tidelog.client.errors import TidelogError
from tidelog.worker.worker import Worker

app = typer.Typer(help="Run a worker.", no_args_is_help=True)

LEVELS = ("debug", "info", "warning", "error")


class _JsonLine(logging.Formatter):
    """With ``--json`` standard error is objects, the application's own log lines too."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record), "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


@app.callback()
def worker_group() -> None:
    """Run a worker."""


@app.command("run", epilog="Example: tidelog worker run shop.email:worker")
def run_command(
    target: Annotated[str, typer.Argument(metavar="MODULE:WORKER", help="A module, and the name of the worker in it.")],
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help=f"The least level that is logged: {', '.join(LEVELS)}.")
    ] = "info",
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="How many messages each handler handles at once, instead of the worker's own."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Serve /metrics and /health over HTTP on this port.")
    ] = None,
    metrics_host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Serve them on this address: 0.0.0.0 in a container.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts, one document per line.")] = False,
) -> int:
    """Run a worker until it is stopped."""
    if log_level not in LEVELS:
        raise CommandFailed(f"--log-level {log_level}: expected any of {', '.join(LEVELS)}")
    log = logging.StreamHandler()
    log.setFormatter(_JsonLine() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=log_level.upper(), handlers=[log])
    worker = load_worker(target)
    try:
        worker.configure(concurrency=concurrency, metrics_port=metrics_port, metrics_host=metrics_host)
        is_drained = worker.run()
    except TidelogError as error:
        raise CommandFailed(str(error)) from error
    metrics = worker.metrics()
    if as_json:
        show_json({"handled": metrics.handled, "retried": metrics.retried, "dead": metrics.dead, "is_drained": is_drained})
        return ExitCode.SUCCESS if is_drained else ExitCode.UNFINISHED
    counts = f"handled {metrics.handled:,}, retried {metrics.retried:,}, {count_of(metrics.dead, 'dead letter')}"
    typer.echo(
        counts if is_drained else f"{counts}; stopped while messages were being handled; they will be handled again", err=True
    )
    return ExitCode.SUCCESS if is_drained else ExitCode.UNFINISHED


def load_worker(target: str) -> Worker:
    """The worker that ``module:name`` names. CommandFailed says in one line what is wrong."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise CommandFailed(f"{target}: expected MODULE:WORKER, such as shop.email:worker")
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise CommandFailed(f"there is no module {error.name} in {directory} or on the import path") from error
        raise CommandFailed(f"{module_name} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
        raise CommandFailed(f"{module_name} cannot be imported: {type(error).__name__}: {error}{where}") from error
    found = getattr(module, name, None)
    if isinstance(found, Worker):
        return found
    workers = [key for key, value in vars(module).items() if isinstance(value, Worker)]
    hint = f"it defines {', '.join(workers)}" if workers else "it defines no worker: worker = tidelog.Worker(...)"
    what = f"has no {name}" if found is None else f"has {name}, which is not a Worker but a {type(found).__name__}"
    raise CommandFailed(f"{module_name} {what}; {hint}")
