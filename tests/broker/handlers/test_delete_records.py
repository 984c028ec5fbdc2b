import pytest

from tests.broker.harness import FakeClient, Machine
from tests.log.harness import batch
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


def delete(
    client: FakeClient, offset: int, *, topic: str = "orders", partition: int = 0, version: int = 2, timeout_ms: int = 5000
) -> tuple[int, int]:
    topics = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
    response = client.call(ApiKey.DELETE_RECORDS, version, topics=topics, timeout_ms=timeout_ms)
    ((result,),) = [found.partitions for found in response.topics]
    return result.error_code, result.low_watermark


@pytest.fixture
def filled(client: FakeClient) -> FakeClient:
    client.create_topic()
    for _ in range(4):
        client.append()
    return client


@pytest.mark.parametrize("version", range(3))
def test_records_below_the_offset_are_gone(filled: FakeClient, version: int) -> None:
    assert delete(filled, 2, version=version) == (0, 2)
    assert filled.read(offset=1).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert filled.read(offset=2).log_start_offset == 2


def test_minus_one_means_all_that_is_visible(filled: FakeClient) -> None:
    assert delete(filled, -1) == (0, 4)


def test_an_offset_below_the_start_changes_nothing(filled: FakeClient) -> None:
    delete(filled, 3)
    assert delete(filled, 1) == (0, 3)


@pytest.mark.parametrize("offset", [5, -2])
def test_an_offset_out_of_range_is_refused(filled: FakeClient, offset: int) -> None:
    assert delete(filled, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


@pytest.mark.parametrize(("topic", "partition"), [("missing", 0), ("orders", 9)])
def test_unknown_partitions(filled: FakeClient, topic: str, partition: int) -> None:
    assert delete(filled, 0, topic=topic, partition=partition) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_a_compacted_topic_keeps_its_records(client: FakeClient) -> None:
    client.create_topic("table", cleanup_policy="compact")
    client.append("table", records=batch(1, key=b"k"))
    assert delete(client, 1, topic="table") == (ErrorCode.POLICY_VIOLATION, -1)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_deleted_does_not_come_back_after_a_power_cut(seed: int) -> None:
    machine = Machine(seed=seed)
    client = machine.client()
    client.create_topic()
    for _ in range(4):
        client.append()
    assert delete(client, 3) == (0, 3)
    assert machine.crash("none") is None
    assert machine.client().read(offset=3).log_start_offset == 3


def test_the_requests_time_is_kept(filled: FakeClient, machine: Machine) -> None:
    machine.executor.run_delay_us = (10**9, 10**9)
    start_ms = machine.clock.monotonic_ms()
    assert delete(filled, 2, timeout_ms=2000) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert 2000 <= machine.clock.monotonic_ms() - start_ms < 2200


def test_no_time_at_all_is_enough_for_the_leader_itself(filled: FakeClient, machine: Machine) -> None:
    machine.executor.run_delay_us = (50_000, 50_000)
    assert delete(filled, 2, timeout_ms=0) == (0, 2)


def test_several_partitions_are_answered_together(client: FakeClient) -> None:
    client.create_topic("orders", 2)
    client.append(partition=0)
    client.append(partition=1)
    partitions = [{"partition_index": index, "offset": offset} for index, offset in ((0, 1), (1, 9), (5, 0))]
    response = client.call(ApiKey.DELETE_RECORDS, 2, topics=[{"name": "orders", "partitions": partitions}], timeout_ms=5000)
    found = {result.partition_index: (result.error_code, result.low_watermark) for result in response.topics[0].partitions}
    assert found == {
        0: (0, 1),
        1: (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        5: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    }


def test_a_request_for_nothing_is_answered(client: FakeClient) -> None:
    assert client.call(ApiKey.DELETE_RECORDS, 2, topics=[], timeout_ms=0).topics == ()


def test_a_disk_that_cannot_keep_it_is_told(filled: FakeClient, machine: Machine) -> None:
    machine.disk.faults.fail("write", lambda path: "log-start-offset" in path)
    assert delete(filled, 2)[0] == ErrorCode.KAFKA_STORAGE_ERROR
