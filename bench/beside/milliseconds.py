"""Where the time of one message goes, from ``produce`` to the reader's ``poll``.

A writer at a moderate pace, one message in a request, acks=all, fsynced: what the broker counts (its histograms over HTTP) is
taken from what the clients see. All are means, so that they add up. Requests are all timed at this pace.
"""

import re
import urllib.request
from collections.abc import Callable
from time import sleep

from bench.beside import latency, throughput
from bench.beside.document import markdown_table
from bench.beside.subjects import FSYNCED, create_topic
from bench.beside.throughput import UNBATCHED
from bench.workspace import Workspace
from tidelog.testing import Broker
from tidelog.testing.environment import BrokerEnvironment

PER_SECOND = 500
SECONDS = 10.0
SINGLE = 2000
LINGER_MS = 5
PAGE_AGE_SECONDS = 1.1
PARTS = ("queue", "handling", "wait")


def run(workspace: Workspace, say: Callable[[str], None]) -> str:
    metrics = BrokerEnvironment(None, {})
    address = metrics.bootstrap_servers
    try:
        with (
            workspace.directory("milliseconds") as path,
            Broker(persist=path, configs={"tidelog.metrics.listener": address}) as broker,
        ):
            create_topic(broker, "single", FSYNCED)
            before = _produce_times(address)
            acknowledged = latency.produce_to_ack(broker, "single", b"m" * 100, workspace.scaled(SINGLE))
            after = _produce_times(address)
            say("  produce to ack: done")
            create_topic(broker, "paced", FSYNCED)
            seconds = 0.5 if workspace.is_quick else SECONDS
            arrived = latency.end_to_end(broker, "paced", 100, PER_SECOND, seconds, "all", UNBATCHED).percentiles()
            create_topic(broker, "lingering", FSYNCED)
            lingering = {**throughput.BATCHED, "linger.ms": LINGER_MS}
            lingered = latency.end_to_end(broker, "lingering", 100, PER_SECOND, seconds, "all", lingering).percentiles()
            say("  end to end: done")
            broker.kill()
    finally:
        metrics.close()
    return _table(_difference(before, after), acknowledged, arrived, lingered)


def _produce_times(address: str) -> dict[str, tuple[float, float]]:
    """(seconds, requests) of each part, of Produce."""
    # A page is given out again for a second.
    sleep(PAGE_AGE_SECONDS)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found = {}
    for part in PARTS:
        values = [
            float(match[1])
            if (match := re.search(rf'^tidelog_request_{part}_seconds_{kind}{{api="Produce"}} (\S+)$', page, re.MULTILINE))
            else 0.0
            for kind in ("sum", "count")
        ]
        found[part] = (values[0], values[1])
    return found


def _difference(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Milliseconds of a request in each part."""
    requests = after["handling"][1] - before["handling"][1]
    return {part: (after[part][0] - before[part][0]) / requests * 1000 for part in PARTS}


def _table(
    inside: dict[str, float], acknowledged: latency.Percentiles, arrived: latency.Percentiles, lingered: latency.Percentiles
) -> str:
    broker = sum(inside.values())
    wire = acknowledged.mean - broker
    delivery = arrived.mean - broker - wire / 2
    lines = [
        [
            "linger",
            f"{lingered.mean - arrived.mean:.3f}",
            f"`linger.ms={LINGER_MS}`: half of it on average, and a timer; 0 without linger",
        ],
        ["wire", f"{wire:.3f}", "librdkafka's threads, two system calls and a wake-up each way"],
        ["queue", f"{inside['queue']:.3f}", "behind other requests of the same turn of the loop"],
        ["append", f"{inside['handling']:.3f}", "decode, check, CRC, write into the page cache"],
        ["fsync", f"{inside['wait']:.3f}", "the group commit that covers it"],
        ["**produce to ack**", f"**{acknowledged.mean:.3f}**", "without linger: wire, queue, append, fsync"],
        [
            "fetch wait and delivery",
            f"{delivery:.3f}",
            "the broker answers the reader's long poll once the message is durable; then the wire and librdkafka's queue",
        ],
        ["**end to end**", f"**{arrived.mean:.3f}**", f"without linger, at {PER_SECOND} messages per second"],
    ]
    return markdown_table(("part", "ms, mean", "what it is"), lines)
