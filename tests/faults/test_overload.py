"""Everything at once: floods of produce past a slow disk, of connections, of fetches that nobody reads, of metadata for ten
thousand topics, connections that stop in the middle. A few seconds here, TIDELOG_SOAK_MINUTES in ``make soak``.

The broker's memory stays below the bound that docs/reference/quotas.md states, a client that behaves is served all the while,
acknowledged records are there, also after a restart, and nothing is left when it is over.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.faults.attackers import FLOODS, HISTORY_TOPIC, UNANSWERED_TOPIC, produced_offset
from tests.faults.faulty_broker import ROOT, FaultyBroker
from tests.faults.faulty_disk import DiskFaults
from tests.faults.load import COMMON, wait_until
from tests.faults.peers import Peer, Probe, batch_of_value, crowd, produce_request, rss_bytes
from tests.faults.rounds import create_topic
from tidelog.testing import Broker

SECONDS = 12.0
MEBIBYTE = 1 << 20
REQUEST_BYTES_MAX = 4 * MEBIBYTE
QUEUED_BYTES_MAX = 8 * MEBIBYTE
CONNECTIONS_MAX = 300
# A sync of a disk that is far too slow for the floods.
SYNC_SECONDS = 0.15
CONFIGS = {
    "socket.request.max.bytes": REQUEST_BYTES_MAX,
    "queued.max.request.bytes": QUEUED_BYTES_MAX,
    "max.connections": CONNECTIONS_MAX,
    "log.retention.check.interval.ms": 1_000,
    "tidelog.metrics.listener": "127.0.0.1:0",
}
# As docs/reference/quotas.md says: beyond what the broker has when it is idle.
CONNECTION_BYTES = 40 * 1024
SLACK_BYTES = 64 * MEBIBYTE
BOUND_BYTES = QUEUED_BYTES_MAX + REQUEST_BYTES_MAX + CONNECTIONS_MAX * CONNECTION_BYTES + SLACK_BYTES
# Of a client that behaves, on a machine that is busy with the attack itself: it waits for some syncs.
ANSWER_SECONDS_MAX = 10.0
GOOD_TOPIC = "good"


class GoodClient:
    """One message after the other, acks=all, on a connection of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []
        self.acknowledged: list[tuple[int, str, int]] = []
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            value = 1 << 60
            with Peer(self._broker) as peer:
                while not self._is_stopping.wait(0.02):
                    value += 1
                    began = time.perf_counter()
                    peer.send(produce_request(GOOD_TOPIC, batch_of_value(value.to_bytes(8, "big") + bytes(1000))))
                    offset = produced_offset(peer)
                    self.seconds.append(time.perf_counter() - began)
                    assert offset is not None, "a message was refused"
                    self.acknowledged.append((value, GOOD_TOPIC, offset))
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._is_stopping.set()
        self._thread.join(60)
        if self.error is not None:
            raise self.error


def metrics(broker: Broker) -> dict[str, float]:
    """Series without labels."""
    (started, *_) = [event for event in reversed(broker.events) if event["event"] == "started"]
    with urllib.request.urlopen(f"http://{started['metrics']}/metrics", timeout=20) as page:
        lines = page.read().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#") and "{" not in line}


def check_all_there(broker: Broker, acknowledged: Iterable[tuple[int, str, int]]) -> None:
    """Each value at its offset."""
    wanted: dict[str, dict[int, int]] = {}
    for value, topic, offset in acknowledged:
        wanted.setdefault(topic, {})[offset] = value
    settings = {**COMMON, "bootstrap.servers": broker.bootstrap_servers, "group.id": "check", "enable.auto.commit": False}
    for topic, values in wanted.items():
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + 120
        while values and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                expected = values.pop(message.offset(), None)
                assert expected in (None, int.from_bytes(message.value()[:8], "big")), f"{topic} {message.offset()}"
        consumer.close()
        assert values == {}, f"{len(values)} acknowledged values of {topic} are not there"


def attack(broker: Broker, seconds: float, path: Path) -> tuple[dict[str, int], list[tuple[int, str, int]]]:
    """In another process, so that what is measured here is not slowed down by it more than it must."""
    command = [sys.executable, "-m", "tests.faults.attackers", str(broker.port), str(seconds), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout), [tuple(json.loads(line)) for line in path.read_text().splitlines()]


