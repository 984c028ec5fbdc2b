"""A group goes over from the classic protocol to the consumer protocol member by member, and back, while records arrive."""

import pytest

from tests.compatibility.clients.conftest import MakeTopic
from tests.compatibility.clients.groups.conftest import Group, flowing
from tests.compatibility.clients.groups.member import Member
from tests.compatibility.clients.groups.member_classes import AIOKAFKA, CONFLUENT, CONFLUENT_CONSUMER, KAFKA_PYTHON
from tests.compatibility.clients.groups.sharing import wait_until_all_read, wait_until_shared_out

PARTITIONS = 8
CLASSIC = {
    "confluent, range": (CONFLUENT, "range"),
    "confluent, cooperative-sticky": (CONFLUENT, "cooperative-sticky"),
    "kafka-python, range": (KAFKA_PYTHON, "range"),
    "aiokafka, range": (AIOKAFKA, "range"),
}


@pytest.mark.parametrize("kind", CLASSIC)
def test_a_rolling_upgrade_and_downgrade(group: Group, new_topic: MakeTopic, kind: str) -> None:
    client, assignor = CLASSIC[kind]
    topic = new_topic(PARTITIONS)

    def replace(members: list[Member], by: str, by_assignor: str) -> None:
        """One after the other, as in a rolling restart."""
        for _ in range(len(members)):
            members.pop(0).leave()
            members.append(group.join(by, topic, assignor=by_assignor))
            wait_until_shared_out(members, topic, PARTITIONS)

    with flowing(group.bootstrap_servers, topic, PARTITIONS) as flow:
        members = [group.join(client, topic, assignor=assignor) for _ in range(2)]
        wait_until_shared_out(members, topic, PARTITIONS)
        replace(members, CONFLUENT_CONSUMER, "uniform")
        replace(members, client, assignor)
    wait_until_all_read(group.ledger, topic, flow)
