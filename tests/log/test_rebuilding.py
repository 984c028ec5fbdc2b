"""What follows from the batches is made again where it is lost or damaged: indexes, leader epochs, producers, transactions."""

import pytest

from tests.log.disks import write_file
from tests.log.harness import BATCH_BYTES, SMALL, Store, append, batch, end_transaction
from tests.log.recovery_harness import LOG, check_whole, filled
from tidelog.log import names
from tidelog.log.producer_snapshot import write_snapshot
from tidelog.log.reading import Isolation, end_offset_for_epoch, read
from tidelog.log.settings import LogSettings
from tidelog.records.control import ControlType

# -- indexes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["clean", "crash"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("base_offset", [0, 10, 20])
def test_missing_indexes_are_rebuilt(stop: str, suffix: str, base_offset: int) -> None:
    store = Store(SMALL)
    log = filled(store)
    store.checkpoint(log)
    if stop == "clean":
        store.close()
    else:
        store.lose_power()
    store.disk.remove(f"{LOG}/{base_offset:020d}{suffix}")
    store.open()
    check_whole(store.log(), 25)


@pytest.mark.parametrize("content", [b"", b"123", b"\xff" * 24, bytes(800)])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_damaged_indexes_above_the_recovery_point_are_rebuilt(suffix: str, content: bytes) -> None:
    store = Store(SMALL)
    log = filled(store, 22)
    store.checkpoint(log)
    for _ in range(3):
        append(log, leader_epoch=1)
    store.commit(log)
    store.lose_power()
    write_file(store.disk, f"{LOG}/00000000000000000020{suffix}", content)
    store.open()
    check_whole(store.log(), 25)


def test_an_index_that_leads_astray_after_a_clean_stop_is_made_again() -> None:
    store = Store(SMALL)
    filled(store)
    store.close()
    (*_, path) = store.paths(".index")
    # The position in its last entry: inside a batch.
    store.disk.flip_bit(path, store.disk.file_size(path) - 1)
    store.open()
    assert store.directory.offline == {}
    check_whole(store.log(), 25)


@pytest.mark.parametrize("index_interval_bytes", [1, 1 << 20])
def test_aborted_transactions_below_the_recovery_point_stay_known(index_interval_bytes: int) -> None:
    """Recovery walks the segment from before the recovery point on, and must not forget what it trusts there."""
    store = Store(LogSettings(index_interval_bytes=index_interval_bytes))
    log = store.create()
    for _ in range(3):
        log.append_as_leader(batch(2, producer_id=7, sequence=2 * log.log_end_offset // 3, transactional=True), 0)
        end_transaction(log, 7, ControlType.ABORT)
    store.checkpoint(log)
    aborted = list(log.segments.active.transaction_index.entries())
    assert len(aborted) == 3
    append(log)
    log.append_as_leader(batch(2, producer_id=7, sequence=6, transactional=True), 0)
    last = end_transaction(log, 7, ControlType.ABORT)
    store.commit(log)
    store.crash()
    log = store.log()
    found = list(log.segments.active.transaction_index.entries())
    assert found[:3] == aborted
    assert [entry.last_offset for entry in found[3:]] == [last]
    log.advance_high_watermark(log.log_end_offset)
    assert read(log, 0, 1 << 20, Isolation.LAST_STABLE).aborted == found


# -- leader epochs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["clean", "crash"])
@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_leader_epochs_are_rebuilt_from_the_batches(stop: str, damage: str) -> None:
    store = Store(SMALL)
    log = filled(store)
    store.checkpoint(log)
    store.close() if stop == "clean" else store.lose_power()
    path = f"{LOG}/{names.LEADER_EPOCH_CHECKPOINT}"
    if damage == "missing":
        store.disk.remove(path)
    else:
        write_file(store.disk, path, b"no\nnumbers\n")
    store.open()
    assert end_offset_for_epoch(store.log(), 0) == (0, 13)
    assert end_offset_for_epoch(store.log(), 1) == (1, 25)


# -- producers ---------------------------------------------------------------------------------------------------------------


def test_producers_are_the_same_by_snapshot_and_by_log() -> None:
    store = Store(SMALL)
    log = store.create()
    for number in range(30):
        log.append_as_leader(batch(producer_id=number % 3, sequence=number // 3, size=BATCH_BYTES), 0)
        if number == 17:
            store.checkpoint(log)
    store.commit(log)
    lived = log.producers.describe()
    store.lose_power()
    image = store.disk
    store.open()
    assert store.log().producers.describe() == lived
    store.disk = image.crash_image(keep="all")
    for path in store.paths(".snapshot"):
        store.disk.remove(path)
    store.executor.disk = store.disk
    store.open()
    assert store.log().producers.describe() == lived


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(40)])
def test_a_damaged_snapshot_is_discarded(content: bytes) -> None:
    store = Store(SMALL)
    log = store.create()
    for number in range(15):
        log.append_as_leader(batch(producer_id=7, sequence=number, size=BATCH_BYTES), 0)
    store.checkpoint(log)
    lived = log.producers.describe()
    store.close()
    write_file(store.disk, f"{LOG}/00000000000000000015.snapshot", content)
    store.open()
    assert store.facts("producer_snapshot_discarded")
    assert store.log().producers.describe() == lived


def test_snapshots_above_the_end_are_removed() -> None:
    """They describe batches that were lost; the log may reach their offset again with others."""
    store = Store(SMALL)
    log = filled(store)
    log.append_as_leader(batch(producer_id=9, sequence=0), 1)
    write_snapshot(log.environment.disk, log.directory, log.log_end_offset, log.producers)
    store.lose_power("all")
    store.disk.open(f"{LOG}/00000000000000000020.log", "write").truncate(5 * BATCH_BYTES)
    store.open()
    assert store.log().producers.entry(9) is None
    assert f"{LOG}/00000000000000000026.snapshot" not in store.paths(".snapshot")
