"""What every pipeline is made of: how a run tells what it does, and how it ends.

A pipeline is a module with a frozen dataclass of options (``OPTIONS``), one line that says what it does (``SUMMARY``), a command
line to copy (``EXAMPLE``) and ``run(spark, options, reporter) -> Outcome``. Nothing else ties it to the command line: the flags
are the fields of the dataclass.
"""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidelog.client.errors import TidelogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PipelineFailed(TidelogError):
    """The run cannot go on; the message is the one sentence that the user sees."""


class Reporter(Protocol):
    """How a run tells what it does: the command line shows it, tests collect it."""

    def step(self, text: str) -> None:
        """What begins now: "reading orders, 4 partitions"."""

    def progress(self, done: int, total: int | None, unit: str = "rows") -> None:
        """How far the step has come; ``total`` is None where nobody knows."""


class Outcome(NamedTuple):
    summary: str
    """One line."""
    figures: dict[str, int | float | str]
    """Printed as a small table, and as JSON with ``--json``."""
    exit_code: int = 0


class Pipeline(Protocol):
    """A module of this package, as the registry hands it out."""

    SUMMARY: str
    EXAMPLE: str
    OPTIONS: type[Any]

    def run(self, spark: "SparkSession", options: Any, reporter: Reporter) -> Outcome: ...


class Silent:
    """A reporter for those who only want the outcome."""

    def step(self, text: str) -> None:
        """Nobody listens."""

    def progress(self, done: int, total: int | None, unit: str = "rows") -> None:
        """Nobody listens."""
