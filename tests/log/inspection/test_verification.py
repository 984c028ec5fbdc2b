"""Verification: a sound partition is sound in every state, and each planted damage is found, with its file, byte and meaning."""

from collections.abc import Callable

import pytest

from simulation.disk import Keep
from tests.log.disks import read_file, write_file
from tests.log.harness import PATH, Store, append
from tests.log.inspection.damage import (
    END_OFFSET,
    ORDERS,
    change,
    crashed_store,
    damages,
    filled_store,
    flip,
    log_files,
    notes,
    remove,
    stopped_store,
    truncate,
    verify,
)
from tidelog.log import names
from tidelog.log.durability.sync_plan import leave_failed_sync_mark
from tidelog.log.inspection.directory_facts import Finding


def the_one(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_a_stopped_partition_is_sound() -> None:
    findings, (summary,) = verify(stopped_store().disk)
    assert findings == []
    assert summary.is_sound
    assert (summary.segments, summary.batches, summary.records) == (4, 25, 29)
    assert (summary.start_offset, summary.end_offset, summary.durable_mark) == (0, END_OFFSET, END_OFFSET)
    assert summary.size_bytes == 644 + 644 + 656 + 400


def test_a_running_partition_has_no_damage() -> None:
    assert damages(filled_store().disk) == []


@pytest.mark.parametrize("keep", ["none", "some", "all"])
def test_what_a_crash_leaves_is_no_damage(keep: Keep) -> None:
    for seed in range(20):
        store = Store(seed=seed)
        log = store.create()
        for _ in range(5):
            append(log)
        store.commit()
        for _ in range(9):
            append(log)
        store.lose_power(keep)
        findings, (summary,) = verify(store.disk)
        assert summary.is_sound, findings
        store.open()
        assert store.log().log_end_offset == summary.end_offset


def test_verifying_changes_nothing() -> None:
    store = crashed_store()
    flip(store.disk, log_files(store.disk)[1], 150)
    before = store.disk.operation_count
    assert damages(store.disk)
    assert store.disk.operation_count == before


def test_a_flipped_bit_below_the_mark() -> None:
    store = crashed_store()
    path = log_files(store.disk)[1]
    flip(store.disk, path, 150)
    found = the_one(damages(store.disk))
    assert (found.path, found.position, found.offset) == (path, 78, 10)
    assert found.problem == "a batch's CRC does not match its bytes"
    assert found.meaning.startswith(
        f"corruption: everything below offset {END_OFFSET} was durable; the partition cannot be opened"
    )
    store.open()
    assert list(store.directory.offline) == [("orders", 0)]


def test_a_flipped_bit_below_the_recovery_point() -> None:
    store = stopped_store()
    flip(store.disk, log_files(store.disk)[1], 150)
    found = the_one(damages(store.disk))
    assert "the partition opens, but readers fail here" in found.meaning
    store.open()
    assert store.directory.offline == {}


def test_a_torn_tail_is_a_note() -> None:
    store = crashed_store()
    path = log_files(store.disk)[-1]
    change(store.disk, path, lambda content: content.extend(content[:90]))
    assert damages(store.disk) == []
    found = next(finding for finding in notes(store.disk) if finding.path == path)
    assert (found.position, found.offset) == (400, END_OFFSET)
    assert found.meaning == f"a torn tail, above the durable mark {END_OFFSET}: the next start will cut it"


def test_segments_behind_a_torn_tail_are_named() -> None:
    store = crashed_store()
    change(store.disk, log_files(store.disk)[-1], lambda content: content.extend(b"torn"))
    behind = f"{ORDERS}/{names.offset_file_name(40, names.LOG_SUFFIX)}"
    write_file(store.disk, behind, b"")
    assert damages(store.disk) == []
    assert "the next start removes it" in [finding.meaning for finding in notes(store.disk) if finding.path == behind]


def test_several_damaged_batches_are_all_found() -> None:
    store = stopped_store()
    path = log_files(store.disk)[2]
    flip(store.disk, path, 40)
    flip(store.disk, path, 640)
    assert [(finding.path, finding.position) for finding in damages(store.disk)] == [(path, 0), (path, 556)]


def test_a_truncated_segment() -> None:
    store = stopped_store()
    path = log_files(store.disk)[1]
    truncate(store.disk, path, 600)
    first, gap = damages(store.disk)
    assert (first.path, first.position, first.offset) == (path, 561, 16)
    assert first.problem == "a batch header takes 61 bytes, but only 39 are left"
    assert gap.problem == "the segment ends at offset 16, but the next one begins at 18"


def test_a_segment_cut_between_two_batches() -> None:
    store = stopped_store()
    path = log_files(store.disk)[1]
    truncate(store.disk, path, 561)
    found = next(finding for finding in damages(store.disk) if finding.path == path)
    assert "the next one begins at 18" in found.problem
    assert "a segment is missing" in found.meaning


def test_a_missing_segment() -> None:
    store = crashed_store()
    paths = log_files(store.disk)
    remove(store.disk, paths[2])
    found = the_one(damages(store.disk))
    assert (found.path, found.position) == (paths[1], 644)
    assert found.problem == "the segment ends at offset 18, but the next one begins at 25"


def test_a_missing_end() -> None:
    store = stopped_store()
    remove(store.disk, log_files(store.disk)[3])
    problems = [finding.problem for finding in damages(store.disk)]
    assert "the log ends at offset 25" in problems


def test_no_segment_at_all() -> None:
    store = stopped_store()
    for path in log_files(store.disk):
        remove(store.disk, path)
    found = next(finding for finding in damages(store.disk) if finding.path == ORDERS)
    assert f"{END_OFFSET} offsets are missing" in found.meaning


def test_every_bit_of_the_truth_counts() -> None:
    """One bit in each byte of the logs, transaction indexes and snapshots: none may pass."""
    store = stopped_store()
    for name in store.disk.list_directory(ORDERS):
        if not name.endswith((".log", ".txnindex", ".snapshot")):
            continue
        path = f"{ORDERS}/{name}"
        for position in range(0, len(read_file(store.disk, path)), 11):
            bit = position % 8
            flip(store.disk, path, position, bit)
            assert damages(store.disk), f"byte {position} of {name}"
            flip(store.disk, path, position, bit)


INDEX_DAMAGES: list[tuple[str, int, Callable[[bytearray], object], int, str]] = [
    (".index", 1, lambda content: content.__setitem__(3, 0), 0, "the batch at this position"),
    (".index", 0, lambda content: content.__setitem__(7, content[7] + 1), 0, "no batch begins at this position"),
    (".index", 0, lambda content: content.extend(content[:8]), 24, "does not come after"),
    (".index", 0, lambda content: content.extend(b"\0\0\0\x09\0\0\x09\0"), 24, "beyond the end of the segment"),
    (".index", 0, lambda content: content.extend(b"\0\0\0"), 24, "not a whole number of entries"),
    (".index", 0, lambda content: content.extend(bytes(16) + content[:8]), 24, "zero bytes with an entry after them"),
    (".timeindex", 0, lambda content: content.__setitem__(7, content[7] ^ 1), 0, "has timestamp"),
    (".timeindex", 0, lambda content: content.__setitem__(11, 200), 0, ""),
    (".txnindex", 0, lambda content: content.__setitem__(9, 99), 0, "belongs to producer 7"),
    (".txnindex", 0, lambda content: content.__setitem__(17, 5), 0, "the transaction begins at offset 3 already"),
    (".txnindex", 0, lambda content: content.__setitem__(25, 7), 0, "no abort marker at its last offset"),
    (".txnindex", 0, lambda content: content.__setitem__(33, 1), 0, "first offset and last stable offset"),
    (".txnindex", 0, lambda content: content.__setitem__(1, 1), 0, "its version is 1"),
    (".txnindex", 0, lambda content: content.clear(), 0, "was aborted at offset 8 has no entry"),
]


@pytest.mark.parametrize(("suffix", "number", "edit", "position", "problem"), INDEX_DAMAGES)
def test_a_bad_index_entry(suffix: str, number: int, edit: Callable[[bytearray], object], position: int, problem: str) -> None:
    store = stopped_store()
    path = store.paths(suffix)[number]
    change(store.disk, path, edit)
    found = the_one(damages(store.disk))
    assert (found.path, found.position) == (path, position)
    assert problem in found.problem
    assert "--rebuild-indexes" in found.meaning


def test_an_index_that_the_next_start_rebuilds_is_a_note() -> None:
    store = filled_store()
    store.lose_power("all")
    path = store.paths(".txnindex")[0]
    change(store.disk, path, lambda content: content.__setitem__(9, 99))
    assert damages(store.disk) == []
    assert "the next start rebuilds it from the log" in [finding.meaning for finding in notes(store.disk) if finding.path == path]


def test_kafkas_padding_is_no_damage() -> None:
    store = stopped_store()
    for path in (*store.paths(".index"), *store.paths(".timeindex")):
        change(store.disk, path, lambda content: content.extend(bytes(1200)))
    assert verify(store.disk)[0] == []


def test_a_missing_index_is_a_note() -> None:
    store = stopped_store()
    path = store.paths(".timeindex")[1]
    remove(store.disk, path)
    assert damages(store.disk) == []
    assert the_one(notes(store.disk)).path == path


def test_a_bad_snapshot() -> None:
    store = stopped_store()
    path = store.paths(".snapshot")[-1]
    flip(store.disk, path, 20)
    found = the_one(damages(store.disk))
    assert found.path == path
    assert "CRC" in found.problem


def test_a_snapshot_of_another_offset() -> None:
    store = stopped_store()
    snapshots = store.paths(".snapshot")
    store.disk.rename(snapshots[-1], f"{ORDERS}/{names.snapshot_file_name(5)}")
    problems = [finding.problem for finding in damages(store.disk)]
    assert any("but was taken at offset 5" in problem for problem in problems)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"0\n2\n3 22\n0 25\n", "does not come after"),
        (b"0\n2\n0 0\n2 22\n", "offset 22 has leader epoch 3, but the checkpoint says 2"),
        (b"nonsense", "line 1"),
    ],
)
def test_bad_leader_epochs(text: bytes, problem: str) -> None:
    store = stopped_store()
    write_file(store.disk, f"{ORDERS}/{names.LEADER_EPOCH_CHECKPOINT}", text)
    assert problem in the_one(damages(store.disk)).problem


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        (names.RECOVERY_POINT_CHECKPOINT, "checks every log from its beginning"),
        (names.LOG_START_OFFSET_CHECKPOINT, "the broker will not start"),
        (names.HIGH_WATERMARK_CHECKPOINT, "the next start ignores it"),
        (names.META_PROPERTIES, "the broker will not start"),
    ],
)
def test_a_bad_file_of_the_data_directory(name: str, meaning: str) -> None:
    store = stopped_store()
    path = f"{PATH}/{name}"
    change(store.disk, path, lambda content: content.extend(b"garbage"))
    found = next(finding for finding in damages(store.disk) if finding.path == path)
    assert meaning in found.meaning


def test_a_torn_journal_of_marks_is_a_note() -> None:
    store = filled_store()
    store.lose_power()
    path = f"{PATH}/{names.DURABLE_MARKS}"
    change(store.disk, path, lambda content: content.__setitem__(len(content) - 1, 1))
    assert [finding for finding in damages(store.disk) if finding.path == path] == []
    assert [finding.path for finding in notes(store.disk)].count(path) == 1


def test_a_bad_topic_id() -> None:
    store = stopped_store()
    path = f"{ORDERS}/{names.PARTITION_METADATA}"
    write_file(store.disk, path, b"version: 0\ntopic_id: short")
    assert path in [finding.path for finding in damages(store.disk)]


def test_a_failed_sync_is_named() -> None:
    store = crashed_store()
    leave_failed_sync_mark(store.disk, ORDERS, "the disk said no")
    assert "a sync failed here" in [finding.problem for finding in notes(store.disk)]
