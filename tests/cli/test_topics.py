"""``tidelog topics`` on a real broker."""

import pytest

from tests.cli.command import Command, new_topic_name
from tidelog.cli.topics import sampled
from tidelog.client.admin import PartitionBounds
from tidelog.client.partitioners import murmur2_partition
from tidelog.client.producer import Producer
from tidelog.client.topic_partition import TopicPartition

OLD_MS, NEW_MS = 1_700_000_000_000, 1_750_000_000_000


def no_such_topic(command: Command, name: str) -> str:
    return f"there is no topic {name} at {command.bootstrap}; to see the topics: tidelog topics list"


def test_create_and_list(command: Command) -> None:
    name = new_topic_name()
    created = command("topics", "create", name, "--partitions", "3", "--config", "retention.ms=1000000")
    assert created.lines == [f"Created {name} with 3 partitions."]
    assert {"topic": name, "partitions": 3, "replication_factor": 1} in command("topics", "list", "--json").documents
    row = next(line for line in command("topics", "list").lines if name in line)
    assert row.split() == [name, "3", "1"]


def test_the_brokers_defaults(command: Command) -> None:
    name = new_topic_name()
    assert command("topics", "create", name, "--json").documents == [{"topic": name, "partitions": 1, "created": True}]


def test_create_what_is_there(command: Command, topic: str) -> None:
    assert command.fails("topics", "create", topic) == f"Topic '{topic}' already exists."
    assert command("topics", "create", topic, "--if-not-exists").lines == [f"{topic} already exists, with 2 partitions."]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bad name"], "name"),
        pytest.param(
            ["good", "--config", "segment.byts=1"],
            "segment.byts: there is no such setting; did you mean segment.bytes?",
            marks=pytest.mark.tidelog_only,
        ),
        pytest.param(
            ["good", "--config", "segment.bytes=tiny"],
            "segment.bytes=tiny: expected a whole number",
            marks=pytest.mark.tidelog_only,
        ),
        (["good", "--replication-factor", "3"], "replication factor"),
        (["good", "--config", "nothing"], "expected NAME=VALUE"),
    ],
)
def test_create_what_cannot_be(command: Command, arguments: list[str], message: str) -> None:
    assert message in command.fails("topics", "create", *arguments).replace("replication_factor", "replication factor")


@pytest.mark.tidelog_only
def test_describe(command: Command, topic: str) -> None:
    command("produce", topic, "--partition", "1", stdin=b"one\ntwo\n")
    command("topics", "alter", topic, "--config", "retention.ms=5000000")
    (document,) = command("topics", "describe", topic, "--json").documents
    assert document["configs"] == {"retention.ms": "5000000"}
    first, second = document["partitions"]
    assert (first["start_offset"], first["end_offset"], first["messages"]) == (0, 0, 0)
    assert second == {
        "partition": 1,
        "leader": 1,
        "replicas": [1],
        "isr": [1],
        "start_offset": 0,
        "end_offset": 2,
        "messages": 2,
    }
    lines = command("topics", "describe", topic).lines
    assert lines[0] == f"{topic}: 2 partitions; retention.ms=5000000"
    assert ["1", "1", "1", "1", "0", "2", "2"] in [line.split() for line in lines]


@pytest.mark.tidelog_only
def test_adding_partitions_warns_that_keys_move(command: Command, topic: str) -> None:
    refused = command("topics", "alter", topic, "--partitions", "5", "--config", "retention.ms=77", stdin=b"y\n")
    assert (refused.code, "to go ahead, add --yes" in refused.err) == (1, True)
    (before,) = command("topics", "describe", topic, "--json").documents
    assert (len(before["partitions"]), before["configs"]) == (2, {})
    result = command("topics", "alter", topic, "--partitions", "5", "--yes")
    assert result.lines == [f"{topic} now has 5 partitions."]
    assert result.err.startswith("warning: keys move: with 5 partitions instead of 2")
    assert "their order is lost" in result.err
    assert len(command("topics", "describe", topic, "--json").documents[0]["partitions"]) == 5


def test_partitions_are_not_taken_away(command: Command, topic: str) -> None:
    assert "partitions cannot be removed from a topic" in command.fails("topics", "alter", topic, "--partitions", "1")


@pytest.mark.tidelog_only
def test_settings_are_given_back(command: Command, topic: str) -> None:
    assert command("topics", "alter", topic, "--config", "retention.ms=77").lines == [f"Changed the settings of {topic}."]
    assert command("topics", "alter", topic, "--delete-config", "retention.ms").code == 0
    assert command("topics", "describe", topic, "--json").documents[0]["configs"] == {}


def test_alter_nothing(command: Command, topic: str) -> None:
    assert command.fails("topics", "alter", topic).startswith("there is nothing to alter")


