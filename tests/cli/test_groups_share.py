"""``tidelog groups`` about share groups, on a real broker."""

import secrets
from collections.abc import Iterator

import pytest

from tests.cli.command import Command
from tests.client.queue.working import receive
from tidelog.cli.kafka import KafkaCluster
from tidelog.cli.share_groups import ShareGroups
from tidelog.client.queue import Queue


@pytest.fixture
def name(command: Command) -> str:
    name = f"jobs-{secrets.token_hex(4)}"
    command("queues", "create", name, "--partitions", "2")
    return name


@pytest.fixture
def queue(command: Command, name: str) -> Iterator[Queue]:
    """A queue with five jobs, of which the second is settled and the first is held."""
    with Queue(command.bootstrap, name) as queue:
        queue.send("held", key="k").result()
        queue.send("settled", key="k").result()
        for number in range(3):
            queue.send(f"{number}", key="k").result()
        jobs = receive(queue, 2)
        jobs[1].ack()
        yield queue


def test_a_share_group_is_listed_and_described_with_what_it_has_not_settled(command: Command, name: str, queue: Queue) -> None:
    listed = [each for each in command("groups", "list", "--json").documents if each["group"] == name]
    assert listed == [{"group": name, "state": "Stable", "type": "share"}]
    assert name in [each["group"] for each in command("groups", "list", "--type", "share", "--json").documents]
    assert name not in [each["group"] for each in command("groups", "list", "--type", "consumer", "--json").documents]
    assert name not in [each["group"] for each in command("groups", "list", "--state", "Empty", "--json").documents]
    (found,) = command("groups", "describe", name, "--json").documents
    assert (found["state"], found["type"], found["lag_messages"], len(found["members"])) == ("Stable", "share", 4, 1)
    assert found["lag_seconds"] > 0
    lags = {
        each["partition"]: (each["committed_offset"], each["end_offset"], each["lag_messages"]) for each in found["partitions"]
    }
    assert (0, 5, 4) in lags.values()
    assert "4 messages behind" in command("groups", "describe", name).lines[0]
    assert f"group {name} cannot be deleted while it is in use" in command.fails("groups", "delete", name, "--yes")
    assert "cannot be reset while it is in use" in command.fails("groups", "reset", name, "--all-topics", "--to-latest")
    (desired,) = command("groups", "desired", name, "--interval", "1", "--min", "30", "--json").documents
    assert (desired["desired"], desired["current"], desired["partitions"], desired["lag_messages"]) == (30, 1, 2, 4)


def test_a_share_group_is_reset_and_deleted(command: Command, name: str, queue: Queue) -> None:
    queue.close()
    (moved,) = [
        each
        for each in command("groups", "reset", name, "--all-topics", "--to-latest", "--execute", "--json").documents
        if each["after"]
    ]
    assert (moved["before"], moved["after"], moved["executed"]) == (0, 5, True)
    (found,) = command("groups", "describe", name, "--json").documents
    assert (found["lag_messages"], found["lag_seconds"]) == (0, 0)
    assert any(each["committed_offset"] == 5 for each in command("groups", "offsets", name, "--json").documents)
    assert command("groups", "delete", name, "--yes", "--json").documents == [{"group": name, "deleted": True}]
    assert name not in [each["group"] for each in command("groups", "list", "--json").documents]
    assert f"there is no group {name} at " in command.fails("groups", "describe", name)


def test_over_tls_there_are_no_share_groups_to_see() -> None:
    with ShareGroups(KafkaCluster("127.0.0.1:1", ["security.protocol=SASL_SSL"])) as shares:
        assert shares.listings() == []
        assert shares.find("jobs") is None
