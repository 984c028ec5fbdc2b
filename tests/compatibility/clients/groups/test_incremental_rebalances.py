"""Cooperative-sticky and the consumer protocol: a rebalance takes from members only what moves, and they read on meanwhile."""

from collections.abc import Iterable

import pytest

from tests.compatibility.clients.conftest import MakeTopic
from tests.compatibility.clients.groups.conftest import Group, flowing
from tests.compatibility.clients.groups.member import Change, Member, Partition
from tests.compatibility.clients.groups.member_classes import CONFLUENT, CONFLUENT_CONSUMER, KAFKA_PYTHON
from tests.compatibility.clients.groups.sharing import wait_until_all_read, wait_until_shared_out

PARTITIONS = 12
KINDS = {
    "cooperative-sticky": ((CONFLUENT, CONFLUENT, CONFLUENT), "cooperative-sticky"),
    "cooperative-sticky of two clients": ((CONFLUENT, KAFKA_PYTHON, CONFLUENT), "cooperative-sticky"),
    "consumer protocol, uniform": ((CONFLUENT_CONSUMER,) * 3, "uniform"),
}


def taken(changes: Iterable[Change]) -> set[Partition]:
    return {partition for change in changes if change.kind != "assigned" for partition in change.partitions}


def given(changes: Iterable[Change]) -> list[Partition]:
    return [partition for change in changes if change.kind == "assigned" for partition in change.partitions]


@pytest.mark.parametrize("kind", KINDS)
def test_members_keep_what_does_not_move(group: Group, new_topic: MakeTopic, kind: str) -> None:
    clients, assignor = KINDS[kind]
    topic = new_topic(PARTITIONS)
    with flowing(group.bootstrap_servers, topic, PARTITIONS) as flow:
        members: list[Member] = [group.join(clients[0], topic, assignor=assignor)]
        wait_until_shared_out(members, topic, PARTITIONS)
        for client in clients[1:]:
            marks, shares = [len(member.changes) for member in members], [member.owned for member in members]
            members.append(group.join(client, topic, assignor=assignor))
            wait_until_shared_out(members, topic, PARTITIONS)
            # Each older member is told of what it loses once, and of nothing else.
            for member, mark, share in zip(members, marks, shares, strict=False):
                assert member.owned < share
                assert taken(member.changes[mark:]) == share - member.owned
                assert given(member.changes[mark:]) == []

        marks, shares = [len(member.changes) for member in members], [member.owned for member in members]
        members.pop(0).leave()
        wait_until_shared_out(members, topic, PARTITIONS)
        for member, mark, share in zip(members, marks[1:], shares[1:], strict=True):
            assert taken(member.changes[mark:]) == set()
            assert sorted(given(member.changes[mark:])) == sorted(member.owned - share)
    wait_until_all_read(group.ledger, topic, flow)


def test_eager_members_give_up_everything(group: Group, new_topic: MakeTopic) -> None:
    """What the tests above would see if it were not incremental."""
    topic = new_topic(PARTITIONS)
    first = group.join(CONFLUENT, topic, assignor="range")
    wait_until_shared_out([first], topic, PARTITIONS)
    second = group.join(CONFLUENT, topic, assignor="range")
    wait_until_shared_out([first, second], topic, PARTITIONS)
    assert len(taken(first.changes)) == PARTITIONS
