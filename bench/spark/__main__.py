"""``python -m bench.spark``: reading and writing a topic with Spark, by us and by the stock connector.

One broker (Tidelog), one topic for each size of message, 4 partitions. Each connector has a session of its own, one after the
other, several times in turn; the first round of each job is not counted. Rows per second, and per second of processor time over
Java and Python together: on a machine with other work the second says more.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.beside.document import machine, markdown_table
from bench.measure import Figure
from bench.spark.jobs import WRITTEN
from bench.spark.stock import StockUnavailable, stock_connector
from bench.workspace import NotEnoughRoom, Workspace, workspace
from tests.toolkit_broker import create_topic
from tidelog.spark.runtimes import java_home, worker_python
from tidelog.spark.spark_session import settings_of
from tidelog.testing import Broker

MASTER = "local[2]"
PARTITIONS = 4
ROWS = 2_000_000
MEMORY_BYTES = 1 << 30
ROUNDS = 3
TURNS = 2
FLUSH_SECONDS_MAX = 600.0
CHILD_SECONDS_MAX = 1_800.0
TARGETS = {"batch_sum": ">= 1.5", "available_now_to_parquet": ">= 1.2", "empty_trigger": "<= 1.0", "write": ">= 1.0"}
TITLES = {
    "batch_sum": "batch read and sum, rows/s",
    "available_now_to_parquet": "availableNow to Parquet, rows/s",
    "empty_trigger": "empty trigger, ms",
    "write": "write (by us exactly once), rows/s",
}
CONFIG = {
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    # Idle triggers are reported each, so that they can be measured.
    "spark.sql.streaming.noDataProgressEventInterval": "0",
}


class Subject(NamedTuple):
    label: str
    format: str
    python: str
    jars: tuple[str, ...] = ()


class Size(NamedTuple):
    topic: str
    rows: int
    value_bytes: int


def subjects() -> list[Subject]:
    found = [Subject("tidelog", "tidelog", sys.executable)]
    try:
        stock = stock_connector()
        found.append(Subject(f"stock, Spark {stock.version}", "kafka", stock.python, stock.jars))
    except StockUnavailable as error:
        say(f"the stock connector cannot be measured: {error}")
    return found


def subject_config(subject: Subject, place: Workspace) -> dict[str, str]:
    """Ours has what ``session()`` gives to its users; the stock connector starts no Python, and pushes no filter down."""
    common = {**CONFIG, "spark.local.dir": str(place.path)}
    if subject.format == "tidelog":
        return settings_of(MASTER, common, None)
    return {**common, "spark.jars": ",".join(subject.jars)}


def fill(bootstrap: str, size: Size) -> None:
    create_topic(bootstrap, size.topic, partitions=PARTITIONS)
    sender = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1_000_000, "compression.type": "none"})
    # Random, so that no compression of anybody's makes it smaller.
    values = [os.urandom(size.value_bytes) for _ in range(64)]
    for number in range(size.rows):
        while True:
            try:
                sender.produce(size.topic, value=values[number % 64], partition=number % PARTITIONS)
                break
            except BufferError:
                sender.poll(0.1)
        if number % 10_000 == 0:
            sender.poll(0)
    if sender.flush(FLUSH_SECONDS_MAX):
        raise TimeoutError(f"the topic was not filled within {FLUSH_SECONDS_MAX:.0f} s")


@contextmanager
def written_topic(bootstrap: str, size: Size) -> Iterator[None]:
    """What jobs write to; gone afterwards, for the room that it takes."""
    name = create_topic(bootstrap, size.topic + WRITTEN, partitions=PARTITIONS)
    yield
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([name])[name].result()


def measure(subject: Subject, bootstrap: str, size: Size, jobs: list[str], rounds: int, place: Workspace) -> list[dict[str, Any]]:
    wanted = {
        "format": subject.format,
        "bootstrap": bootstrap,
        "topic": size.topic,
        "rows": size.rows,
        "value_bytes": size.value_bytes,
        "jobs": jobs,
        "rounds": rounds,
        "master": MASTER,
        "config": subject_config(subject, place),
        "directory": str(place.path),
    }
    # As session() has it; the stock connector starts no Python.
    python = worker_python(os.environ) if subject.python == sys.executable else subject.python
    environment = {**os.environ, "JAVA_HOME": java_home(os.environ), "PYSPARK_PYTHON": python}
    # Each has the Spark of its own Python.
    environment.pop("SPARK_HOME", None)
    command = [subject.python, str(Path(__file__).with_name("jobs.py")), json.dumps(wanted)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS_MAX, env=environment, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{subject.label}: {ended.stderr[-3000:]}")
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def compared(found: dict[str, dict[str, list[dict[str, Any]]]], size: Size) -> str:
    """A table: job by subject, with the ratio of ours to the stock connector's."""
    labels = list(found)
    lines = []
    for job, title in TITLES.items():
        speeds, costs = [], []
        for label in labels:
            rounds = found[label][job]
            if job == "empty_trigger":
                speeds.append(Figure.of([each["seconds"] * 1000 for each in rounds]))
            else:
                speeds.append(Figure.of([each["rows"] / each["seconds"] for each in rounds]))
                costs.append(Figure.of([each["rows"] / each["cpu_seconds"] for each in rounds]))
        lines.append(_line(title, speeds, TARGETS[job]))
        if all("batch_seconds" in each for label in labels for each in found[label][job]):
            batches = [Figure.of([each["rows"] / each["batch_seconds"] for each in found[label][job]]) for label in labels]
            lines.append(_line(title.replace("rows/s", "without the query's start, rows/s"), batches, ""))
        if costs:
            lines.append(_line(title.replace("rows/s", "rows per CPU second"), costs, ""))
    return f"**{size.rows:,} x {size.value_bytes} B**\n\n{markdown_table(['', *labels, 'ratio', 'target'], lines)}"


