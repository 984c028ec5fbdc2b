"""A whole data directory: create, delete, stop, start again; what each partition's trouble costs the others."""

import errno

import pytest

from tests.log.disks import write_file
from tests.log.harness import BATCH_BYTES, PATH, TOPIC_ID, Store, append, batch, read_offsets
from tidelog.log import names
from tidelog.log.data_directory import DataDirectory
from tidelog.log.durability.checkpoints import read_offset_checkpoint, read_partition_metadata
from tidelog.log.errors import DirectoryLocked, DirectoryUnusable, LogError, LogOffline, StorageError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.settings import DirectoryOptions, LogSettings

OTHER_ID = b"fedcba9876543210"
CLEAN_MARK = f"{PATH}/{names.CLEAN_SHUTDOWN_MARK}"


def filled(store: Store, topic: str = "orders", partition: int = 0, count: int = 5) -> PartitionLog:
    log = store.create(topic, partition)
    for _ in range(count):
        append(log)
    store.commit(log)
    return log


def checkpoint(store: Store, name: str) -> dict[tuple[str, int], int]:
    return read_offset_checkpoint(store.disk, f"{PATH}/{name}")


# -- starting and stopping ---------------------------------------------------------------------------------------------------


def test_ten_partitions_come_back_as_they_were() -> None:
    store = Store()
    for partition in range(10):
        filled(store, "orders", partition, count=partition)
    filled(store, "names-with.dots_and-7", 3, count=2)
    for stop in (store.restart, store.crash, store.restart, store.restart):
        stop()
        assert store.directory.offline == {}
        assert [store.log(partition=partition).log_end_offset for partition in range(10)] == list(range(10))
        assert read_offsets(store.log("names-with.dots_and-7", 3)) == [0, 1]
        assert {log.topic_id for log in store.directory.logs.values()} == {TOPIC_ID}


def test_after_a_clean_stop_every_log_is_saved_and_no_disk_operation_is_due() -> None:
    store = Store()
    for partition in range(5):
        filled(store, partition=partition)
    store.restart()
    assert all(log.is_saved for log in store.directory.logs.values())
    assert all(log.durable.offset == log.high_watermark == 5 for log in store.directory.logs.values())
    assert not any(log.is_dirty for log in store.directory.logs.values())


def test_a_stop_saves_what_no_commit_had_covered() -> None:
    store = Store()
    log = store.create()
    append(log)
    store.directory.close()
    store.lose_power()
    store.open()
    assert read_offsets(store.log()) == [0]


def test_a_stop_does_not_vouch_for_a_sync_that_is_still_under_way() -> None:
    """It may yet fail: the owner lets it end first."""
    store = Store()
    append(filled(store))
    store.directory.kick()
    with pytest.raises(AssertionError, match="wait for the running commit"):
        store.directory.close()
    store.close()
    store.crash()
    assert read_offsets(store.log()) == list(range(6))


def test_a_stop_waits_for_no_relaxed_topic() -> None:
    store = Store(LogSettings(flush_messages=10**6))
    append(store.create())
    store.close()
    store.crash()
    assert read_offsets(store.log()) == [0]


def test_the_clean_mark_is_only_left_when_every_log_is_whole() -> None:
    store = Store()
    filled(store)
    store.close()
    assert store.disk.exists(CLEAN_MARK)
    store.open()
    assert not store.disk.exists(CLEAN_MARK)
    store.log().go_offline("broken")
    store.close()
    assert not store.disk.exists(CLEAN_MARK)


def test_a_sync_that_fails_at_the_stop_leaves_no_clean_mark() -> None:
    store = Store(options=DirectoryOptions(syncfs_files_min=1000))
    log = filled(store)
    append(log)
    store.disk.faults.fail("sync", lambda path: path.endswith(".log"), errno.EIO, times=1)
    store.close()
    assert not store.disk.exists(CLEAN_MARK)
    assert store.disk.exists(f"{log.directory}/{names.FAILED_SYNC_MARK}")


