"""Offsets that nobody needs any more are removed."""

import pytest

from tests.groups.offset_bench import DAY_MS, MINUTE_MS, OffsetBench
from tidelog.groups import offsets
from tidelog.groups.records import GroupMetadataRecord, OffsetCommitRecord
from tidelog.wire.errors import ErrorCode

INTERVAL_MS = 10 * MINUTE_MS


def bench_with(*topics: str, retention_minutes: int = 60) -> OffsetBench:
    return OffsetBench(*topics, offsets_retention_minutes=retention_minutes)


def tombstones(bench: OffsetBench) -> list[object]:
    return [record for record in bench.machine.replayed if record.value is None]


def test_offsets_go_after_their_retention_and_the_group_with_them() -> None:
    bench = bench_with("orders")
    bench.commit(partition=0)
    bench.run_for(20 * MINUTE_MS)
    bench.commit(partition=1)
    bench.run_for(39 * MINUTE_MS)
    assert bench.offsets.count == 2
    bench.run_for(2 * MINUTE_MS)
    assert list(bench.offsets.of_group("g")["orders"]) == [1]
    assert bench.machine.groups.find("g") is not None
    bench.run_for(20 * MINUTE_MS)
    assert bench.machine.groups.find("g") is None
    assert tombstones(bench) == [
        OffsetCommitRecord("g", "orders", 0, None),
        OffsetCommitRecord("g", "orders", 1, None),
        GroupMetadataRecord("g", None),
    ]
    assert bench.offsets.expirations == 2
    assert bench.offsets.count == 0
    bench.reload()
    assert (bench.offsets.count, len(bench.machine.groups)) == (0, 0)


def test_the_default_is_a_week(bench: OffsetBench) -> None:
    bench.commit()
    bench.run_for(7 * DAY_MS - INTERVAL_MS)
    assert bench.offsets.count == 1
    bench.run_for(2 * INTERVAL_MS)
    assert bench.offsets.count == 0


def test_members_keep_the_offsets_of_topics_that_they_read() -> None:
    bench = bench_with("orders", "returns")
    bench.commit("g", "orders")
    bench.commit("g", "returns")
    bench.group("g").has_members = True
    bench.group("g").subscribed = ("orders",)
    bench.run_for(60 * MINUTE_MS - 1)
    assert bench.offsets.count == 2
    bench.run_for(DAY_MS)
    assert bench.offsets.of_group("g").keys() == {"orders"}
    # Not even a group that is left without offsets goes while it has members.
    bench.group("g").subscribed = ()
    bench.run_for(INTERVAL_MS)
    assert bench.offsets.count == 0
    assert bench.machine.groups.find("g") is not None
    bench.group("g").has_members = False
    bench.run_for(INTERVAL_MS)
    assert bench.machine.groups.find("g") is None


def test_retention_counts_from_when_the_last_member_left_or_the_commit_if_that_is_later() -> None:
    bench = bench_with("orders")
    bench.commit("left")
    bench.commit("reset")
    bench.run_for(50 * MINUTE_MS)
    bench.group("left").empty_ms = bench.clock.now_ms()
    bench.group("reset").empty_ms = bench.clock.now_ms() - DAY_MS
    bench.commit("reset")
    bench.run_for(59 * MINUTE_MS)
    assert bench.offsets.count == 2
    bench.run_for(INTERVAL_MS)
    assert bench.offsets.count == 0


def test_an_expiry_of_its_own_counts_instead() -> None:
    bench = bench_with("orders")
    bench.commit(partition=0, version=4, retention_ms=25 * MINUTE_MS)
    bench.commit(partition=1, version=4, retention_ms=DAY_MS)
    bench.run_for(29 * MINUTE_MS)
    assert bench.offsets.count == 2
    bench.run_for(2 * MINUTE_MS)
    assert list(bench.offsets.of_group("g")["orders"]) == [1]
    bench.run_for(DAY_MS - 60 * MINUTE_MS)
    assert bench.offsets.count == 1
    bench.run_for(60 * MINUTE_MS)
    assert bench.offsets.count == 0


def test_an_offset_with_an_open_transaction_does_not_expire_nor_does_its_group() -> None:
    bench = bench_with("orders")
    bench.commit(partition=0)
    bench.commit(partition=1)
    bench.replay("g", "orders", 1, 9, producer_id=3, at=9)
    bench.replay("pending", "orders", 1, 9, producer_id=3, at=9)
    bench.run_for(DAY_MS)
    assert list(bench.offsets.of_group("g")["orders"]) == [1]
    assert bench.machine.groups.find("pending") is not None
    bench.offsets.replay_end_transaction(3, False)
    bench.run_for(INTERVAL_MS)
    assert len(bench.machine.groups) == 0


