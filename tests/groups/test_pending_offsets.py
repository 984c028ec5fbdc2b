"""Offsets of open transactions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.groups.offset_bench import OffsetBench
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.offsets import PendingOffset, PendingOffsets
from tidelog.groups.records import OffsetCommitRecord, OffsetCommitValue
from tidelog.records.control import ControlType, EndTransactionMarker
from tidelog.wire.errors import ErrorCode


def pending(offset: int, at: int, partition: int = 0, group: str = "g", topic: str = "orders") -> PendingOffset:
    return PendingOffset(group, topic, partition, at, OffsetCommitValue(offset))


def test_an_offset_of_a_transaction_waits_for_its_marker(bench: OffsetBench) -> None:
    bench.replay("g", "orders", 0, 10, producer_id=7, at=0)
    assert bench.offset() == -1
    bench.offsets.replay_end_transaction(7, True)
    assert bench.offset() == 10
    assert bench.offsets.count == 1
    assert not bench.offsets.pending


def test_an_aborted_transaction_leaves_nothing(bench: OffsetBench) -> None:
    bench.replay("g", "orders", 0, 5)
    bench.replay("g", "orders", 0, 10, producer_id=7, at=1)
    bench.offsets.replay_end_transaction(7, False)
    assert bench.offset() == 5
    assert not bench.offsets.pending


def test_a_marker_ends_only_its_producers_transaction(bench: OffsetBench) -> None:
    bench.replay("g", "orders", 0, 10, producer_id=7, at=0)
    bench.replay("g", "orders", 1, 20, producer_id=8, at=1)
    bench.offsets.replay_end_transaction(7, True)
    bench.offsets.replay_end_transaction(9, True)
    assert (bench.offset(partition=0), bench.offset(partition=1)) == (10, -1)
    bench.offsets.replay_end_transaction(8, True)
    assert bench.offset(partition=1) == 20


def test_the_last_commit_of_a_transaction_counts(bench: OffsetBench) -> None:
    for at, offset in enumerate((10, 30, 20)):
        bench.replay("g", "orders", 0, offset, producer_id=7, at=at)
    bench.offsets.replay_end_transaction(7, True)
    assert bench.offset() == 20


def test_unstable_until_the_marker(bench: OffsetBench) -> None:
    bench.replay("g", "orders", 0, 5)
    bench.replay("g", "orders", 0, 10, producer_id=7, at=1)
    assert bench.fetch(require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert bench.fetch(require_stable=True).offset == -1
    assert bench.fetch().offset == 5
    assert bench.fetch(partition=1, require_stable=True).error is ErrorCode.NONE
    assert bench.fetch("other", require_stable=True).error is ErrorCode.NONE
    bench.offsets.replay_end_transaction(7, False)
    assert bench.fetch(require_stable=True)[1:] == (5, -1, "", ErrorCode.NONE)


def test_two_transactions_on_a_partition_are_unstable_until_both_end(bench: OffsetBench) -> None:
    bench.replay("g", "orders", 0, 10, producer_id=7, at=0)
    bench.replay("g", "orders", 0, 20, producer_id=8, at=1)
    bench.offsets.replay_end_transaction(7, True)
    assert bench.fetch(require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert bench.offset() == 10
    bench.offsets.replay_end_transaction(8, True)
    assert bench.fetch(require_stable=True).offset == 20


def test_a_plain_commit_after_it_supersedes_a_transaction(bench: OffsetBench) -> None:
    bench.replay("g", "orders", 0, 10, producer_id=7, at=0)
    bench.replay("g", "orders", 0, 50, at=1)
    assert bench.fetch(require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    bench.offsets.replay_end_transaction(7, True)
    assert bench.offset() == 50


def test_a_transaction_that_wrote_later_and_ended_earlier_counts(bench: OffsetBench) -> None:
    bench.replay("g", "orders", 0, 10, producer_id=7, at=0)
    bench.replay("g", "orders", 0, 20, producer_id=8, at=1)
    bench.offsets.replay_end_transaction(8, True)
    bench.offsets.replay_end_transaction(7, True)
    assert bench.offset() == 20


def test_a_tombstone_takes_what_is_pending_too(bench: OffsetBench) -> None:
    bench.replay("g", "orders", 0, 10, producer_id=7, at=0)
    bench.replay("g", "orders", 1, 20, producer_id=7, at=1)
    bench.offsets.replay(OffsetCommitRecord("g", "orders", 0, None), 2, -1, -1)
    assert not bench.offsets.pending.has("g", "orders", 0)
    assert bench.offsets.pending.has("g", "orders", 1)
    bench.offsets.replay_end_transaction(7, True)
    assert (bench.offset(partition=0), bench.offset(partition=1)) == (-1, 20)


def test_a_pending_offset_makes_its_group(bench: OffsetBench) -> None:
    bench.replay("g", "orders", 0, 10, producer_id=7)
    assert bench.group("g").group_id == "g"


def test_what_is_pending_of_a_group() -> None:
    offsets = PendingOffsets()
    assert not offsets
    offsets.add(7, pending(1, 0, partition=3))
    offsets.add(8, pending(2, 1, partition=3))
    offsets.add(7, pending(3, 2, partition=1, topic="other"))
    assert offsets.partitions_of("g") == [("orders", 3), ("other", 1)]
    assert offsets.topics_of("g") == ["orders", "other"]
    assert [(partition, value.offset) for partition, value in offsets.values_of("g", "orders")] == [(3, 1), (3, 2)]
    offsets.remove("g", "orders", 3)
    assert offsets.topics_of("g") == ["other"]
    assert list(offsets._by_producer) == [7]
    assert offsets.end(8) == []
    assert [left.value for left in offsets.end(7)] == [OffsetCommitValue(3)]
    assert not offsets
    assert not offsets.has_group("g")
    assert not offsets._by_producer


# Each step stands in the log at its index: a plain commit, one of a producer, a marker, a tombstone.
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.integers(0, 1)),
        st.tuples(st.just("pending"), st.integers(0, 1), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("tombstone"), st.integers(0, 1)),
    ),
    max_size=25,
)


@given(steps=_steps)
@settings(deadline=None, max_examples=300)
def test_as_kafkas_rule_by_record_offset_says(steps: list[tuple[str, int] | tuple[str, int, int]]) -> None:
    """Kafka keeps with every offset where its record stands, and a marker applies only what is newer."""
    bench = OffsetBench("orders")
    committed: dict[int, int] = {}
    waiting: dict[tuple[int, int], int] = {}
    for at, step in enumerate(steps):
        kind, first, *more = step
        if kind == "plain":
            bench.replay("g", "orders", first, at, at=at)
            committed[first] = at
        elif kind == "pending":
            bench.replay("g", "orders", first, at, producer_id=more[0], at=at)
            waiting[more[0], first] = at
        elif kind == "tombstone":
            bench.offsets.replay(OffsetCommitRecord("g", "orders", first, None), at, -1, -1)
            committed.pop(first, None)
            waiting = {key: value for key, value in waiting.items() if key[1] != first}
        else:
            bench.offsets.replay_end_transaction(first, bool(more[0]))
            for producer_id, partition in [key for key in waiting if key[0] == first]:
                record_offset = waiting.pop((producer_id, partition))
                if more[0] and record_offset > committed.get(partition, -1):
                    committed[partition] = record_offset
        for partition in (0, 1):
            assert bench.offset(partition=partition) == committed.get(partition, -1)
            is_unstable = bench.fetch(partition=partition, require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert is_unstable == any(key[1] == partition for key in waiting)
        assert bench.offsets.count == len(committed)
    assert bool(bench.offsets.pending) == bool(waiting)


@pytest.mark.parametrize(("kind", "expected"), [(ControlType.COMMIT, 10), (ControlType.ABORT, 5)])
def test_transactions_are_the_same_after_a_reload(bench: OffsetBench, kind: ControlType, expected: int) -> None:
    bench.commit(offset=5)
    record = OffsetCommitRecord("g", "orders", 0, OffsetCommitValue(10))
    bench.shard.write(lambda _: CoordinatorResult([record]), producer=(7, 0))
    bench.commit_all()
    bench.reload()
    assert bench.fetch(require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert bench.offset() == 5
    bench.shard.end_transaction((7, 0), EndTransactionMarker(kind, 0), lambda _: None)
    bench.commit_all()
    assert bench.fetch(require_stable=True).offset == expected
    bench.reload()
    assert bench.fetch(require_stable=True).offset == expected
