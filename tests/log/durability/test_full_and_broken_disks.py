"""Appending to a disk that is full or broken: a full one costs the append and nothing else, a broken one the log."""

import errno

import pytest

from simulation.disk import SimulatedDisk
from tests.log.harness import BATCH_BYTES, PATH, SMALL, Store, append, base_offsets, batch, read_offsets, state_of
from tidelog.log import names
from tidelog.log.errors import LogOffline, StorageError
from tidelog.ports.disk import DiskFile

# -- no room -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1, BATCH_BYTES - 1, BATCH_BYTES + 50])
def test_a_full_disk_costs_the_append_and_nothing_else(room: int) -> None:
    store = Store(SMALL)
    log = store.create()
    log.append_as_leader(batch(2, producer_id=7, sequence=0), 0)
    store.commit(log)
    before = state_of(log)
    size_before = log.segments.active.file().size()
    store.disk.set_free_bytes(room)
    with pytest.raises(StorageError, match="nothing was written"):
        log.append_as_leader(batch(1, producer_id=7, sequence=2, size=2 * BATCH_BYTES), 1)
    assert log.segments.active.file().size() == size_before
    assert state_of(log) == before
    store.disk.set_free_bytes(None)
    assert log.append_as_leader(batch(1, producer_id=7, sequence=2), 1).first_offset == 2
    store.commit(log)
    store.crash()
    assert read_offsets(store.log()) == [0, 1, 2]


def test_a_full_disk_at_a_roll_costs_only_the_append() -> None:
    store = Store(SMALL)
    log = store.create()
    for _ in range(10):
        append(log)
    rule = store.disk.faults.fail("names", lambda path: path.endswith(".log"), errno.ENOSPC)
    with pytest.raises(StorageError, match="no room for a new segment"):
        append(log)
    assert (log.log_end_offset, len(log.segments)) == (10, 1)
    store.disk.faults.lift(rule)
    append(log)
    assert len(log.segments) == 2
    assert read_offsets(log) == list(range(11))


def test_indexes_that_found_no_room_at_a_roll_are_written_later() -> None:
    store = Store(SMALL)
    log = store.create()
    for _ in range(10):
        append(log)
    rule = store.disk.faults.fail("write", lambda path: path.endswith("index"), errno.ENOSPC)
    append(log)
    assert store.facts("segment_close_deferred")
    store.disk.faults.lift(rule)
    store.commit(log)
    store.restart()
    assert not store.facts("torn_tail_cut")
    assert store.log().segments[0].offset_index.entry_count == 3
    assert read_offsets(store.log()) == list(range(11))


def test_epochs_without_room_are_tried_again_after_a_truncation_too() -> None:
    log = Store().create()
    append(log)
    append(log)
    plan = log.begin_sync(with_recovery_point=True)
    plan.had_no_room = True
    log.cut_to(1)
    assert not log.epochs.dirty
    log.finish_sync(plan, None)
    assert log.epochs.dirty


def test_too_many_open_files_is_no_broken_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    log = store.create()
    append(log)
    store.commit(log)
    log.environment.handles.forget(log.segments.active.path)

    def no_descriptor(*_: object) -> DiskFile:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedDisk, "open", no_descriptor)
        with pytest.raises(StorageError):
            append(log)
        with pytest.raises(StorageError):
            log.roll()
    assert append(log).first_offset == 1


# -- broken ------------------------------------------------------------------------------------------------------------------


def test_a_broken_disk_takes_the_log_offline() -> None:
    store = Store()
    log, other = store.create(), store.create(partition=1)
    append(log)
    store.commit(log)
    store.disk.faults.fail("write", lambda path: "orders-0" in path, errno.EIO, times=1)
    with pytest.raises(LogOffline, match=r"orders-0 is offline: writing /data/orders-0/0+\.log failed: .*Input/output error"):
        append(log)
    with pytest.raises(LogOffline):
        append(log)
    with pytest.raises(LogOffline):
        log.append_as_follower(batch(base_offset=1))
    with pytest.raises(LogOffline):
        log.roll()
    assert store.facts("log_offline")[0]["partition"] == "orders-0"
    append(other)
    store.crash()
    assert read_offsets(store.log()) == [0]


