"""``client/fetch`` beside librdkafka: rows per CPU-second of the reading process, and the memory of one that reads a gigabyte.

``python -m bench.spark_fetch`` prints the table; ``--quick`` shows that it runs. Both read the same topic of the same broker
through ``FetchClient``, in a process of their own each time, so that neither inherits the other's memory. CPU time, not time on
the clock: broker and reader share the machine's cores with whatever else runs.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from bench.broker_process import WAIT_SECONDS_MAX, create_topic
from bench.measure import Figure, Row, Target, alternate
from bench.table import format_rows
from bench.workspace import Workspace, workspace
from tidelog.client.fetch.client import FetchClient
from tidelog.client.topic_partition import TopicPartition
from tidelog.testing import Broker


class Shape(NamedTuple):
    name: str
    value_bytes: int
    messages: int
    codec: str
    target: Target | None = None
    is_of_ratio: bool = False
    """Whether the target is for the ratio to librdkafka, and not for rows per CPU-second."""
    settings: Mapping[str, object] = {}
    """Of the producer."""


# As producers leave them that send a message now and then, and wait for each.
ONE_RECORD = Shape(
    "100 B, one record per batch", 100, 400_000, "none", Target(">=", 1.0), is_of_ratio=True, settings={"batch.num.messages": 1}
)
SHAPES = (
    Shape("100 B", 100, 2_000_000, "none", Target(">=", 1_000_000.0)),
    Shape("100 B, zstd", 100, 2_000_000, "zstd", Target(">=", 1_000_000.0)),
    Shape("1 KB", 1_000, 1_000_000, "none"),
    ONE_RECORD,
)
ROUNDS = 3
MEMORY_MIB_MAX = 300.0
# A setting that changes nothing, and that our own connection leaves to librdkafka.
LIBRDKAFKA = {"socket.nagle.disable": "true"}


def run(place: Workspace) -> list[Row]:
    rows = []
    for shape in SHAPES:
        memory: list[float] = []
        rows.append(rates(place, shape, memory))
        mebibytes = shape.value_bytes * place.scaled(shape.messages) / 2**20
        what = f"fetch: most memory while reading {mebibytes:,.0f} MiB, {shape.name}"
        rows.append(Row(what, Figure.of(memory), "MiB", target=Target("<=", MEMORY_MIB_MAX)))
    return rows


def rates(place: Workspace, shape: Shape, memory: list[float]) -> Row:
    """Rows per CPU-second of both; ``memory`` receives the most memory of each of our rounds."""
    count = place.scaled(shape.messages)
    with place.directory("fetch") as path, Broker(persist=path) as broker:
        _fill(broker, shape, count)
        compared = alternate(
            place.rounds(ROUNDS),
            lambda: _read(broker, count, {}, memory),
            lambda: _read(broker, count, LIBRDKAFKA, []),
        )
        broker.kill()
    what = f"fetch: {shape.name}, into Arrow; raw: through librdkafka"
    return Row.of_comparison(what, compared, "rows/CPU-s", shape.target, "ratio" if shape.is_of_ratio else "ours")


def _fill(broker: Broker, shape: Shape, count: int) -> None:
    create_topic(broker, "bench")
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "log_level": 0,
            "linger.ms": 50,
            "compression.type": shape.codec,
            "queue.buffering.max.messages": 100_000,
            **shape.settings,
        }
    )
    value = bytes(index % 251 for index in range(shape.value_bytes))
    for number in range(count):
        while True:
            try:
                producer.produce("bench", value, b"%d" % (number % 10_000), partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(WAIT_SECONDS_MAX):
        raise RuntimeError("the topic could not be filled")


def _read(broker: Broker, count: int, settings: dict[str, str], memory: list[float]) -> float:
    """Rows per CPU-second, of a child that reads everything; appends its most memory in MiB."""
    task = json.dumps([broker.bootstrap_servers, count, settings])
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark_fetch", "--child", task], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the reader failed: {done.stderr.strip()}")
    seconds, mebibytes = json.loads(done.stdout)
    memory.append(mebibytes)
    return count / float(seconds)


def _child(task: str) -> None:
    bootstrap, count, settings = json.loads(task)
    with FetchClient(bootstrap, settings=settings) as client:
        client.offsets([TopicPartition("bench", 0)], "latest")
        start = time.process_time()
        rows = sum(batch.num_rows for batch in client.read("bench", 0, 0, count))
        seconds = time.process_time() - start
    if rows != count:
        raise RuntimeError(f"{rows} rows, not {count}")
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    print(json.dumps([seconds, int(line.split()[1]) / 1024]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_fetch", description="Measure client/fetch beside librdkafka.")
    parser.add_argument("--directory", type=Path, default=Path("build/bench"), help="where to write")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(arguments.child)
        return
    with workspace(arguments.directory, arguments.quick) as place:
        rows = run(place)
        print("\n".join(format_rows([replace(row, target=None) for row in rows] if arguments.quick else rows)))


if __name__ == "__main__":
    main()
