"""``tidelog bench`` on a real broker: it measures, shows and leaves nothing behind."""

import signal

import pytest

from tests.cli.command import Command
from tidelog.cli import bench
from tidelog.cli.bench import Latency, Throughput
from tidelog.cli.produce import DeliveryReport
from tidelog.client.errors import TidelogError
from tidelog.client.message import Message


def test_the_figures(command: Command) -> None:
    (document,) = command("bench", "-n", "2000", "--round-trips", "5", "--partitions", "2", "--json").documents
    assert document["produce"]["messages"] == document["consume"]["messages"] == 2000
    assert document["produce"]["messages_per_second"] > 0
    latency = document["round_trip"]
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
    assert latency["messages"] == 5
    assert max(latency["max_ms_by_interval"]) == latency["max_ms"]


def test_a_stream_shows_what_waiting_saves_in_requests(command: Command) -> None:
    words = ("bench", "-n", "10", "--round-trips", "1", "--rate", "400", "--seconds", "2", "--json")
    (eager,) = command(*words).documents
    (patient,) = command(*words, "--fetch-min-bytes", "1000000", "--linger-ms", "100").documents
    assert eager["stream"]["messages"] == patient["stream"]["messages"] == 800
    # Half a second each, while the eager one is answered whenever a batch has come.
    assert patient["stream"]["fetch_requests"] < eager["stream"]["fetch_requests"] / 3
    assert patient["stream"]["p50_ms"] > 50
    (single,) = command(*words, "--batch-size", "1").documents
    assert single["stream"]["produce_requests"] >= 800 > 4 * patient["stream"]["produce_requests"]
    assert command("bench", "-n", "10", "--round-trips", "1", "--rate", "100", "--seconds", "1").lines[-1].split()[1] == "s"


def test_the_table(command: Command) -> None:
    lines = command("bench", "-n", "100", "--round-trips", "2", "--size", "10", "--acks", "1", "-z", "lz4").lines
    assert lines[0] == f"{command.bootstrap}: 100 messages of 10 bytes, acks=1, compression lz4"
    assert {"produce", "consume", "there"} <= {line.split()[0] for line in lines if line.strip()}
    assert set(lines[-1].strip()) <= set(bench.BLOCKS)
    assert len(lines[-1].strip()) == bench.COLUMNS


def test_its_topic_is_gone_afterwards(command: Command) -> None:
    command("bench", "-n", "10", "--round-trips", "1")
    assert bench_topics(command) == []


class Interruption(DeliveryReport):
    """Ctrl-C while the first message is reported: most of the others are still in librdkafka's queue."""

    def __call__(self, error: TidelogError | None, message: Message) -> None:
        super().__call__(error, message)
        if self.delivered == 1:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_silent_and_its_topic_is_gone(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "DeliveryReport", Interruption)
    result = command("bench", "-n", "100000", "--size", "10")
    assert (result.code, result.out, result.err.strip()) == (130, "", "")
    assert bench_topics(command) == []


def bench_topics(command: Command) -> list[str]:
    topics = [document["topic"] for document in command("topics", "list", "--json").documents]
    return [name for name in topics if name.startswith(bench.TOPIC_PREFIX)]


def test_arithmetic() -> None:
    assert Throughput.of(1000, 500, 2.0) == Throughput(1000, 2.0, 500.0, 0.25)
    latency = Latency.of([0.003, 0.001, 0.002])
    assert (latency.messages, latency.p50_ms, latency.p95_ms, latency.p99_ms, latency.max_ms) == (3, 2.0, 3.0, 3.0, 3.0)


def test_a_periodic_pause_shows_at_its_places() -> None:
    latency = Latency.of(([0.001] * 300 + [0.1]) * 3)
    assert latency.interval_ms == pytest.approx(20.0)
    low, high = bench.BLOCKS[0], bench.BLOCKS[-1]
    # 300 ms are fifteen columns, and a pause of 100 ms is five; the edges may fall to either side.
    drawn = latency.drawn()
    assert [drawn[middle] for middle in (7, 27, 47)] == [low] * 3
    assert [drawn[middle] for middle in (17, 37, 57)] == [high] * 3
    assert set(drawn) == {low, high}
    assert 15 <= drawn.count(high) <= 18
