"""AlterPartitionReassignments and ListPartitionReassignments."""

import pytest

from tests.broker.harness import NODE_ID, FakeClient, Machine
from tidelog.metadata.records import BrokerEndpoint, PartitionChangeRecord, RegisterBrokerRecord
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def alter(client: FakeClient, version: int, *partitions: tuple[int, list[int] | None], topic: str = "orders") -> DecodedMessage:
    wanted = [{"partition_index": index, "replicas": replicas} for index, replicas in partitions]
    fields = {"topics": [{"name": topic, "partitions": wanted}], "timeout_ms": 1000}
    return client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, **fields)


def outcomes(response: DecodedMessage) -> list[tuple[str, int, int]]:
    assert (response.error_code, response.error_message) == (0, None)
    return [(topic.name, part.partition_index, part.error_code) for topic in response.responses for part in topic.partitions]


@pytest.mark.parametrize("version", range(2))
def test_each_partition_has_its_answer(client: FakeClient, version: int) -> None:
    client.create_topic("orders", 2)
    response = alter(client, version, (0, [NODE_ID]), (1, [NODE_ID, 9]), (7, None), (1, None))
    assert outcomes(response) == [
        ("orders", 0, 0),
        ("orders", 1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", 1, ErrorCode.INVALID_REQUEST),
    ]
    assert outcomes(alter(client, version, (1, None))) == [("orders", 1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)]


@pytest.mark.parametrize(
    ("allowed", "code"), [(True, ErrorCode.INVALID_REPLICA_ASSIGNMENT), (False, ErrorCode.INVALID_REPLICATION_FACTOR)]
)
def test_whether_the_number_of_replicas_may_change(client: FakeClient, machine: Machine, allowed: bool, code: ErrorCode) -> None:
    client.create_topic()
    other = RegisterBrokerRecord(broker_id=2, end_points=(BrokerEndpoint("PLAINTEXT", "other", 1, 0),), fenced=True)
    assert machine.wait(lambda done: machine.broker.controller.propose([other], done)) is None
    topics = [{"name": "orders", "partitions": [{"partition_index": 0, "replicas": [NODE_ID, 2]}]}]
    response = client.call(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, topics=topics, allow_replication_factor_change=allowed, timeout_ms=1000
    )
    assert response.allow_replication_factor_change is allowed
    assert outcomes(response) == [("orders", 0, code)]


def test_what_is_under_way_is_listed_until_it_is_cancelled(client: FakeClient, machine: Machine) -> None:
    """Broker 2 is not there, so the move does not end by itself."""
    topic_id = client.create_topic("orders", 2)
    moving = PartitionChangeRecord(1, topic_id, replicas=(NODE_ID, 2), adding_replicas=(2,))
    assert machine.wait(lambda done: machine.broker.controller.propose([moving], done)) is None
    for wanted in (None, [{"name": "orders", "partition_indexes": [0, 1]}, {"name": "missing", "partition_indexes": [0]}]):
        response = client.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=wanted, timeout_ms=1000)
        ((topic,), (part,)) = response.topics, response.topics[0].partitions
        assert (topic.name, part.partition_index) == ("orders", 1)
        assert (part.replicas, part.adding_replicas, part.removing_replicas) == ((NODE_ID, 2), (2,), ())
    others = [{"name": "orders", "partition_indexes": [0]}]
    assert client.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=others, timeout_ms=1000).topics == ()
    assert outcomes(alter(client, 1, (1, None))) == [("orders", 1, 0)]
    assert client.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout_ms=1000).topics == ()
    assert client.append(partition=1).error is ErrorCode.NONE
