"""``tidelog groups`` on a real broker with real members: list, describe, offsets, delete."""

import json
import signal
import subprocess
import sys
import time

import pytest
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient

from tests.cli.command import Command
from tests.cli.group_members import commit, committed, member, new_group_name
from tidelog.cli.groups import NO_GROUPS
from tidelog.cli.groups_lag import RecordTimes
from tidelog.cli.kafka import KafkaCluster
from tidelog.cli.main import main
from tidelog.client.topic_partition import TopicPartition
from tidelog.testing import Broker

HOUR_MS = 3_600_000
# Of the first unread message. The next half hour shows the same hours.
AGE_SECONDS = 16_200
SLACK_SECONDS = 1_800


@pytest.fixture
def group() -> str:
    return new_group_name()


def produce(command: Command, topic: str, partition: int, ages_ms: list[int]) -> None:
    now_ms = int(time.time() * 1000)
    lines = [json.dumps({"value": "x", "partition": partition, "timestamp": now_ms - age}) for age in ages_ms]
    assert command("produce", topic, "--jsonl", stdin="\n".join(lines).encode()).code == 0


def test_without_groups(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[str] = []
    with Broker() as broker:
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.bootstrap_servers)
        for command in (["list"], ["describe", "--all-groups"], ["delete", "--all-groups"]):
            assert main(["groups", *command, *words]) == 0
            assert capsys.readouterr().out == f"{NO_GROUPS}\n"
        assert main(["groups", "list", "--json", *words]) == 0
        assert main(["groups", "offsets", "--all-groups", *words]) == 0
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_list(command: Command, topic: str, group: str, protocol: str) -> None:
    with member(command, group, topic, group_protocol=protocol):
        assert {"group": group, "state": "Stable", "type": protocol} in command("groups", "list", "--json").documents
        row = next(line for line in command("groups", "list", "--type", protocol, "--state", "stable").lines if group in line)
        assert row.split() == [group, "Stable", protocol]
        for words in (["--state", "Empty,Dead"], ["--type", "consumer" if protocol == "classic" else "classic"]):
            assert group not in command("groups", "list", *words).out


def test_list_what_is_not_there(command: Command) -> None:
    assert command("groups", "list", "--state", "dead").lines == ["No group matches. To see all groups: tidelog groups list"]
    assert command.fails("groups", "list", "--state", "Asleep").startswith("--state asleep: expected any of preparingrebalance,")
    assert command.fails("groups", "list", "--type", "stream") == "--type stream: expected any of consumer, classic, share"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_describe_a_live_group(command: Command, topic: str, group: str, protocol: str) -> None:
    produce(command, topic, 0, [6 * HOUR_MS, AGE_SECONDS * 1000, 0])
    produce(command, topic, 1, [0])
    commit(command, group, topic, {0: 1, 1: 1})
    with member(command, group, topic, group_protocol=protocol):
        (document,) = command("groups", "describe", group, "--json").documents
        assert (document["group"], document["state"], document["type"]) == (group, "Stable", protocol)
        assert document["lag_messages"] == 2
        assert AGE_SECONDS <= document["lag_seconds"] <= AGE_SECONDS + SLACK_SECONDS
        (only,) = document["members"]
        assert only["client_id"] == "the-test"
        assert only["partitions"] == [{"topic": topic, "partition": index} for index in (0, 1)]
        behind, even = document["partitions"]
        assert (behind["committed_offset"], behind["end_offset"], behind["lag_messages"]) == (1, 3, 2)
        assert AGE_SECONDS <= behind["lag_seconds"] <= AGE_SECONDS + SLACK_SECONDS
        deletion_seconds = 7 * 24 * 3600 - AGE_SECONDS
        assert deletion_seconds - SLACK_SECONDS <= behind["deletion_seconds"] <= deletion_seconds
        assert (even["lag_messages"], even["lag_seconds"], even["deletion_seconds"]) == (0, 0.0, None)
        assert behind["member_id"] == only["member_id"]

        first, *rest = command("groups", "describe", "--group", group).lines
        assert first.startswith(f"{group}: Stable, {protocol} protocol (")
        assert ", 1 member, coordinated by broker 1 (127.0.0.1:" in first
        assert "; 2 messages behind, 4h" in first
        rows = [line.split() for line in rest]
        assert [topic, "1", "1", "1", "0", "0.0s", "-", "the-test", "/127.0.0.1"] in rows
        assert "6d 19h" in "\n".join(rest)

        members = command("groups", "describe", group, "--members").out
        assert f"{topic}(0,1)" in members
        assert "Committed" not in members
        verbose = command("groups", "describe", group, "--verbose").out
        assert f"{topic}(0,1)" in verbose
        assert "Committed" in verbose
        assert len(command("groups", "describe", group, "--state").lines) == 1


def test_describe_several(command: Command, topic: str) -> None:
    groups = sorted(new_group_name() for _ in range(2))
    for name in groups:
        commit(command, name, topic, {0: 0})
    documents = command("groups", "describe", *groups, "--json").documents
    assert [document["group"] for document in documents] == groups
    everything = command("groups", "describe", "--all-groups", "--json").documents
    assert set(groups) <= {document["group"] for document in everything}


def test_describe_an_empty_group(command: Command, topic: str, group: str) -> None:
    commit(command, group, topic, {1: 0})
    lines = command("groups", "describe", group).lines
    assert lines[0].startswith(f"{group}: Empty, ")
    assert lines[0].endswith("; nothing unread")
    said = command("groups", "describe", group, "--members").lines[-1]
    assert said == f"{group} has no members. To read with it: tidelog consume TOPIC --group {group}"


