"""One pass of syncs for all who wait: who is told what, when, and what a failing sync costs."""

import errno
from functools import partial

import pytest

from simulation.disk import SimulatedDisk
from tests.log.harness import BATCH_BYTES, PATH, Store, append, read_offsets
from tidelog.log import names
from tidelog.log.durability.checkpoints import read_offset_checkpoint
from tidelog.log.durability.durable_marks import DurableMarks
from tidelog.log.durability.group_commit import RELAXED_SYNC_MS
from tidelog.log.errors import LogOffline
from tidelog.log.partition_log import PartitionLog
from tidelog.log.recovery.directory_opening import SYNC_LOGS_AT_ONCE
from tidelog.log.settings import DirectoryOptions, LogSettings
from tidelog.ports.disk import DiskFile, OpenMode

BY_FILE = DirectoryOptions(syncfs_files_min=10_000)
BY_FILE_SYSTEM = DirectoryOptions(syncfs_files_min=1)


def committed(store: Store, count: int = 1) -> list[PartitionLog]:
    """Logs whose names and metadata are durable, so that only data is left to sync."""
    logs = [store.create(partition=partition) for partition in range(count)]
    store.commit(*logs)
    return logs


def syncs(store: Store) -> list[tuple[str, str]]:
    """(operation, path) of every sync from now on."""
    seen: list[tuple[str, str]] = []
    store.disk.on_operation = lambda operation, path: (
        seen.append((operation, path)) if operation.startswith("sync") and names.DURABLE_MARKS not in path else None
    )
    return seen


def test_one_pass_covers_all_who_wait() -> None:
    store = Store(options=BY_FILE)
    logs = committed(store, 3)
    passes = store.directory.commit.statistics.passes
    told: list[tuple[int, bool]] = []
    seen = syncs(store)

    def tell(number: int, error: BaseException | None) -> None:
        told.append((number, error is None))

    for number in range(12):
        log = logs[number % 3]
        result = append(log)
        store.directory.commit.wait(log, result.last_offset + 1, partial(tell, number))
    assert told == []
    store.directory.kick()
    assert told == [], "a callback never comes from within the call that asked for it"
    store.scheduler.run_until(lambda: len(told) == 12)
    assert store.directory.commit.statistics.passes == passes + 1
    assert store.directory.commit.statistics.logs_in_last_pass == 3
    assert seen == [("sync", log.segments.active.path) for log in logs]
    for partition in range(3):
        assert [entry for entry in told if entry[0] % 3 == partition] == [(n, True) for n in range(partition, 12, 3)]


def test_who_appends_during_a_pass_waits_for_the_next() -> None:
    store = Store(options=BY_FILE)
    (log,) = committed(store)
    told: list[str] = []
    append(log)
    store.directory.commit.wait(log, 1, lambda error: told.append(f"first at {log.durable.offset}"))
    store.directory.kick()
    append(log)
    store.directory.commit.wait(log, 2, lambda error: told.append(f"second at {log.durable.offset}"))
    store.scheduler.run_until(lambda: len(told) == 1)
    assert told == ["first at 1"]
    store.scheduler.run_until(lambda: len(told) == 2)
    assert told == ["first at 1", "second at 2"]


def test_a_logs_listener_hears_of_each_pass_that_covered_it_until_it_is_removed() -> None:
    store = Store(options=BY_FILE)
    log, other = committed(store, 2)
    heard: list[int] = []

    def listener() -> None:
        heard.append(log.durable.offset)

    log.add_durability_listener(listener)
    append(log)
    store.commit(log)
    append(other)
    store.commit(other)
    assert heard == [1]
    log.remove_durability_listener(listener)
    append(log)
    store.commit(log)
    assert heard == [1]


def test_what_a_callback_was_told_survives_a_power_cut() -> None:
    for options in (BY_FILE, BY_FILE_SYSTEM):
        store = Store(LogSettings(segment_bytes=3 * BATCH_BYTES), options=options)
        log = store.create()
        for _ in range(10):
            append(log)
        assert store.wait_durable(log) is None
        append(log)
        store.crash()
        assert read_offsets(store.log()) == list(range(10))


def test_what_is_durable_already_is_told_at_once() -> None:
    store = Store()
    log = store.create()
    append(log)
    store.commit(log)
    told: list[object] = []
    store.directory.commit.wait(log, 1, told.append)
    assert told == [None]


def test_many_files_are_synced_by_the_file_system() -> None:
    store = Store(options=DirectoryOptions(syncfs_files_min=4))
    logs = committed(store, 5)
    seen = syncs(store)
    for log in logs[:3]:
        append(log)
    store.commit()
    assert [operation for operation, _ in seen] == ["sync"] * 3
    seen.clear()
    before = store.directory.commit.statistics.file_system_syncs
    for log in logs:
        append(log)
    store.commit()
    assert [operation for operation, _ in seen] == ["sync_filesystem"]
    assert store.directory.commit.statistics.file_system_syncs == before + 1
    store.crash()
    assert all(read_offsets(log) for log in store.directory.logs.values())


