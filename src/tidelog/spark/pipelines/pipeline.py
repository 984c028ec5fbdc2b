"""The parts that every pipeline has, and the pipelines by name.

A pipeline is a module with a frozen dataclass of options (``OPTIONS``), one line that says what it does (``SUMMARY``), a command
line to copy (``EXAMPLE``) and ``run(spark, options, reporter) -> PipelineOutcome``. Nothing else ties it to the command line: the
flags are the fields of the dataclass. Modules are imported on use, because each imports Spark and the help for one needs no
other.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from tidelog.client.errors import InvalidArgument, TidelogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PipelineFailed(TidelogError):
    """The run cannot continue; the message is the one sentence that the user sees."""


class Reporter(Protocol):
    """Shows what a run does: the command line prints it, tests collect it."""

    def step(self, text: str) -> None:
        """A new step begins: "reading orders, 4 partitions"."""

    def progress(self, done: int, total: int | None, unit: str = "rows") -> None:
        """Report how far the step has come; ``total`` is None if it is not known."""


class PipelineOutcome(NamedTuple):
    summary: str
    """One line of text."""
    figures: dict[str, int | float | str]
    """Printed as a small table, and as JSON with ``--json``."""
    exit_code: int = 0


class Pipeline(Protocol):
    """A module of this package, as the registry hands it out."""

    SUMMARY: str
    EXAMPLE: str
    OPTIONS: type[Any]

    def run(self, spark: "SparkSession", options: Any, reporter: Reporter) -> PipelineOutcome: ...


class Silent:
    """A reporter for callers who only want the outcome."""

    def step(self, text: str) -> None:
        """Ignored."""

    def progress(self, done: int, total: int | None, unit: str = "rows") -> None:
        """Ignored."""


# -- the pipelines by name ----------------------------------------------------------------------------------------------------


_PACKAGE = "tidelog.spark.pipelines"

# Lists show them in this order.
MODULES = {
    name: f"{_PACKAGE}.{name}" for name in ("archive", "materialize", "replay", "deadletters", "metrics", "audit", "enrich")
}


class UnknownPipeline(InvalidArgument):
    """No pipeline has that name. The message suggests the nearest one."""


def load(name: str) -> Pipeline:
    if name not in MODULES:
        raise UnknownPipeline(f"there is no pipeline {name}{hint_for(name, MODULES)}")
    return cast("Pipeline", import_module(MODULES[name]))


def hint_for(name: str, known: Iterable[str]) -> str:
    """A suggestion for a mistyped name."""
    choices = list(known)
    nearest = get_close_matches(name, choices, n=1, cutoff=0.5)
    return f": did you mean {nearest[0]}?" if nearest else f": there are {', '.join(choices)}"