def test_a_partial_write_that_cannot_be_cut_off_takes_the_log_offline() -> None:
    store = Store()
    log = store.create()
    append(log)
    store.commit(log)
    store.disk.set_free_bytes(50)

    def fail_truncate(operation: str, path: str) -> None:
        if operation == "truncate":
            raise OSError(errno.EIO, "Input/output error")

    store.disk.on_operation = fail_truncate
    with pytest.raises(LogOffline, match="so did removing the partial write"):
        append(log)
    store.disk.set_free_bytes(None)
    store.crash("all")
    assert store.facts("torn_tail_cut")[0]["bytes_cut"] == 50
    assert read_offsets(store.log()) == [0]


# -- scarce ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_sync_that_lacks_a_descriptor_is_repeated_and_takes_nothing_offline(error_number: int) -> None:
    """A roll makes the next sync cover the directory, which has to be opened for that."""
    store = Store(SMALL)
    log = store.create()
    append(log)
    store.commit(log)
    heard: list[int] = []
    log.add_durability_listener(lambda: heard.append(log.durable.offset))
    for _ in range(10):
        append(log)
    assert len(log.segments) == 2
    told: list[BaseException | None] = []
    rule = store.disk.faults.fail("open", lambda path: path == log.directory, error_number)
    store.directory.commit.wait(log, log.log_end_offset, told.append)
    passes = store.directory.commit.statistics.passes
    store.directory.kick()
    store.settle(1000)
    assert (told, log.durable.offset, log.offline_reason) == ([], 1, None), "not durable, not damaged, and nobody was told"
    assert store.directory.commit.statistics.passes - passes <= 8, "it waits for a tick between two attempts"
    append(log)
    assert read_offsets(store.log()) == list(range(12)), "reads go on"
    store.disk.faults.lift(rule)
    store.settle(1000)
    assert told == [None]
    assert log.durable.offset == heard[-1] == 12
    assert not store.disk.exists(f"{log.directory}/{names.FAILED_SYNC_MARK}")
    store.crash()
    assert read_offsets(store.log()) == list(range(12))


def test_what_was_cut_or_deleted_meanwhile_is_not_synced_again() -> None:
    store = Store(SMALL)
    log = store.create()
    for _ in range(15):
        append(log)
    plan = log.begin_sync()
    log.cut_to(5)
    log.finish_sync(plan, OSError(errno.EMFILE, "Too many open files"))
    assert log.begin_sync().segments == [log.segments[0]]


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.ENOMEM])
def test_a_failed_sync_is_damage_whatever_its_number(error_number: int) -> None:
    store = Store()
    log = store.create()
    append(log)
    store.disk.faults.fail("sync", lambda path: path.endswith(".log"), error_number, times=1)
    assert isinstance(store.wait_durable(log), LogOffline)
    assert log.durable.offset == 0


def test_a_start_without_enough_descriptors_for_all_logs_syncs_one_after_the_other() -> None:
    store = Store()
    logs = [store.create(partition=partition) for partition in range(4)]
    for log in logs:
        append(log)
    store.commit()
    store.lose_power("all")
    store.disk.faults.fail("open", lambda path: path.endswith("orders-2"), errno.EMFILE, times=1)
    directory = store.open()
    assert {log.durable.offset for log in directory.logs.values()} == {1}


def test_retention_without_descriptors_goes_on_later() -> None:
    store = Store(SMALL)
    log = store.create()
    for _ in range(25):
        append(log)
    store.commit(log)
    store.settle(1000)
    rules = [
        store.disk.faults.fail("names", lambda path: path.endswith("10.index"), errno.ENOSPC),
        store.disk.faults.fail("open", lambda path: path == log.directory, errno.EMFILE),
    ]
    assert store.wait(lambda done: store.directory.delete_records(log, 20, done)) is None
    store.settle(1000)
    assert log.offline_reason is None
    assert read_offsets(log) == list(range(20, 25))
    for rule in rules:
        store.disk.faults.lift(rule)
    store.settle(2 * store.options.retention_check_interval_ms + 120_000)
    assert base_offsets(log) == [20]
    assert store.paths(".deleted") == []
    assert store.paths("0.log") == [log.segments[0].path]


def test_a_topic_that_is_deleted_without_descriptors_can_be_made_again_later() -> None:
    store = Store()
    log = store.create()
    append(log)
    store.commit(log)
    rule = store.disk.faults.fail("open", lambda path: path == PATH, errno.EMFILE)
    assert isinstance(store.wait(lambda done: store.directory.delete(log, done)), OSError)
    with pytest.raises(StorageError):
        store.create()
    store.disk.faults.lift(rule)
    store.settle(2 * store.options.checkpoint_interval_ms)
    append(store.create())
