"""A group goes over from the classic protocol to the consumer protocol and back, member by member, while it works: in between,
members of both protocols are side by side in one group."""

from typing import Any

import pytest
from confluent_kafka import ConsumerGroupType

from tests.compatibility.clients.conftest import MakeTopic
from tests.compatibility.clients.groups.admin import describe
from tests.compatibility.clients.groups.conftest import Group, flowing
from tests.compatibility.clients.groups.member import Member
from tests.compatibility.clients.groups.member_classes import CLASSIC, CONFLUENT_CONSUMER, KAFKA_PYTHON
from tests.compatibility.clients.groups.sharing import wait_until_all_read, wait_until_shared_out

PARTITIONS = 6
# Not with the cooperative-sticky of librdkafka: it sends bytes along with assignments, and a group with such is not taken over.
KINDS = {"range": CLASSIC, "cooperative-sticky": (KAFKA_PYTHON,) * 3}


@pytest.mark.parametrize("assignor", KINDS)
def test_there_and_back(group: Group, admin: Any, new_topic: MakeTopic, assignor: str) -> None:
    clients = KINDS[assignor]
    topic = new_topic(PARTITIONS)
    with flowing(group.bootstrap_servers, topic, PARTITIONS) as flow:
        members: list[Member] = [group.join(client, topic, assignor=assignor) for client in clients]
        wait_until_shared_out(members, topic, PARTITIONS)
        assert describe(admin, group.name).type is ConsumerGroupType.CLASSIC
        for place in range(len(clients)):
            # Not in the middle of a rebalance: those who wait to join hear an error then that aiokafka cannot take.
            leave(members, place, topic)
            members.insert(place, group.join(CONFLUENT_CONSUMER, topic))
            wait_until_shared_out(members, topic, PARTITIONS)
            assert describe(admin, group.name).type is ConsumerGroupType.CONSUMER
        for place, client in enumerate(clients):
            leave(members, place, topic)
            members.insert(place, group.join(client, topic, assignor=assignor))
            wait_until_shared_out(members, topic, PARTITIONS)
        assert describe(admin, group.name).type is ConsumerGroupType.CLASSIC
    wait_until_all_read(group.ledger, topic, flow)


def leave(members: list[Member], place: int, topic: str) -> None:
    members.pop(place).leave()
    wait_until_shared_out(members, topic, PARTITIONS)
