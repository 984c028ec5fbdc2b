"""``tidelog topics hotkeys`` on a real broker."""

import pytest

from tests.cli.command import Command, new_topic_name
from tidelog.cli.topics_hotkeys import Span, _sampled
from tidelog.client.partitioners import murmur2_partition
from tidelog.client.producer import Producer

OLD_MS, NEW_MS = 1_700_000_000_000, 1_750_000_000_000


@pytest.fixture
def skewed(command: Command) -> str:
    """Four partitions; of 1000 messages one key has 600, in the older half another 200."""
    name = new_topic_name()
    assert command("topics", "create", name, "--partitions", "4").code == 0
    with Producer(command.bootstrap) as producer:
        for number in range(200):
            producer.send(name, b"v" * 10, key="yesterday", timestamp=OLD_MS)
            for _ in range(3):
                producer.send(name, b"v" * 10, key=b"celebrity", timestamp=NEW_MS)
            producer.send(name, b"v" * 10, key=f"user-{number % 50}" if number % 2 else b"\xff", timestamp=NEW_MS)
    return name


def test_the_report_as_json(command: Command, skewed: str) -> None:
    (document,) = command("topics", "hotkeys", skewed, "--json", "--top", "3").documents
    assert (document["topic"], document["messages"], document["without_key"]) == (skewed, 1000, 0)
    assert document["keys"] == [
        {"key": "celebrity", "messages": 600, "error": 0, "share": 0.6},
        {"key": "yesterday", "messages": 200, "error": 0, "share": 0.2},
        {"key_base64": "/w==", "messages": 100, "error": 0, "share": 0.1},
    ]
    assert sum(partition["messages"] for partition in document["partitions"]) == 1000
    hottest = max(document["partitions"], key=lambda partition: int(partition["messages"]))
    assert hottest["partition"] == murmur2_partition(b"celebrity", 4)
    assert hottest["skew"] == hottest["messages"] / 250


def test_the_report_as_text_says_what_to_do(command: Command, skewed: str) -> None:
    lines = command("topics", "hotkeys", skewed, "--top", "2").lines
    assert lines[0] == f"{skewed}: 1,000 messages sampled, 0 of them without a key"
    assert next(line for line in lines if line.strip().startswith("celebrity ")).split() == ["celebrity", "600", "0", "60.0%"]
    assert lines[-1] == (
        "celebrity has 60% of the messages, a partition's even part is 25%: "
        "spread it over 3 partitions or more (tidelog.client.spread)"
    )


def test_only_since_a_time(command: Command, skewed: str) -> None:
    (document,) = command("topics", "hotkeys", skewed, "--json", "--since", str(NEW_MS + 1)).documents
    assert (document["messages"], document["keys"]) == (0, [])
    assert "no messages" in command("topics", "hotkeys", skewed, "--since", str(NEW_MS + 1)).lines[0]


def test_a_sample_is_in_proportion(command: Command, skewed: str) -> None:
    (document,) = command("topics", "hotkeys", skewed, "--json", "--sample", "100").documents
    assert 90 <= document["messages"] <= 104
    assert 0.4 < document["keys"][0]["share"] < 0.8
    assert _sampled({0: Span(0, 900), 1: Span(0, 100), 2: Span(5, 5)}, 100) == {0: Span(810, 900), 1: Span(90, 100)}
    assert _sampled({0: Span(3, 9), 1: Span(4, 4)}, 100) == {0: Span(3, 9)}
    assert _sampled({0: Span(0, 10_000), 1: Span(0, 1)}, 100)[1] == Span(0, 1)


def test_an_empty_topic_and_none(command: Command, topic: str) -> None:
    assert command("topics", "hotkeys", topic).lines == [f"There are no messages in {topic}, or none since then."]
    assert command.fails("topics", "hotkeys", "nothing").startswith("there is no topic nothing at ")
    assert command.fails("topics", "hotkeys", topic, "--since", "soon").startswith("--since soon: expected")


def test_help_has_an_example(command: Command) -> None:
    assert "Example: tidelog topics hotkeys orders" in " ".join(command("topics", "hotkeys", "--help").out.split())
