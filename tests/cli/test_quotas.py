"""``tidelog quotas`` on a real broker."""

import shlex

import pytest

from tests.cli.command import Command


def test_set_list_and_delete(fresh_command: Command) -> None:
    command = fresh_command
    (advice,) = command("quotas", "list").lines
    assert advice == "No quotas are set. To set one: tidelog quotas set --client-id NAME producer_byte_rate=1048576"
    assert command(*shlex.split(advice.partition(": tidelog ")[2]), "--validate-only").code == 0
    done = command("quotas", "set", "--client-id", "loader", "producer_byte_rate=1048576", "request_percentage=12.5")
    assert done.lines == ["Set producer_byte_rate, request_percentage of client-id loader."]
    command("quotas", "set", "--default", "user", "--default", "client-id", "consumer_byte_rate=5")
    assert command("quotas", "list", "--json").documents == [
        {"entity": {"client-id": None, "user": None}, "quotas": {"consumer_byte_rate": 5.0}},
        {"entity": {"client-id": "loader"}, "quotas": {"producer_byte_rate": 1048576.0, "request_percentage": 12.5}},
    ]
    rows = [line.split() for line in command("quotas", "list").lines]
    assert ["client-id", "loader", "request_percentage", "12.5"] in rows
    assert ["the", "default", "client-id", "of", "the", "default", "user", "consumer_byte_rate", "5"] in rows
    assert len(command("quotas", "list", "--client-id", "loader", "--json").documents) == 1
    done = command("quotas", "delete", "--client-id", "loader", "producer_byte_rate")
    assert done.lines == ["Deleted producer_byte_rate of client-id loader."]
    command("quotas", "delete", "--client-id", "loader")
    assert command("quotas", "list", "--client-id", "loader").lines == [
        "Client-id loader has no quotas. To see all quotas: tidelog quotas list"
    ]
    assert len(command("quotas", "list", "--json").documents) == 1


def test_validate_only_does_nothing(fresh_command: Command) -> None:
    command = fresh_command
    done = command("quotas", "set", "--ip", "10.0.0.1", "connection_creation_rate=3", "--validate-only")
    assert done.lines == ["Would set connection_creation_rate of ip 10.0.0.1."]
    assert command("quotas", "list", "--json").documents == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["set", "producer_byte_rate=1"], "whose quotas? Give --client-id NAME, --user NAME, --ip ADDRESS or --default TYPE"),
        (["set", "--client-id", "a", "producer_byte_rate=fast"], "producer_byte_rate=fast: expected a number"),
        (["set", "--default", "group", "producer_byte_rate=1"], "--default group: expected client-id, user, ip"),
        (
            ["set", "--user", "a", "--default", "user", "producer_byte_rate=1"],
            "give either --user or --default user",
        ),
        (["delete", "--client-id", "nobody"], "client-id nobody has no quotas"),
        (
            ["list", "-X", "sasl.username=a"],
            "-X sasl.username: commands about quotas speak plaintext only",
        ),
        pytest.param(
            ["set", "--client-id", "a", "producer_byte_rate=-1"],
            "the quotas were not changed: producer_byte_rate must be greater than 0, and is -1 (INVALID_REQUEST)",
            marks=pytest.mark.tidelog_only,
        ),
    ],
)
def test_what_makes_no_sense(command: Command, words: list[str], message: str) -> None:
    assert command.fails("quotas", *words).startswith(message)
