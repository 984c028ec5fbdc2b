"""Members that subscribe to a pattern: topics that appear later are taken up, topics that are deleted are given up."""

from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions, NewTopic

from tests.compatibility.clients.client import CALL_SECONDS_MAX
from tests.compatibility.clients.groups.conftest import Group, fill
from tests.compatibility.clients.groups.member import all_of
from tests.compatibility.clients.groups.member_classes import AIOKAFKA, CONFLUENT, CONFLUENT_CONSUMER, KAFKA_PYTHON
from tests.compatibility.clients.waiting import wait_until

EACH_CLIENT = (CONFLUENT, CONFLUENT_CONSUMER, KAFKA_PYTHON, AIOKAFKA)


@pytest.mark.parametrize("client", EACH_CLIENT)
def test_topics_that_appear_later(group: Group, admin: Any, client: str) -> None:
    prefix = group.name
    early, late, other = f"{prefix}-early", f"{prefix}-late", f"not-{prefix}-late"
    create(admin, early, 2)
    members = [group.join(client, pattern=f"^{prefix}-[a-z]+$") for _ in range(2)]
    wanted = all_of(early, 2)
    wait_until(lambda: members[0].owned | members[1].owned == wanted, "the topic that is there")

    create(admin, other, 2)
    create(admin, late, 4)
    wanted |= all_of(late, 4)
    wait_until(lambda: members[0].owned | members[1].owned == wanted, "the topic that appeared later")
    assert not members[0].owned & members[1].owned
    fill(group.bootstrap_servers, late, 4, 10)
    wait_until(lambda: group.ledger.has_read_all(late, [10] * 4), "the records of the new topic")
    assert group.ledger.problems == []


@pytest.mark.parametrize("client", [CONFLUENT, CONFLUENT_CONSUMER])
def test_deleted_topics_are_given_up(group: Group, admin: Any, client: str) -> None:
    prefix = group.name
    stays, goes = f"{prefix}-stays", f"{prefix}-goes"
    create(admin, stays, 2)
    create(admin, goes, 2)
    member = group.join(client, pattern=f"^{prefix}.*")
    wait_until(lambda: member.owned == all_of(stays, 2) | all_of(goes, 2), "both topics")
    admin.delete_topics([goes])[goes].result(CALL_SECONDS_MAX)
    wait_until(lambda: member.owned == all_of(stays, 2), "the topic that stays")


@pytest.mark.parametrize("client", EACH_CLIENT)
def test_partitions_that_are_added_later(group: Group, admin: Any, client: str) -> None:
    topic = group.name
    create(admin, topic, 2)
    members = [group.join(client, topic) for _ in range(2)]
    wait_until(lambda: members[0].owned | members[1].owned == all_of(topic, 2), "two partitions")
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(CALL_SECONDS_MAX)
    wait_until(lambda: members[0].owned | members[1].owned == all_of(topic, 5), "five partitions")


def create(admin: Any, topic: str, partitions: int) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(CALL_SECONDS_MAX)
