"""Members with ``group.instance.id``: a restart within the session time-out moves nothing; of two with one id the older ends."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.compatibility.clients.conftest import MakeTopic
from tests.compatibility.clients.groups.admin import describe
from tests.compatibility.clients.groups.conftest import Group, flowing
from tests.compatibility.clients.groups.member import Member
from tests.compatibility.clients.groups.member_classes import AIOKAFKA, CONFLUENT, CONFLUENT_CONSUMER, KAFKA_PYTHON
from tests.compatibility.clients.groups.sharing import wait_until_all_read, wait_until_shared_out
from tests.compatibility.clients.waiting import wait_until

PARTITIONS = 6
INSTANCES = ("one", "two", "three")
# A member that is to be given up is given up after this.
SHORT_SESSION_TIMEOUT_MS = 2_000

EACH_CLIENT = (CONFLUENT, CONFLUENT_CONSUMER, KAFKA_PYTHON, AIOKAFKA)


def join_all(group: Group, client: str, topic: str, **wanted: Any) -> dict[str, Member]:
    members = {name: group.join(client, topic, instance_id=name, **wanted) for name in INSTANCES}
    wait_until_shared_out(list(members.values()), topic, PARTITIONS)
    return members


@pytest.mark.parametrize("client", EACH_CLIENT)
def test_a_restart_moves_nothing(group: Group, new_topic: MakeTopic, client: str) -> None:
    topic = new_topic(PARTITIONS)
    with flowing(group.bootstrap_servers, topic, PARTITIONS) as flow:
        members = join_all(group, client, topic, session_timeout_ms=30_000)
        for name in INSTANCES:
            others = [member for other, member in members.items() if other != name]
            changes_before = [len(member.changes) for member in others]
            share = members[name].owned
            members[name].leave()
            members[name] = group.join(client, topic, instance_id=name, session_timeout_ms=30_000)
            wait_until(lambda: members[name].owned == share, f"{name} with its share again")  # noqa: B023 - called at once
            assert [len(member.changes) for member in others] == changes_before
    wait_until_all_read(group.ledger, topic, flow)


@pytest.mark.parametrize("client", [CONFLUENT, KAFKA_PYTHON, AIOKAFKA])
def test_one_that_does_not_come_back_is_given_up(group: Group, new_topic: MakeTopic, client: str) -> None:
    topic = new_topic(PARTITIONS)
    members = join_all(group, client, topic, session_timeout_ms=SHORT_SESSION_TIMEOUT_MS)
    members.pop("two").leave()
    wait_until_shared_out(list(members.values()), topic, PARTITIONS)


def test_the_older_of_two_with_one_id_is_fenced(group: Group, new_topic: MakeTopic, admin: Any) -> None:
    topic = new_topic(PARTITIONS)
    members = join_all(group, CONFLUENT, topic)
    share = members["two"].owned
    newer = group.join(CONFLUENT, topic, instance_id="two")
    wait_until(lambda: newer.owned == share, "the share of the older")
    wait_until(lambda: not members["two"].is_alive(), "the older to end")

    error = members["two"].error
    assert isinstance(error, KafkaException)
    assert error.args[0].code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
    members["two"].error = None
    assert sorted(member.group_instance_id for member in describe(admin, group.name).members) == sorted(INSTANCES)


def test_the_newer_of_two_with_one_id_is_refused_by_the_consumer_protocol(group: Group, new_topic: MakeTopic) -> None:
    """There the older one is alive as long as it has not left and its session is not over."""
    topic = new_topic(PARTITIONS)
    members = join_all(group, CONFLUENT_CONSUMER, topic)
    newer = group.join(CONFLUENT_CONSUMER, topic, instance_id="two")
    wait_until(lambda: not newer.is_alive(), "the newer to end")

    assert isinstance(newer.error, KafkaException)
    assert newer.error.args[0].code() in (KafkaError._FATAL, KafkaError.UNRELEASED_INSTANCE_ID)
    newer.error = None
    wait_until_shared_out(list(members.values()), topic, PARTITIONS)
