"""Damage behind the durable mark, after a crash: a torn tail, of which nothing was acknowledged. It is cut and reported.

Damage below the mark is test_corrupt_segments.py.
"""

import pytest

from tests.log.harness import BATCH_BYTES, SMALL, Store, append
from tests.log.recovery_harness import FIRST_SEGMENT, LOG, check_whole, filled


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
    """What a file system leaves that had grown the file but not written it."""
    store = Store(SMALL)
    filled(store)
    store.lose_power("all")
    file = store.disk.open(f"{LOG}/00000000000000000020.log", "write")
    file.write(file.size(), [bytes(zeros)])
    store.open()
    check_whole(store.log(), 25)
    assert store.facts("torn_tail_cut")[0]["bytes_cut"] == zeros
