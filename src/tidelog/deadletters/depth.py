"""How many letters of each dead-letter topic wait for somebody: neither replayed nor discarded.

Also as Prometheus' text, for the textfile collector of the node exporter: one gauge for the depth and one for the age of the
oldest letter, which retention deletes after 30 days. The topic is the only label: there are as many series as dead-letter
topics.
"""

from collections.abc import Iterable
from typing import NamedTuple

DEPTH_METRIC = "tidelog_dead_letters"
OLDEST_METRIC = "tidelog_dead_letters_oldest_seconds"


class Depth(NamedTuple):
    """Of one dead-letter topic."""

    topic: str
    letters: int
    oldest_ms: int | None = None
    """When the oldest of them last failed; None when there is none, or when they were only estimated."""
    is_estimate: bool = False
    """Counted by offsets alone: at most so many. Marks of transactions count as letters there."""


def prometheus_text(depths: Iterable[Depth], now_ms: int) -> str:
    """What a scrape would give; the same topics in the same order."""
    known = list(depths)
    lines = [
        f"# HELP {DEPTH_METRIC} Letters of a dead-letter topic that were neither replayed nor discarded.",
        f"# TYPE {DEPTH_METRIC} gauge",
        *(f'{DEPTH_METRIC}{{topic="{depth.topic}"}} {depth.letters}' for depth in known),
    ]
    aged = [depth for depth in known if not depth.is_estimate]
    if aged:
        lines += [
            f"# HELP {OLDEST_METRIC} Since the last failure of the oldest of them; 0 when there is none.",
            f"# TYPE {OLDEST_METRIC} gauge",
            *(f'{OLDEST_METRIC}{{topic="{depth.topic}"}} {_age_seconds(depth, now_ms):.0f}' for depth in aged),
        ]
    return "\n".join(lines) + "\n"


def _age_seconds(depth: Depth, now_ms: int) -> float:
    return 0.0 if depth.oldest_ms is None else max(0.0, (now_ms - depth.oldest_ms) / 1000)
