"""``tidelog bench``: a quick measurement of a broker and of the network between, as a table.

It makes three runs on a topic of its own, which it deletes afterwards: messages in, the same messages out, and single messages
there and back, one after the other, for the latency. The latency is also drawn over time: a broker, or a machine, that pauses
from time to time has a fine median, and its pauses show as high columns. With ``--rate`` there is a fourth run, a steady stream,
which shows what larger batches and fetches that wait save in requests, and what they cost in latency.

It measures librdkafka and Python in this process as much as the broker; ``bench/`` in the source has the real measurements.
"""

import json
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, REQUEST_SECONDS_MAX, BootstrapOption, JsonOption, KafkaCluster, PropertiesOption
from tidelog.cli.output import make_console, progress_bar, say, show_json, show_table
from tidelog.cli.produce import ACKS, COMPRESSIONS, DeliveryReport, check_choice
from tidelog.client.admin import Admin
from tidelog.client.errors import UnknownTopic
from tidelog.client.raw_consumer import RawConsumer
from tidelog.client.raw_producer import RawProducer
from tidelog.client.topic_partition import TopicPartition

app = typer.Typer()

TOPIC_PREFIX = "tidelog-bench-"
FETCH_MESSAGES = 10_000
# A broker that sends nothing for so long is gone.
SILENCE_SECONDS_MAX = 15.0
POLL_SECONDS = 0.5
# Polling after every message would cost more than sending it.
POLL_EVERY_MESSAGES = 1000
# The stream: how long it waits for messages before it sends those that are due, and how often librdkafka counts its requests.
STREAM_POLL_SECONDS = 0.001
STATISTICS_MS = 100
# The drawing of the latency over time: columns, and what they are made of from low to high.
COLUMNS = 60
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=*#%@"


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
    """Round trips of single messages, one after the other, in milliseconds."""

    messages: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    interval_ms: float
    max_ms_by_interval: list[float]
    """The slowest message that was under way in each interval of the run."""

    @classmethod
    def of(cls, seconds: list[float]) -> "Latency":
        ordered = sorted(seconds)
        p50, p95, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 for share in (0.5, 0.95, 0.99))
        interval_seconds = sum(seconds) / COLUMNS
        columns = [0.0] * COLUMNS
        began = 0.0
        for taken in seconds:
            # A message that takes longer than an interval is under way in several.
            first, last = (min(COLUMNS - 1, int(at / interval_seconds)) for at in (began, began + taken))
            columns[first : last + 1] = [max(column, taken * 1000) for column in columns[first : last + 1]]
            began += taken
        return cls(len(ordered), p50, p95, p99, ordered[-1] * 1000, interval_seconds * 1000, columns)

    def drawn(self, blocks: str = BLOCKS) -> str:
        highest = len(blocks) - 1
        return "".join(blocks[round(column / self.max_ms * highest)] for column in self.max_ms_by_interval)


@dataclass(frozen=True, slots=True)
class Stream:
    """A steady stream through one partition. Latency is from handing a message to the producer until the consumer has it."""

    messages: int
    seconds: float
    produce_requests: int
    fetch_requests: int
    p50_ms: float
    p99_ms: float