def overload(tmp_path: Path, seconds: float) -> None:
    with FaultyBroker(tmp_path / "data", CONFIGS, DiskFaults(sync_seconds=SYNC_SECONDS)) as broker:
        for topic in (GOOD_TOPIC, HISTORY_TOPIC, *[f"flood-{number}" for number in range(FLOODS)]):
            create_topic(broker, topic, 1)
        create_topic(broker, UNANSWERED_TOPIC, 1, retention_bytes=128 * MEBIBYTE, segment_bytes=64 * MEBIBYTE)
        with Peer(broker) as peer:
            for _ in range(20):
                peer.send(produce_request(HISTORY_TOPIC, batch_of_value(bytes(900_000))))
                assert produced_offset(peer) is not None
        before = rss_bytes(broker)
        with Probe(broker) as probe, GoodClient(broker) as good:
            wait_until(lambda: len(good.seconds) > 1, "the first acknowledgements")
            counts, acknowledged = attack(broker, seconds, tmp_path / "acknowledged")
            attacked = len(good.seconds)
        during = metrics(broker)
        print(
            f"{counts}; probe {len(probe.seconds)} answers, worst {max(probe.seconds):.2f} s; good {attacked} answers, worst "
            f"{max(good.seconds):.2f} s; memory {before >> 20} MiB, at most {probe.rss_bytes_max >> 20} MiB"
        )
        assert broker.is_running
        assert [line for line in broker.log_lines if not line.startswith("{")] == []
        assert [event for event in broker.events if event["event"] == "unexpected_error" or event.get("level") == "error"] == []
        # It was an attack.
        assert counts["connections"] > CONNECTIONS_MAX
        assert during["tidelog_connections_refused_total"] > 0
        assert during["tidelog_throttled_reads_total"] > 0
        assert counts["metadata"] > 0
        assert counts["acknowledged"] == len(acknowledged) > 20
        # And it was borne.
        assert probe.rss_bytes_max < before + BOUND_BYTES
        assert max(probe.seconds) < ANSWER_SECONDS_MAX
        assert max(good.seconds) < ANSWER_SECONDS_MAX
        assert attacked > seconds / ANSWER_SECONDS_MAX
        check_recovered(broker, before)
        check_all_there(broker, [*acknowledged, *good.acknowledged])
        broker.kill()
    with Broker(persist=tmp_path / "data") as again:
        check_all_there(again, [*acknowledged, *good.acknowledged])


def check_recovered(broker: Broker, before: int) -> None:
    def is_over() -> bool:
        now = metrics(broker)
        return (
            now["tidelog_connections"] <= 3
            and now["tidelog_request_memory_bytes"] == 0
            and now["tidelog_connections_waiting_for_memory"] == 0
            and rss_bytes(broker) < before + SLACK_BYTES
        )

    try:
        wait_until(is_over, "connections and memory are given back")
    except TimeoutError:
        print({name: value for name, value in metrics(broker).items() if "connections" in name or "memory" in name}, before)
        raise


def test_everything_at_once(tmp_path: Path) -> None:
    overload(tmp_path, SECONDS)


@pytest.mark.soak
def test_everything_at_once_for_long(tmp_path: Path) -> None:
    overload(tmp_path, 60 * min(float(os.environ.get("TIDELOG_SOAK_MINUTES", "1")), 5.0))


def test_large_requests_pipelined_by_many_past_a_slow_disk(tmp_path: Path) -> None:
    """Each of the twenty is in the middle of a large frame all the time, and none of their requests is answered for long."""
    request_bytes_max, queued_bytes_max = 16 * MEBIBYTE, 32 * MEBIBYTE
    configs = {"socket.request.max.bytes": request_bytes_max, "queued.max.request.bytes": queued_bytes_max}
    with FaultyBroker(tmp_path / "data", configs, DiskFaults(sync_seconds=0.5)) as broker:
        create_topic(broker, "flood", 1)
        large = produce_request("flood", batch_of_value(bytes(900_000)))
        before = rss_bytes(broker)
        with Probe(broker) as probe, crowd(broker, 20) as peers:
            whole = {peer: peer.send_some(large * 20) // len(large) for peer in peers}
            for peer, count in whole.items():
                for _ in range(count):
                    assert peer.read_response() is not None
        assert sum(whole.values()) * len(large) > 2 * queued_bytes_max, "not an attack"
        assert probe.rss_bytes_max < before + queued_bytes_max + request_bytes_max + SLACK_BYTES
