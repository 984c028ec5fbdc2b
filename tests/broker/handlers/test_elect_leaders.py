import pytest

from tests.broker.harness import FakeClient, Machine
from tidelog.metadata.records import NO_LEADER, PartitionChangeRecord
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

PREFERRED, UNCLEAN = 0, 1


def elect(client: FakeClient, partitions: list[int] | None, *, kind: int = PREFERRED, version: int = 2) -> list[tuple[int, int]]:
    wanted = None if partitions is None else [{"topic": "orders", "partitions": partitions}]
    response = client.call(ApiKey.ELECT_LEADERS, version, election_type=kind, topic_partitions=wanted)
    assert response.error_code == 0
    results = response.replica_election_results
    return [(part.partition_id, part.error_code) for topic in results for part in topic.partition_result]


@pytest.mark.parametrize("version", range(3))
def test_the_only_broker_leads_already(client: FakeClient, version: int) -> None:
    client.create_topic()
    assert elect(client, [0, 7], version=version) == [
        (0, ErrorCode.ELECTION_NOT_NEEDED),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_of_all_partitions_only_those_that_changed_are_told(client: FakeClient, machine: Machine) -> None:
    topic_id = client.create_topic("orders", 2)
    assert elect(client, None) == []
    leaderless = PartitionChangeRecord(1, topic_id, leader=NO_LEADER)
    assert machine.wait(lambda done: machine.broker.controller.propose([leaderless], done)) is None
    assert elect(client, None, kind=UNCLEAN) == [(1, 0)]
    assert client.append(partition=1).error is ErrorCode.NONE


def test_an_unknown_kind_of_election_is_refused(client: FakeClient) -> None:
    client.create_topic()
    response = client.call(ApiKey.ELECT_LEADERS, 2, election_type=5, topic_partitions=[{"topic": "orders", "partitions": [0]}])
    assert response.error_code == ErrorCode.INVALID_REQUEST
