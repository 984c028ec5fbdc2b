"""``tidelog bench``: a quick self-test of a broker and the way to it, with a table.

Three runs on a topic of its own, which is deleted afterwards: messages in, the same messages out, and single messages there and
back, one after the other, for the latency. It measures librdkafka and Python in this process as much as the broker; ``bench/``
in the source has the real measurements.
"""

import secrets
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, REQUEST_SECONDS_MAX, BootstrapOption, Cluster, JsonOption, PropertiesOption
from tidelog.cli.output import make_console, say, show_json, show_table
from tidelog.cli.produce import ACKS, COMPRESSIONS, Delivery, check_choice

app = typer.Typer()

TOPIC_PREFIX = "tidelog-bench-"
FETCH_MESSAGES = 10_000
# Nothing at all for so long: the broker is gone.
SILENCE_SECONDS_MAX = 15.0
# The client's queue holds as many by default; its callbacks are run once for so many messages.
POLL_EVERY_MESSAGES = 1000


@dataclass(frozen=True, slots=True)
class Throughput:
    messages: int
    seconds: float
    messages_per_second: float
    megabytes_per_second: float

    @classmethod
    def of(cls, messages: int, size_bytes: int, seconds: float) -> "Throughput":
        return cls(messages, seconds, messages / seconds, messages * size_bytes / seconds / 1e6)


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds, of single messages one after the other."""

    messages: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Latency":
        ordered = sorted(seconds)
        p50, p95, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 for share in (0.5, 0.95, 0.99))
        return cls(len(ordered), p50, p95, p99, ordered[-1] * 1000)


@app.command("bench", epilog="Example: tidelog bench --messages 1000000 --size 100 --acks 1")
def bench_command(
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="How many messages in and out.")] = 200_000,
    size: Annotated[int, typer.Option("--size", "-s", min=1, help="Bytes in each value.")] = 100,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Of the topic that it makes.")] = 1,
    round_trips: Annotated[int, typer.Option("--round-trips", min=1, help="How many single messages for the latency.")] = 200,
    acks: Annotated[str, typer.Option("--acks", metavar="0|1|all", help="Whose acknowledgement to wait for.")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="|".join(COMPRESSIONS), help="How batches are compressed.")
    ] = "none",
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a broker quickly: messages in, messages out, and the latency of single ones."""
    check_choice(acks, ("-1", *ACKS), "--acks")
    check_choice(compression, COMPRESSIONS, "--compression")
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    topic = TOPIC_PREFIX + secrets.token_hex(4)
    with cluster.errors():
        admin.create_topics([NewTopic(topic, partitions)], request_timeout=REQUEST_SECONDS_MAX)[topic].result()
    value = secrets.token_bytes(size)
    try:
        produced = _produce(cluster, topic, value, messages, acks, compression)
        consumed = _consume(cluster, topic, partitions, messages, size)
        latency = _round_trips(cluster, topic, partitions, value, round_trips, acks)
    finally:
        with cluster.errors():
            admin.delete_topics([topic], request_timeout=REQUEST_SECONDS_MAX)[topic].result()
    if as_json:
        show_json({"produce": asdict(produced), "consume": asdict(consumed), "round_trip": asdict(latency)})
        return
    console = make_console()
    say(console, f"{bootstrap}: {messages:,} messages of {size:,} bytes, acks={acks}, compression {compression}")
    rows = [
        (name, run.messages_per_second, run.megabytes_per_second) for name, run in (("produce", produced), ("consume", consumed))
    ]
    show_table(console, ("", "Messages/s", "MB/s"), rows)
    figures = (latency.p50_ms, latency.p95_ms, latency.p99_ms, latency.max_ms)
    show_table(console, ("Latency in ms", "p50", "p95", "p99", "max"), [("there and back", *figures)])


def _produce(cluster: Cluster, topic: str, value: bytes, messages: int, acks: str, compression: str) -> Throughput:
    producer = cluster.producer({"acks": acks, "compression.type": compression, "linger.ms": 5, "batch.size": 1_000_000})
    delivery = Delivery(cluster)
    started = time.perf_counter()
    for number in range(messages):
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivery)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        if number % POLL_EVERY_MESSAGES == 0:
            producer.poll(0)
    delivery.check(producer.flush(REQUEST_SECONDS_MAX))
    return Throughput.of(messages, len(value), time.perf_counter() - started)


def _consume(cluster: Cluster, topic: str, partitions: int, messages: int, size_bytes: int) -> Throughput:
    # By default the client stops fetching for a second when its queue is full.
    consumer = cluster.consumer({"auto.offset.reset": "earliest", "fetch.queue.backoff.ms": 1, "queued.min.messages": 1_000_000})
    try:
        started = time.perf_counter()
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        received = 0
        while received < messages:
            received += len(_receive(cluster, consumer, min(FETCH_MESSAGES, messages - received)))
        return Throughput.of(messages, size_bytes, time.perf_counter() - started)
    finally:
        consumer.close()


def _round_trips(cluster: Cluster, topic: str, partitions: int, value: bytes, count: int, acks: str) -> Latency:
    """From handing a message to the producer until the consumer has it, with nothing else under way."""
    producer = cluster.producer({"acks": acks, "linger.ms": 0})
    consumer = cluster.consumer({"fetch.wait.max.ms": 500})
    try:
        with cluster.errors():
            ends = [
                consumer.get_watermark_offsets(TopicPartition(topic, index), REQUEST_SECONDS_MAX)[1]
                for index in range(partitions)
            ]
            consumer.assign([TopicPartition(topic, index, end) for index, end in enumerate(ends)])
        seconds = []
        # The first one pays for connections and is not counted.
        for number in range(count + 1):
            started = time.perf_counter()
            producer.produce(topic, value, partition=0)
            producer.poll(0)
            _receive(cluster, consumer, 1)
            if number:
                seconds.append(time.perf_counter() - started)
        producer.flush(REQUEST_SECONDS_MAX)
        return Latency.of(seconds)
    finally:
        consumer.close()


def _receive(cluster: Cluster, consumer: Any, count_max: int) -> list[Any]:
    with cluster.errors():
        found = consumer.consume(count_max, SILENCE_SECONDS_MAX) if count_max == 1 else consumer.consume(count_max, 0.5)
        deadline = time.monotonic() + SILENCE_SECONDS_MAX
        while not found and time.monotonic() < deadline:
            found = consumer.consume(count_max, 0.5)
    if not found:
        raise CommandFailed(f"no broker answers at {cluster.bootstrap}: nothing came for {SILENCE_SECONDS_MAX:.0f} s")
    for message in found:
        if message.error() is not None:
            raise CommandFailed(cluster.reason(message.error()))
    return list(found)
