"""``python -m bench.spark``: reading and writing topics with Spark, by us and by the stock connector.

One broker (Tidelog), and topics of JSON messages with keys, compressed with lz4. Each connector has a session of its own, one
after the other, several times in turn; the first round of each line is not counted. Figures are medians, of time and of
processor time over Java and Python together: on a machine with other work the second says more. ``--only`` picks lines by name.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench import spark_fetch
from bench.beside.document import machine, markdown_table
from bench.measure import Figure, Target
from bench.spark.jobs import WARM_UP_BATCHES, WRITTEN
from bench.spark.stock import StockUnavailable, stock_connector
from bench.workspace import NotEnoughRoom, Workspace, workspace
from tests.toolkit_broker import create_topic
from tidelog.spark.runtimes import java_home, worker_python
from tidelog.spark.spark_session import settings_of
from tidelog.testing import Broker

MASTER = "local[2]"
ROUNDS = 3
TURNS = 2
FLUSH_SECONDS_MAX = 1_800.0
CHILD_SECONDS_MAX = 3_600.0
# Messages get times a millisecond apart from here on, so that the last of them can be found by time.
FIRST_MS = 1_780_000_000_000
VALUES = 4_096
WORKER_MB_MAX = 200
LAST_PART = 0.01
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
    partitions: int
    rows: int
    value_bytes: int

    def scaled(self, place: Workspace) -> "Size":
        return self._replace(rows=place.scaled(self.rows, at_least=self.partitions * 8))


class Line(NamedTuple):
    """One figure of both connectors. Targets are for the ratio of ours to stock's: of rates, or of times for jobs that are about
    the time of one batch."""

    name: str
    title: str
    job: str
    size: Size
    target: Target | None = None
    cpu_target: Target | None = None
    is_time: bool = False
    arguments: Mapping[str, Any] = {}

    def wanted(self, place: Workspace) -> dict[str, Any]:
        """What the measured side is told."""
        size = self.size.scaled(place)
        told = {"name": self.name, "job": self.job, **size._asdict(), **self.arguments}
        if "batches" in told and place.is_quick:
            told |= {"batches": 2, "batch_rows": size.rows // (2 + WARM_UP_BATCHES)}
        return told


NARROW = Size("narrow", 4, 2_000_000, 100)
LARGE = Size("large", 4, 500_000, 1000)
WIDE = Size("wide", 200, 1_000_000, 100)
WIDER = Size("wider", 1_000, 1_000_000, 100)
LONG = Size("long", 4, 20_000_000, 100)


def at_least(value: float) -> Target:
    return Target(">=", value)


def at_most(value: float) -> Target:
    return Target("<=", value)


def _batches_of(rows: int, batches: int = 10) -> dict[str, int]:
    return {"batch_rows": rows, "batches": batches}


LINES = (
    Line("sum-4", "batch sum, 4 partitions, 2 M x 100 B", "batch_sum", NARROW, at_least(2.5)),
    Line("sum-200", "batch sum, 200 partitions, 1 M x 100 B", "batch_sum", WIDE, at_least(2.5)),
    Line("sum-1000", "batch sum, 1,000 partitions, 1 M x 100 B", "batch_sum", WIDER, at_least(2.5)),
    Line("sum-1kb", "batch sum, 4 partitions, 500 k x 1 kB", "batch_sum", LARGE, at_least(1.5)),
    Line(
        "parquet",
        "`availableNow` to Parquet, 2 M x 100 B",
        "available_now_to_parquet",
        NARROW,
        at_least(1.5),
        at_least(1.1),
    ),
    Line("parquet-1kb", "`availableNow` to Parquet, 500 k x 1 kB", "available_now_to_parquet", LARGE, at_least(1.2)),
    Line(
        "batch-200",
        "micro-batch of 100 k rows, 200 partitions",
        "micro_batches",
        WIDE,
        at_most(0.4),
        is_time=True,
        arguments=_batches_of(100_000, 6),
    ),
    Line(
        "batch-4",
        "micro-batch of 20 k rows, 4 partitions",
        "micro_batches",
        NARROW,
        at_most(1.1),
        is_time=True,
        arguments=_batches_of(20_000, 20),
    ),
    Line("empty", "trigger that finds nothing", "empty_trigger", NARROW, at_most(1.0), is_time=True),
    Line("write", "write, 2 M x 100 B (ours exactly once)", "write", NARROW, at_least(1.5), at_least(1.0)),
    Line("write-1kb", "write, 500 k x 1 kB (ours exactly once)", "write", LARGE, at_least(1.2), at_least(1.0)),
    Line(
        "copy-4",
        "topic to topic, 20 k rows, 4 partitions",
        "topic_to_topic",
        NARROW,
        at_most(1.2),
        is_time=True,
        arguments=_batches_of(20_000, 20),
    ),
    Line(
        "copy-4-at-least-once",
        "the same, ours at least once",
        "topic_to_topic",
        NARROW,
        is_time=True,
        arguments={**_batches_of(20_000, 20), "sink": {"deliveryGuarantee": "at_least_once"}},
    ),
    Line(
        "copy-200",
        "topic to topic, 20 k rows, 200 partitions",
        "topic_to_topic",
        WIDE,
        at_most(1.5),
        is_time=True,
        arguments=_batches_of(20_000),
    ),
)
# Lines without the stock connector: the whole of the long topic, its last rows by time, and its first million.
LAST = Line("last", "last 1 % by time of 20 M rows", "batch_sum", LONG)
WHOLE = LAST._replace(name="last-whole", title="all of them")
FIRST = LAST._replace(name="last-first", title="their first million")
MEMORY = Line("memory", "largest Python worker", "worker_memory", Size("memory", 4, (1 << 30) // 1000, 1000))
ONE_RECORD = "one-record"
NAMES = (*(line.name for line in LINES), LAST.name, MEMORY.name, ONE_RECORD)


OURS = Subject("tidelog", "tidelog", sys.executable)


def subjects() -> list[Subject]:
    found = [OURS]
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


class Topics:
    """The topics of one broker, filled when they are first asked for."""

    def __init__(self, bootstrap: str, place: Workspace) -> None:
        self.bootstrap = bootstrap
        self._place = place
        self._filled: set[str] = set()

    def need(self, size: Size) -> None:
        if size.topic not in self._filled:
            self._filled.add(size.topic)
            scaled = size.scaled(self._place)
            say(f"filling {size.topic}: {scaled.rows:,} x {size.value_bytes} B, {size.partitions} partitions")
            fill(self.bootstrap, scaled)

    @contextmanager
    def written(self, lines: Sequence[Line]) -> Iterator[None]:
        """What jobs write to; deleted afterwards, for the room that it takes."""
        sizes = {line.size.topic: line.size for line in lines if line.job in ("write", "topic_to_topic")}
        names = [create_topic(self.bootstrap, name + WRITTEN, partitions=size.partitions) for name, size in sizes.items()]
        yield
        if names:
            admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
            for future in admin.delete_topics(names).values():
                future.result()


def fill(bootstrap: str, size: Size, bad: float = 0.0) -> None:
    """JSON of ``value_bytes``, the part ``bad`` of them cut off in the middle."""
    # The times of the messages are not those of today.
    create_topic(bootstrap, size.topic, partitions=size.partitions, config={"retention.ms": "-1"})
    sender = Producer({"bootstrap.servers": bootstrap, "linger.ms": 100, "batch.size": 1_000_000, "compression.type": "lz4"})
    values = [_value(number, size.value_bytes) for number in range(VALUES)]
    every = round(1 / bad) if bad else 0
    for number in range(size.rows):
        value = values[number % VALUES]
        if every and number % every == 0:
            value = value[: size.value_bytes // 2]
        # Runs of a thousand, so that batches of many partitions are not of one record each.
        partition = number // 1_000 % size.partitions if size.rows >= size.partitions * 1_000 else number % size.partitions
        while True:
            try:
                sender.produce(size.topic, value, b"key-%d" % (number % 100_000), partition, timestamp=FIRST_MS + number)
                break
            except BufferError:
                sender.poll(0.1)
        if number % 10_000 == 0:
            sender.poll(0)
    if sender.flush(FLUSH_SECONDS_MAX):
        raise TimeoutError(f"the topic was not filled within {FLUSH_SECONDS_MAX:.0f} s")


SCHEMA = "id BIGINT, amount DOUBLE, city STRING, note STRING"


def _value(number: int, size: int) -> bytes:
    """With something random in it, so that compression finds what it finds in real messages."""
    fields = {"id": number, "amount": number / 100, "city": ("Berlin", "Paris", "Oslo")[number % 3], "note": ""}
    room = size - len(json.dumps(fields))
    return json.dumps({**fields, "note": secrets.token_hex(max(room, 2))[: max(room, 2)]}).encode()


def measure(
    subject: Subject, bootstrap: str, lines: Sequence[Mapping[str, Any]], rounds: int, place: Workspace
) -> list[dict[str, Any]]:
    wanted = {
        "format": subject.format,
        "bootstrap": bootstrap,
        "lines": lines,
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


Rounds = dict[str, dict[str, list[dict[str, Any]]]]
"""By subject and by name of a line."""


def beside_stock(topics: Topics, lines: Sequence[Line], place: Workspace, turns: int, rounds: int) -> str:
    found: Rounds = {}
    for line in lines:
        topics.need(line.size)
    for turn in range(turns):
        for subject in subjects():
            say(f"turn {turn + 1} of {turns}: {subject.label}, load {os.getloadavg()[0]:.1f}")
            by_name = found.setdefault(subject.label, {})
            with topics.written(lines):
                for each in measure(subject, topics.bootstrap, [line.wanted(place) for line in lines], rounds, place):
                    by_name.setdefault(each["name"], []).append(each)
    return compared(found, lines)


def compared(found: Rounds, lines: Sequence[Line]) -> str:
    """A table: line by subject, with the ratio of ours to the stock connector's."""
    labels = list(found)
    rows = []
    for line in lines:
        rounds = [found[label][line.name] for label in labels]
        rows.append(_row(line.title + (", ms" if line.is_time else ", rows/s"), _figures(rounds, line, "seconds"), line.target))
        if line.job == "available_now_to_parquet":
            batches = _figures(rounds, line, "batch_seconds")
            rows.append(_row("- without the query's start, rows/s", batches, None))
        if line.job != "empty_trigger":
            unit = "processor ms" if line.is_time else "rows per processor second"
            rows.append(_row(f"- {unit}", _figures(rounds, line, "cpu_seconds"), line.cpu_target))
    return markdown_table(["", *labels, "ratio", "target", ""], rows)


