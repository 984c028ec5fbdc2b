"""Opening a log after a crash: what was durable is there, and no more is read than has to be.

A start may itself be cut short at any operation, and is repeated. The clean stop is test_clean_start.py.
"""

import errno

import pytest

from simulation.disk import Crashed
from tests.log.disks import read_file, write_file
from tests.log.harness import BATCH_BYTES, PATH, SMALL, Store, append, batch, end_transaction, read_offsets
from tests.log.recovery.recovery_harness import FIRST_SEGMENT, LOG, check_whole, filled
from tidelog.log import names
from tidelog.log.errors import LogOffline, OutOfOrderSequence
from tidelog.log.partition_log import AppendResult
from tidelog.log.producers import producer_snapshot
from tidelog.log.producers.producer_snapshot import write_snapshot
from tidelog.log.reading import Isolation, end_offset_for_epoch, read
from tidelog.log.settings import LogSettings
from tidelog.records.control import ControlType

# -- what is there -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("keep", ["none", "all"])
def test_a_crash_keeps_what_was_durable(keep: str, checkpointed: bool) -> None:
    store = Store(SMALL)
    log = filled(store)
    if checkpointed:
        store.checkpoint(log)
    append(log, leader_epoch=1)
    store.crash("all" if keep == "all" else "none")
    check_whole(store.log(), 26 if keep == "all" else 25)
    assert end_offset_for_epoch(store.log(), 0) == (0, 13)


def test_recovery_reads_only_from_the_recovery_point_on() -> None:
    store = Store(SMALL)
    log = filled(store, 45)
    store.checkpoint(log)
    for _ in range(20):
        append(log, leader_epoch=1)
    store.commit(log)
    store.lose_power()
    reads = store.count_reads()
    store.open()
    assert {path for path in reads if path.endswith(".log")} == {f"{LOG}/{base:020d}.log" for base in (40, 50, 60)}
    check_whole(store.log(), 65)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("sequences", [3, 7, 40])
def test_the_last_five_batches_of_a_producer_are_known_below_the_recovery_point(sequences: int, cut: bool) -> None:
    """Their acknowledgements may be lost in the crash, and the producer sends all of them again. Another one writes between."""
    store = Store(SMALL)
    log = store.create()

    def send(sequence: int, producer_id: int = 5) -> AppendResult:
        return store.log().append_as_leader(batch(producer_id=producer_id, sequence=sequence), 0)

    sent = []
    for sequence in range(sequences):
        sent.append(send(sequence).first_offset)
        send(sequence, producer_id=6)
    store.checkpoint(log)
    if cut:
        append(log)
        log.cut_to(2 * sequences)
    else:
        # The start writes a snapshot at the log end, from which the second one knows the last batch only.
        store.crash()
        store.crash()
    known = range(max(0, sequences - 5), sequences)
    assert [(send(sequence).is_duplicate, send(sequence).first_offset) for sequence in known] == [
        (True, sent[sequence]) for sequence in known
    ]
    if sequences > 5:
        with pytest.raises(OutOfOrderSequence):
            send(sequences - 6)
    assert not send(sequences).is_duplicate


def test_after_a_clean_stop_what_was_not_acknowledged_may_be_sent_again() -> None:
    """When all brokers stop, the last one has batches that too few replicas have: their producer sends all of them again."""
    store = Store(SMALL)
    log = store.create()
    sent = [log.append_as_leader(batch(producer_id=5, sequence=sequence), 0).first_offset for sequence in range(3)]
    store.restart()
    again = [store.log().append_as_leader(batch(producer_id=5, sequence=sequence), 0) for sequence in range(3)]
    assert [(result.is_duplicate, result.first_offset) for result in again] == [(True, offset) for offset in sent]


def test_batches_of_an_earlier_epoch_are_not_recalled() -> None:
    store = Store(SMALL)
    log = store.create()
    for epoch in (0, 1):
        for sequence in range(2):
            log.append_as_leader(batch(producer_id=5, producer_epoch=epoch, sequence=sequence), 0)
    store.checkpoint(log)
    store.crash()
    assert store.log().append_as_leader(batch(producer_id=5, producer_epoch=1, sequence=0), 0).first_offset == 2