def test_delete(command: Command, topic: str) -> None:
    assert "to go ahead, add --yes" in command.fails("topics", "delete", topic, stdin=b"n\n")
    assert topic in {document["topic"] for document in command("topics", "list", "--json").documents}
    assert command("topics", "delete", topic, "--yes").lines == [f"Deleted {topic}."]
    assert topic not in {document["topic"] for document in command("topics", "list", "--json").documents}
    assert command.fails("topics", "delete", topic) == no_such_topic(command, topic)
    assert command("topics", "delete", topic, "--if-exists").lines == []


@pytest.mark.parametrize("words", [["describe"], ["alter", "--partitions", "3"], ["delete"]])
def test_a_topic_that_is_not_there(command: Command, words: list[str]) -> None:
    assert command.fails("topics", words[0], "nothing", *words[1:]) == no_such_topic(command, "nothing")


# -- hot keys -----------------------------------------------------------------------------------------------------------------


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


def test_hot_keys_as_json(command: Command, skewed: str) -> None:
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


def test_hot_keys_as_text_say_what_to_do(command: Command, skewed: str) -> None:
    lines = command("topics", "hotkeys", skewed, "--top", "2").lines
    assert lines[0] == f"{skewed}: 1,000 messages sampled, 0 of them without a key"
    assert next(line for line in lines if line.strip().startswith("celebrity ")).split() == ["celebrity", "600", "0", "60.0%"]
    assert lines[-1] == (
        "celebrity has 60% of the messages, and an even share of a partition is 25%: "
        "spread it over 3 partitions or more (tidelog.client.spread)"
    )


def test_hot_keys_since_a_time(command: Command, skewed: str) -> None:
    (document,) = command("topics", "hotkeys", skewed, "--json", "--since", str(NEW_MS + 1)).documents
    assert (document["messages"], document["keys"]) == (0, [])
    assert "no messages" in command("topics", "hotkeys", skewed, "--since", str(NEW_MS + 1)).lines[0]


def test_a_sample_is_in_proportion(command: Command, skewed: str) -> None:
    (document,) = command("topics", "hotkeys", skewed, "--json", "--sample", "100").documents
    assert 90 <= document["messages"] <= 104
    assert 0.4 < document["keys"][0]["share"] < 0.8


def test_a_sample_has_at_least_one_message_of_each_partition() -> None:
    def sample(*bounds: tuple[int, int]) -> list[tuple[int, int]]:
        partitions = {TopicPartition("t", index): PartitionBounds(*each) for index, each in enumerate(bounds)}
        return list(sampled(partitions, 100).values())

    assert sample((0, 900), (0, 100), (5, 5)) == [(810, 900), (90, 100)]
    assert sample((3, 9), (4, 4)) == [(3, 9)]
    assert sample((0, 10_000), (0, 1))[1] == (0, 1)


def test_hot_keys_of_an_empty_topic_and_of_none(command: Command, topic: str) -> None:
    assert command("topics", "hotkeys", topic).lines == [f"{topic} has no messages, or none since that time."]
    assert command.fails("topics", "hotkeys", "nothing").startswith("there is no topic nothing at ")
    assert command.fails("topics", "hotkeys", topic, "--since", "soon").startswith("--since soon: expected")


def test_delete_records(command: Command, topic: str) -> None:
    lines = [f'{{"value": "v", "partition": {n % 2}, "timestamp": {1_768_478_400_000 + n * 1000}}}' for n in range(10)]
    assert command("produce", topic, "--jsonl", stdin="\n".join(lines).encode()).code == 0
    assert "up to where?" in command.fails("topics", "delete-records", topic)
    assert "Nothing was changed" in command.fails("topics", "delete-records", topic, "--all")
    assert "has no partition 7" in command.fails("topics", "delete-records", topic, "--all", "-p", "7")
    words = ["topics", "delete-records", topic, "--yes"]
    assert command(*words, "-p", "1", "--before-offset", "2").out == f"Deleted 2 messages of {topic}.\n"
    assert command(*words, "--before", "2026-01-15T12:00:06Z").out == f"Deleted 4 messages of {topic}.\n"
    starts = [each["start_offset"] for each in command("topics", "describe", topic, "--json").documents[0]["partitions"]]
    assert starts == [3, 3]
    documents = command(*words, "--all", "--json").documents
    assert [each["start_offset"] for each in documents] == [5, 5]


def test_a_message_that_is_too_large_for_the_client(command: Command, topic: str) -> None:
    large = b"x" * 2_000_000
    assert "message.max.bytes of this client" in command.fails("produce", topic, "--whole", stdin=large)
    assert command("topics", "alter", topic, "--config", "max.message.bytes=3000000").code == 0
    assert command("produce", topic, "--whole", "-X", "message.max.bytes=3000000", stdin=large).code == 0