def test_an_empty_group_without_offsets_is_removed_one_with_members_is_not() -> None:
    bench = bench_with("orders")
    bench.add_group("empty")
    bench.add_group("busy", has_members=True)
    bench.run_for(INTERVAL_MS - 1)
    assert len(bench.machine.groups) == 2
    bench.run_for(2)
    assert [group.group_id for group in bench.machine.groups] == ["busy"]


def test_nothing_expires_within_an_interval_of_a_load() -> None:
    bench = bench_with("orders")
    bench.commit()
    bench.clock.jump(DAY_MS)
    bench.reload()
    bench.run_for(INTERVAL_MS - 1)
    assert bench.offsets.count == 1
    bench.run_for(2)
    assert bench.offsets.count == 0


def test_a_deleted_topics_offsets_go_at_once_members_or_not() -> None:
    bench = OffsetBench("orders", "bills")
    bench.commit("g", "orders")
    bench.commit("g", "bills")
    bench.commit("h", "orders", 2)
    bench.replay("g", "orders", 3, 1)
    bench.replay("g", "orders", 1, 9, producer_id=3)
    bench.group("g").has_members = True
    bench.group("g").subscribed = ("orders",)
    bench.delete_topic("orders")
    bench.offsets.on_topics_deleted()
    bench.run_for(1)
    assert bench.offsets.of_group("g").keys() == {"bills"}
    assert bench.offsets.of_group("h") == {}
    assert not bench.offsets.pending
    assert bench.offsets.expirations == 0
    # Its group only goes when offsets are checked against their retention.
    assert bench.machine.groups.find("h") is not None


def test_a_topic_by_the_same_name_does_not_save_them(bench: OffsetBench) -> None:
    bench.commit(partition=0)
    bench.delete_topic("orders")
    bench.create_topic("orders")
    bench.commit(partition=1)
    bench.offsets.on_topics_deleted()
    bench.run_for(1)
    assert list(bench.offsets.of_group("g")["orders"]) == [1]


def test_topics_that_were_deleted_while_the_shard_was_elsewhere() -> None:
    bench = OffsetBench("orders", "bills")
    bench.commit("g", "orders")
    bench.commit("g", "bills")
    bench.delete_topic("orders")
    bench.reload()
    assert bench.offsets.count == 2
    bench.run_for(1)
    assert bench.offsets.of_group("g").keys() == {"bills"}


def test_a_topic_that_is_deleted_during_a_pass_is_not_missed() -> None:
    bench = OffsetBench("orders", "bills")
    for index in range(3000):
        bench.replay(f"g{index}", "orders", 0, 1)
    bench.replay("g0", "bills", 0, 1)
    bench.delete_topic("orders")
    bench.offsets.on_topics_deleted()
    bench.scheduler.run_until(lambda: bench.offsets.count < 3001)
    bench.commit_all()
    assert bench.offsets.of_group("g0").keys() == {"bills"}
    assert bench.offsets.count > 1
    bench.delete_topic("bills")
    bench.offsets.on_topics_deleted()
    bench.run_for(1)
    assert bench.offsets.count == 0


def test_many_offsets_go_in_slices_that_fit_into_batches() -> None:
    bench = bench_with("orders", "bills")
    bench.create_topic("wide", 3000)
    for index in range(3000):
        bench.replay("g", "wide", index, 1, commit_timestamp=0)
        bench.replay(f"group-{index}", "orders", 0, 1, commit_timestamp=0)
    bench.log.batch_bytes_max = offsets.SLICE_BYTES
    bench.run_for(INTERVAL_MS + 1)
    assert bench.offsets.count == 0
    assert len(bench.machine.groups) == 0
    assert bench.events == []
    assert len(bench.log.batches) > 10


def test_a_check_more_often_than_a_pass_takes_still_gets_to_the_end() -> None:
    bench = OffsetBench("orders", offsets_retention_minutes=1, offsets_retention_check_interval_ms=1)
    for index in range(5000):
        bench.replay(f"group-{index}", "orders", 0, 1, commit_timestamp=0)
    bench.run_for(20)
    assert bench.offsets.count == 0


def test_a_group_that_is_gone_before_its_turn() -> None:
    bench = bench_with("orders")
    bench.commit("g")
    bench.commit("h")
    bench.delete_topic("orders")
    bench.offsets.on_topics_deleted()
    bench.machine.groups.remove("g")
    bench.run_for(1)
    assert bench.offsets.of_group("h") == {}


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_commit_still_works_during_a_pass(is_deleted: bool) -> None:
    bench = OffsetBench("orders", "bills")
    bench.commit("g", "orders")
    if is_deleted:
        bench.delete_topic("orders")
    bench.offsets.on_topics_deleted()
    assert bench.commit("g", "bills") is ErrorCode.NONE
    bench.run_for(1)
    assert ("orders" in bench.offsets.of_group("g")) is not is_deleted
    assert bench.offset(topic="bills") == 1
