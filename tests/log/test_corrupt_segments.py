"""Damage below the durable mark: the partition stays offline and says where, nothing is cut, and the others are served.

Damage behind the mark is test_torn_tail.py.
"""

import errno

import pytest

from tests.log.disks import read_file
from tests.log.harness import BATCH_BYTES, SMALL, Store, append, read_offsets
from tests.log.recovery_harness import FIRST_SEGMENT, LOG, check_whole, filled


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
