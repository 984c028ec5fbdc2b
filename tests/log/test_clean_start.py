"""Opening a log after a clean stop: next to nothing is read, nothing is forgotten, and a clean mark that lies is found out."""

from tests.log.harness import BATCH_BYTES, PATH, SMALL, Store, append, batch, end_transaction, read_offsets
from tests.log.recovery_harness import LOG, check_whole, filled
from tidelog.log import names
from tidelog.log.reading import end_offset_for_epoch
from tidelog.records.control import ControlType


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
