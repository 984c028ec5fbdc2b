"""A broker that filled its disk: it starts, is read, makes room and takes records again; and it stops without waiting."""

from errno import ENOSPC

import pytest

from simulation.disk import Keep
from tests.broker.harness import PATH, FakeClient, Machine, offsets_in
from tests.log.harness import batch
from tidelog.log import names
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

MEBIBYTE = 1 << 20
RESERVE = f"{PATH}/{names.DISK_RESERVE}"
KEEPS: tuple[Keep, ...] = ("all", "some", "none")


def filled(settings: dict[str, str] | None = None) -> tuple[Machine, FakeClient]:
    """A machine with a small topic and one of four megabytes, and not a byte of free space."""
    machine = Machine({"log.segment.delete.delay.ms": "0", **(settings or {})})
    client = machine.client()
    client.create_topic("orders", segment_bytes=str(MEBIBYTE))
    client.create_topic("old", segment_bytes=str(MEBIBYTE))
    client.append(count=3)
    for _ in range(4):
        assert client.append("old", records=batch(size=MEBIBYTE - 100)).error == ErrorCode.NONE
    machine.run_for(2_000)
    machine.disk.set_free_bytes(0)
    return machine, client


def refused(client: FakeClient) -> bool:
    return client.append().error == ErrorCode.KAFKA_STORAGE_ERROR


def delete_topic(client: FakeClient, name: str) -> int:
    response = client.call(ApiKey.DELETE_TOPICS, 4, topic_names=[name], timeout_ms=10_000)
    code: int = response.responses[0].error_code
    return code


def delete_records(client: FakeClient, name: str, offset: int) -> int:
    topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": offset}]}]
    response = client.call(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout_ms=10_000)
    code: int = response.topics[0].partitions[0].error_code
    return code


def lower_retention(client: FakeClient, name: str, _: int) -> int:
    configs = [{"name": "retention.bytes", "config_operation": 0, "value": "1"}]
    resource = {"resource_type": 2, "resource_name": name, "configs": configs}
    response = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
    code: int = response.responses[0].error_code
    return code


@pytest.mark.parametrize("how", ["topic", "records", "retention"])
@pytest.mark.parametrize("keep", KEEPS)
def test_a_start_without_a_free_byte_serves_readers_and_makes_room(keep: Keep, how: str) -> None:
    machine, _ = filled({"log.retention.check.interval.ms": "1000"})
    assert machine.crash(keep) is None
    client = machine.client()
    assert refused(client)
    assert offsets_in(client.read().records) == [0, 1, 2]
    assert client.read("old", 3).high_watermark == 4
    if how == "topic":
        assert delete_topic(client, "old") == ErrorCode.NONE
    else:
        make_room = delete_records if how == "records" else lower_retention
        assert make_room(client, "old", 4) == ErrorCode.NONE
    machine.run_until(lambda: not refused(client))
    assert client.append().error == ErrorCode.NONE
    machine.run_for(1_000)
    assert machine.disk.file_size(RESERVE) == MEBIBYTE, "the reserve was taken back first"
    assert machine.crash("none") is None
    assert offsets_in(machine.client().read().records)[:3] == [0, 1, 2]
    assert machine.facts("unexpected_error") == []


def test_what_was_released_is_left_to_what_makes_room() -> None:
    machine, client = filled()
    assert machine.crash("all") is None
    client = machine.client()
    assert machine.broker.directory.reserve.is_released
    free = machine.disk.free_bytes(PATH)
    assert 0 < free < 2 * MEBIBYTE, "the reserve, and what a shorter journal of durable marks left"
    for _ in range(50):
        assert refused(client)
    created = client.call(
        ApiKey.CREATE_TOPICS, 5, topics=[{"name": "new", "num_partitions": 1, "replication_factor": 1}], timeout_ms=10_000
    )
    assert created.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert machine.disk.free_bytes(PATH) == free
    for _ in range(5):
        assert machine.crash("all") is None, "again and again"
    assert free - machine.disk.free_bytes(PATH) - machine.disk.file_size(RESERVE) < 10_000
    assert delete_topic(machine.client(), "old") == ErrorCode.NONE


@pytest.mark.parametrize("reserve_bytes", [MEBIBYTE, 0])
def test_a_stop_on_a_full_disk_does_not_wait_for_room(reserve_bytes: int) -> None:
    machine, client = filled({"tidelog.disk.reserve.bytes": str(reserve_bytes)})
    assert refused(client)
    before_ms = machine.clock.monotonic_ms()
    assert machine.stop() is None
    assert machine.clock.monotonic_ms() - before_ms < 2_000
    if not reserve_bytes:
        machine.disk.set_free_bytes(MEBIBYTE)
    assert machine.start() is None
    assert offsets_in(machine.client().read().records) == [0, 1, 2]


def test_without_room_at_the_start_no_partition_takes_over_the_offsets_of_a_deleted_one() -> None:
    """The checkpoints know partitions only by name."""
    machine, client = filled({"tidelog.disk.reserve.bytes": "0"})
    machine.disk.set_free_bytes(None)
    machine.executor.crash()
    machine.disk = machine.executor.disk = machine.disk.crash_image(machine.randomness, "all")
    path = f"{PATH}/{names.RECOVERY_POINT_CHECKPOINT}"
    file = machine.disk.open(path, "create")
    file.truncate(0)
    file.write(0, [b"0\n1\ngone 0 1000\n"])
    # There is room for the quorum's state and the metadata log, but not for a checkpoint.
    machine.disk.faults.fail("write", lambda written: written.startswith(path), ENOSPC, times=1)
    assert machine.start() is None
    client = machine.client()
    created = client.call(
        ApiKey.CREATE_TOPICS, 5, topics=[{"name": "gone", "num_partitions": 1, "replication_factor": 1}], timeout_ms=10_000
    )
    assert created.topics[0].error_code == ErrorCode.NONE
    machine.run_for(1_000)
    assert ("gone", 0) not in machine.broker.directory.logs, "not before the checkpoint is written"
    machine.run_for(2 * machine.broker.directory.options.checkpoint_interval_ms)
    assert client.append("gone").error == ErrorCode.NONE
    assert machine.crash("none") is None
    assert offsets_in(machine.client().read("gone").records) == [0]
