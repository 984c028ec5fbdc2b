"""``tidelog bench`` on a real broker: it measures, shows and leaves nothing behind."""

from tests.cli.command import Command
from tidelog.cli.bench import Latency, Throughput


def test_the_figures(command: Command) -> None:
    (document,) = command("bench", "-n", "2000", "--round-trips", "5", "--partitions", "2", "--json").documents
    assert document["produce"]["messages"] == document["consume"]["messages"] == 2000
    assert document["produce"]["messages_per_second"] > 0
    latency = document["round_trip"]
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
    assert latency["messages"] == 5


def test_the_table(command: Command) -> None:
    lines = command("bench", "-n", "100", "--round-trips", "2", "--size", "10", "--acks", "1", "-z", "lz4").lines
    assert lines[0] == f"{command.bootstrap}: 100 messages of 10 bytes, acks=1, compression lz4"
    assert {"produce", "consume", "there"} <= {line.split()[0] for line in lines if line.strip()}


def test_its_topic_is_gone_afterwards(command: Command) -> None:
    command("bench", "-n", "10", "--round-trips", "1")
    topics = {document["topic"] for document in command("topics", "list", "--json").documents}
    assert not [name for name in topics if name.startswith("tidelog-bench-")]


def test_arithmetic() -> None:
    assert Throughput.of(1000, 500, 2.0) == Throughput(1000, 2.0, 500.0, 0.25)
    assert Latency.of([0.003, 0.001, 0.002]) == Latency(3, 2.0, 3.0, 3.0, 3.0)
