"""``python -m bench.pipelines``: archive beside the stock connector, as the backlog grows, and after many small batches.

One broker (Tidelog). archive writes Delta tables with headers, exactly once whatever happens to its checkpoint; the stock
connector writes Parquet files without headers by Spark's own sink. Each has a session of its own, in turn. Lines that are called
whole commands have a session for each round, whose start counts. ``--only`` picks lines by name.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.beside.document import machine, markdown_table
from bench.measure import Figure
from bench.pipelines import small_batches
from bench.spark.__main__ import (
    CHILD_SECONDS_MAX,
    CONFIG,
    MASTER,
    NARROW,
    SCHEMA,
    WIDE,
    Size,
    Subject,
    Topics,
    alone,
    at_least,
    at_most,
    fill,
    measure,
    say,
    subjects,
)
from bench.workspace import NotEnoughRoom, Workspace, workspace
from tidelog.spark.runtimes import java_home
from tidelog.testing import Broker

GROWTH = (1_000_000, 5_000_000, 20_000_000)
BATCHES = 1_000
ROUNDS, TURNS = 3, 2
WARM_UP = Size("warm-up", 4, 20_000, 100)
WIDE_BATCHES = 10
BAD = NARROW._replace(topic="bad")
BAD_PART = 0.01
NAMES = ("archive", "wide", "schema", "growth", "small-batches")

Rounds = list[dict[str, Any]]


def archive(bootstrap: str, size: Size, rounds: int, place: Workspace, **options: Any) -> Rounds:
    """``options`` of the pipeline, and ``is_cold``: then each round has a session of its own, and its time is that of all of
    it."""
    is_cold = options.pop("is_cold", False)
    wanted = {
        "bootstrap": bootstrap,
        "topic": size.topic,
        "warm_up": None if is_cold else WARM_UP.topic,
        "rounds": 1 if is_cold else rounds,
        "master": MASTER,
        "config": {**CONFIG, "spark.local.dir": str(place.path)},
        "directory": str(place.path),
        "options": options,
    }
    environment = {**os.environ, "JAVA_HOME": java_home(os.environ), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "bench.pipelines.archive_job", json.dumps(wanted)]
    found: Rounds = []
    for _ in range(rounds if is_cold else 1):
        began = time.perf_counter()
        ended = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS_MAX, env=environment, check=False)
        if ended.returncode != 0:
            raise RuntimeError(f"archive: {ended.stderr[-3000:]}")
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        whole = {"seconds": time.perf_counter() - began} if is_cold else {}
        found += [{**line, **whole} for line in lines]
    return found


def stock_parquet(bootstrap: str, size: Size, rounds: int, place: Workspace, **line: Any) -> Rounds:
    """Empty if there is no stock connector; with ``is_cold`` as in ``archive``."""
    stock: Sequence[Subject] = [subject for subject in subjects() if subject.format == "kafka"]
    wanted = {"name": "parquet", "job": "available_now_to_parquet", **size._asdict(), **line}
    found: Rounds = []
    for subject in stock:
        if not line.get("is_cold"):
            found += measure(subject, bootstrap, [wanted], rounds, place)
            continue
        for _ in range(rounds):
            began = time.perf_counter()
            (each,) = measure(subject, bootstrap, [wanted], 1, place)
            found.append({**each, "seconds": time.perf_counter() - began})
    return found


def _line(title: str, rounds: Mapping[str, Rounds], name: str, target: Any = None) -> list[str]:
    """Rows per second of ours and of stock's."""
    figures = [Figure.of([each["rows"] / each[name] for each in found]) for found in rounds.values() if found]
    ratio = figures[0].value / figures[1].value if len(figures) > 1 else None
    judged = "" if target is None or ratio is None else "ok" if target.is_met_by(ratio) else "short"
    cells = [f"{figure.value:,.0f} ± {figure.spread:.0%}" for figure in figures] + [""] * (2 - len(figures))
    wanted = "" if target is None else f"{target.bound} {target.value:g}"
    return [title, *cells, "" if ratio is None else f"{ratio:.2f}", wanted, judged]


HEADINGS = ("", "archive", "stock to Parquet", "ratio", "target", "")


def beside_stock(topics: Topics, place: Workspace, turns: int, rounds: int) -> list[list[str]]:
    topics.need(NARROW)
    size = NARROW.scaled(place)
    found: dict[str, Rounds] = {"archive": [], "stock": []}
    for turn in range(turns):
        say(f"archive, turn {turn + 1} of {turns}, load {os.getloadavg()[0]:.1f}")
        found["archive"] += archive(topics.bootstrap, size, rounds, place)
        found["stock"] += stock_parquet(topics.bootstrap, size, rounds, place)
    what = f"{size.rows:,} x {size.value_bytes} B, {size.partitions} partitions"
    return [
        _line(f"{what}, rows/s", found, "seconds", at_least(1.2)),
        _line("- rows per processor second", found, "cpu_seconds"),
    ]


