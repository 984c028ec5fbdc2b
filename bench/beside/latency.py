"""How long one message takes: until it is acknowledged, and until a reader has it.

``produce_to_ack`` sends one message, waits for its acknowledgement, sends the next. ``end_to_end`` has a writer that keeps a
steady pace, one message in a request, and a reader, in a process each (``paced_clients``), so that neither waits for the
other's interpreter; time runs from the call of ``produce`` until ``poll`` returns the message, on the clock that all processes
share. ``Arrivals`` keeps both times of each message, so that a pause shows at its place. Segments are small enough to roll about
once a second: a roll's cost is part of what is measured, as are the pauses of collectors.
"""

import json
import subprocess
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.beside.subjects import Reachable
from bench.beside.throughput import UNBATCHED, NotDelivered, producer_of
from bench.broker_process import WAIT_SECONDS_MAX

ROOT = Path(__file__).parents[2]
# The smallest that Kafka takes.
SMALL_SEGMENTS = {"segment.bytes": str(1 << 20)}
WARM_UP = 200
INTERVAL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p90: float
    p99: float
    p999: float
    maximum: float
    mean: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> "Percentiles":
        ordered = sorted(milliseconds)
        last = len(ordered) - 1
        p50, p90, p99, p999 = (ordered[min(last, int(len(ordered) * share))] for share in (0.5, 0.9, 0.99, 0.999))
        return cls(p50, p90, p99, p999, ordered[-1], sum(ordered) / len(ordered))


@dataclass(frozen=True, slots=True)
class Interval:
    """The messages that were sent in one interval of a run: a periodic pause shows as a row of high maxima."""

    seconds: float
    """When it began, since the beginning of the run."""
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: float, milliseconds: Sequence[float]) -> "Interval":
        found = Percentiles.of(milliseconds)
        return cls(seconds, found.p99, found.maximum)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When each message was sent and when it arrived, in nanoseconds by the system's monotonic clock, in order of arrival."""

    sent_ns: "array[int]"
    arrived_ns: "array[int]"

    def milliseconds(self) -> list[float]:
        return [(arrived - sent) / 1e6 for sent, arrived in zip(self.sent_ns, self.arrived_ns, strict=True)]

    def percentiles(self) -> Percentiles:
        return Percentiles.of(self.milliseconds())

    def longest_gap_ms(self) -> float:
        """The longest time in which nothing arrived."""
        return max((later - earlier for earlier, later in pairwise(self.arrived_ns)), default=0) / 1e6

    def over_time(self, interval_seconds: float = INTERVAL_SECONDS) -> list[Interval]:
        found: dict[int, list[float]] = {}
        began_ns, width_ns = self.sent_ns[0], int(interval_seconds * 1e9)
        for sent, milliseconds in zip(self.sent_ns, self.milliseconds(), strict=True):
            found.setdefault((sent - began_ns) // width_ns, []).append(milliseconds)
        return [Interval.of(number * interval_seconds, values) for number, values in sorted(found.items())]


def produce_to_ack(subject: Reachable, topic: str, value: bytes, count: int) -> Percentiles:
    producer = producer_of(subject, UNBATCHED)
    milliseconds = []
    for number in range(WARM_UP + count):
        began = perf_counter()
        producer.produce(topic, value)
        # Returns when the acknowledgement is there: nothing else is in flight.
        if producer.flush(WAIT_SECONDS_MAX):
            raise NotDelivered(f"message {number}")
        if number >= WARM_UP:
            milliseconds.append((perf_counter() - began) * 1000)
    return Percentiles.of(milliseconds)


def end_to_end(
    subject: Reachable,
    topic: str,
    size_bytes: int,
    per_second: int,
    seconds: float,
    acks: str,
    settings: dict[str, Any] | None = None,
) -> Arrivals:
    """``settings`` of the writer; without them it sends each message by itself."""
    common = {"bootstrap": subject.bootstrap_servers, "topic": topic, "count": int(per_second * seconds)}
    with _start("read", common) as reader:
        try:
            assert reader.stdout is not None
            if reader.stdout.readline().strip() != b"ready":
                raise NotDelivered("the reader did not start")
            pace = {"size_bytes": size_bytes, "per_second": per_second, "settings": {"acks": acks, **(settings or UNBATCHED)}}
            with _start("write", {**common, **pace}) as writer:
                try:
                    writer.wait(WAIT_SECONDS_MAX + seconds)
                finally:
                    writer.kill()
            output, _ = reader.communicate(timeout=WAIT_SECONDS_MAX)
        finally:
            reader.kill()
    if writer.returncode or reader.returncode:
        raise NotDelivered("the writer or the reader failed")
    times = array("q", output)
    half = len(times) // 2
    return Arrivals(times[:half], times[half:])


def _start(role: str, arguments: dict[str, Any]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(paced_client(role, arguments), cwd=ROOT, stdout=subprocess.PIPE)


def paced_client(role: str, arguments: dict[str, Any]) -> list[str]:
    """The command that starts one."""
    return [sys.executable, "-m", "bench.beside.paced_clients", role, json.dumps(arguments)]
