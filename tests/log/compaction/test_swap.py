"""A compacted segment takes the place of its originals: on a live log, and through a crash at any operation."""

import errno
from collections.abc import Callable

import pytest

from simulation.disk import Crashed, FaultyOperation, Keep, SimulatedDisk
from tests.log.disks import write_file
from tests.log.harness import BATCH_BYTES, PATH, START_MS, Store, append, base_offsets, batch, read_offsets
from tidelog.log import names
from tidelog.log.compaction.swap import SegmentSwap, decide_swap, finish_swaps
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, offset_for_timestamp, read
from tidelog.log.segments.segment import LogSegment
from tidelog.log.settings import LogSettings
from tidelog.ports.steps import run_to_end

SETTINGS = LogSettings(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)
LOG = f"{PATH}/orders-0"
# What compaction left of offsets 0 to 19: always the last, so that the replacement ends where its originals ended.
KEPT = [2, 3, 7, 12, 19]
BEFORE = list(range(25))
KEEPS: tuple[Keep, ...] = ("some", "some", "none", "all")
AFTER = [*KEPT, *range(20, 25)]


def prepared(store: Store) -> PartitionLog:
    """Three segments, and a durable replacement for the first two."""
    log = store.create()
    for _ in range(25):
        append(log)
        store.pass_time(1000)
    store.commit(log)
    store.checkpoint(log)
    store.settle(1000)
    environment = log.environment
    cleaned = LogSegment(
        store.disk, environment.handles, environment.index_cache, log.directory, 0, 0, START_MS, names.CLEANED_SUFFIX
    )
    cleaned.create_file()
    for offset in KEPT:
        data = batch(base_offset=offset, leader_epoch=0, timestamps=[START_MS + 1000 * offset], size=BATCH_BYTES)
        position = cleaned.write([data], len(data))
        cleaned.note_batch(position, len(data), offset, START_MS + 1000 * offset, 1)
    cleaned.close_for_appends()
    for file in (cleaned.file(), *cleaned.index_files()):
        file.sync()
    store.disk.sync_directory(log.directory)
    return log


def swap(
    store: Store, log: PartitionLog, originals: list[LogSegment] | None = None
) -> tuple[list[LogSegment], BaseException | None]:
    done: list[tuple[list[LogSegment], BaseException | None]] = []
    retries: list[Callable[[], None]] = []
    SegmentSwap(
        log,
        store.executor,
        originals or [log.segments[0], log.segments[1]],
        retries.append,
        lambda gone, error: done.append((gone, error)),
    ).start()
    while not done:
        store.scheduler.run_until(lambda: bool(done or retries))
        if retries:
            retries.pop()()
    return done[0]


def names_in_use(store: Store) -> list[str]:
    return [name for name in store.disk.list_directory(LOG) if name.endswith((".log", ".index", ".timeindex"))]


def test_readers_see_the_replacement_and_holders_of_a_slice_the_original() -> None:
    store = Store(SETTINGS)
    log = prepared(store)
    held = read(log, 10, 10_000, Isolation.LOG_END).records
    assert held is not None
    originals = [log.segments[0], log.segments[1]]
    gone, error = swap(store, log)
    assert (gone, error) == (originals, None)
    assert read_offsets(log) == AFTER
    assert read_offsets(log, Isolation.HIGH_WATERMARK) == AFTER
    assert len(held.file.read(held.position, held.length)) == 10 * BATCH_BYTES
    assert [segment.path for segment in log.segments] == [f"{LOG}/{base:020d}.log" for base in (0, 20)]
    assert all(segment.path.endswith(".log.deleted") for segment in gone)
    found = run_to_end(offset_for_timestamp(log, START_MS + 8000))
    assert found is not None
    assert found.offset == 12
    assert append(log).first_offset == 25


def test_the_swap_survives_a_power_cut() -> None:
    store = Store(SETTINGS)
    swap(store, prepared(store))
    store.commit()
    store.crash()
    assert read_offsets(store.log()) == AFTER


def test_the_end_of_what_may_be_read_lies_right_after_a_swap() -> None:
    """The durable end was remembered as a place in a file that is now another one."""
    store = Store(SETTINGS)
    log = store.create()
    for _ in range(20):
        append(log)
    store.commit(log)
    log.roll()
    store.checkpoint(log)
    store.scheduler.run_all()
    kept = [12, 19]
    data = b"".join(batch(base_offset=offset, leader_epoch=0, size=BATCH_BYTES) for offset in kept)
    write_file(store.disk, f"{LOG}/{10:020d}.log.cleaned", data)
    for suffix in (".index", ".timeindex"):
        write_file(store.disk, f"{LOG}/{10:020d}{suffix}.cleaned", b"")
    swap(store, log, [log.segments[1]])
    append(log)  # neither durable nor visible
    assert read_offsets(log, Isolation.HIGH_WATERMARK) == [*range(10), *kept]


