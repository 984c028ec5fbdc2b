"""``tidelog cluster`` on a real broker."""

import json
from typing import Any

import pytest

from tests.cli.command import Command
from tests.faults.load import wait_until
from tidelog import Producer
from tidelog.cli.cluster import advice_on_voters
from tidelog.testing import Broker, Cluster


@pytest.mark.tidelog_only
def test_describe(command: Command, topic: str, tidelog_broker: Broker) -> None:
    (document,) = command("cluster", "describe", "--json").documents
    assert document["cluster_id"] == tidelog_broker.events[0]["cluster_id"]
    assert document["controller"] == 1
    assert document["topics"] >= 1
    (broker,) = document["brokers"]
    assert (broker["id"], broker["host"], broker["port"]) == (1, "127.0.0.1", tidelog_broker.port)
    assert broker["leads"] == document["partitions"] >= 2
    lines = command("cluster", "describe").lines
    assert lines[0].startswith(f"Cluster {document['cluster_id']}: ")
    assert any(f"127.0.0.1:{tidelog_broker.port}" in line and "yes" in line for line in lines)


def test_status_names_the_voters(command: Command, topic: str) -> None:
    (document,) = command("cluster", "status", "--json").documents
    assert (document["voters"], document["voters_silent"]) == ([1], [])
    lines = command("cluster", "status").lines
    assert lines[1] == "1 voter of the metadata: 1"
    # A broker that is alone needs no advice.
    assert not [line for line in lines if "tidelog quorum" in line]


@pytest.mark.parametrize(
    ("voters", "brokers", "silent", "words"),
    [
        (1, 1, [], []),
        (1, 2, [], []),
        (1, 3, [], ["without that one: let controllers join"]),
        (2, 3, [], ["without one of the two: let controllers join"]),
        (3, 3, [], []),
        (3, 3, [2], ["voter 2 does not answer the leader: start it, or replace it"]),
        (4, 5, [], ["4 voters survive no more losses than 3"]),
    ],
)
def test_what_status_says_about_the_voters(voters: int, brokers: int, silent: list[int], words: list[str]) -> None:
    said = list(advice_on_voters(voters, brokers, silent))
    assert len(said) == len(words)
    assert all(part in line for part, line in zip(words, said, strict=True))


def partition(command: Command, topic: str) -> dict[str, Any]:
    """The only partition of a topic; nothing while there is no controller to ask."""
    asked = command("topics", "describe", topic, "--json")
    if asked.code != 0:
        return {}
    (found,) = json.loads(asked.out)["partitions"]
    assert isinstance(found, dict)
    return found


def test_leaders_are_elected_and_uncleanly_only_by_who_accepts_the_loss(
    tidelog_cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(tidelog_cluster.bootstrap_servers, capsys, monkeypatch)
    words = ("--partitions", "1", "--replication-factor", "2", "--config", "min.insync.replicas=1")
    assert command("topics", "create", "left", *words).code == 0
    last, other = partition(command, "left")["replicas"]
    assert command("cluster", "elect", "left-0").lines[-1].split()[:2] == ["left-0", str(last)]
    assert f"left-0 is led by broker {last}" in command.fails("cluster", "elect", "left-0", "--unclean", "--accept-data-loss")

    tidelog_cluster.kill(other)
    wait_until(lambda: partition(command, "left").get("isr") == [last], "only the leader is in sync")
    with Producer(tidelog_cluster.bootstrap_servers) as producer:
        producer.send("left", value=b"on one disk").result()
    tidelog_cluster.kill(last)
    tidelog_cluster.start(other)
    wait_until(lambda: "left-0" in command("cluster", "status").out.split("without leader")[-1], "nobody may lead")

    refusal = command.fails("cluster", "elect", "left-0", "--unclean")
    assert f"Broker {last} may have all that was acknowledged: start it first" in refusal
    assert refusal.endswith("to go ahead, add --accept-data-loss")
    (document,) = command("cluster", "elect", "left-0", "--unclean", "--accept-data-loss", "--json").documents
    assert document["partitions"] == [{"topic": "left", "partition": 0, "leader": other, "error": None}]

    tidelog_cluster.start(last)
    wait_until(lambda: command("cluster", "status").code == 0, "the cluster is whole")


def test_elections_that_make_no_sense(command: Command, topic: str) -> None:
    assert "name the partitions" in command.fails("cluster", "elect", "--unclean", "--accept-data-loss")
    assert "there is no partition nowhere-1" in command.fails("cluster", "elect", "nowhere-1", "--unclean", "--accept-data-loss")
    assert "expected TOPIC-PARTITION" in command.fails("cluster", "elect", "orders")
    (line,) = command("cluster", "elect").lines
    assert line.startswith("There is nothing to change")
    missing = command("cluster", "elect", "nowhere-1")
    assert (missing.code, "nowhere-1" in missing.out) == (3, True)
