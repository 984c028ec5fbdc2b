"""How evenly the broker serves for minutes, while everything that it does from time to time goes on.

A writer keeps a pace of 5,000 messages per second, one in a request and idempotent, and a reader takes them, each in a process of
its own. Segments of 1 MiB roll about every second, retention removes them again, a second topic is written and compacted all the
time, 500 more partitions are there, and /metrics is scraped every second. A pause is a time in which messages took longer than
``PAUSE_MS``.

Beside each pause stands what was seen at that moment. The names in the two partitions' directories tell when a segment was
rolled, removed or swapped in by compaction, and the scrapes are our own. The one who looks does so every few milliseconds: if
he was late himself, the machine had no time for anybody, and the pause is not the broker's alone.
"""

import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns, sleep
from typing import NamedTuple

from bench.beside import latency, plots
from bench.beside.document import markdown_table
from bench.beside.subjects import PAGE_CACHE, create_topic
from bench.broker_process import WAIT_SECONDS_MAX, cpu_seconds
from bench.workspace import Workspace
from tidelog.log.names import CLEANED_SUFFIX, DELETED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX
from tidelog.testing import Broker
from tidelog.testing.environment import BrokerEnvironment

PER_SECOND = 5_000
SIZE_BYTES = 100
PAUSE_MS = 20.0
QUICK_SECONDS = 3.0
IDLE_PARTITIONS = 500
IDLE_PARTITIONS_QUICK = 10
PACED, COMPACTED, IDLE = "paced", "compacted", "idle"
BROKER_CONFIGS = {"log.retention.check.interval.ms": 1_000, "log.cleaner.backoff.ms": 1_000}
PACED_CONFIGS = {**PAGE_CACHE, **latency.SMALL_SEGMENTS, "retention.bytes": str(32 << 20), "file.delete.delay.ms": "1000"}
COMPACTED_CONFIGS = {
    **PAGE_CACHE,
    **latency.SMALL_SEGMENTS,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "1000",
}
# librdkafka's own choice of requests in flight keeps the order, as an idempotent producer must.
WRITER = {"linger.ms": 0, "batch.num.messages": 1, "enable.idempotence": True}
COMPACTED_LOAD = {"per_second": 500, "size_bytes": 1_000, "keys": 1_000}
SCRAPE_SECONDS = 1.0
LOOK_SECONDS = 0.005
LATE_MS_MIN = 5.0
# What happened this long before a message that waited may have made it wait.
BEFORE_NS = 20_000_000


class Pause(NamedTuple):
    """Messages in a row that took longer than ``PAUSE_MS``: from the first that was sent to the last that arrived."""

    began_ns: int
    ended_ns: int
    longest_ms: float


class Seen(NamedTuple):
    at_ns: int
    what: str


def find_pauses(arrivals: latency.Arrivals, pause_ms: float = PAUSE_MS) -> list[Pause]:
    pauses: list[Pause] = []
    for sent_ns, arrived_ns in zip(arrivals.sent_ns, arrivals.arrived_ns, strict=True):
        waited_ms = (arrived_ns - sent_ns) / 1e6
        if waited_ms <= pause_ms:
            continue
        if pauses and sent_ns <= pauses[-1].ended_ns:
            earlier = pauses[-1]
            pauses[-1] = Pause(earlier.began_ns, max(earlier.ended_ns, arrived_ns), max(earlier.longest_ms, waited_ms))
        else:
            pauses.append(Pause(sent_ns, arrived_ns, waited_ms))
    return pauses


@dataclass(slots=True)
class Watch:
    """Looks at two directories and scrapes the metrics, each in a thread, and notes what it sees and when."""

    data_path: Path
    metrics_address: str
    seen: list[Seen] = field(default_factory=list)
    scraped_bytes: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=target) for target in (self._look, self._scrape)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()

    def at(self, pause: Pause) -> list[str]:
        """What was seen during a pause and just before it, each thing once."""
        return list(dict.fromkeys(seen.what for seen in self.seen if pause.began_ns - BEFORE_NS <= seen.at_ns <= pause.ended_ns))

    def _look(self) -> None:
        names = {topic: self._names(topic) for topic in (PACED, COMPACTED)}
        due_ns = monotonic_ns()
        while not self._stopped.is_set():
            due_ns = max(due_ns + int(LOOK_SECONDS * 1e9), monotonic_ns())
            sleep(max(0, due_ns - monotonic_ns()) / 1e9)
            late_ms = (monotonic_ns() - due_ns) / 1e6
            if late_ms > LATE_MS_MIN:
                self.seen.append(Seen(monotonic_ns(), "the machine was late for everybody"))
            for topic, before in names.items():
                now = names[topic] = self._names(topic)
                self.seen.extend(Seen(monotonic_ns(), what) for what in _differences(topic, before, now))

    def _names(self, topic: str) -> frozenset[str]:
        return frozenset(path.name for path in (self.data_path / f"{topic}-0").iterdir())

    def _scrape(self) -> None:
        while not self._stopped.wait(SCRAPE_SECONDS):
            self.seen.append(Seen(monotonic_ns(), "/metrics was scraped"))
            with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=WAIT_SECONDS_MAX) as answer:
                self.scraped_bytes = len(answer.read())
            self.seen.append(Seen(monotonic_ns(), "/metrics was scraped"))