class RequestCounts:
    """The requests that a client of librdkafka has sent so far, by name, from its statistics."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.reports = 0

    @property
    def settings(self) -> dict[str, object]:
        return {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self}

    def __call__(self, statistics: str) -> None:
        self.reports += 1
        self._counts = Counter()
        for broker in json.loads(statistics)["brokers"].values():
            self._counts.update(broker["req"])

    def __getitem__(self, name: str) -> int:
        return self._counts[name]


@app.command("bench", epilog="Example: tidelog bench --messages 1000000 --size 100 --acks 1")
def bench_command(
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="How many messages to send and receive.")] = 200_000,
    size: Annotated[int, typer.Option("--size", "-s", min=1, help="How many bytes each value has.")] = 100,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="How many partitions the temporary topic has.")
    ] = 1,
    round_trips: Annotated[
        int, typer.Option("--round-trips", min=1, help="How many single messages to measure the latency with.")
    ] = 2_000,
    acks: Annotated[
        str, typer.Option("--acks", metavar="0|1|all", help="Who must acknowledge: nobody, the leader, or all in-sync replicas.")
    ] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="|".join(COMPRESSIONS), help="How to compress batches.")
    ] = "none",
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="How many bytes a batch of the producer has at most.")
    ] = (1_000_000),
    linger: Annotated[float, typer.Option("--linger-ms", min=0, help="How long the producer waits for a batch to fill.")] = 5,
    rate: Annotated[int, typer.Option("--rate", min=0, help="Also send a steady stream of so many messages a second.")] = 0,
    duration: Annotated[int, typer.Option("--seconds", min=1, help="How long the stream lasts.")] = 5,
    fetch_min_bytes: Annotated[
        int, typer.Option("--fetch-min-bytes", min=1, help="How many bytes a fetch of the stream waits for.")
    ] = 1,
    fetch_wait: Annotated[int, typer.Option("--fetch-wait-ms", min=0, help="How long it waits for them at most.")] = 500,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a broker quickly: messages in, messages out, and the latency of single messages."""
    check_choice(acks, ("-1", *ACKS), "--acks")
    check_choice(compression, COMPRESSIONS, "--compression")
    cluster = KafkaCluster(bootstrap, properties)
    value = secrets.token_bytes(size)
    with cluster.errors(), cluster.admin() as admin, _temporary_topic(admin, partitions) as topic:
        batches = {"acks": acks, "compression.type": compression, "batch.size": batch_size, "linger.ms": linger}
        produced = _produce(cluster, topic, value, messages, batches)
        consumed = _consume(cluster, topic, partitions, messages, size)
        ends = admin.list_offsets([(topic, index) for index in range(partitions)], "latest")
        latency = _round_trips(cluster, {each: end or 0 for each, end in ends.items()}, value, round_trips, acks)
        stream = None
        if rate:
            waits = {"fetch.min.bytes": fetch_min_bytes, "fetch.wait.max.ms": fetch_wait}
            (end,) = admin.list_offsets([(topic, 0)], "latest").values()
            stream = _stream(cluster, (topic, end or 0), value, (rate, duration), batches, waits)
    if as_json:
        figures = {"produce": asdict(produced), "consume": asdict(consumed), "round_trip": asdict(latency)}
        show_json(figures if stream is None else {**figures, "stream": asdict(stream)})
        return
    console = make_console()
    say(console, f"{bootstrap}: {messages:,} messages of {size:,} bytes, acks={acks}, compression {compression}")
    rows = [
        (name, run.messages_per_second, run.megabytes_per_second) for name, run in (("produce", produced), ("consume", consumed))
    ]
    show_table(console, ("", "Messages/s", "MB/s"), rows)
    quantiles = (latency.p50_ms, latency.p95_ms, latency.p99_ms, latency.max_ms)
    show_table(console, ("Latency in ms", "p50", "p95", "p99", "max"), [("there and back", *quantiles)])
    say(
        console,
        f"  Slowest over time: each column is {latency.interval_ms:.1f} ms, the highest stands for {latency.max_ms:.1f} ms",
    )
    say(console, "  " + latency.drawn(BLOCKS if console.encoding.startswith("utf") else ASCII_BLOCKS))
    if stream is not None:
        row = (stream.messages / stream.seconds, stream.produce_requests, stream.fetch_requests, stream.p50_ms, stream.p99_ms)
        titles = ("", "Messages/s", "Produce requests", "Fetch requests", "p50 ms", "p99 ms")
        show_table(console, titles, [(f"{stream.seconds:.1f} s", *row)])


@contextmanager
def _temporary_topic(admin: Admin, partitions: int) -> Iterator[str]:
    """A topic that is deleted afterwards, whatever happens: a second Ctrl-C does not stop the deletion, which is bounded."""
    topic = TOPIC_PREFIX + secrets.token_hex(4)
    try:
        admin.create_topic(topic, partitions=partitions)
        yield topic
    finally:
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            # After an interruption nobody knows whether the broker created the topic.
            with suppress(UnknownTopic):
                admin.delete_topic(topic)
        finally:
            signal.signal(signal.SIGINT, handler)


@contextmanager
def _open_producer(cluster: KafkaCluster, report: DeliveryReport, settings: dict[str, object]) -> Iterator[RawProducer]:
    producer = cluster.producer(report, settings)
    try:
        yield producer
    finally:
        producer.close(REQUEST_SECONDS_MAX)


def _produce(cluster: KafkaCluster, topic: str, value: bytes, messages: int, settings: dict[str, object]) -> Throughput:
    report = DeliveryReport(cluster)
    with _open_producer(cluster, report, settings) as producer:
        started = time.perf_counter()
        with progress_bar("Sending", messages) as advance:
            for number in range(1, messages + 1):
                producer.produce(topic, value)
                if number % POLL_EVERY_MESSAGES == 0:
                    producer.poll(0)
                    advance(POLL_EVERY_MESSAGES)
        report.check(producer.flush(REQUEST_SECONDS_MAX))
        return Throughput.of(messages, len(value), time.perf_counter() - started)


