"""``tidelog topics`` on a real broker."""

import pytest

from tests.cli.command import Command, new_topic_name


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
    assert command.fails("topics", "create", topic) == f"topic {topic} exists already"
    assert command("topics", "create", topic, "--if-not-exists").lines == [f"There is {topic} with 2 partitions."]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bad name"], "name"),
        (["good", "--config", "segment.byts=1"], "segment.byts: there is no such setting; did you mean segment.bytes?"),
        (["good", "--config", "segment.bytes=tiny"], "segment.bytes=tiny: expected a whole number"),
        (["good", "--replication-factor", "3"], "replication factor"),
        (["good", "--config", "nothing"], "expected NAME=VALUE"),
    ],
)
def test_create_what_cannot_be(command: Command, arguments: list[str], message: str) -> None:
    assert message in command.fails("topics", "create", *arguments).replace("replication_factor", "replication factor")


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


def test_adding_partitions_warns_that_keys_move(command: Command, topic: str) -> None:
    result = command("topics", "alter", topic, "--partitions", "5")
    assert result.lines == [f"{topic} has 5 partitions now."]
    assert result.err.startswith("warning: keys move: with 5 partitions instead of 2")
    assert "their order is lost" in result.err
    assert len(command("topics", "describe", topic, "--json").documents[0]["partitions"]) == 5


def test_partitions_are_not_taken_away(command: Command, topic: str) -> None:
    assert "can be added to, not taken away" in command.fails("topics", "alter", topic, "--partitions", "1")


def test_settings_are_given_back(command: Command, topic: str) -> None:
    assert command("topics", "alter", topic, "--config", "retention.ms=77").lines == [f"Changed the settings of {topic}."]
    assert command("topics", "alter", topic, "--delete-config", "retention.ms").code == 0
    assert command("topics", "describe", topic, "--json").documents[0]["configs"] == {}


def test_alter_nothing(command: Command, topic: str) -> None:
    assert command.fails("topics", "alter", topic).startswith("nothing to alter")


def test_delete(command: Command, topic: str) -> None:
    assert command("topics", "delete", topic).lines == [f"Deleted {topic}."]
    assert topic not in {document["topic"] for document in command("topics", "list", "--json").documents}
    assert command.fails("topics", "delete", topic) == f"there is no topic {topic} at {command.bootstrap}"
    assert command("topics", "delete", topic, "--if-exists").lines == []


@pytest.mark.parametrize("words", [["describe"], ["alter", "--partitions", "3"], ["delete"]])
def test_a_topic_that_is_not_there(command: Command, words: list[str]) -> None:
    assert command.fails("topics", words[0], "nothing", *words[1:]) == f"there is no topic nothing at {command.bootstrap}"
