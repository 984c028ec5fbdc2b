"""``tidelog groups desired`` on a real broker: how many, why, and what it remembers."""

import json
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.cli.group_members import commit, member, new_group_name


@pytest.fixture
def group(command: Command, topic: str) -> str:
    """Ten messages of long ago are unread."""
    name = new_group_name()
    lines = [json.dumps({"value": "x", "partition": 0, "timestamp": 1_768_478_400_000}) for _ in range(10)]
    assert command("produce", topic, "--jsonl", stdin="\n".join(lines).encode()).code == 0
    commit(command, name, topic, {0: 0, 1: 0})
    return name


def desired(command: Command, group: str, *words: str) -> dict[str, object]:
    (document,) = command("groups", "desired", "--group", group, "--interval", "1", "--json", *words).documents
    return document


def test_nobody_reads(command: Command, group: str) -> None:
    document = desired(command, group, "--target-lag-seconds", "30", "--min", "0")
    assert (document["desired"], document["current"], document["partitions"], document["lag_messages"]) == (1, 0, 2, 10)
    assert document["produced_per_second"] == 0
    assert document["lag_seconds"]


def test_no_more_than_partitions(command: Command, group: str) -> None:
    assert desired(command, group, "--current", "1")["desired"] == 2
    assert desired(command, group, "--current", "9")["desired"] == 2
    assert desired(command, group, "--current", "1", "--max", "1")["desired"] == 1


def test_members_are_counted(command: Command, group: str, topic: str) -> None:
    with member(command, group, topic, group_protocol="consumer"):
        assert desired(command, group)["current"] == 1


def test_within_the_target(command: Command, group: str, topic: str) -> None:
    commit(command, group, topic, {0: 10})
    assert desired(command, group, "--current", "1")["desired"] == 1
    assert desired(command, group, "--current", "2")["desired"] == 1, "a single call has no memory, and waits for nothing"
    assert desired(command, group, "--current", "1", "--min", "0")["desired"] == 0


def test_a_line_for_people(command: Command, group: str) -> None:
    (line,) = command("groups", "desired", group, "--interval", "1", "--current", "1").lines
    assert line.startswith("2 (now 1; 10 unread, ")
    assert line.endswith("): the lag is above the target, and what one consumer reads is not known yet")


def test_a_state_file_makes_it_wait(command: Command, group: str, topic: str, tmp_path: Path) -> None:
    commit(command, group, topic, {0: 10})
    file = tmp_path / "state"
    words = ("--current", "2", "--state-file", str(file))
    assert desired(command, group, *words)["desired"] == 2
    state = json.loads(file.read_text())
    assert state["consumers"] == 2
    file.write_text(json.dumps({**state, "calm_since": state["calm_since"] - 600}))
    assert desired(command, group, *words)["desired"] == 1
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"a": 1}', "\x00", "NaN"])
def test_a_file_that_is_no_state(command: Command, group: str, tmp_path: Path, content: str) -> None:
    file = tmp_path / "state"
    file.write_text(content)
    said = command.fails("groups", "desired", group, "--state-file", str(file))
    assert said == f"{file} is not a state file of this command; remove it to start over"


def test_a_state_of_the_wrong_types(command: Command, group: str, tmp_path: Path) -> None:
    file = tmp_path / "state"
    for wrong in ("soon", True, float("nan")):
        file.write_text(json.dumps({"consumer_rate": None, "calm_since": wrong, "consumers": 1, "changed_at": None}))
        assert "is not a state file" in command.fails("groups", "desired", group, "--state-file", str(file))


def test_which_group(command: Command) -> None:
    assert command.fails("groups", "desired") == "no group is given; add its name"
    assert command.fails("groups", "desired", "one", "--group", "two").startswith(
        "the command line names two groups, one and two"
    )