def test_a_crash_at_any_operation_leaves_the_old_or_the_new() -> None:
    outcomes = set()
    operation_number = 0
    while True:
        operation_number += 1
        store = Store(SETTINGS, seed=operation_number)
        log = prepared(store)
        last = store.disk.operation_count + operation_number

        def die(operation: str, path: str, store: Store = store, last: int = last) -> None:
            if store.disk.operation_count == last:
                raise Crashed

        store.disk.on_operation = die
        try:
            swap(store, log)
            store.commit()
        except Crashed:
            store.disk.on_operation = None
            for keep in KEEPS:
                image = store.disk
                store.crash(keep)
                assert store.directory.offline == {}
                found = read_offsets(store.log())
                assert found in (BEFORE, AFTER)
                assert base_offsets(store.log()) == ([0, 10, 20] if found == BEFORE else [0, 20])
                outcomes.add(len(found))
                left = store.disk.list_directory(LOG)
                assert not [name for name in left if name.endswith((".swap", ".cleaned", ".deleted"))]
                store.disk = store.executor.disk = image
        else:
            break
    assert operation_number > 10
    assert outcomes == {len(BEFORE), len(AFTER)}


def test_a_crash_at_any_operation_of_the_start_after_a_crash_changes_nothing() -> None:
    store = Store(SETTINGS)
    log = prepared(store)
    decide_swap(store.disk, LOG, 0)
    store.lose_power("none")
    decided = store.disk
    operation_number = 0
    while True:
        operation_number += 1
        disk = decided.crash_image(keep="all")

        def die(operation: str, path: str, disk: SimulatedDisk = disk, last: int = operation_number) -> None:
            if disk.operation_count == last:
                raise Crashed

        disk.on_operation = die
        try:
            finish_swaps(disk, LOG)
        except Crashed:
            disk.on_operation = None
            for _ in range(25):
                store.disk = store.executor.disk = disk.crash_image(store.randomness, "some")
                store.open()
                assert read_offsets(store.log()) == AFTER
                assert base_offsets(store.log()) == [0, 20], "an original must not come back beside its replacement"
        else:
            break
    assert operation_number > 5
    assert log.log_end_offset == 25


@pytest.mark.parametrize("struck", [".cleaned", ".swap", "sync"])
def test_a_failing_disk_takes_the_log_offline_and_the_next_start_decides(struck: str) -> None:
    store = Store(SETTINGS)
    log = prepared(store)
    if struck == "sync":
        store.disk.faults.fail("sync", lambda path: path == LOG, errno.EIO)
    else:
        store.disk.faults.fail("names", lambda path: path.endswith(f".log{struck}"), errno.EIO)
    gone, error = swap(store, log)
    assert gone == []
    assert isinstance(error, OSError)
    assert "by a compacted one failed" in str(log.offline_reason)
    store.disk.faults.clear()
    store.crash("all")
    assert read_offsets(store.log()) in (BEFORE, AFTER)


SHORTAGES: tuple[tuple[FaultyOperation, str, int], ...] = (
    ("open", LOG, errno.EMFILE),
    ("open", LOG, errno.ENOMEM),
    ("names", ".index.cleaned", errno.ENOSPC),
    ("names", ".log.cleaned", errno.ENOSPC),
    ("names", ".index", errno.ENOSPC),
    ("names", "0.log", errno.ENOSPC),
    ("names", ".log.swap", errno.ENOSPC),
    ("names", ".timeindex.swap", errno.EDQUOT),
)


@pytest.mark.parametrize("times", [1, 2, 3, 4])
@pytest.mark.parametrize(("operation", "struck", "error_number"), SHORTAGES)
def test_a_shortage_delays_the_swap_and_damages_nothing(
    operation: FaultyOperation, struck: str, error_number: int, times: int
) -> None:
    store = Store(SETTINGS)
    log = prepared(store)
    store.disk.faults.fail(operation, lambda path: path.endswith(struck), error_number, times=times)
    gone, error = swap(store, log)
    assert (len(gone), error, log.offline_reason) == (2, None, None)
    assert read_offsets(log) == AFTER
    assert len(store.facts("swap_deferred")) == times
    store.crash()
    assert read_offsets(store.log()) == AFTER


def test_only_the_log_file_decides() -> None:
    store = Store(SETTINGS)
    prepared(store)
    before = names_in_use(store)
    for name in (f"{0:020d}.index", f"{0:020d}.timeindex"):
        store.disk.rename(f"{LOG}/{name}.cleaned", f"{LOG}/{name}.swap")
    finish_swaps(store.disk, LOG)
    assert names_in_use(store) == before
    assert not store.paths(".swap") + store.paths(".cleaned")


def test_segments_behind_the_swap_are_left_alone() -> None:
    store = Store(SETTINGS)
    prepared(store)
    decide_swap(store.disk, LOG, 0)
    finish_swaps(store.disk, LOG)
    assert [name for name in names_in_use(store) if name.endswith(".log")] == [f"{0:020d}.log", f"{20:020d}.log"]