def test_a_failed_sync_takes_its_own_log_offline_and_tells_its_waiters() -> None:
    store = Store(options=BY_FILE)
    good, bad = committed(store, 2)
    told: dict[str, BaseException | None] = {}
    tell = told.__setitem__
    for log in (good, bad):
        append(log)
        store.directory.commit.wait(log, 1, partial(tell, log.name))
        store.directory.commit.wait(log, 2, partial(tell, f"{log.name} later"))
    store.disk.faults.fail("sync", lambda path: path == bad.segments.active.path, errno.EIO, times=1)
    store.directory.kick()
    store.scheduler.run_until(lambda: len(told) == 3)
    assert told["orders-0"] is None
    assert isinstance(told["orders-1"], LogOffline)
    assert isinstance(told["orders-1 later"], LogOffline)
    assert "syncing failed" in str(bad.offline_reason)
    assert (bad.durable.offset, good.durable.offset) == (0, 1)
    assert store.disk.exists(f"{bad.directory}/{names.FAILED_SYNC_MARK}")
    with pytest.raises(LogOffline):
        append(bad)
    assert isinstance(store.wait_durable(bad), LogOffline)
    append(good)
    store.commit(good)
    # Never tried again as if it had worked: the mark of what is durable says nothing of it.
    store.settle(2000)
    assert DurableMarks.open(store.disk, PATH).mark("orders-1", bad.topic_id) in (None, 0)


def test_a_sync_after_a_failed_one_proves_nothing() -> None:
    """What was appended while the sync failed brings another pass. It succeeds, on pages that are clean and not on the disk."""
    store = Store(options=BY_FILE)
    (log,) = committed(store)
    append(log)
    store.commit(log)
    append(log)
    store.directory.kick()
    append(log)
    told: list[BaseException | None] = []
    store.directory.checkpoint_recovery_point(log, told.append)
    store.disk.faults.fail("sync", lambda path: path == log.segments.active.path, errno.EIO, times=1)
    store.settle()
    assert isinstance(told[0], LogOffline)
    assert log.durable.offset == 1
    assert log.recovery_point <= 1
    store.lose_power("all")
    store.open()
    assert store.directory.offline == {}
    assert store.log().log_end_offset >= 1


def test_a_failed_file_system_sync_takes_all_logs_of_the_pass_offline() -> None:
    store = Store(options=BY_FILE_SYSTEM)
    logs = committed(store, 3)
    for log in logs[:2]:
        append(log)
    store.disk.faults.fail("sync", lambda path: path == PATH, errno.EIO, times=1)
    assert isinstance(store.wait_durable(logs[0]), LogOffline)
    assert [log.offline_reason is None for log in logs] == [False, False, True]


def test_a_directory_that_cannot_be_synced_is_a_failed_sync() -> None:
    store = Store(LogSettings(segment_bytes=BATCH_BYTES), options=BY_FILE)
    (log,) = committed(store)
    append(log)
    append(log)
    store.disk.faults.fail("sync", lambda path: path == log.directory, errno.EIO, times=1)
    assert isinstance(store.wait_durable(log), LogOffline)


def test_marks_are_recorded_only_after_the_sync_and_within_a_second() -> None:
    store = Store()
    (log,) = committed(store)
    append(log)
    store.directory.kick()
    store.directory.marks.flush()
    assert DurableMarks.open(store.disk, PATH).mark(log.name, log.topic_id) in (None, 0)
    assert store.wait_durable(log) is None
    store.settle(1000)
    assert DurableMarks.open(store.disk.crash_image(keep="none"), PATH).mark(log.name, log.topic_id) == 1


# -- recovery points ---------------------------------------------------------------------------------------------------------


def recovery_points(store: Store) -> dict[tuple[str, int], int]:
    return read_offset_checkpoint(store.disk.crash_image(keep="none"), f"{PATH}/{names.RECOVERY_POINT_CHECKPOINT}")


def test_the_recovery_point_moves_every_so_many_bytes() -> None:
    store = Store(LogSettings(segment_bytes=1000), options=DirectoryOptions(recovery_point_interval_bytes=3000))
    (log,) = committed(store)
    moved = []
    for _ in range(100):
        append(log)
        store.commit(log)
        store.settle()
        if log.recovery_point not in moved:
            moved.append(log.recovery_point)
        assert recovery_points(store).get(("orders", 0), 0) == log.recovery_point
    assert moved == [0, 30, 60, 90]


def test_asked_for_the_recovery_point_moves_to_the_end() -> None:
    store = Store()
    (log,) = committed(store)
    append(log)
    assert store.wait(lambda done: store.directory.checkpoint_recovery_point(log, done)) is None
    assert recovery_points(store) == {("orders", 0): 1}
    assert log.is_saved