def test_batches_before_a_snapshot_are_searched_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_snapshot, "RECALLED_BYTES_MAX", BATCH_BYTES)
    store = Store(SMALL)
    log = store.create()
    for sequence in range(9):
        log.append_as_leader(batch(producer_id=5, sequence=sequence, size=BATCH_BYTES), 0)
    store.checkpoint(log)
    for _ in range(4):
        append(log)
    store.commit(log)
    store.crash()
    entry = store.log().producers.entry(5)
    assert entry is not None
    assert 1 < len(entry.batches) < 5, "an index has an entry for every second batch or so"


def test_what_was_recovered_is_durable_before_it_counts() -> None:
    """The page cache survived a kill: without a sync at the end of recovery a power cut now would take it."""
    store = Store(SMALL)
    log = filled(store)
    append(log, leader_epoch=1)
    store.crash("all")
    assert (store.log().log_end_offset, store.log().durable.offset) == (26, 26)
    store.crash("none")
    check_whole(store.log(), 26)


def test_after_a_failed_sync_the_start_looks_at_the_disk_itself() -> None:
    """The cache still holds what the sync lost, and calls it clean."""
    store = Store(SMALL)
    log = filled(store)
    append(log, leader_epoch=1)
    store.disk.faults.fail("sync", lambda path: path == log.segments.active.path, errno.EIO, times=1)
    assert isinstance(store.wait_durable(log), LogOffline)
    assert store.disk.exists(f"{LOG}/{names.FAILED_SYNC_MARK}")
    store.executor.crash()
    store.disk = store.disk.crash_image(keep="all")
    store.executor.disk = store.disk
    store.open()
    log = store.log()
    assert not store.disk.exists(f"{LOG}/{names.FAILED_SYNC_MARK}")
    end_offset = log.log_end_offset
    store.crash()
    check_whole(store.log(), end_offset)


def test_a_start_that_crashes_can_be_repeated_from_any_operation() -> None:
    store = Store(SMALL)
    log = filled(store)
    append(log, leader_epoch=1)
    store.lose_power("some")
    before = store.disk
    operations = 0
    while True:
        operations += 1
        store.disk = before.crash_image(keep="all")
        store.executor.disk = store.disk
        if not crashes_at(store, operations):
            break
        store.crash("some")
        assert store.log().log_end_offset in (25, 26)
        check_whole(store.log(), store.log().log_end_offset)
    assert operations > 5


def crashes_at(store: Store, operation_number: int) -> bool:
    def die(operation: str, path: str) -> None:
        if store.disk.operation_count == operation_number:
            raise Crashed

    store.disk.on_operation = die
    try:
        store.open()
    except Crashed:
        store.executor.crash()
        return True
    return False


# -- what is not there any more ----------------------------------------------------------------------------------------------


def test_segments_below_the_log_start_do_not_come_back() -> None:
    store = Store(SMALL)
    log = filled(store, 45)
    assert store.wait(lambda done: store.directory.delete_records(log, 27, done)) is None
    store.crash()
    log = store.log()
    assert (log.log_start_offset, log.segments[0].base_offset) == (27, 20)
    assert read_offsets(log) == list(range(27, 45))
    assert store.paths(".log")[0].endswith("00020.log")


def test_a_relaxed_log_that_lost_more_than_was_deleted_begins_again() -> None:
    store = Store(LogSettings(flush_messages=1_000_000))
    log = store.create()
    store.commit(log)
    for _ in range(10):
        append(log)
    log.advance_high_watermark(10)
    assert store.wait(lambda done: store.directory.delete_records(log, 8, done)) is None
    store.crash()
    log = store.log()
    assert (log.log_start_offset, log.log_end_offset) == (8, 8)
    assert append(log).first_offset == 8
    store.commit(log)
    store.crash()
    assert read_offsets(store.log()) == [8]


def test_files_on_their_way_out_and_half_made_are_removed() -> None:
    store = Store(SMALL)
    filled(store)
    store.lose_power()
    leftovers = [
        "00000000000000000003.log.deleted",
        "00000000000000000003.index.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.timeindex.cleaned",
        "00000000000000000010.index.swap",  # without its log: the swap was never decided
        "00000000000000000777.index",  # without its log: an index of a segment that is gone
        "00000000000000000777.txnindex",
        "leader-epoch-checkpoint.tmp",
    ]
    for name in leftovers:
        write_file(store.disk, f"{LOG}/{name}", b"leftover")
    store.open()
    assert not set(leftovers) & set(store.disk.list_directory(LOG))
    check_whole(store.log(), 25)


# Opening a log after a clean stop: next to nothing is read, nothing is forgotten, and a clean mark that lies is found out.


