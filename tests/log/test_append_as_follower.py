"""Appending what a leader sent: its bytes and its gaps are kept, and what is there already or damaged is refused."""

import pytest

from tests.log.harness import Store, batch, end_transaction, read_offsets, state_of
from tidelog.log.errors import CorruptRecord, InvalidRecord
from tidelog.records.control import ControlType


def test_a_follower_keeps_the_leaders_bytes_and_gaps() -> None:
    log = Store().create()
    data = batch(2, base_offset=3, leader_epoch=1) + batch(1, base_offset=9, leader_epoch=4)
    log.append_as_follower(data)
    assert log.segments.active.file().read(0, 1000) == data
    assert (log.log_end_offset, log.epochs.latest_epoch) == (10, 4)
    assert read_offsets(log) == [3, 4, 9]


def test_a_fetch_may_cut_its_last_batch_off() -> None:
    log = Store().create()
    whole, cut = batch(2, base_offset=0, leader_epoch=0), batch(3, base_offset=2, leader_epoch=0)
    for length in (1, 11, 12, 60, len(cut) - 1):
        log.append_as_follower(whole + cut[:length])
        assert log.log_end_offset == 2
        log = Store().create()
    with pytest.raises(InvalidRecord):
        log.append_as_follower(cut[:-1])


def test_a_follower_refuses_what_it_has_and_what_is_damaged() -> None:
    log = Store().create()
    log.append_as_follower(batch(5, base_offset=0, leader_epoch=0))
    before = state_of(log)
    with pytest.raises(InvalidRecord, match="offset 4 is below our log end 5"):
        log.append_as_follower(batch(2, base_offset=4, leader_epoch=0))
    with pytest.raises(InvalidRecord, match="offset 5 is below our log end 6"):
        log.append_as_follower(batch(1, base_offset=5, leader_epoch=0) * 2)
    with pytest.raises(CorruptRecord):
        log.append_as_follower(batch(1, base_offset=5, leader_epoch=0)[:-1] + b"x")
    assert state_of(log) == before


def test_a_follower_learns_of_producers_and_aborts() -> None:
    leader, follower = Store().create(), Store().create()
    leader.append_as_leader(batch(2, producer_id=7, sequence=0, transactional=True), 0)
    end_transaction(leader, 7, ControlType.ABORT)
    leader.append_as_leader(batch(1, producer_id=7, sequence=2, transactional=True), 0)
    follower.append_as_follower(leader.segments.active.file().read(0, leader.size))
    assert follower.producers.describe() == leader.producers.describe()
    assert list(follower.segments.active.transaction_index.entries()) == list(leader.segments.active.transaction_index.entries())
