"""Members join, leave, crash and are restarted while records flow: every partition finds one owner, no record is passed over."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.compatibility.clients.conftest import MakeTopic
from tests.compatibility.clients.groups.admin import describe
from tests.compatibility.clients.groups.conftest import Group, flowing
from tests.compatibility.clients.groups.member import Member
from tests.compatibility.clients.groups.member_classes import AIOKAFKA, CLASSIC, CONFLUENT, CONFLUENT_CONSUMER, KAFKA_PYTHON
from tests.compatibility.clients.groups.sharing import wait_until_all_read, wait_until_shared_out
from tests.compatibility.clients.waiting import wait_until

PARTITIONS = 6
EACH_CLIENT = (CONFLUENT, CONFLUENT_CONSUMER, KAFKA_PYTHON, AIOKAFKA)
# So short that a crash is noticed soon, and so long that a busy machine does not look like one.
CRASH_SESSION_TIMEOUT_MS = 3_000


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_clients_side_by_side(group: Group, new_topic: MakeTopic, assignor: str) -> None:
    """Whoever leads computes an assignment that the others understand; each leads once."""
    topic = new_topic(PARTITIONS)
    with flowing(group.bootstrap_servers, topic, PARTITIONS) as flow:
        members: list[Member] = []
        for client in CLASSIC:
            members.append(group.join(client, topic, assignor=assignor))
            wait_until_shared_out(members, topic, PARTITIONS)
        for client in CLASSIC:
            # The first member leads: it leaves, and joins again as the last.
            members.pop(0).leave()
            wait_until_shared_out(members, topic, PARTITIONS)
            members.append(group.join(client, topic, assignor=assignor))
            wait_until_shared_out(members, topic, PARTITIONS)
    wait_until_all_read(group.ledger, topic, flow)


@pytest.mark.parametrize("client", EACH_CLIENT)
def test_join_and_leave(group: Group, new_topic: MakeTopic, client: str) -> None:
    topic = new_topic(PARTITIONS)
    members: list[Member] = []
    with flowing(group.bootstrap_servers, topic, PARTITIONS) as flow:
        for _ in range(3):
            members.append(group.join(client, topic))
            wait_until_shared_out(members, topic, PARTITIONS)
        while len(members) > 1:
            members.pop(0).leave()
            wait_until_shared_out(members, topic, PARTITIONS)
    wait_until_all_read(group.ledger, topic, flow)


@pytest.mark.parametrize("client", EACH_CLIENT)
def test_a_crashed_member_is_noticed_and_what_it_committed_is_not_read_again(
    group: Group, new_topic: MakeTopic, client: str
) -> None:
    topic = new_topic(PARTITIONS)
    with flowing(group.bootstrap_servers, topic, PARTITIONS):
        crashing = group.join_in_a_process(client, topic, session_timeout_ms=CRASH_SESSION_TIMEOUT_MS)
        survivor = group.join(client, topic)
        wait_until_shared_out([crashing, survivor], topic, PARTITIONS)
        taken = crashing.owned
        wait_until(lambda: taken <= crashing.committed.keys(), "commits of all its partitions")
        # It may have had some of them before the other came.
        before = {partition: len(survivor.offsets(partition)) for partition in taken}
        crashing.kill()
        wait_until(lambda: taken <= survivor.owned, "the crashed member's partitions")
        wait_until(lambda: all(len(survivor.offsets(partition)) > before[partition] for partition in taken), "records of all")

    firsts = {partition: survivor.offsets(partition)[before[partition]] for partition in taken}
    assert [partition for partition in taken if firsts[partition] < crashing.committed[partition]] == []


@pytest.mark.parametrize(
    "clients",
    [*((client,) * 5 for client in (CONFLUENT, CONFLUENT_CONSUMER)), (*CLASSIC, CONFLUENT, KAFKA_PYTHON)],
    ids=["confluent-kafka", "consumer protocol", "mixed"],
)
def test_rolling_restart_of_five_members(group: Group, new_topic: MakeTopic, clients: Sequence[str]) -> None:
    partitions = 10
    topic = new_topic(partitions)
    with flowing(group.bootstrap_servers, topic, partitions) as flow:
        members = [group.join(client, topic) for client in clients]
        wait_until_shared_out(members, topic, partitions)
        for place, client in enumerate(clients):
            members[place].leave()
            members[place] = group.join(client, topic)
            wait_until_shared_out(members, topic, partitions)
    wait_until_all_read(group.ledger, topic, flow)


@pytest.mark.parametrize("client", EACH_CLIENT)
def test_members_beyond_the_partitions_idle_and_take_over(group: Group, new_topic: MakeTopic, admin: Any, client: str) -> None:
    topic = new_topic(2)
    with flowing(group.bootstrap_servers, topic, 2) as flow:
        members = [group.join(client, topic) for _ in range(4)]
        wait_until(lambda: len(describe(admin, group.name).members) == 4, "four members")
        wait_until_shared_out(members, topic, 2)
        while len(members) > 2:
            owner = next(member for member in members if member.owned)
            members.remove(owner)
            owner.leave()
            wait_until_shared_out(members, topic, 2)
    wait_until_all_read(group.ledger, topic, flow)