def _line(title: str, figures: list[Figure], target: str) -> list[str]:
    ratio = f"{figures[0].value / figures[1].value:.2f}" if len(figures) > 1 and figures[1].value else ""
    return [title, *(f"{figure.value:,.0f} ± {figure.spread:.0%}" for figure in figures), ratio, target]


def run(place: Workspace, rows: int, turns: int, rounds: int) -> str:
    parts = []
    sizes = [Size("small", rows, 100), Size("large", max(rows // 4, 1), 1000)]
    with Broker(persist=place.path / "broker") as broker:
        bootstrap = broker.bootstrap_servers
        for size in sizes:
            say(f"filling {size.topic}: {size.rows:,} x {size.value_bytes} B")
            fill(bootstrap, size)
            found: dict[str, dict[str, list[dict[str, Any]]]] = {}
            for turn in range(turns):
                for subject in subjects():
                    say(f"{size.topic}, turn {turn + 1} of {turns}: {subject.label}")
                    by_job = found.setdefault(subject.label, defaultdict(list))
                    with written_topic(bootstrap, size):
                        for each in measure(subject, bootstrap, size, list(TITLES), rounds, place):
                            by_job[each["job"]].append(each)
            parts.append(compared(found, size))
        memory = Size("memory", place.scaled(MEMORY_BYTES) // 1000, 1000)
        say(f"filling {memory.topic}: {memory.rows:,} x {memory.value_bytes} B")
        fill(bootstrap, memory)
        ours = measure(Subject("tidelog", "tidelog", sys.executable), bootstrap, memory, ["worker_memory"], 1, place)
        megabytes = max(each["worker_bytes"] for each in ours) / 1e6
        parts.append(
            f"Largest Python worker after {memory.rows * memory.value_bytes / 1e9:.2f} GB: {megabytes:.0f} MB (target: < 300)"
        )
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark", description="Measure our source and sink in Spark beside the stock ones."
    )
    parser.add_argument("--directory", type=Path, default=Path("build/bench"), help="where to write; about 5 GB at the peak")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of 100 B; a quarter as many of 1000 B (default {ROWS:,})")
    parser.add_argument("--turns", type=int, default=TURNS, help="sessions of each connector")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each job in a session")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    arguments = parser.parse_args()
    try:
        with workspace(arguments.directory, arguments.quick) as place:
            rows = min(arguments.rows, 20_000) if arguments.quick else arguments.rows
            turns, rounds = (1, 1) if arguments.quick else (arguments.turns, arguments.rounds)
            print(f"{run(place, rows, turns, rounds)}\n\n{machine()}")
    except NotEnoughRoom as error:
        say(str(error))
        return 1
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