def test_a_clean_start_reads_no_segment_but_the_tail_of_the_last() -> None:
    store = Store(SMALL)
    filled(store, 95)
    store.close()
    reads = store.count_reads()
    store.open()
    segments_read = {path for path in reads if path.endswith(".log")}
    assert segments_read <= {f"{LOG}/00000000000000000090.log"}
    assert not [path for path in reads if path.endswith("index") and "90." not in path]
    check_whole(store.log(), 95)
    assert store.log().is_saved
    assert store.events == []


def test_a_clean_start_keeps_everything_a_log_knows() -> None:
    store = Store(SMALL)
    log = filled(store)
    log.append_as_leader(batch(2, producer_id=7, sequence=0, transactional=True), 1)
    log.append_as_leader(batch(2, producer_id=8, sequence=0, transactional=True), 1)
    end_transaction(log, 7, ControlType.ABORT, leader_epoch=1)
    store.commit(log)
    known = (log.log_end_offset, log.high_watermark, log.last_stable_offset, log.producers.describe())
    store.restart()
    reopened = store.log()
    assert known == (
        reopened.log_end_offset,
        reopened.high_watermark,
        reopened.last_stable_offset,
        reopened.producers.describe(),
    )
    assert end_offset_for_epoch(reopened, 0) == (0, 13)
    assert [entry.producer_id for entry in reopened.segments.active.transaction_index.entries()] == [7]


def test_the_clean_mark_is_gone_before_anything_is_written() -> None:
    store = Store(SMALL)
    filled(store)
    store.close()
    mark = f"{PATH}/{names.CLEAN_SHUTDOWN_MARK}"
    assert store.disk.exists(mark)
    written: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation in ("write", "truncate", "rename") and store.disk.exists(mark):
            written.append(path)

    store.disk.on_operation = note
    store.open()
    append(store.log(), leader_epoch=1)
    assert written == []
    store.disk.on_operation = None
    store.crash()
    check_whole(store.log(), 25)


def test_a_clean_mark_that_the_log_contradicts_is_doubted() -> None:
    """Somebody restored an older copy of the file, or the mark outlived another run."""
    store = Store(SMALL)
    filled(store)
    store.close()
    file = store.disk.open(f"{LOG}/00000000000000000020.log", "write")
    file.write(file.size(), [batch(base_offset=25, leader_epoch=1, size=BATCH_BYTES)])
    store.open()
    assert store.facts("clean_stop_doubted")
    assert read_offsets(store.log()) == list(range(26))


def test_a_cleanly_stopped_log_that_lost_its_tail_is_corrupt() -> None:
    store = Store(SMALL)
    filled(store)
    store.close()
    store.disk.open(f"{LOG}/00000000000000000020.log", "write").truncate(4 * BATCH_BYTES)
    store.open()
    assert "below offset 25 was durable" in store.directory.offline["orders", 0]


# Damage behind the durable mark, after a crash: a torn tail, of which nothing was acknowledged. It is cut and reported.


@pytest.mark.parametrize("cut", [1, 38, 39, 50, 99])
def test_a_torn_tail_is_cut_and_reported(cut: int) -> None:
    store = Store(SMALL)
    log = filled(store)
    append(log, leader_epoch=1)
    path = log.segments.active.path
    store.lose_power("all")
    store.disk.open(path, "write").truncate(6 * BATCH_BYTES - cut)
    store.open()
    check_whole(store.log(), 25)
    assert store.facts("torn_tail_cut") == [
        {
            "file": path,
            "position": 5 * BATCH_BYTES,
            "bytes_cut": BATCH_BYTES - cut,
            "segments_removed": 0,
            "next_offset": 25,
            "reason": store.facts("torn_tail_cut")[0]["reason"],
        }
    ]
    assert append(store.log(), leader_epoch=1).first_offset == 25


def test_valid_batches_behind_a_torn_one_are_cut_too() -> None:
    """Writes that no sync covered reach the disk in any order: what lies behind a hole was never acknowledged."""
    store = Store(SMALL)
    log = filled(store)
    for _ in range(20):
        append(log, leader_epoch=1)
    store.lose_power("all")
    store.disk.flip_bit(f"{LOG}/00000000000000000020.log", 6 * BATCH_BYTES + 80)
    store.open()
    check_whole(store.log(), 26)
    facts = store.facts("torn_tail_cut")[0]
    assert (facts["position"], facts["bytes_cut"], facts["segments_removed"]) == (600, 1900, 2)
    assert store.paths(".log") == [f"{LOG}/{base:020d}.log" for base in (0, 10, 20)]


