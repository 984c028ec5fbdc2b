"""Runs a pipeline from a command line: it turns flags into options, opens a Spark session, runs the pipeline, and prints the
outcome.

Both ``tidelog pipeline run`` and ``spark-submit`` come here; what only the former has (``Surroundings``) is handed in. Whatever
the run raises leaves as one typed error.

The flags are the fields of the options' dataclass, whose metadata has the help texts: ``table`` becomes ``--table``, a field
without a default is required, a bool is a switch, and a ``tuple[str, ...]`` is an option that may be repeated. The metadata may
add other names (``-b``) and an environment variable. The dataclass itself validates the values.
"""

import dataclasses
import inspect
import logging
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from tidelog.client.errors import InvalidArgument, TidelogError, install_extra
from tidelog.spark.pipelines.failures import SparkGaveUp, error_behind
from tidelog.spark.pipelines.pipeline import Pipeline, PipelineFailed, load
from tidelog.spark.pipelines.reporters import reporter, show_outcome

_OF_THE_EXTRA = ("pyspark", "pyarrow", "numpy", "deltalake", "jinja2")
_PANEL = "Spark"

# The flags of every pipeline, after its own.
_COMMON = (
    Parameter(
        "as_json",
        Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, typer.Option("--json", help="The outcome as one JSON document.")],
    ),
    Parameter(
        "master",
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None,
            typer.Option(
                "--master", metavar="URL", help="Where Spark runs; without it, here on all cores.", rich_help_panel=_PANEL
            ),
        ],
    ),
    Parameter(
        "spark_config",
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            list[str] | None,
            typer.Option(
                "--spark-config",
                metavar="NAME=VALUE",
                help="A setting of Spark, say spark.driver.memory=4g; repeatable.",
                rich_help_panel=_PANEL,
            ),
        ],
    ),
    Parameter(
        "spark_log",
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Path | None,
            typer.Option(
                "--spark-log",
                metavar="FILE",
                help="Keep what Spark writes to its log, added to this file.",
                rich_help_panel=_PANEL,
            ),
        ],
    ),
)


class CommandLineWrong(typer.TyperException):
    """The options make no sense together, or at all."""

    exit_code = 2


def _as_given(options: Any) -> Any:
    return options


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a program adds to the command lines of pipelines. By itself a pipeline knows neither profiles nor hints."""

    command_class: type[TyperCommand] | None = None
    """How help looks."""
    callbacks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """What typer calls with the value of a flag, by the name of the field."""
    connect: Callable[[Any], Any] = _as_given
    """Returns the options that the run gets, once their cluster has been found; called before Spark starts, which is slow."""


def run_words(name: str, words: Sequence[str], *, program: str, surroundings: Surroundings | None = None) -> int:
    """``words`` are the flags. Returns the exit code; the caller shows typer's exceptions and typed errors."""
    pipeline = find(name)
    around = surroundings or Surroundings()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    command = function_with(
        [*parameters_of(pipeline.OPTIONS, around.callbacks), *_COMMON],
        lambda given: _run(name, pipeline, given, around),
        pipeline.SUMMARY,
    )
    app.command(name, cls=around.command_class, epilog=f"Example: {pipeline.EXAMPLE}")(command)
    result = app(list(words), prog_name=f"{program} {name}", standalone_mode=False)
    return result if isinstance(result, int) else 0


