"""``tidelog cluster`` on a real broker."""

import pytest

from tests.cli.command import Command
from tidelog.cli.cluster import advice_on_voters
from tidelog.testing import Broker


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