def test_a_segment_that_lost_its_tail_between_two_batches_ends_the_log() -> None:
    store = Store(SMALL)
    log = filled(store, 5)
    for _ in range(20):
        append(log, leader_epoch=1)
    store.lose_power("all")
    store.disk.open(FIRST_SEGMENT, "write").truncate(8 * BATCH_BYTES)
    store.open()
    check_whole(store.log(), 8)
    assert "begins at offset 10" in str(store.facts("torn_tail_cut")[0]["reason"])


@pytest.mark.parametrize("zeros", [10, 1000])
def test_zeros_behind_the_last_batch_are_a_torn_tail(zeros: int) -> None:
    """The file system had grown the file but had not written it: this is what it leaves."""
    store = Store(SMALL)
    filled(store)
    store.lose_power("all")
    file = store.disk.open(f"{LOG}/00000000000000000020.log", "write")
    file.write(file.size(), [bytes(zeros)])
    store.open()
    check_whole(store.log(), 25)
    assert store.facts("torn_tail_cut")[0]["bytes_cut"] == zeros


# Damage below the durable mark: the partition stays offline and says where, nothing is cut, and the others are served.


@pytest.mark.parametrize("position", [0, 8, 16, 17, 30, 70, 99])
def test_damage_below_the_mark_takes_the_partition_offline(position: int) -> None:
    store = Store(SMALL)
    filled(store)
    store.create("other")
    append(store.log("other"))
    store.commit()
    store.settle(1000)  # the marks reach their journal
    store.lose_power()
    before = read_file(store.disk, FIRST_SEGMENT)
    store.disk.flip_bit(FIRST_SEGMENT, 3 * BATCH_BYTES + position, 7)
    store.open()
    reason = store.directory.offline["orders", 0]
    assert f"{FIRST_SEGMENT} is corrupt at byte 300, near offset 3" in reason
    assert "everything below offset 25 was durable" in reason
    assert store.facts("partition_offline")[0]["partition"] == "orders-0"
    assert read_offsets(store.log("other")) == [0]
    # Nothing was cut: mend the bit and all of it is there again, even after another start in between.
    store.crash()
    store.lose_power()
    store.disk.flip_bit(FIRST_SEGMENT, 3 * BATCH_BYTES + position, 7)
    assert read_file(store.disk, FIRST_SEGMENT) == before
    store.open()
    check_whole(store.log(), 25)


@pytest.mark.parametrize("number", [4, 9], ids=["in the middle of a segment", "last of a segment"])
def test_a_base_offset_that_was_flipped_upwards_does_not_hide_what_lies_behind(number: int) -> None:
    """It is outside of the CRC: the batch looks sound, and those behind it, whose offsets fall, are no torn tail."""
    store = Store(SMALL)
    filled(store)
    store.settle(1000)  # the marks reach their journal
    store.lose_power()
    store.disk.flip_bit(FIRST_SEGMENT, number * BATCH_BYTES + 6, 0)
    store.open()
    assert "everything below offset 25 was durable" in store.directory.offline["orders", 0]
    assert not store.facts("torn_tail_cut")


def test_a_lost_segment_below_the_mark_is_corruption() -> None:
    for lost in (10, 20):
        store = Store(SMALL)
        filled(store)
        store.settle(1000)
        store.lose_power()
        store.disk.remove(f"{LOG}/{lost:020d}.log")
        store.open()
        assert "durable" in store.directory.offline["orders", 0], lost


def test_all_segments_lost_is_corruption() -> None:
    store = Store(SMALL)
    filled(store)
    store.settle(1000)
    store.lose_power()
    for path in store.paths(".log"):
        store.disk.remove(path)
    store.open()
    assert "no segment is left" in store.directory.offline["orders", 0]


def test_a_file_that_cannot_be_read_takes_only_its_partition_offline() -> None:
    store = Store(SMALL)
    filled(store)
    store.create("other")
    store.commit()
    store.lose_power()
    store.disk.faults.fail("read", lambda path: path == FIRST_SEGMENT, errno.EIO)
    store.open()
    assert "Input/output error" in store.directory.offline["orders", 0]
    assert ("other", 0) in store.directory.logs


# What follows from the batches is made again where it is lost or damaged: indexes, leader epochs, producers, transactions.


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
