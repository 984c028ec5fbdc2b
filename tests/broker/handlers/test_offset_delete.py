"""OffsetDelete through the broker."""

from typing import Any

import pytest

from tests.broker.handlers.group_clients import codes, commit, committed, find_coordinator, heartbeat, join, wait_loaded
from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

NONE = ErrorCode.NONE


@pytest.fixture
def client(machine: Machine) -> FakeClient:
    client = machine.client()
    client.create_topic("orders", 2)
    client.create_topic("bills", 1)
    find_coordinator(client)
    commit(client, {"orders": {0: 41, 1: 42}, "bills": {0: 7}})
    return client


def delete(client: FakeClient, wanted: dict[str, list[int]], group_id: str = "g") -> DecodedMessage:
    topics: list[dict[str, Any]] = [
        {"name": name, "partitions": [{"partition_index": partition} for partition in partitions]}
        for name, partitions in wanted.items()
    ]
    return client.call(ApiKey.OFFSET_DELETE, 0, group_id=group_id, topics=topics)


def test_offsets_are_gone_also_after_a_crash(client: FakeClient) -> None:
    response = delete(client, {"orders": [0, 5], "nowhere": [0], "bills": [0]})
    assert response.error_code == NONE
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(response) == {"orders": {0: NONE, 5: unknown}, "nowhere": {0: unknown}, "bills": {0: NONE}}
    assert client.machine.crash() is None
    wait_loaded(client.machine)
    fresh = client.machine.client()
    assert [committed(fresh, *key) for key in (("orders", 0), ("orders", 1), ("bills", 0))] == [-1, 42, -1]


def test_what_a_member_reads_stays(client: FakeClient) -> None:
    join(client, "orders")
    response = delete(client, {"orders": [0], "bills": [0]})
    assert response.error_code == NONE
    assert codes(response) == {"orders": {0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}, "bills": {0: NONE}}
    assert (committed(client), committed(client, "bills")) == (41, -1)


def test_what_a_member_of_a_consumer_group_reads_stays(client: FakeClient) -> None:
    heartbeat(client, "member", 0, "orders")
    assert codes(delete(client, {"orders": [0], "bills": [0]})) == {
        "orders": {0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC},
        "bills": {0: NONE},
    }
    heartbeat(client, "member", -1)
    assert codes(delete(client, {"orders": [0]})) == {"orders": {0: NONE}}


@pytest.mark.parametrize(
    ("group_id", "expected"),
    [("unknown", ErrorCode.GROUP_ID_NOT_FOUND), ("", ErrorCode.INVALID_GROUP_ID), ("connect", ErrorCode.NON_EMPTY_GROUP)],
)
def test_groups_that_refuse(client: FakeClient, group_id: str, expected: ErrorCode) -> None:
    join(client, "orders", group_id="connect", protocol_type="connect")
    response = delete(client, {"orders": [0]}, group_id)
    assert response.error_code == expected
    assert response.topics == ()


def test_before_there_is_a_coordinator() -> None:
    client = Machine().client()
    client.create_topic("orders")
    response = delete(client, {"orders": [0]})
    assert (response.error_code, response.topics) == (ErrorCode.NOT_COORDINATOR, ())
