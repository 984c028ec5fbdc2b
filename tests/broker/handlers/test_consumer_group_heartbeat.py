from typing import Any

from tests.broker.handlers.group_clients import find_coordinator, wait_loaded
from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

HEARTBEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT


def heartbeat(client: FakeClient, member_id: str, member_epoch: int, version: int = 1, **fields: Any) -> DecodedMessage:
    return client.call(HEARTBEAT, version, group_id="g", member_id=member_id, member_epoch=member_epoch, **fields)


def join(client: FakeClient, member_id: str, *topics: str, version: int = 1, **fields: Any) -> DecodedMessage:
    named = {"subscribed_topic_names": list(topics)} if topics else {}
    return heartbeat(client, member_id, 0, version, rebalance_timeout_ms=5_000, topic_partitions=[], **named, **fields)


def assigned(response: DecodedMessage) -> dict[bytes, tuple[int, ...]] | None:
    if response.assignment is None:
        return None
    return {topic.topic_id: tuple(topic.partitions) for topic in response.assignment.topic_partitions}


def machine_with_topic() -> tuple[Machine, FakeClient, bytes]:
    machine = Machine()
    client = machine.client()
    topic_id = client.create_topic("orders", partitions=2)
    find_coordinator(client)
    wait_loaded(machine)
    return machine, client, topic_id


def test_the_whole_way_of_two_members() -> None:
    _, client, orders = machine_with_topic()
    response = join(client, "a", "orders")
    assert (response.error_code, response.member_id, response.member_epoch) == (ErrorCode.NONE, "a", 1)
    assert (response.heartbeat_interval_ms, assigned(response)) == (5_000, {orders: (0, 1)})
    response = join(client, "", "orders", version=0)
    second = response.member_id
    assert (len(second), response.member_epoch, assigned(response)) == (36, 2, {})
    owned = [{"topic_id": orders, "partitions": [0, 1]}]
    response = heartbeat(client, "a", 1, topic_partitions=owned)
    assert (response.member_epoch, assigned(response)) == (1, {orders: (0,)})
    response = heartbeat(client, "a", 1, topic_partitions=[{"topic_id": orders, "partitions": [0]}])
    assert (response.member_epoch, assigned(response)) == (2, None)
    assert assigned(heartbeat(client, second, 2)) == {orders: (1,)}
    response = heartbeat(client, "a", -1)
    assert (response.error_code, response.member_epoch) == (ErrorCode.NONE, -1)
    assert assigned(heartbeat(client, second, 2)) == {orders: (0, 1)}


def test_a_refusal_has_a_code_and_a_reason() -> None:
    _, client, _ = machine_with_topic()
    response = heartbeat(client, "a", 5)
    assert (response.error_code, response.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Consumer group g not found.")
    response = join(client, "a", "orders", server_assignor="best")
    assert response.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR


def test_before_there_is_a_coordinator() -> None:
    client = Machine().client()
    assert join(client, "a", "orders").error_code == ErrorCode.NOT_COORDINATOR


def test_a_restart_is_not_noticed() -> None:
    machine, client, orders = machine_with_topic()
    join(client, "a", "orders")
    machine.crash()
    wait_loaded(machine)
    response = heartbeat(machine.client(), "a", 1, topic_partitions=[{"topic_id": orders, "partitions": [0, 1]}])
    assert (response.error_code, response.member_epoch, assigned(response)) == (ErrorCode.NONE, 1, None)


def test_topics_that_match_later() -> None:
    machine, client, orders = machine_with_topic()
    response = join(client, "a", subscribed_topic_regex="orders.*")
    assert assigned(response) == {orders: (0, 1)}
    more = client.create_topic("orders-more")
    machine.run_for(2_000)
    assert assigned(heartbeat(client, "a", 1)) == {orders: (0, 1), more: (0,)}


def test_deleted_topics_are_taken_back() -> None:
    _, client, _ = machine_with_topic()
    prices = client.create_topic("prices")
    join(client, "a", "orders", "prices")
    client.call(ApiKey.DELETE_TOPICS, 3, topic_names=["orders"], timeout_ms=1000)
    assert assigned(heartbeat(client, "a", 1, topic_partitions=[])) == {prices: (0,)}
