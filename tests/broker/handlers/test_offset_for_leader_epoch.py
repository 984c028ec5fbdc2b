import pytest

from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


def ask(
    client: FakeClient, epoch: int, *, version: int = 4, current: int = -1, topic: str = "orders", partition: int = 0
) -> tuple[int, int, int]:
    wanted = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    response = client.call(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=[{"topic": topic, "partitions": [wanted]}]
    )
    ((answer,),) = [found.partitions for found in response.topics]
    return answer.error_code, answer.leader_epoch, answer.end_offset


@pytest.fixture
def client_after_crash(client: FakeClient, machine: Machine) -> FakeClient:
    """Two records of epoch 0, one of epoch 1: with relaxed durability, a crash begins a new epoch."""
    client.create_topic(flush_messages="1000")
    client.append(count=2)
    assert machine.crash("all") is None
    again = machine.client()
    again.append()
    return again


@pytest.mark.parametrize("version", [2, 3, 4])
def test_where_an_epoch_ended(client_after_crash: FakeClient, version: int) -> None:
    assert ask(client_after_crash, 0, version=version) == (0, 0, 2)
    assert ask(client_after_crash, 1, version=version) == (0, 1, 3)


def test_the_current_epoch_is_known_before_its_first_append(client: FakeClient) -> None:
    client.create_topic()
    assert ask(client, 0) == (0, 0, 0)
    assert ask(client, 1) == (0, -1, -1)


def test_an_epoch_that_nobody_knows(client_after_crash: FakeClient) -> None:
    assert ask(client_after_crash, 5) == (0, -1, -1)


def test_the_clients_own_epoch_is_checked(client_after_crash: FakeClient) -> None:
    assert ask(client_after_crash, 0, current=0)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(client_after_crash, 0, current=2)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ask(client_after_crash, 0, current=1)[0] == 0


@pytest.mark.parametrize(("topic", "partition"), [("missing", 0), ("orders", 3)])
def test_unknown_partitions(client_after_crash: FakeClient, topic: str, partition: int) -> None:
    answer = ask(client_after_crash, 0, topic=topic, partition=partition)
    assert answer == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
