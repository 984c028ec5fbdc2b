"""The pictures of the comparison with Kafka: throughput, latency and durable latency, each of these two also over time."""

from pathlib import Path

from bench.beside import plots
from bench.beside.results import Results
from bench.measure import Figure

THROUGHPUT = ("produce 100 B", "produce 1 KB", "consume 100 B", "consume 1 KB")
# Where a percentile stands on the axis: each step is ten times as rare.
PERCENTILES = {"p50": 0.5, "p90": 1.0, "p99": 2.0, "p999": 3.0}
NAMES = {0.5: "50 %", 1.0: "90 %", 2.0: "99 %", 3.0: "99.9 %"}


def draw(results: Results, directory: Path) -> list[tuple[str, str]]:
    """(title, file name) of each picture."""
    series = {
        label: [Figure.of(results.values[what, "page cache", label]).value for what in THROUGHPUT] for label in results.labels
    }
    title = "Throughput, one client, one partition, page cache"
    plots.bars(directory / "throughput.svg", title, "messages per second", THROUGHPUT, series)
    drawn = [(title, "throughput.svg")]
    for durability, name in (("page cache", "latency.svg"), ("fsynced", "durable-latency.svg")):
        title = f"End to end at 5,000 messages per second, {durability}"
        lines = {
            f"{label}, acks={acks}": [(PERCENTILES[share], found[share]) for share in PERCENTILES]
            for label in results.labels
            for acks in ("1", "all")
            if (found := results.percentiles_of(f"end to end, acks={acks} ({durability})", label))
        }
        plots.lines(
            directory / name,
            title,
            "share of messages",
            "milliseconds",
            lines,
            x_is_logarithmic=False,
            y_is_logarithmic=True,
            x_names=NAMES,
        )
        drawn.append((title, name))
        if over_time := _over_time(results, f"end to end, acks=all ({durability})"):
            title = f"{title}, acks=all: each 100 ms of the last round"
            name = name.replace("latency", "latency-over-time")
            plots.over_time(directory / name, title, over_time)
            drawn.append((title, name))
    return drawn


def _over_time(results: Results, what: str) -> dict[str, list[tuple[float, float]]]:
    series = {}
    for label in results.labels:
        if intervals := results.over_time.get((what, label)):
            series[f"{label}, longest"] = [(seconds, longest) for seconds, _, longest in intervals]
            series[f"{label}, p99"] = [(seconds, p99) for seconds, p99, _ in intervals]
    return series