def _differences(topic: str, before: frozenset[str], now: frozenset[str]) -> Iterator[str]:
    appeared, gone = now - before, before - now
    if any(name.endswith(LOG_SUFFIX) for name in appeared):
        yield f"{topic}: a segment was rolled"
    if any(name.endswith(LOG_SUFFIX + DELETED_SUFFIX) for name in appeared):
        yield f"{topic}: a segment was taken out"
    if any(name.endswith(LOG_SUFFIX + DELETED_SUFFIX) for name in gone):
        yield f"{topic}: a file was removed"
    if any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in appeared | gone):
        yield f"{topic}: compaction wrote or swapped a segment"


@dataclass(frozen=True, slots=True)
class Report:
    arrivals: latency.Arrivals
    pauses: Sequence[Pause]
    watch: Watch
    processor_seconds: float

    def text(self) -> str:
        found = self.arrivals.percentiles()
        seconds = (self.arrivals.arrived_ns[-1] - self.arrivals.sent_ns[0]) / 1e9
        counted = Counter(seen.what for seen in self.watch.seen)
        lines = [
            ["end to end, p50", f"{found.p50:.2f} ms"],
            ["end to end, p99", f"{found.p99:.2f} ms"],
            ["end to end, p99.9", f"{found.p999:.2f} ms"],
            ["end to end, longest", f"{found.maximum:.1f} ms"],
            ["longest time without a message", f"{self.arrivals.longest_gap_ms():.1f} ms"],
            [f"pauses of more than {PAUSE_MS:.0f} ms", f"{len(self.pauses)}"],
            ["broker's processor time", f"{self.processor_seconds / seconds * 100:.0f} % of a core"],
            ["size of /metrics", f"{self.watch.scraped_bytes / 1024:.0f} KiB"],
            *([what, f"seen {count:,} times"] for what, count in sorted(counted.items())),
        ]
        heading = f"{len(self.arrivals.sent_ns):,} messages in {seconds:.0f} s"
        return markdown_table((heading, ""), lines) + self._pauses()

    def _pauses(self) -> str:
        if not self.pauses:
            return ""
        began_ns = self.arrivals.sent_ns[0]
        lines = [
            [
                f"{(pause.began_ns - began_ns) / 1e9:.2f} s",
                f"{pause.longest_ms:.1f} ms",
                "; ".join(self.watch.at(pause)) or "nothing was seen",
            ]
            for pause in self.pauses
        ]
        return "\n\n" + markdown_table(("pause at", "longest", "seen at that moment"), lines)

    def draw(self, path: Path, interval_seconds: float) -> None:
        intervals = self.arrivals.over_time(interval_seconds)
        series = {
            "longest": [(interval.seconds, interval.max_ms) for interval in intervals],
            "p99": [(interval.seconds, interval.p99_ms) for interval in intervals],
        }
        title = f"{PER_SECOND:,} messages per second with rolls, retention, compaction and scrapes"
        plots.over_time(path, title, series)


def run(workspace: Workspace, say: Callable[[str], None]) -> Report:
    seconds = QUICK_SECONDS if workspace.is_quick else workspace.minutes * 60
    metrics = BrokerEnvironment(None, {})
    address = metrics.bootstrap_servers
    configs = {**BROKER_CONFIGS, "tidelog.metrics.listener": address}
    try:
        with workspace.directory("pauses") as path, Broker(persist=path, configs=configs) as broker:
            create_topic(broker, PACED, PACED_CONFIGS)
            create_topic(broker, COMPACTED, COMPACTED_CONFIGS)
            create_topic(broker, IDLE, PAGE_CACHE, IDLE_PARTITIONS_QUICK if workspace.is_quick else IDLE_PARTITIONS)
            watch = Watch(path, address)
            began = cpu_seconds(broker)
            with watch.running(), _compacted_writer(broker, seconds):
                say(f"  {seconds:.0f} s at {PER_SECOND:,} messages per second")
                arrivals = latency.end_to_end(broker, PACED, SIZE_BYTES, PER_SECOND, seconds, "all", WRITER)
            processor_seconds = cpu_seconds(broker) - began
            broker.kill()
    finally:
        metrics.close()
    return Report(arrivals, find_pauses(arrivals), watch, processor_seconds)


@contextmanager
def _compacted_writer(broker: Broker, seconds: float) -> Iterator[None]:
    """Writes for longer than is measured, until it is killed."""
    count = int(COMPACTED_LOAD["per_second"] * (seconds + WAIT_SECONDS_MAX))
    arguments = {"bootstrap": broker.bootstrap_servers, "topic": COMPACTED, "count": count, **COMPACTED_LOAD, "settings": {}}
    writer = subprocess.Popen(latency.paced_client("write", arguments), cwd=latency.ROOT)
    try:
        yield
    finally:
        writer.kill()
        writer.wait()