def find(name: str) -> Pipeline:
    """Raises PipelineFailed if something that the pipeline needs is not installed."""
    try:
        return load(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_THE_EXTRA:
            raise
        raise PipelineFailed(f"pipelines need {missing}, which is not installed: {install_extra('pipelines')}") from error


def _run(name: str, pipeline: Pipeline, given: Mapping[str, Any], around: Surroundings) -> int:
    try:
        options = build(pipeline.OPTIONS, given)
        config = read_settings(given["spark_config"] or ())
    except InvalidArgument as error:
        raise CommandLineWrong(str(error)) from error
    options = around.connect(options)
    is_json = given["as_json"]
    with _terminated_is_interrupted(), _spark_log(given["spark_log"]) as log_file, reporter(is_silent=is_json) as shown:
        shown.step("starting Spark")
        spark = _session(name, given["master"], config, log_file)
        try:
            outcome = pipeline.run(spark, options, shown)
        finally:
            spark.stop()
            _end_java()
    show_outcome(name, outcome, as_json=is_json)
    return outcome.exit_code


def _session(name: str, master: str | None, config: Mapping[str, str], log_file: Path) -> Any:
    """Open the session quietly: Spark prints and warns from this process as well, and a run is silent unless it has something to
    report."""
    warnings.filterwarnings("ignore", module=r"pyspark\..*")
    logging.getLogger("DataFrameQueryContextLogger").disabled = True
    spark_session = import_module("tidelog.spark.spark_session")
    return spark_session.session(app_name=f"tidelog {name}", master=master, config=config, log_file=log_file)


def _end_java() -> None:
    """Stop the Java process that this run started; under spark-submit it did not start one."""
    import_module("tidelog.spark.spark_session").end_java()


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Make a scheduler's SIGTERM clean up as Ctrl-C does, even where no query runs that would handle it."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _spark_log(wanted: Path | None) -> Iterator[Path]:
    """A file for Spark's log. If nobody asked for it, it is kept only where a message names it."""
    if wanted is not None:
        with _typed_errors(wanted):
            yield wanted
        return
    handle, name = tempfile.mkstemp(prefix="tidelog-spark-", suffix=".log")
    os.close(handle)
    log_file = Path(name)
    is_wanted = False
    try:
        with _typed_errors(log_file):
            yield log_file
    except TidelogError as error:
        is_wanted = name in str(error)
        raise
    finally:
        if not is_wanted:
            log_file.unlink(missing_ok=True)


@contextmanager
def _typed_errors(log_file: Path) -> Iterator[None]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it comes without types
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        behind = error_behind(error)
        raise _with_log(behind, log_file) from error
    except SparkGaveUp as error:
        raise _with_log(error, log_file) from error


def _with_log(error: TidelogError, log_file: Path) -> TidelogError:
    return SparkGaveUp(f"{error} (Spark's log: {log_file})") if isinstance(error, SparkGaveUp) else error


def read_settings(pairs: Sequence[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, is_pair, value = pair.partition("=")
        if not is_pair or not name.startswith("spark."):
            raise InvalidArgument(f"--spark-config {pair}: expected NAME=VALUE, as in spark.driver.memory=4g")
        settings[name] = value
    return settings


# -- flags --------------------------------------------------------------------------------------------------------------------


Parameters = list[inspect.Parameter]
_KIND = inspect.Parameter.KEYWORD_ONLY


def parameters_of(options: type[Any], callbacks: Mapping[str, Callable[..., Any]] = MappingProxyType({})) -> Parameters:
    """The parameters of a function that takes the fields one by one, required ones first."""
    types = get_type_hints(options)
    parameters = [_parameter(each, types[each.name], callbacks.get(each.name)) for each in dataclasses.fields(options)]
    return sorted(parameters, key=lambda parameter: parameter.default is not inspect.Parameter.empty)


def build(options: type[Any], given: Mapping[str, Any]) -> Any:
    """Build the dataclass from the command line's values; other parameters are ignored."""
    types = get_type_hints(options)
    names = [each.name for each in dataclasses.fields(options)]
    return options(**{name: tuple(given[name] or ()) if _is_repeatable(types[name]) else given[name] for name in names})


def function_with(parameters: Parameters, called: Callable[[Mapping[str, Any]], int], help_text: str) -> Callable[..., int]:
    """Make a function with this signature, which typer reads, that passes everything on."""

    def command(**given: Any) -> int:
        return called(given)

    # inspect lets a function carry the signature that it shows.
    setattr(command, "__signature__", inspect.Signature(parameters, return_annotation=int))  # noqa: B010 - mypy knows no such name
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": int}
    command.__doc__ = help_text
    return command


def _parameter(of: "dataclasses.Field[Any]", kind: Any, callback: Callable[..., Any] | None) -> inspect.Parameter:
    flag = f"--{of.name.replace('_', '-')}"
    default = of.default
    if default is dataclasses.MISSING and of.default_factory is not dataclasses.MISSING:
        default = of.default_factory()
    if _is_repeatable(kind):
        kind, default = (list[str], default) if default is dataclasses.MISSING else (list[str] | None, default or None)
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool and default is True else flag
    metavar = of.metadata.get("metavar")
    option = typer.Option(
        declaration,
        *of.metadata.get("also", ()),
        help=of.metadata.get("help", ""),
        metavar=None if kind is bool else metavar,
        envvar=of.metadata.get("variable"),
        # Without a callback, as with spark-submit, its value comes from nowhere else.
        show_default=(callback is not None and of.metadata.get("shown_default")) or True,
        callback=callback,
    )
    is_required = default is dataclasses.MISSING
    return inspect.Parameter(
        of.name, _KIND, default=inspect.Parameter.empty if is_required else default, annotation=Annotated[kind, option]
    )


def _is_repeatable(kind: Any) -> bool:
    return get_origin(kind) is tuple and get_args(kind)[1:] == (...,)
