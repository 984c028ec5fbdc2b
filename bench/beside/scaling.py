"""How cost grows: one quantity at a time, from small to large, in powers of ten. What to look for is a cliff.

All into the page cache: it is the broker that is measured. Each point has a fresh topic, and the broker is the same for all
points of a plot, so that what earlier points leave behind is part of what is measured.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from bench.beside import latency, plots, raw_clients, throughput
from bench.beside.document import markdown_table
from bench.beside.subjects import PAGE_CACHE, TidelogSubject, create_topic, delete_topic
from bench.broker_process import cpu_seconds, resident_mebibytes
from bench.workspace import Workspace

VALUE = b"s" * 100
MESSAGES = 500_000
REQUESTS = 20_000
BYTES = 200_000_000
PARTITIONS = (1, 10, 100, 1_000, 10_000)
CONNECTIONS = (1, 10, 100, 1_000)
SIZES = (10, 100, 1_000, 10_000, 100_000, 900_000)
CONSUMERS = (1, 3, 10, 30, 100)
FETCHES = 600
LINGERS_MS = (0, 1, 5, 20, 100)
CODECS = ("none", "lz4", "zstd")
SAMPLE_MESSAGES = 100_000
PACED_PER_SECOND = 1000
PACED_SECONDS = 2.0

Points = list[tuple[float, float]]


def run(workspace: Workspace, directory: Path | None, say: Callable[[str], None]) -> str:
    """The tables; the pictures too where there is a ``directory`` for them."""
    parts = []
    for name, measure in (
        ("partitions", _partitions),
        ("connections", _connections),
        ("message sizes", _sizes),
        ("consumers", _consumers),
    ):
        with _broker(workspace) as subject:
            parts.append(measure(workspace, subject, directory))
        say(f"  {name}: done")
    with _broker(workspace) as subject:
        parts.append(_linger_and_compression(workspace, subject, directory))
    say("  linger and compression: done")
    return "\n\n".join(parts)


@contextmanager
def _broker(workspace: Workspace) -> Iterator[TidelogSubject]:
    with workspace.directory("scaling") as path:
        subject = TidelogSubject(path)
        try:
            subject.start()
            yield subject
        finally:
            subject.kill()


@contextmanager
def _topic(subject: TidelogSubject, name: str, partitions: int = 1) -> Iterator[str]:
    create_topic(subject, name, PAGE_CACHE, partitions)
    yield name
    delete_topic(subject, name)


def _steps(workspace: Workspace, steps: tuple[int, ...]) -> tuple[int, ...]:
    return steps[:2] if workspace.is_quick else steps


def _partitions(workspace: Workspace, subject: TidelogSubject, directory: Path | None) -> str:
    rates: Points = []
    lines = []
    count = workspace.scaled(MESSAGES)
    for partitions in _steps(workspace, PARTITIONS):
        with _topic(subject, f"p{partitions}", partitions) as topic:
            began = cpu_seconds(subject)
            rate = throughput.produce_rate(subject, topic, VALUE, count, throughput.BATCHED)
            cpu = (cpu_seconds(subject) - began) / count * 1e6
            found = latency.produce_to_ack(subject, topic, VALUE, workspace.scaled(1000))
            rates.append((partitions, rate))
            lines.append(
                [f"{partitions:,}", f"{rate:,.0f}", f"{cpu:.2f}", f"{found.p99:.2f}", f"{resident_mebibytes(subject):.0f}"]
            )
    _draw(directory, "partitions.svg", "Messages of 100 B to a topic of so many partitions", "partitions", {"Tidelog": rates})
    headings = ("partitions", "messages/s", "broker's processor time, s per million", "produce to ack, p99 ms", "memory, MiB")
    return _part("Partitions", "partitions.svg", headings, lines)


def _connections(workspace: Workspace, subject: TidelogSubject, directory: Path | None) -> str:
    rates: Points = []
    lines = []
    with _topic(subject, "connections") as topic:
        for connections in _steps(workspace, CONNECTIONS):
            began = cpu_seconds(subject)
            count = workspace.scaled(REQUESTS, connections)
            rate = raw_clients.requests_per_second(subject.bootstrap_servers, topic, connections, count, VALUE)
            cpu = (cpu_seconds(subject) - began) / count * 1e6
            rates.append((connections, rate))
            lines.append([f"{connections:,}", f"{rate:,.0f}", f"{cpu:.0f}", f"{resident_mebibytes(subject):.0f}"])
    title = "Produce requests of one message, one under way on each connection"
    _draw(directory, "connections.svg", title, "connections", {"Tidelog": rates}, "requests per second")
    return _part(
        "Connections",
        "connections.svg",
        ("connections", "requests/s", "broker's processor time, us per request", "memory, MiB"),
        lines,
    )


def _sizes(workspace: Workspace, subject: TidelogSubject, directory: Path | None) -> str:
    produced: Points = []
    consumed: Points = []
    lines = []
    for size in _steps(workspace, SIZES):
        count = workspace.scaled(min(MESSAGES, max(BYTES // size, 200)))
        with _topic(subject, f"s{size}") as topic:
            rate_in = throughput.produce_rate(subject, topic, b"z" * size, count, throughput.BATCHED)
            rate_out = throughput.consume_rate(subject, topic, count)
        produced.append((size, rate_in * size / 1e6))
        consumed.append((size, rate_out * size / 1e6))
        lines.append(
            [
                f"{size:,} B",
                *(f"{rate:,.0f}" for rate in (rate_in, rate_out)),
                f"{rate_in * size / 1e6:,.0f}",
                f"{rate_out * size / 1e6:,.0f}",
            ]
        )
    series = {"in": produced, "out": consumed}
    _draw(
        directory, "sizes.svg", "Messages of so many bytes", "bytes in a message", series, "MB per second", y_is_logarithmic=True
    )
    return _part("Message size", "sizes.svg", ("size", "messages/s in", "messages/s out", "MB/s in", "MB/s out"), lines)


def _consumers(workspace: Workspace, subject: TidelogSubject, directory: Path | None) -> str:
    rates: Points = []
    lines = []
    with _topic(subject, "consumers") as topic:
        throughput.produce_rate(subject, topic, b"c" * 1000, workspace.scaled(20_000), throughput.BATCHED)
        size = raw_clients.check_fetch(subject.bootstrap_servers, topic)
        for consumers in _steps(workspace, CONSUMERS):
            began = cpu_seconds(subject)
            fetches = max(1, workspace.scaled(FETCHES) // consumers)
            rate = raw_clients.read_bytes_per_second(subject.bootstrap_servers, topic, consumers, fetches)
            cpu = (cpu_seconds(subject) - began) / (fetches * consumers) * 1e6
            rates.append((consumers, rate / 1e6))
            lines.append([f"{consumers}", f"{rate / 1e6:,.0f}", f"{cpu:.0f}"])
    title = f"Consumers that all read the same topic, {size / 2**20:.1f} MiB a fetch"
    _draw(directory, "consumers.svg", title, "consumers", {"Tidelog": rates}, "MB per second in all")
    return _part("Consumers", "consumers.svg", ("consumers", "MB/s in total", "broker's processor time, us per fetch"), lines)


def _linger_and_compression(workspace: Workspace, subject: TidelogSubject, directory: Path | None) -> str:
    """Each line is a codec on a kind of data; each point a linger, the shortest on the left."""
    series: dict[str, Points] = {}
    lines = []
    for codec in CODECS[: 1 if workspace.is_quick else None]:
        for linger_ms in _steps(workspace, LINGERS_MS):
            settings = {**throughput.BATCHED, "linger.ms": linger_ms, "compression.type": codec}
            with _topic(subject, f"paced-{codec}-{linger_ms}") as topic:
                seconds = 0.2 if workspace.is_quick else PACED_SECONDS
                p50 = latency.end_to_end(subject, topic, len(VALUE), PACED_PER_SECOND, seconds, "all", settings).percentiles().p50
            for kind, value in _samples().items():
                with _topic(subject, f"linger-{kind}-{codec}-{linger_ms}") as topic:
                    rate = throughput.produce_rate(subject, topic, value, workspace.scaled(SAMPLE_MESSAGES), settings)
                series.setdefault(f"{kind}, {codec}", []).append((p50, rate))
                lines.append([kind, codec, f"{linger_ms} ms", f"{rate:,.0f}", f"{p50:.1f}"])
    title = "Messages of 400 B: throughput against latency, for lingers of 0, 1, 5, 20 and 100 ms"
    _draw(directory, "linger.svg", title, "end to end at 1,000 messages per second, p50 in ms", series)
    headings = ("data", "codec", "linger", "messages/s", "end to end, p50 ms")
    return _part("Linger and compression", "linger.svg", headings, sorted(lines, key=lambda line: line[:2]))


def _samples() -> dict[str, bytes]:
    random = Random(1)
    words = ["tide", "order", "customer", "payment", "received", "harbour", "the", "a", "with", "late", "early", "signal"]
    record = {
        "id": random.getrandbits(40),
        "customer": "customer-42",
        "amount": 12.5,
        "items": [random.getrandbits(20) for _ in range(8)],
    }
    text = " ".join(random.choices(words, k=100)).encode()
    document = json.dumps([record] * 4).encode()
    return {"text": text[:400], "JSON": document[:400], "random": random.randbytes(400)}


def _draw(
    directory: Path | None,
    name: str,
    title: str,
    x_label: str,
    series: dict[str, Points],
    y_label: str = "messages per second",
    *,
    y_is_logarithmic: bool = False,
) -> None:
    if directory is not None:
        plots.lines(directory / name, title, x_label, y_label, series, y_is_logarithmic=y_is_logarithmic)


def _part(title: str, picture: str, headings: tuple[str, ...], lines: list[list[str]]) -> str:
    return f"### {title}\n\n{markdown_table(headings, lines)}\n\n![{title}](benchmarks/{picture})"
