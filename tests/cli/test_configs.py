"""``tidelog configs`` on a real broker."""

import time

import pytest

from tests.cli.command import Command
from tidelog.cli.kafka import REQUEST_SECONDS_MAX


@pytest.mark.tidelog_only
def test_describe_and_alter_a_topic(command: Command, topic: str) -> None:
    assert (
        command("configs", "describe", "--topic", topic).lines[0].endswith("have their default values. To see them, add --all.")
    )
    altered = command(
        "configs", "alter", "--topic", topic, "--set", "retention.ms=86400000", "--add-config", "segment.bytes=2000000"
    )
    assert altered.lines == [f"Changed the settings of topic {topic}."]
    command("configs", "alter", "--topic", topic, "--delete", "segment.bytes")
    assert command("configs", "describe", "--topic", topic, "--json").documents == [
        {"name": "retention.ms", "value": "86400000", "source": "topic", "is_read_only": False, "is_sensitive": False}
    ]
    assert ["retention.ms", "86400000", "topic"] in [
        line.split() for line in command("configs", "describe", "--topic", topic).lines
    ]


def test_all_settings_of_a_topic(command: Command, topic: str) -> None:
    names = {document["name"] for document in command("configs", "describe", "--topic", topic, "--all", "--json").documents}
    assert {"retention.ms", "cleanup.policy", "max.message.bytes", "flush.messages"} <= names


@pytest.mark.tidelog_only
def test_a_brokers_settings(command: Command) -> None:
    documents = {document["name"]: document for document in command("configs", "describe", "--broker", "1", "--json").documents}
    assert documents["listeners"]["value"] == f"PLAINTEXT://{command.bootstrap}"
    assert documents["listeners"]["source"] == "broker, at its start"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["describe"], "whose settings? Give either --topic NAME or --broker ID"),
        (["describe", "--topic", "a", "--broker", "1"], "whose settings? Give either --topic NAME or --broker ID"),
        (["alter", "--topic", "a"], "there is nothing to alter: add --set NAME=VALUE or --delete NAME"),
        (
            ["alter", "--topic", "a", "--set", "x"],
            "Invalid value for --set: 'x': expected NAME=VALUE (try: tidelog configs alter --help)",
        ),
    ],
)
def test_what_makes_no_sense(command: Command, words: list[str], message: str) -> None:
    assert command.fails("configs", *words) == message


@pytest.mark.tidelog_only
def test_what_the_broker_refuses(command: Command, topic: str) -> None:
    assert command.fails("configs", "alter", "--topic", topic, "--set", "retention.ms=soon") == (
        "retention.ms=soon: expected a whole number"
    )
    assert "did you mean retention.ms?" in command.fails("configs", "alter", "--topic", topic, "--set", "retention.mss=1")


def test_a_broker_that_is_not_there_is_told_at_once(command: Command) -> None:
    for words in (["describe"], ["alter", "--set", "log.retention.ms=1"]):
        started = time.monotonic()
        message = command.fails("configs", *words, "--broker", "77")
        assert message == f"there is no broker 77 at {command.bootstrap}, only 1"
        assert time.monotonic() - started < REQUEST_SECONDS_MAX / 2