def _consume(cluster: KafkaCluster, topic: str, partitions: int, messages: int, size_bytes: int) -> Throughput:
    # By default librdkafka stops fetching for a second when its queue is full.
    settings = {"fetch.queue.backoff.ms": 1, "queued.min.messages": 1_000_000, "enable.partition.eof": False}
    with cluster.consumer(settings) as consumer:
        started = time.perf_counter()
        consumer.assign({TopicPartition(topic, index): 0 for index in range(partitions)})
        received = 0
        with progress_bar("Receiving", messages) as advance:
            while received < messages:
                count = _receive(cluster, consumer, min(FETCH_MESSAGES, messages - received))
                received += count
                advance(count)
        return Throughput.of(messages, size_bytes, time.perf_counter() - started)


def _round_trips(cluster: KafkaCluster, ends: Mapping[TopicPartition, int], value: bytes, count: int, acks: str) -> Latency:
    """Measure from handing a message to the producer until the consumer has it, with nothing else under way."""
    topic = next(iter(ends)).topic
    with (
        _open_producer(cluster, DeliveryReport(cluster), {"acks": acks, "linger.ms": 0}) as producer,
        cluster.consumer({"fetch.wait.max.ms": 500, "enable.partition.eof": False}) as consumer,
    ):
        consumer.assign(ends)
        seconds = []
        # The first message pays for the connections and is not counted.
        for number in range(count + 1):
            started = time.perf_counter()
            producer.produce(topic, value, partition=0)
            producer.poll(0)
            _receive(cluster, consumer, 1)
            if number:
                seconds.append(time.perf_counter() - started)
        producer.flush(REQUEST_SECONDS_MAX)
        return Latency.of(seconds)


def _stream(
    cluster: KafkaCluster,
    start: tuple[str, int],
    value: bytes,
    pace: tuple[int, int],
    batches: Mapping[str, object],
    waits: Mapping[str, object],
) -> Stream:
    """Send at a rate for some seconds, and receive beside it. ``start``: the topic and the end of its first partition."""
    (topic, first), (rate, duration) = start, pace
    total = rate * duration
    produce_counts, fetch_counts = RequestCounts(), RequestCounts()
    sent_at: list[float] = []
    latencies: list[float] = []
    report = DeliveryReport(cluster)
    with (
        _open_producer(cluster, report, {**batches, **produce_counts.settings}) as producer,
        cluster.consumer({**waits, **fetch_counts.settings, "enable.partition.eof": False}) as consumer,
    ):
        consumer.assign({TopicPartition(topic, 0): first})
        heard_at = started = time.perf_counter()
        while len(latencies) < total:
            due = min(total, int((time.perf_counter() - started) * rate))
            for _ in range(len(sent_at), due):
                sent_at.append(time.perf_counter())
                producer.produce(topic, value, partition=0)
            producer.poll(0)
            messages = consumer.consume(FETCH_MESSAGES, STREAM_POLL_SECONDS)
            now = time.perf_counter()
            latencies += [now - sent_at[message.offset - first] for message in messages]
            heard_at = now if len(messages) else heard_at
            _check_heard(cluster, now - heard_at)
        seconds = time.perf_counter() - started
        report.check(producer.flush(REQUEST_SECONDS_MAX))
        # The next statistics have the last requests too.
        for counts in (produce_counts, fetch_counts):
            wanted = counts.reports + 1
            while counts.reports < wanted:
                producer.poll(STREAM_POLL_SECONDS)
                consumer.consume(1, STREAM_POLL_SECONDS)
        ordered = sorted(latencies)
        p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 for share in (0.5, 0.99))
        return Stream(total, seconds, produce_counts["Produce"], fetch_counts["Fetch"], p50, p99)


def _check_heard(cluster: KafkaCluster, seconds: float) -> None:
    if seconds > SILENCE_SECONDS_MAX:
        raise CommandFailed(f"no broker answers at {cluster.bootstrap}: nothing came for {SILENCE_SECONDS_MAX:.0f} s")


def _receive(cluster: KafkaCluster, consumer: RawConsumer, count_max: int) -> int:
    """Wait for messages, and return how many arrived."""
    deadline = time.monotonic() + SILENCE_SECONDS_MAX
    timeout = SILENCE_SECONDS_MAX if count_max == 1 else POLL_SECONDS
    while time.monotonic() < deadline:
        count = len(consumer.consume(count_max, timeout))
        if count:
            return count
    raise CommandFailed(f"no broker answers at {cluster.bootstrap}: nothing came for {SILENCE_SECONDS_MAX:.0f} s")