def test_records_that_were_deleted_unread(command: Command, topic: str, group: str) -> None:
    produce(command, topic, 0, [1000] * 10)
    commit(command, group, topic, {0: 2})
    admin = AdminClient({"bootstrap.servers": command.bootstrap})
    for future in admin.delete_records([RawPartition(topic, 0, 6)]).values():
        future.result()
    lines = command("groups", "describe", group).lines
    assert lines[0].endswith("; 4 messages deleted unread")
    (document,) = command("groups", "describe", group, "--json").documents
    (partition,) = document["partitions"]
    assert (partition["lost_messages"], partition["lag_messages"], partition["start_offset"]) == (4, 8, 6)
    assert "4 lost" in "\n".join(lines)


def test_a_topic_that_is_gone(command: Command, topic: str, group: str) -> None:
    """A member holds on to it: its offset stays, and looking does not bring the topic back."""
    commit(command, group, topic, {0: 0})
    with member(command, group, topic):
        assert command("topics", "delete", topic, "--yes").code == 0
        for _ in range(2):
            (document,) = command("groups", "describe", group, "--json").documents
            for partition in document["partitions"]:
                assert (partition["end_offset"], partition["lag_messages"]) == (None, None)
        assert command("groups", "offsets", group).code == 0
        assert topic not in {found["topic"] for found in command("topics", "list", "--json").documents}


@pytest.mark.parametrize(
    "words",
    [["describe"], ["describe", "--state"], ["offsets"], ["delete"], ["desired"]],
)
def test_a_group_that_is_not_there(command: Command, words: list[str]) -> None:
    expected = f"there is no group nothing at {command.bootstrap}; to see the groups: tidelog groups list"
    assert command.fails("groups", words[0], "nothing", *words[1:]) == expected


@pytest.mark.parametrize("name", ["describe", "offsets", "delete"])
def test_which_group(command: Command, name: str) -> None:
    assert command.fails("groups", name) == "no group is given; add its name, or --all-groups"
    assert command.fails("groups", name, "one", "--all-groups") == "give either the names of groups or --all-groups, not both"


def test_offsets(command: Command, topic: str, group: str) -> None:
    produce(command, topic, 1, [0, 0, 0])
    commit(command, group, topic, {1: 2}, "a note")
    (document,) = command("groups", "offsets", group, "--json").documents
    assert document == {
        "group": group,
        "topic": topic,
        "partition": 1,
        "committed_offset": 2,
        "start_offset": 0,
        "end_offset": 3,
        "leader_epoch": document["leader_epoch"],
        "metadata": "a note",
    }
    first, *rows = command("groups", "offsets", group).lines
    assert first == f"{group}:"
    assert any(row.split()[:5] == [topic, "1", "2", "0", "3"] and row.rstrip().endswith("a note") for row in rows)


def test_a_live_group_without_offsets(command: Command, topic: str, group: str) -> None:
    with member(command, group, topic):
        expected = f"{group} has not committed any offsets. To set them: tidelog groups reset {group} --topic TOPIC --to-earliest"
        assert command("groups", "offsets", group).lines == [expected]
        (document,) = command("groups", "describe", group, "--json").documents
        assert [partition["lag_messages"] for partition in document["partitions"]] == [None, None]
        assert command("groups", "describe", group).lines[0].endswith("; no committed offsets")


def test_delete(command: Command, topic: str, group: str) -> None:
    commit(command, group, topic, {0: 0})
    with member(command, group, topic):
        expected = f"group {group} cannot be deleted while it is in use: it is Stable with 1 member (the-test at /127.0.0.1)"
        assert command.fails("groups", "delete", group) == f"{expected}; stop its members first"
    assert "to go ahead, add --yes" in command.fails("groups", "delete", group)
    assert command("groups", "delete", group, "--yes").lines == [f"Deleted {group}."]
    assert committed(command, group) == {}
    assert command.fails("groups", "delete", group).startswith(f"there is no group {group}")


def test_watch_shows_rates_until_it_is_interrupted(command: Command, topic: str, group: str) -> None:
    produce(command, topic, 0, [0] * 10)
    commit(command, group, topic, {0: 3})
    words = ["groups", "describe", group, "--watch", "--interval", "0.6", "--json", "--bootstrap", command.bootstrap]
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())["partitions"][0]
        assert (first["committed_offset"], first["consumed_per_second"]) == (3, None)
        commit(command, group, topic, {0: 7})
        found = first
        while not found["consumed_per_second"]:
            found = json.loads(process.stdout.readline())["partitions"][0]
        assert found["committed_offset"] == 7
        assert 0 < found["consumed_per_second"] <= 4
        assert found["produced_per_second"] == 0
        assert found["drain_seconds"] == pytest.approx(3 / found["consumed_per_second"])
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (130, "")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["list", "describe", "offsets", "reset", "delete", "desired"])
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", name, "--help"]) == 0
    assert f"Example: tidelog groups {name}" in capsys.readouterr().out


def test_the_age_of_a_record_is_fetched_once(command: Command, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noon_ms = 1_768_478_400_000
    lines = [json.dumps({"value": "x" * 3000, "partition": n % 2, "timestamp": noon_ms + n}) for n in range(20)]
    assert command("produce", topic, "--jsonl", stdin="\n".join(lines).encode()).code == 0
    times = RecordTimes(KafkaCluster(command.bootstrap, None))
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert times.find({first: 0, second: 9}) == {first: noon_ms, second: noon_ms + 19}
    assert times.find({first: 4}) == {first: noon_ms + 8}
    assert times.find({second: 10}) == {second: None}, "there is no record yet"

    def refuse(*_: object) -> None:
        raise AssertionError("the age is known")

    monkeypatch.setattr(KafkaCluster, "consumer", refuse)
    assert times.find({first: 4}) == {first: noon_ms + 8}
    assert times.find({}) == {}