def test_the_lock_is_held_until_the_stop() -> None:
    store = Store()
    with pytest.raises(DirectoryLocked, match="used by another process"):
        store.open()
    store.close()
    store.open()


def test_a_start_that_fails_lets_the_lock_go() -> None:
    store = Store()
    store.close()
    with pytest.raises(DirectoryUnusable, match="belongs to cluster cluster, but this broker belongs to cluster other"):
        store.open(cluster_id="other")
    with pytest.raises(DirectoryUnusable, match="belongs to broker 1, but this is broker 2"):
        store.open(node_id=2)
    store.open()


@pytest.mark.parametrize("reserve_bytes", [0, 4096])
def test_a_full_disk_at_the_start_loses_nothing(reserve_bytes: int) -> None:
    store = Store(reserve_bytes=reserve_bytes)
    filled(store)
    store.lose_power()
    store.disk.set_free_bytes(0)
    store.open()
    assert read_offsets(store.log()) == list(range(5))
    assert store.log().durable.offset == 5
    store.close()
    store.disk.set_free_bytes(None)
    store.open()
    assert read_offsets(store.log()) == list(range(5))


def test_a_new_directory_on_a_full_disk_is_a_typed_error() -> None:
    store = Store(is_open=False)
    store.disk.set_free_bytes(0)
    with pytest.raises(DirectoryUnusable, match="No space left"):
        store.open()
    store.disk.set_free_bytes(500)
    with pytest.raises(DirectoryUnusable, match="No space left"):
        store.open()
    store.disk.set_free_bytes(None)
    store.open()


