from typing import Any

import pytest

from tests.broker.harness import NODE_ID, FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def grow(client: FakeClient, *topics: tuple[str, int], version: int = 3, **fields: Any) -> list[DecodedMessage]:
    wanted = [{"name": name, "count": count, "assignments": None} for name, count in topics]
    return list(client.call(ApiKey.CREATE_PARTITIONS, version, topics=wanted, timeout_ms=5000, **fields).results)


@pytest.mark.parametrize("version", range(4))
def test_gotcha_12_partitions_are_added_and_can_be_used(client: FakeClient, version: int) -> None:
    client.create_topic()
    (result,) = grow(client, ("orders", 3), version=version)
    assert (result.name, result.error_code) == ("orders", 0)
    assert client.append(partition=2).error is ErrorCode.NONE


def test_each_topic_stands_for_itself(client: FakeClient) -> None:
    client.create_topic("good")
    client.create_topic("same", 2)
    client.create_topic("fewer", 2)
    client.create_topic("twice")
    results = grow(client, ("good", 2), ("same", 2), ("fewer", 1), ("missing", 2), ("twice", 2), ("twice", 3))
    assert {result.name: result.error_code for result in results} == {
        "good": 0,
        "same": ErrorCode.INVALID_PARTITIONS,
        "fewer": ErrorCode.INVALID_PARTITIONS,
        "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "twice": ErrorCode.INVALID_REQUEST,
    }


def test_validating_adds_nothing(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    (result,) = grow(client, ("orders", 3), validate_only=True)
    assert result.error_code == 0
    topic = machine.broker.image.topic("orders")
    assert topic is not None
    assert len(topic.partitions) == 1


@pytest.mark.parametrize(("brokers", "code"), [([NODE_ID], 0), ([7], ErrorCode.INVALID_REPLICA_ASSIGNMENT)])
def test_assignments(client: FakeClient, brokers: list[int], code: int) -> None:
    client.create_topic()
    wanted = {"name": "orders", "count": 2, "assignments": [{"broker_ids": brokers}]}
    (result,) = client.call(ApiKey.CREATE_PARTITIONS, 3, topics=[wanted], timeout_ms=5000).results
    assert result.error_code == code