def wide(topics: Topics, place: Workspace, rounds: int) -> tuple[list[list[str]], list[list[str]]]:
    """Many partitions, in batches that have little of each."""
    topics.need(WIDE)
    size = WIDE.scaled(place)
    batch_rows = size.rows // WIDE_BATCHES
    say(f"archive of {size.partitions} partitions, load {os.getloadavg()[0]:.1f}")
    found = {
        "archive": archive(topics.bootstrap, size, rounds, place, batch_rows=batch_rows),
        "stock": stock_parquet(topics.bootstrap, size, rounds, place, batch_rows=batch_rows),
    }
    what = f"{size.rows:,} x {size.value_bytes} B, {size.partitions} partitions, {WIDE_BATCHES} batches"
    files = max(each["files"] for each in found["archive"])
    return (
        [
            _line(f"{what}, rows/s", found, "seconds", at_least(2.0)),
            _line("- rows per processor second", found, "cpu_seconds"),
        ],
        [
            alone(
                f"files of the table after {WIDE_BATCHES} batches of {size.partitions} partitions", str(files), at_most(40), files
            )
        ],
    )


def with_schema(topics: Topics, place: Workspace, rounds: int) -> tuple[list[list[str]], list[list[str]]]:
    """Whole commands, because that is how they run: beside Spark's from_json, beside no schema, and with bad rows."""
    topics.need(NARROW)
    size, bad = NARROW.scaled(place), BAD.scaled(place)
    fill(topics.bootstrap, bad, BAD_PART)
    say(f"archive with a schema, load {os.getloadavg()[0]:.1f}")
    parsed = archive(topics.bootstrap, size, rounds, place, schema=SCHEMA, is_cold=True)
    found = {"archive": parsed, "stock": stock_parquet(topics.bootstrap, size, rounds, place, parse=SCHEMA, is_cold=True)}
    raw = archive(topics.bootstrap, size, rounds, place, is_cold=True)
    with_bad = archive(topics.bootstrap, bad, rounds, place, schema=SCHEMA, is_cold=True)
    costs = [Figure.of([each["cpu_seconds"] for each in each_round]).value for each_round in (parsed, raw, with_bad)]
    what = f"{size.rows:,} x {size.value_bytes} B, with a schema"
    title = "processor time with a schema against without one, whole commands"
    bad_title = f"processor time with {BAD_PART:.0%} bad rows against none, with a schema"
    return (
        [_line(f"{what}, whole command against Spark's from_json, rows/s", found, "seconds", at_least(1.3))],
        [
            alone(title, f"{costs[0] / costs[1]:.2f} ({costs[0]:.1f} s, {costs[1]:.1f} s)", at_most(1.5), costs[0] / costs[1]),
            alone(bad_title, f"{costs[2] / costs[0]:.2f} ({costs[2]:.1f} s)", at_most(1.5), costs[2] / costs[0]),
        ],
    )


def growth(bootstrap: str, sizes: Sequence[int], place: Workspace) -> str:
    lines = []
    for rows in sizes:
        size = Size(f"growth-{rows}", 4, rows, 100)
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


def run(place: Workspace, names: Collection[str], given: argparse.Namespace) -> str:
    beside, ours, parts = [], [], []
    with Broker(persist=place.path / "broker") as broker:
        topics = Topics(broker.bootstrap_servers, place)
        fill(broker.bootstrap_servers, WARM_UP)
        if "archive" in names:
            beside += beside_stock(topics, place, given.turns, given.rounds)
        for name, line in (("wide", wide), ("schema", with_schema)):
            if name in names:
                beside_lines, our_lines = line(topics, place, given.rounds)
                beside += beside_lines
                ours += our_lines
        if beside:
            parts.append(markdown_table(HEADINGS, beside))
        if ours:
            parts.append(markdown_table(["", "archive", "target", ""], ours))
        if "growth" in names:
            parts.append(growth(broker.bootstrap_servers, given.growth, place))
    if "small-batches" in names:
        parts.append(many_small_batches(given.batches, place))
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pipelines", description="Measure the pipelines on Spark.")
    parser.add_argument("--directory", type=Path, default=Path("build/bench"), help="where to write; about 8 GB at the peak")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="LINE", help=f"lines: {', '.join(NAMES)}")
    parser.add_argument("--growth", type=int, nargs="*", default=list(GROWTH), help="sizes of the growing backlog")
    parser.add_argument("--batches", type=int, default=BATCHES, help=f"small ones (default {BATCHES:,})")
    parser.add_argument("--turns", type=int, default=TURNS, help="sessions of each side")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="in a session")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    given = parser.parse_args()
    if given.quick:
        given.growth, given.batches, given.turns, given.rounds = [5_000, 10_000], 20, 1, 1
    try:
        with workspace(given.directory, given.quick) as place:
            print(f"{run(place, given.only, given)}\n\n{machine()}")
    except NotEnoughRoom as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