def test_progress_is_told() -> None:
    store = Store()
    filled(store)
    filled(store, partition=1)
    store.close()
    seen: list[tuple[int, int]] = []
    DataDirectory(
        PATH,
        disk=store.disk,
        clock=store.clock,
        randomness=store.randomness,
        executor=store.executor,
        cluster_id="cluster",
        node_id=1,
        settings_for=lambda topic: LogSettings(),
        report=lambda event, facts: None,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert len(seen) == 2
    assert seen[0][1] == seen[1][1] >= seen[1][0] > seen[0][0]


def test_high_watermarks_outlive_a_crash_within_their_interval() -> None:
    store = Store(options=DirectoryOptions(checkpoint_interval_ms=5000))
    filled(store)
    store.settle(6000)
    append(store.log())
    store.commit()
    store.crash()
    assert store.log().high_watermark == 5


def test_log_starts_are_written_at_their_own_interval() -> None:
    store = Store(options=DirectoryOptions(start_offset_checkpoint_interval_ms=5000))
    filled(store)
    store.log().raise_start(3)
    store.settle(6000)
    store.crash()
    assert store.log().log_start_offset == 3


# -- one partition's trouble -------------------------------------------------------------------------------------------------


def corrupt(store: Store) -> None:
    """Damage orders-0 below its mark while the machine is down."""
    store.settle(1000)
    store.lose_power()
    store.disk.flip_bit(f"{PATH}/orders-0/{0:020d}.log", 80)


def test_an_offline_partition_keeps_its_checkpoints_over_restarts() -> None:
    store = Store(LogSettings(segment_bytes=2 * BATCH_BYTES))
    log = filled(store, count=10)
    filled(store, "other")
    assert store.wait(lambda done: store.directory.delete_records(log, 3, done)) is None
    store.checkpoint(log)
    store.restart()
    store.settle(1000)
    store.lose_power()
    segment = store.paths(".log")[-1]
    store.disk.remove(segment)
    for _ in range(3):
        store.open()
        assert ("orders", 0) in store.directory.offline
        append(store.log("other"))
        store.commit()
        store.settle(120_000)
        store.close()
        assert checkpoint(store, names.LOG_START_OFFSET_CHECKPOINT)["orders", 0] == 3
        assert checkpoint(store, names.RECOVERY_POINT_CHECKPOINT)["orders", 0] == 10
        assert checkpoint(store, names.HIGH_WATERMARK_CHECKPOINT)["orders", 0] == 10
        assert not store.disk.exists(CLEAN_MARK)


def test_an_offline_partition_is_not_made_again() -> None:
    store = Store()
    filled(store)
    corrupt(store)
    store.open()
    with pytest.raises(LogError, match="exists already"):
        store.create()


def test_a_lost_checkpoint_of_log_starts_stops_the_start() -> None:
    """Records that were deleted must not come back because a file is damaged."""
    store = Store()
    filled(store)
    store.close()
    path = f"{PATH}/{names.LOG_START_OFFSET_CHECKPOINT}"
    file = store.disk.open(path, "write")
    file.write(0, [b"x"])
    with pytest.raises(LogError, match=names.LOG_START_OFFSET_CHECKPOINT):
        store.open()


@pytest.mark.parametrize("name", [names.RECOVERY_POINT_CHECKPOINT, names.HIGH_WATERMARK_CHECKPOINT])
def test_other_damaged_checkpoints_cost_only_time(name: str) -> None:
    store = Store()
    filled(store)
    store.close()
    store.disk.open(f"{PATH}/{name}", "write").write(0, [b"x"])
    store.open()
    assert store.facts("checkpoint_ignored")
    assert read_offsets(store.log()) == list(range(5))


# -- creating and deleting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "x" * 250])
def test_names_that_no_directory_may_have(topic: str) -> None:
    store = Store()
    with pytest.raises(LogError):
        store.create(topic)
    assert store.directory.logs == {}


def test_a_partition_exists_once() -> None:
    store = Store()
    store.create()
    with pytest.raises(LogError, match="orders-0 exists already"):
        store.create()


def test_a_partition_that_finds_no_room_can_be_made_later() -> None:
    store = Store()
    store.disk.set_free_bytes(0)
    with pytest.raises(StorageError, match="cannot be created: No space left"):
        store.create()
    store.disk.set_free_bytes(None)
    append(store.create())


def test_a_new_partition_is_durable_with_its_first_record() -> None:
    store = Store()
    filled(store)
    store.crash()
    assert store.log().topic_id == TOPIC_ID
    assert read_offsets(store.log()) == list(range(5))


def test_a_deleted_partition_is_gone_at_once_and_for_good_when_told() -> None:
    store = Store()
    log = filled(store)
    assert store.wait(lambda done: store.directory.delete(log, done)) is None
    assert store.directory.logs == {}
    with pytest.raises(LogOffline, match="deleted"):
        append(log)
    assert [name for name in store.disk.list_directory(PATH) if name.endswith("-delete")]
    store.crash()
    assert (store.directory.logs, store.directory.offline) == ({}, {})
    assert not [name for name in store.disk.list_directory(PATH) if name.startswith("orders")]


def test_a_deleted_partitions_files_go_after_their_delay() -> None:
    store = Store(LogSettings(file_delete_delay_ms=5000))
    assert store.wait(lambda done: store.directory.delete(filled(store), done)) is None
    store.settle(4000)
    assert [name for name in store.disk.list_directory(PATH) if name.startswith("orders")]
    store.settle(2000)
    assert not [name for name in store.disk.list_directory(PATH) if name.startswith("orders")]


@pytest.mark.parametrize("stop", ["none", "clean", "crash"])
def test_another_topic_of_the_same_name_owes_nothing_to_the_old_one(stop: str) -> None:
    """The old one's durable mark, recovery point and log start are of another log."""
    store = Store(LogSettings(segment_bytes=2 * BATCH_BYTES))
    log = filled(store, count=20)
    assert store.wait(lambda done: store.directory.delete_records(log, 15, done)) is None
    store.checkpoint(log)
    store.settle(1000)
    assert store.wait(lambda done: store.directory.delete(log, done)) is None
    if stop != "none":
        store.restart() if stop == "clean" else store.crash()
    fresh = store.create(topic_id=OTHER_ID)
    assert (fresh.log_start_offset, fresh.log_end_offset) == (0, 0)
    append(fresh)
    store.commit(fresh)
    store.crash()
    assert store.directory.offline == {}
    assert store.log().topic_id == OTHER_ID
    assert read_offsets(store.log()) == [0]


def test_producers_of_one_partition_are_not_those_of_another() -> None:
    store = Store()
    sent = batch(producer_id=7, sequence=3)
    for partition in range(2):
        assert not store.create(partition=partition).append_as_leader(sent, 0).is_duplicate
    assert store.log().append_as_leader(sent, 0).is_duplicate


@pytest.mark.parametrize("content", [None, b"", b"version: 0\ntopic_id: ?"], ids=["missing", "empty", "damaged"])
@pytest.mark.parametrize("stop", ["crash", "restart"])
def test_a_topic_id_that_is_lost_is_known_from_the_marks(content: bytes | None, stop: str) -> None:
    """Else a broker would take the log for one of a deleted topic, and its mark would not count."""
    store = Store()
    filled(store)
    store.settle(1000)
    path = f"{PATH}/orders-0/{names.PARTITION_METADATA}"
    if stop == "restart":
        store.close()
    else:
        store.lose_power()
    store.disk.remove(path)
    if content is not None:
        store.disk.open(path, "create").write(0, [content])
    store.open()
    assert store.log().topic_id == TOPIC_ID
    assert read_offsets(store.log()) == [0, 1, 2, 3, 4]
    assert read_partition_metadata(store.disk.crash_image(keep="none"), path) == TOPIC_ID


def test_a_log_that_is_set_aside_keeps_its_files() -> None:
    store = Store()
    log = filled(store)
    assert store.wait(lambda done: store.directory.set_aside(log, done)) is None
    (name,) = [name for name in store.disk.list_directory(PATH) if name.endswith("-stray")]
    assert store.disk.file_size(f"{PATH}/{name}/00000000000000000000.log") == 5 * BATCH_BYTES
    store.settle(120_000)
    store.restart()
    assert store.disk.file_size(f"{PATH}/{name}/00000000000000000000.log") == 5 * BATCH_BYTES
    assert ("orders", 0) not in store.directory.logs
    filled(store, count=1)
    assert read_offsets(store.log()) == [0]


def test_a_pass_that_still_runs_writes_nothing_into_the_next_log_of_that_name() -> None:
    """Old leader epochs in a new log would fence its leader."""
    store = Store()
    log = store.create()
    append(log, leader_epoch=7)
    store.commit(log)
    append(log, leader_epoch=9)
    store.executor.run_delay_us = (20_000, 20_000)
    store.directory.checkpoint_recovery_point(log, lambda error: None)
    store.executor.run_delay_us = (0, 100)
    assert store.wait(lambda done: store.directory.delete(log, done)) is None
    store.create(topic_id=OTHER_ID)
    store.settle(1000)
    store.restart()
    assert store.log().epochs.entries == ()
    append(store.log(), leader_epoch=0)


def test_a_directory_that_cannot_be_renamed_is_told() -> None:
    store = Store()
    log = filled(store)
    store.disk.faults.fail("names", lambda path: path == log.directory, times=1)
    assert isinstance(store.wait(lambda done: store.directory.delete(log, done)), OSError)
    assert store.facts("log_not_deleted")


def test_idle_logs_hold_no_descriptors() -> None:
    store = Store()
    logs = [store.create("orders", partition) for partition in range(5)]
    append(logs[0])
    store.commit()
    assert [log.segments.active.dirty_file for log in logs] == [None] * 5


def test_a_new_log_is_not_written_over_records_that_lie_there() -> None:
    store = Store()
    store.disk.make_directory(f"{PATH}/orders-0")
    write_file(store.disk, f"{PATH}/orders-0/00000000000000000042.log", batch(base_offset=42))
    with pytest.raises(StorageError, match="holds records"):
        store.create()
