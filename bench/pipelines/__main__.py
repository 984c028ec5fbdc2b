"""``python -m bench.pipelines``: archive beside the stock connector, as the backlog grows, and after many small batches.

One broker (Tidelog), 4 partitions. archive writes a Delta table with headers, exactly once whatever happens to its checkpoint;
the stock connector writes Parquet files without headers by Spark's own sink. Each has a session of its own, in turn.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.beside.document import machine, markdown_table
from bench.measure import Figure
from bench.pipelines import small_batches
from bench.spark.__main__ import CHILD_SECONDS_MAX, CONFIG, Size, Subject, fill, measure, say, subjects
from bench.workspace import NotEnoughRoom, Workspace, workspace
from tidelog.spark.runtimes import java_home
from tidelog.testing import Broker

ROWS = 2_000_000
GROWTH = (1_000_000, 5_000_000, 20_000_000)
BATCHES = 1_000
ROUNDS, TURNS = 3, 2
WARM_UP = Size("warm-up", 20_000, 100)


def archive(bootstrap: str, size: Size, rounds: int, place: Workspace) -> list[dict[str, Any]]:
    wanted = {
        "bootstrap": bootstrap,
        "topic": size.topic,
        "warm_up": WARM_UP.topic,
        "rounds": rounds,
        "master": "local[2]",
        "config": {**CONFIG, "spark.local.dir": str(place.path)},
        "directory": str(place.path),
    }
    environment = {**os.environ, "JAVA_HOME": java_home(os.environ), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "bench.pipelines.archive_job", json.dumps(wanted)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS_MAX, env=environment, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"archive: {ended.stderr[-3000:]}")
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def beside_stock(bootstrap: str, size: Size, turns: int, rounds: int, place: Workspace) -> str:
    fill(bootstrap, size)
    stock: Sequence[Subject] = [subject for subject in subjects() if subject.format == "kafka"]
    found: dict[str, list[dict[str, Any]]] = {"archive": []}
    for turn in range(turns):
        say(f"turn {turn + 1} of {turns}")
        found["archive"] += archive(bootstrap, size, rounds, place)
        for subject in stock:
            rounds_of_it = measure(subject, bootstrap, size, ["available_now_to_parquet"], rounds, place)
            found.setdefault(subject.label, []).extend(rounds_of_it)
    lines = []
    for title, name in (("rows/s", "seconds"), ("rows per CPU second", "cpu_seconds")):
        figures = [Figure.of([each["rows"] / each[name] for each in rounds_of_it]) for rounds_of_it in found.values()]
        ratio = f"{figures[0].value / figures[1].value:.2f}" if len(figures) > 1 else ""
        target = ">= 1.2" if name == "seconds" else ""
        lines.append([title, *(f"{figure.value:,.0f} ± {figure.spread:.0%}" for figure in figures), ratio, target])
    table = markdown_table(["availableNow to files", *found, "ratio", "target"], lines)
    return f"**{size.rows:,} x {size.value_bytes} B**\n\n{table}"


def growth(bootstrap: str, sizes: Sequence[int], place: Workspace) -> str:
    lines = []
    for rows in sizes:
        size = Size(f"growth-{rows}", rows, 100)
        say(f"filling {size.topic}")
        fill(bootstrap, size)
        (each,) = archive(bootstrap, size, 1, place)
        assert each["rows"] == rows
        lines.append([f"{rows:,}", f"{rows / each['seconds']:,.0f}", f"{each['cpu_seconds'] / rows * 1e6:.2f}"])
    return "**As the backlog grows**\n\n" + markdown_table(["rows", "rows/s", "CPU µs per row"], lines)


def many_small_batches(batches: int, place: Workspace) -> str:
    say(f"{batches:,} small batches")
    with place.directory("small") as directory:
        found = small_batches.run(directory / "table", batches)
    assert found.rows == batches * small_batches.TASKS * small_batches.ROWS_PER_TASK
    return (
        f"**{found.batches:,} batches of {small_batches.TASKS} small files**: {found.files_written:,} files written, at most "
        f"{found.files_most} in the table at a time, {found.files_left} in the end; a batch {found.first_ms:.0f} ms in the first "
        f"tenth, {found.last_ms:.0f} ms in the last"
    )


def run(place: Workspace, rows: int, sizes: Sequence[int], batches: int, turns: int, rounds: int) -> str:
    parts = [many_small_batches(batches, place)]
    with Broker(persist=place.path / "broker") as broker:
        fill(broker.bootstrap_servers, WARM_UP)
        parts.insert(0, beside_stock(broker.bootstrap_servers, Size("beside", rows, 100), turns, rounds, place))
        parts.insert(1, growth(broker.bootstrap_servers, sizes, place))
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pipelines", description="Measure the pipelines on Spark.")
    parser.add_argument("--directory", type=Path, default=Path("build/bench"), help="where to write; about 8 GB at the peak")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"beside the stock connector, of 100 B (default {ROWS:,})")
    parser.add_argument("--growth", type=int, nargs="*", default=list(GROWTH), help="sizes of the growing backlog")
    parser.add_argument("--batches", type=int, default=BATCHES, help=f"small ones (default {BATCHES:,})")
    parser.add_argument("--turns", type=int, default=TURNS, help="sessions of each side")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="in a session")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    given = parser.parse_args()
    if given.quick:
        given.rows, given.growth, given.batches, given.turns, given.rounds = 20_000, [5_000, 10_000], 20, 1, 1
    try:
        with workspace(given.directory, given.quick) as place:
            print(f"{run(place, given.rows, given.growth, given.batches, given.turns, given.rounds)}\n\n{machine()}")
    except NotEnoughRoom as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
