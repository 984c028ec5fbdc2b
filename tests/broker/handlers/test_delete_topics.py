from typing import Any

import pytest

from tests.broker.harness import FakeClient, Machine, fetch_request
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import encode_fetch_request
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey

UNKNOWN_ID = b"0123456789abcdef"


def delete(client: FakeClient, *names: str, version: int = 5) -> list[DecodedMessage]:
    named: dict[str, Any] = {"topic_names": names} if version < 6 else {"topics": [{"name": name} for name in names]}
    return list(client.call(ApiKey.DELETE_TOPICS, version, timeout_ms=5000, **named).responses)


@pytest.mark.parametrize("version", range(1, 7))
def test_a_topic_is_gone_when_the_answer_comes(client: FakeClient, machine: Machine, version: int) -> None:
    topic_id = client.create_topic()
    client.append()
    (result,) = delete(client, "orders", version=version)
    assert (result.name, result.error_code) == ("orders", 0)
    assert result.topic_id == (topic_id if version >= 6 else ZERO_UUID)
    assert machine.broker.image.topic("orders") is None
    assert [topic for topic, _ in machine.broker.directory.logs] == ["__cluster_metadata"]
    assert client.append().error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_by_id(client: FakeClient) -> None:
    topic_id = client.create_topic()
    by_id = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": UNKNOWN_ID}]
    results = client.call(ApiKey.DELETE_TOPICS, 6, topics=by_id, timeout_ms=5000).responses
    assert [(result.name, result.topic_id, result.error_code) for result in results] == [
        ("orders", topic_id, 0),
        (None, UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


def test_each_topic_stands_for_itself(client: FakeClient) -> None:
    client.create_topic("a")
    client.create_topic("b")
    results = delete(client, "a", "missing", "b", "b")
    assert {result.name: result.error_code for result in results} == {
        "a": 0,
        "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "b": ErrorCode.INVALID_REQUEST,
    }


@pytest.mark.parametrize("named", [{"name": "orders", "topic_id": UNKNOWN_ID}, {"name": None, "topic_id": ZERO_UUID}])
def test_a_name_and_an_id_or_neither_are_refused(client: FakeClient, named: dict[str, Any]) -> None:
    client.create_topic()
    (result,) = client.call(ApiKey.DELETE_TOPICS, 6, topics=[named], timeout_ms=5000).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("version", "code"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED), (6, 73)])
def test_deletion_can_be_disabled(version: int, code: int) -> None:
    client = Machine({"delete.topic.enable": "false"}).client()
    client.create_topic()
    (result,) = delete(client, "orders", version=version)
    assert (result.name, result.error_code) == ("orders", code)


def test_a_topic_can_be_made_again_and_is_empty(client: FakeClient, machine: Machine) -> None:
    before = client.create_topic()
    client.append(count=5)
    for _ in range(3):
        delete(client, "orders")
        after = client.create_topic()
        assert after != before
        machine.run_until(lambda: ("orders", 0) in machine.broker.directory.logs)
        assert client.append().base_offset == 0
        before = after


def test_a_topic_that_is_gone_is_gone_after_a_crash(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    client.append()
    delete(client, "orders")
    assert machine.crash("some") is None
    assert machine.broker.image.topic("orders") is None
    assert [topic for topic, _ in machine.broker.directory.logs] == ["__cluster_metadata"]


def test_who_waits_for_its_records_hears_of_it(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    reader = machine.client()
    correlation_id = reader.send(ApiKey.FETCH, 12, encode_fetch_request(12, fetch_request(wait_ms=60_000)))
    delete(client, "orders")
    machine.run_until(lambda: bool(reader.replies))
    assert machine.clock.monotonic_ms() < 10_000
    frame, _ = reader.last_reply(ApiKey.FETCH, 12, correlation_id)
    assert b"orders" in bytes(frame)


def test_a_disk_that_does_not_let_a_directory_go_does_not_stop_the_broker(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    client.append()
    machine.disk.faults.fail("names", lambda path: "orders" in path)
    (result,) = delete(client, "orders")
    assert result.error_code == 0
    assert [facts["partition"] for facts in machine.facts("log_not_deleted")] == ["orders-0"]
    client.create_topic("other")
    assert client.append("other").error is ErrorCode.NONE
