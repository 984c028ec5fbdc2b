from typing import Any

import pytest

from tests.broker.harness import NODE_ID, FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey


def topic(name: str, partitions: int = 1, replication_factor: int = 1, **configs: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def create(client: FakeClient, *topics: dict[str, Any], version: int = 7, **fields: Any) -> list[DecodedMessage]:
    return list(client.call(ApiKey.CREATE_TOPICS, version, topics=list(topics), **fields).topics)


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_there_when_the_answer_comes(client: FakeClient, machine: Machine, version: int) -> None:
    (created,) = create(client, topic("orders", 3), version=version)
    assert created.error_code == 0
    image = machine.broker.image.topic("orders")
    assert image is not None
    assert len(image.partitions) == 3
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (3, 1)
        assert {config.name for config in created.configs} >= {"retention.ms", "cleanup.policy"}
    assert created.topic_id == (image.topic_id if version >= 7 else ZERO_UUID)


def test_defaults_and_settings(machine: Machine, client: FakeClient) -> None:
    (created,) = create(client, topic("orders", -1, -1, retention_ms="5000"))
    assert (created.num_partitions, created.replication_factor) == (1, 1)
    (retention,) = [config for config in created.configs if config.name == "retention.ms"]
    assert (retention.value, retention.config_source, retention.read_only) == ("5000", 1, False)
    assert machine.broker.partitions.find("orders", None, 0).log.settings.retention_ms == 5000


def test_each_topic_stands_for_itself(client: FakeClient, machine: Machine) -> None:
    create(client, topic("there"))
    results = create(
        client,
        topic("good"),
        topic("there"),
        topic("bad name"),
        topic("no partitions", 0),
        topic("zero", 0),
        topic("two", 1, 2),
        topic("unknown.setting", nonsense="1"),
        topic("bad.value", retention_ms="soon"),
        topic("null.value", retention_ms=None),
        topic("__consumer_offsets"),
        topic("a.b"),
        topic("a_b"),
    )
    assert {result.name: result.error_code for result in results} == {
        "good": 0,
        "there": ErrorCode.TOPIC_ALREADY_EXISTS,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "no partitions": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "zero": ErrorCode.INVALID_PARTITIONS,
        "two": ErrorCode.INVALID_REPLICATION_FACTOR,
        "unknown.setting": ErrorCode.INVALID_CONFIG,
        "bad.value": ErrorCode.INVALID_CONFIG,
        "null.value": ErrorCode.INVALID_CONFIG,
        "__consumer_offsets": ErrorCode.INVALID_REQUEST,
        "a.b": 0,
        "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert all(result.error_message for result in results if result.error_code)
    assert sorted(known.name for known in machine.broker.image.topics) == ["a.b", "good", "there"]


def test_a_topic_named_twice_is_refused(client: FakeClient) -> None:
    (result,) = create(client, topic("a"), topic("a"))
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_assignments_are_followed(client: FakeClient) -> None:
    assigned = {"num_partitions": -1, "replication_factor": -1}
    good = {"name": "good", **assigned, "assignments": [{"partition_index": 0, "broker_ids": [NODE_ID]}]}
    bad = {"name": "bad", **assigned, "assignments": [{"partition_index": 0, "broker_ids": [9]}]}
    results = create(client, good, bad)
    assert [result.error_code for result in results] == [0, ErrorCode.INVALID_REPLICA_ASSIGNMENT]


def test_validating_creates_nothing(client: FakeClient, machine: Machine) -> None:
    results = create(client, topic("orders", 2), topic("bad name"), validate_only=True)
    assert [result.error_code for result in results] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert results[0].num_partitions == 2
    assert len(machine.broker.image.topics) == 0


def test_requests_at_once_are_decided_one_after_the_other(machine: Machine) -> None:
    first, second = machine.client(), machine.client()
    # One topic "t" with one partition, one replica, no assignments, no configs; 1000 ms; not only validated.
    body = b"\0\0\0\x01" + b"\0\x01t" + b"\0\0\0\x01\0\x01" + b"\0\0\0\0" * 2 + b"\0\0\x03\xe8" + b"\0"
    first.send(ApiKey.CREATE_TOPICS, 4, body)
    second.send(ApiKey.CREATE_TOPICS, 4, body)
    machine.run_until(lambda: bool(first.replies and second.replies))
    assert first.replies[0].endswith(b"\0\x01t\0\0\xff\xff")
    assert b"\0\x01t\0\x24" in second.replies[0]


def test_the_requests_time_is_kept(client: FakeClient, machine: Machine) -> None:
    machine.executor.run_delay_us = (5_000_000, 5_000_000)
    start_ms = machine.clock.monotonic_ms()
    (result,) = create(client, topic("slow"), timeout_ms=300)
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert 300 <= machine.clock.monotonic_ms() - start_ms < 500
    machine.run_for(20_000)
    assert machine.broker.image.topic("slow") is not None
    assert len(client.replies) == 1
    assert machine.facts("unexpected_error") == []


def test_a_client_that_gives_no_time_waits_for_the_commit(client: FakeClient) -> None:
    (result,) = create(client, topic("orders"), timeout_ms=0)
    assert result.error_code == 0


def test_too_many_partitions_are_refused(client: FakeClient) -> None:
    results = create(client, topic("a", 10_001), topic("b"))
    assert [result.error_code for result in results] == [ErrorCode.POLICY_VIOLATION] * 2


def test_a_topic_with_a_thousand_partitions_can_be_used_at_once(client: FakeClient, machine: Machine) -> None:
    client.create_topic("wide", 1000)
    assert client.append("wide", partition=999).error is ErrorCode.NONE
    machine.run_until(lambda: len(machine.broker.directory.logs) == 1001)
