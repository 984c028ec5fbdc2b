"""An experiment does something to a cluster of its own, and yields lines of the table.

Each experiment starts with empty data directories, so any of them can be run by itself and one that fails spoils no other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from bench.clusters.subjects import ClusterSubject
from bench.measure import Target


@dataclass(frozen=True, slots=True)
class Line:
    """``judges``: whether the target is for the ratio of both clusters or for our own figure. ``is_ours_only``: Kafka does not
    tell."""

    what: str
    unit: str
    target: Target | None = None
    judges: Literal["ratio", "ours"] = "ours"
    is_ours_only: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done. ``is_quick`` shows in seconds that everything runs, and measures nothing."""

    rounds: int = 5
    minutes: float = 10.0
    mebibytes: int = 2048
    partitions: int = 3_000
    is_quick: bool = False

    def fewer_rounds(self, rounds_max: int) -> int:
        """For what takes so long that it is not repeated more often."""
        return min(self.rounds, rounds_max)

    def of(self, amount: int) -> int:
        return max(1, amount // 50) if self.is_quick else amount

    def seconds(self, amount: float) -> float:
        return min(amount, 2.0) if self.is_quick else amount


@dataclass(slots=True)
class Run:
    """One experiment on one cluster, and what it found."""

    subject: ClusterSubject
    scale: Scale
    say: Callable[[str], None]
    values: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, value: float) -> None:
        self.values.setdefault(what, []).append(value)
        self.say(f"    {what}: {value:.4g}")

    def note(self, text: str) -> None:
        """Add a remark that a reader needs in order to judge the figures."""
        self.notes.append(text)
        self.say(f"    {text}")


@dataclass(frozen=True, slots=True)
class Experiment:
    """``about`` is one line for ``--list``. ``starts`` says whether the cluster is started before ``measure``."""

    name: str
    section: str
    about: str
    lines: tuple[Line, ...]
    measure: Callable[[Run], None]
    is_beside_kafka: bool = True
    starts: bool = True