def test_without_room_for_the_indexes_the_recovery_point_waits_and_the_data_does_not() -> None:
    store = Store(LogSettings(index_interval_bytes=1))
    (log,) = committed(store)
    for _ in range(3):
        append(log)
    rule = store.disk.faults.fail("write", lambda path: path.endswith((".index", ".snapshot")), errno.ENOSPC)
    assert store.wait(lambda done: store.directory.checkpoint_recovery_point(log, done)) is None
    assert (log.durable.offset, log.recovery_point) == (3, 0)
    assert store.facts("recovery_point_deferred")
    store.disk.faults.lift(rule)
    store.checkpoint(log)


# -- relaxed topics ----------------------------------------------------------------------------------------------------------


def test_a_relaxed_log_is_synced_after_so_many_messages() -> None:
    store = Store(LogSettings(flush_messages=10))
    (log,) = committed(store)
    for _ in range(9):
        append(log)
    store.directory.kick()
    store.directory.tick()
    store.settle()
    assert log.durable.offset == 0
    append(log)
    store.directory.tick()
    store.settle()
    assert log.durable.offset == 10


@pytest.mark.parametrize(("flush_ms", "limit_ms"), [(700, 700), (2**63 - 1, RELAXED_SYNC_MS)])
def test_a_relaxed_log_is_synced_after_some_time(flush_ms: int, limit_ms: int) -> None:
    store = Store(LogSettings(flush_messages=1000, flush_ms=flush_ms))
    (log,) = committed(store)
    append(log)
    store.settle(limit_ms - 200)
    assert log.durable.offset == 0
    store.settle(400)
    assert log.durable.offset == 1


def test_who_waits_for_a_relaxed_log_gets_a_sync_at_once() -> None:
    store = Store(LogSettings(flush_messages=1000))
    (log,) = committed(store)
    append(log)
    before_ms = store.clock.monotonic_ms()
    assert store.wait_durable(log) is None
    assert store.clock.monotonic_ms() - before_ms < 100


def test_a_deleted_logs_waiters_are_told() -> None:
    store = Store()
    (log,) = committed(store)
    append(log)
    told: list[object] = []
    store.directory.commit.wait(log, 1, told.append)
    store.directory.delete(log)
    assert isinstance(told[0], LogOffline)
    store.settle()
    assert len(told) == 1


def test_a_failed_syncfs_is_not_the_last_word_on_what_was_written_meanwhile() -> None:
    """It reports an error once: a later syncfs would call durable what the first has lost, for a log that was not in its pass."""
    store = Store(options=BY_FILE_SYSTEM)
    first, second = store.create("first"), store.create("second")
    append(first)
    append(second)
    store.commit()
    append(first)
    store.directory.kick()
    append(second)
    told: list[Exception | None] = []
    store.directory.commit.wait(second, second.log_end_offset, told.append)
    store.disk.faults.fail("sync", lambda path: "/second-0/" in path, times=1)
    store.settle(1000)
    assert isinstance(told[0], LogOffline)
    assert second.durable.offset == 1


def more_than_are_synced_at_once(store: Store) -> None:
    """The last log, in the order in which they are synced, is many-99."""
    for number in sorted(range(SYNC_LOGS_AT_ONCE + 1), key=str):
        store.create("many", number)
    store.commit()
    for log in store.directory.logs.values():
        append(log)


def test_a_failed_syncfs_at_a_start_hides_no_loss_either() -> None:
    store = Store(options=BY_FILE_SYSTEM)
    more_than_are_synced_at_once(store)
    store.lose_power("all")
    store.disk.faults.fail("sync", lambda path: "/many-99/0" in path, times=1)
    store.open()
    assert store.log("many", 99).offline_reason is not None
    assert store.log("many", 99).durable.offset == 0


def test_a_failed_syncfs_at_a_stop_hides_no_loss_either() -> None:
    store = Store(options=BY_FILE_SYSTEM)
    more_than_are_synced_at_once(store)
    store.disk.faults.fail("sync", lambda path: "/many-99/0" in path, times=1)
    store.close()
    assert store.log("many", 99).offline_reason is not None
    assert store.log("many", 99).durable.offset == 0


@pytest.mark.parametrize("error_number", [errno.EMFILE, errno.EIO])
def test_a_file_that_cannot_be_opened_keeps_no_other_log_waiting(error_number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    broken, other = committed(store, 2)
    heard: list[str | None] = []
    broken.add_durability_listener(lambda: heard.append(broken.offline_reason))
    broken.end_truncation()
    broken.environment.handles.forget(broken.segments.active.path)
    really_open = SimulatedDisk.open

    def opened(disk: SimulatedDisk, path: str, mode: OpenMode) -> DiskFile:
        if path == broken.segments.active.path:
            raise OSError(error_number, "cannot be opened", path)
        return really_open(disk, path, mode)

    append(other)
    moved: list[Exception | None] = []
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedDisk, "open", opened)
        store.directory.commit.move_recovery_point(broken, moved.append)
        assert store.wait_durable(other) is None
        store.settle(1000)
    assert moved == [] if error_number == errno.EMFILE else isinstance(moved[0], LogOffline)
    store.settle(1000)
    assert len(moved) == 1
    assert (broken.offline_reason is None) == (error_number == errno.EMFILE)
    assert heard == [broken.offline_reason], "the partition learns of it, and fails whoever waits there"