def _figures(rounds: Sequence[Sequence[Mapping[str, Any]]], line: Line, name: str) -> list[Figure]:
    return [
        Figure.of([each[name] * 1000 if line.is_time else each["rows"] / each[name] for each in of_subject])
        for of_subject in rounds
    ]


def _row(title: str, figures: list[Figure], target: Target | None) -> list[str]:
    ratio = figures[0].value / figures[1].value if len(figures) > 1 and figures[1].value else None
    shown = ["", ""]
    if target is not None:
        shown = [f"{target.bound} {target.value:g}", "" if ratio is None else "ok" if target.is_met_by(ratio) else "short"]
    cells = [f"{figure.value:,.0f} ± {figure.spread:.0%}" for figure in figures]
    return [title, *cells, "" if ratio is None else f"{ratio:.2f}", *shown]


# -- lines without the stock connector ------------------------------------------------------------------------------------------


def last_by_time(topics: Topics, place: Workspace, rounds: int) -> list[list[str]]:
    """What a filter on the time saves, and what a row costs in a long topic beside a short one."""
    size = LONG.scaled(place)
    topics.need(LONG)
    lines = [
        {**LAST.wanted(place), "since_ms": FIRST_MS + round(size.rows * (1 - LAST_PART))},
        WHOLE.wanted(place),
        {**FIRST.wanted(place), "first_rows": size.rows // 20},
    ]
    found: dict[str, list[dict[str, Any]]] = {}
    for each in measure(OURS, topics.bootstrap, lines, rounds, place):
        found.setdefault(each["name"], []).append(each)
    seconds = {name: Figure.of([each["seconds"] for each in rounds_of_it]) for name, rounds_of_it in found.items()}
    costs = {
        name: Figure.of([each["cpu_seconds"] / each["rows"] * 1e6 for each in rounds_of_it])
        for name, rounds_of_it in found.items()
    }
    part = seconds[LAST.name].value / seconds[WHOLE.name].value
    growth = costs[WHOLE.name].value / costs[FIRST.name].value
    return [
        alone(
            f"{LAST.title}: time, as a part of the whole scan",
            f"{part:.3f} ({seconds[LAST.name].value:.2f} s of {seconds[WHOLE.name].value:.2f} s)",
            at_most(0.1),
            part,
        ),
        alone(
            "processor time of a row, 20 M rows against 1 M",
            f"{growth:.2f} ({costs[WHOLE.name].value:.2f} µs, {costs[FIRST.name].value:.2f} µs)",
            at_most(1.3),
            growth,
        ),
    ]


def worker_memory(topics: Topics, place: Workspace) -> list[str]:
    topics.need(MEMORY.size)
    found = measure(OURS, topics.bootstrap, [MEMORY.wanted(place)], 1, place)
    megabytes = max(each["worker_bytes"] for each in found) / 1e6
    size = MEMORY.size.scaled(place)
    title = f"{MEMORY.title} after {size.rows * size.value_bytes / 1e9:.2f} GB"
    return alone(title, f"{megabytes:.0f} MB", at_most(WORKER_MB_MAX), megabytes)


def one_record_batches(place: Workspace) -> list[str]:
    row = spark_fetch.rates(place, spark_fetch.ONE_RECORD, [])
    assert row.raw is not None
    assert row.ratio is not None
    shown = f"{row.ratio.value:.2f} ({row.ours.value:,.0f}, {row.raw.value:,.0f})"
    title = "one record per batch, rows per processor second of `client/fetch` against librdkafka's"
    return alone(title, shown, at_least(1.0), row.ratio.value)


def alone(title: str, shown: str, target: Target, value: float) -> list[str]:
    return [title, shown, f"{target.bound} {target.value:g}", "ok" if target.is_met_by(value) else "short"]


# -- the command ----------------------------------------------------------------------------------------------------------------


def run(place: Workspace, names: Collection[str], turns: int, rounds: int) -> str:
    parts, ours_alone = [], []
    with Broker(persist=place.path / "broker") as broker:
        topics = Topics(broker.bootstrap_servers, place)
        lines = [line for line in LINES if line.name in names]
        if lines:
            parts.append(beside_stock(topics, lines, place, turns, rounds))
        if LAST.name in names:
            ours_alone += last_by_time(topics, place, rounds)
        if MEMORY.name in names:
            ours_alone.append(worker_memory(topics, place))
    if ONE_RECORD in names:
        ours_alone.append(one_record_batches(place))
    if ours_alone:
        parts.append(markdown_table(["", "tidelog", "target", ""], ours_alone))
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark", description="Measure our source and sink in Spark beside the stock ones."
    )
    parser.add_argument("--directory", type=Path, default=Path("build/bench"), help="where to write; about 5 GB at the peak")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="LINE", help=f"lines: {', '.join(NAMES)}")
    parser.add_argument("--turns", type=int, default=TURNS, help="sessions of each connector")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each line in a session")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    arguments = parser.parse_args()
    try:
        with workspace(arguments.directory, arguments.quick) as place:
            turns, rounds = (1, 1) if arguments.quick else (arguments.turns, arguments.rounds)
            print(f"{run(place, arguments.only, turns, rounds)}\n\n{machine()}")
    except NotEnoughRoom as error:
        say(str(error))
        return 1
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
