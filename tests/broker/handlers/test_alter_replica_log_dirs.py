import pytest

from tests.broker.harness import PATH, FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


def alter(client: FakeClient, version: int, *wanted: tuple[str, str, list[int]]) -> dict[tuple[str, int], int]:
    dirs = [{"path": path, "topics": [{"name": topic, "partitions": partitions}]} for path, topic, partitions in wanted]
    response = client.call(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=dirs)
    return {(topic.topic_name, part.partition_index): part.error_code for topic in response.results for part in topic.partitions}


@pytest.mark.parametrize("version", [1, 2])
def test_what_lies_there_already_stays(client: FakeClient, version: int) -> None:
    client.create_topic("orders", 2)
    answers = alter(client, version, (PATH, "orders", [0, 1, 9]), (PATH, "missing", [0]), (PATH, "__cluster_metadata", [0]))
    assert answers == {
        ("orders", 0): 0,
        ("orders", 1): 0,
        ("orders", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("__cluster_metadata", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_there_is_no_other_directory(client: FakeClient) -> None:
    client.create_topic()
    assert alter(client, 2, ("/elsewhere", "orders", [0])) == {("orders", 0): ErrorCode.LOG_DIR_NOT_FOUND}
    assert alter(client, 2, ("/elsewhere", "orders", [0]), (PATH, "orders", [0])) == {("orders", 0): 0}


def test_a_partition_that_cannot_be_used_says_so(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    machine.broker.directory.offline["orders", 0] = "planted"
    assert alter(client, 2, (PATH, "orders", [0])) == {("orders", 0): ErrorCode.KAFKA_STORAGE_ERROR}
