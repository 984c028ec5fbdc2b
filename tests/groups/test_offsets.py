"""Committed offsets: commit, fetch, delete."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from simulation.clock import EPOCH_MS
from tests.groups.offset_bench import OffsetBench
from tidelog.controller.errors import ApiError
from tidelog.coordinator.errors import DecisionTooLarge
from tidelog.groups.classic.group import ClassicGroup, ClassicMember, ClassicState
from tidelog.groups.group import GroupType
from tidelog.groups.offsets import FetchedOffset, FetchedOffsetTopic
from tidelog.groups.records import OffsetCommitRecord, OffsetCommitValue
from tidelog.wire.errors import ErrorCode
from tidelog.wire.offset_commit import OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic, OffsetCommitTopicResult
from tidelog.wire.primitives import ZERO_UUID

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def id_of(bench: OffsetBench, name: str) -> bytes:
    topic = bench.image.topic(name)
    assert topic is not None
    return topic.topic_id


def request(*topics: OffsetCommitTopic, generation: int = -1, group_id: str = "g") -> OffsetCommitRequest:
    return OffsetCommitRequest(group_id, generation, "member", "instance", -1, list(topics))


def partitions(*indexes: int) -> list[OffsetCommitPartition]:
    return [OffsetCommitPartition(index, 10 * index, index, f"meta {index}") for index in indexes]


def commit(bench: OffsetBench, wanted: OffsetCommitRequest, version: int = 9) -> list[OffsetCommitTopicResult]:
    results: list[OffsetCommitTopicResult] = bench.decide(lambda offsets: offsets.commit(wanted, version))
    return results


# -- commit ------------------------------------------------------------------------------------------------------------------


def test_a_commit_is_kept_with_all_that_it_says(bench: OffsetBench) -> None:
    assert bench.commit(offset=42, metadata="note", leader_epoch=7) is NONE
    assert bench.offsets.of_group("g") == {"orders": {0: OffsetCommitValue(42, 7, "note", EPOCH_MS, -1, id_of(bench, "orders"))}}
    assert bench.fetch() == FetchedOffset(0, 42, 7, "note", NONE)
    assert bench.offsets.count == 1
    assert bench.offsets.commits == 1


def test_a_later_commit_replaces_it_also_backwards(bench: OffsetBench) -> None:
    bench.commit(offset=42, metadata="note")
    bench.commit(offset=7)
    assert bench.fetch() == FetchedOffset(0, 7, -1, "", NONE)
    assert bench.offsets.count == 1
    assert bench.offsets.commits == 2


def test_nothing_changes_before_the_decision_is_replayed(bench: OffsetBench) -> None:
    result = bench.offsets.commit(request(OffsetCommitTopic("orders", None, partitions(1))), 9)
    assert [record[:3] for record in result.records] == [("g", "orders", 1)]
    assert bench.offsets.count == 0
    assert bench.machine.groups.find("g") is None


def test_several_topics_and_partitions_some_of_which_do_not_exist() -> None:
    bench = OffsetBench("orders", "bills")
    topics = [
        OffsetCommitTopic("bills", None, partitions(3, 4, -1)),
        OffsetCommitTopic("nowhere", None, partitions(0, 1)),
        OffsetCommitTopic("orders", None, partitions(0)),
    ]
    assert commit(bench, request(*topics)) == [
        ("bills", None, [(3, NONE), (4, UNKNOWN), (-1, UNKNOWN)]),
        ("nowhere", None, [(0, UNKNOWN), (1, UNKNOWN)]),
        ("orders", None, [(0, NONE)]),
    ]
    assert bench.offsets.count == 2
    assert bench.fetch(topic="bills", partition=3) == FetchedOffset(3, 30, 3, "meta 3", NONE)


def test_topics_by_id(bench: OffsetBench) -> None:
    topic_id, unknown_id = id_of(bench, "orders"), bytes(range(16))
    topics = [OffsetCommitTopic(None, topic_id, partitions(0, 9)), OffsetCommitTopic(None, unknown_id, partitions(0))]
    assert commit(bench, request(*topics), 10) == [
        (None, topic_id, [(0, NONE), (9, UNKNOWN)]),
        (None, unknown_id, [(0, ErrorCode.UNKNOWN_TOPIC_ID)]),
    ]
    assert bench.offsets.of_group("g")["orders"][0].topic_id == topic_id


def test_metadata_that_is_too_long_fails_alone() -> None:
    bench = OffsetBench("orders", offset_metadata_max_bytes=5)
    wanted = [OffsetCommitPartition(0, 1, 0, "12345"), OffsetCommitPartition(1, 1, 0, "123456"), OffsetCommitPartition(2, 1)]
    assert commit(bench, request(OffsetCommitTopic("orders", None, wanted))) == [
        ("orders", None, [(0, NONE), (1, ErrorCode.OFFSET_METADATA_TOO_LARGE), (2, NONE)])
    ]
    assert list(bench.offsets.of_group("g")["orders"]) == [0, 2]


@pytest.mark.parametrize(
    ("retention_ms", "expire_ms"), [(-1, -1), (1000, EPOCH_MS + 1000), (2**63 - 1, 2**63 - 1), (-(2**63), 0)]
)
def test_a_retention_time_becomes_an_expiry(bench: OffsetBench, retention_ms: int, expire_ms: int) -> None:
    assert bench.commit(version=2, retention_ms=retention_ms) is NONE
    assert bench.offsets.of_group("g")["orders"][0].expire_timestamp == expire_ms


@pytest.mark.parametrize(
    ("version", "generation", "expected"),
    [
        (2, -1, NONE),
        (10, -1, NONE),
        (8, 0, ErrorCode.ILLEGAL_GENERATION),
        (9, 0, ErrorCode.GROUP_ID_NOT_FOUND),
        (9, 5, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_an_unknown_group(bench: OffsetBench, version: int, generation: int, expected: ErrorCode) -> None:
    assert bench.commit(version=version, generation=generation) is expected
    assert (bench.machine.groups.find("g") is not None) == (expected is NONE)


def test_the_empty_group_id_is_a_group(bench: OffsetBench) -> None:
    assert bench.commit("", offset=3) is NONE
    assert bench.offset("") == 3


def test_a_group_id_that_no_record_can_hold(bench: OffsetBench) -> None:
    assert bench.commit("g" * 32_767) is NONE
    assert bench.commit("g" * 32_768) is ErrorCode.INVALID_GROUP_ID
    assert bench.commit("é" * 16_384) is ErrorCode.INVALID_GROUP_ID


def test_no_more_groups_than_there_may_be() -> None:
    bench = OffsetBench("orders", tidelog_groups_max=1)
    assert bench.commit("first") is NONE
    assert bench.commit("second") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.commit("first", partition=1) is NONE


def test_the_group_is_asked_and_refuses_all_that_exists(bench: OffsetBench) -> None:
    group = bench.add_group("g", has_members=True)
    group.refusal = ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
    long = OffsetCommitPartition(1, 1, 0, "x" * 5000)
    topics = [
        OffsetCommitTopic("orders", None, [*partitions(0), long, *partitions(9)]),
        OffsetCommitTopic("nowhere", None, partitions(0)),
    ]
    refused = ErrorCode.REBALANCE_IN_PROGRESS
    assert commit(bench, request(*topics, generation=4)) == [
        ("orders", None, [(0, refused), (1, refused), (9, UNKNOWN)]),
        ("nowhere", None, [(0, UNKNOWN)]),
    ]
    assert group.asked == [("member", "instance", 4, 9)]
    assert bench.offsets.count == bench.offsets.commits == 0


def test_the_group_is_not_asked_when_no_partition_exists(bench: OffsetBench) -> None:
    group = bench.add_group("g", has_members=True)
    assert commit(bench, request(OffsetCommitTopic("orders", None, partitions(9)))) == [("orders", None, [(9, UNKNOWN)])]
    assert commit(bench, request()) == []
    assert group.asked == []


def test_a_commit_that_fits_no_batch(bench: OffsetBench) -> None:
    bench.log.batch_bytes_max = 100
    with pytest.raises(DecisionTooLarge):
        bench.commit(metadata="x" * 100)
    assert bench.offsets.count == 0


def test_a_commit_is_a_sign_of_life_in_a_classic_group(bench: OffsetBench) -> None:
    group = ClassicGroup("g", 0)
    member = ClassicMember("member", None, "client", "host", 60_000, 10_000, (("range", b""),))
    group.add(member, "consumer")
    group.state = ClassicState.STABLE
    group.generation = 4
    bench.machine.groups.put(group)
    bench.run_for(7_000)
    wanted = request(OffsetCommitTopic("orders", None, partitions(0)), generation=4)._replace(group_instance_id=None)
    assert commit(bench, wanted) == [("orders", None, [(0, NONE)])]
    assert member.deadline_ms == 17_000
    assert commit(bench, wanted._replace(generation_id_or_member_epoch=3)) == [
        ("orders", None, [(0, ErrorCode.ILLEGAL_GENERATION)])
    ]


# -- replay ------------------------------------------------------------------------------------------------------------------


def test_offsets_are_the_same_after_a_reload() -> None:
    bench = OffsetBench("orders", "bills")
    bench.commit("g", offset=1, metadata="m", leader_epoch=3)
    bench.commit("g", "bills", 2, 5)
    bench.commit("h", offset=7)
    bench.commit("h", partition=1, version=3, retention_ms=1000)
    bench.decide(lambda offsets: offsets.delete("g", [("bills", [2])]))
    before = {group: dict(bench.offsets.of_group(group)) for group in ("g", "h")}
    bench.reload()
    expiring = before["h"]["orders"][1]
    # The version of a record with an expiry has no room for the topic's id.
    before["h"]["orders"] = {**before["h"]["orders"], 1: expiring._replace(topic_id=ZERO_UUID)}
    assert {group: dict(bench.offsets.of_group(group)) for group in ("g", "h")} == before
    assert bench.offsets.count == 3
    assert bench.group("h").group_id == "h"


def test_the_same_id_is_kept_once(bench: OffsetBench) -> None:
    for partition in range(3):
        bench.commit(partition=partition)
    bench.reload()
    values = bench.offsets.of_group("g")["orders"].values()
    assert len({id(value.topic_id) for value in values}) == 1
    assert {value.topic_id for value in values} == {id_of(bench, "orders")}


def test_a_group_that_is_there_keeps_its_offsets_when_they_are_replayed(bench: OffsetBench) -> None:
    group = bench.add_group("g", has_members=True)
    bench.replay("g", "orders", 0, 5)
    assert bench.group("g") is group


def test_a_tombstone_for_what_is_not_there(bench: OffsetBench) -> None:
    bench.commit()
    for topic, partition in (("orders", 1), ("other", 0)):
        bench.offsets.replay(OffsetCommitRecord("g", topic, partition, None), 0, -1, -1)
    bench.offsets.replay(OffsetCommitRecord("other", "orders", 0, None), 0, -1, -1)
    assert bench.offsets.count == 1
    bench.offsets.replay(OffsetCommitRecord("g", "orders", 0, None), 0, -1, -1)
    assert bench.offsets.count == 0
    assert bench.offsets.of_group("g") == {}


# -- fetch -------------------------------------------------------------------------------------------------------------------


def test_what_is_asked_for_and_what_there_is_not(bench: OffsetBench) -> None:
    bench.commit(offset=5)
    wanted: Sequence[tuple[str, Sequence[int]]] = [("orders", [1, 0, 99]), ("nowhere", [0]), ("orders", [])]
    topic_id = id_of(bench, "orders")
    assert bench.offsets.fetch("g", wanted) == [
        FetchedOffsetTopic("orders", topic_id, [FetchedOffset(1), FetchedOffset(0, 5), FetchedOffset(99)]),
        FetchedOffsetTopic("nowhere", ZERO_UUID, [FetchedOffset(0)]),
        FetchedOffsetTopic("orders", topic_id, []),
    ]
    assert bench.offsets.fetch("unknown", [("orders", [0])]) == [FetchedOffsetTopic("orders", topic_id, [FetchedOffset(0)])]
    assert FetchedOffset(1) == (1, -1, -1, "", NONE)


def test_all_topics() -> None:
    bench = OffsetBench("orders", "bills")
    bench.commit(partition=1, offset=5)
    bench.commit(partition=0, offset=6)
    bench.commit("g", "bills", 2, 7)
    bench.commit("h", "bills", 2, 8)
    assert bench.offsets.fetch("g", None) == [
        FetchedOffsetTopic("orders", id_of(bench, "orders"), [FetchedOffset(1, 5), FetchedOffset(0, 6)]),
        FetchedOffsetTopic("bills", id_of(bench, "bills"), [FetchedOffset(2, 7)]),
    ]
    assert bench.offsets.fetch("unknown", None) == []


def test_the_member_is_checked(bench: OffsetBench) -> None:
    group = bench.add_group("g")
    bench.offsets.fetch("g", None, member_id="m", member_epoch=3)
    assert group.asked == [("m", 3)]
    group.refusal = ApiError(ErrorCode.STALE_MEMBER_EPOCH)
    with pytest.raises(ApiError) as refused:
        bench.offsets.fetch("g", [], member_id="m", member_epoch=2)
    assert refused.value.code is ErrorCode.STALE_MEMBER_EPOCH


def test_an_offset_of_a_deleted_topic_is_not_its_successors(bench: OffsetBench) -> None:
    bench.commit(offset=5)
    bench.delete_topic("orders")
    assert bench.offset() == 5
    new_id = bench.create_topic("orders")
    assert bench.offset() == -1
    assert bench.offsets.fetch("g", None) == [FetchedOffsetTopic("orders", new_id, [FetchedOffset(0)])]
    bench.commit(offset=1)
    assert bench.offset() == 1


def test_an_offset_without_a_topic_id_is_anybodys(bench: OffsetBench) -> None:
    bench.replay("g", "orders", 0, 5)
    assert bench.offset() == 5


# -- delete ------------------------------------------------------------------------------------------------------------------


def test_delete(bench: OffsetBench) -> None:
    bench.commit(partition=0)
    bench.commit(partition=1)
    bench.replay("g", "orders", 2, 9, producer_id=3)
    answer = bench.decide(lambda offsets: offsets.delete("g", [("orders", [0, 2, 3, 7]), ("nowhere", [0])]))
    assert answer == [("orders", [(0, NONE), (2, NONE), (3, NONE), (7, UNKNOWN)]), ("nowhere", [(0, UNKNOWN)])]
    tombstones = [record for record in bench.machine.replayed if record.value is None]
    assert tombstones == [OffsetCommitRecord("g", "orders", 0, None), OffsetCommitRecord("g", "orders", 2, None)]
    assert list(bench.offsets.of_group("g")["orders"]) == [1]
    assert not bench.offsets.pending
    assert bench.offsets.deletions == 2


def test_topics_that_a_member_reads_are_kept() -> None:
    bench = OffsetBench("orders", "bills")
    bench.commit("g", "orders")
    bench.commit("g", "bills")
    group = bench.group("g")
    group.has_members, group.protocol_type, group.subscribed = True, "consumer", ("orders",)
    answer = bench.decide(lambda offsets: offsets.delete("g", [("orders", [0, 9]), ("bills", [0])]))
    assert answer == [("orders", [(0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC), (9, UNKNOWN)]), ("bills", [(0, NONE)])]
    assert (bench.offset(topic="orders"), bench.offset(topic="bills")) == (1, -1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"has_members": True, "protocol_type": "connect"}, ErrorCode.NON_EMPTY_GROUP),
        ({"has_members": True, "protocol_type": "consumer"}, None),
        ({"has_members": False, "protocol_type": "connect"}, None),
        ({"has_members": True, "protocol_type": "consumer", "type": GroupType.CONSUMER}, None),
    ],
)
def test_a_group_whose_members_read_nobody_knows_what(
    bench: OffsetBench, fields: dict[str, Any], expected: ErrorCode | None
) -> None:
    bench.commit()
    for name, value in fields.items():
        setattr(bench.group("g"), name, value)
    refused = pytest.raises(ApiError, match="has members") if expected is not None else nullcontext()
    with refused as refusal:
        bench.decide(lambda offsets: offsets.delete("g", [("orders", [0])]))
    assert (refusal and refusal.value.code) is expected
    assert bench.offset() == (-1 if expected is None else 1)


@pytest.mark.parametrize(("group_id", "expected"), [("unknown", ErrorCode.GROUP_ID_NOT_FOUND), ("", ErrorCode.INVALID_GROUP_ID)])
def test_delete_of_a_group_that_is_none(bench: OffsetBench, group_id: str, expected: ErrorCode) -> None:
    bench.commit("")
    with pytest.raises(ApiError) as refused:
        bench.offsets.delete(group_id, [("orders", [0])])
    assert refused.value.code is expected
    # Nothing that exists is to be deleted: nobody looks at the group.
    assert bench.offsets.delete(group_id, [("orders", [9])]).response == [("orders", [(9, UNKNOWN)])]


def test_tombstones_for_a_whole_group() -> None:
    bench = OffsetBench("orders", "bills")
    bench.commit("g", "orders", 0)
    bench.commit("g", "bills", 1)
    bench.commit("h", "bills", 1)
    bench.replay("g", "bills", 1, 9, producer_id=3)
    bench.replay("g", "bills", 2, 9, producer_id=3)
    tombstones = bench.offsets.tombstones("g")
    assert tombstones == [
        OffsetCommitRecord("g", topic, partition, None) for topic, partition in (("orders", 0), ("bills", 1), ("bills", 2))
    ]
    for record in tombstones:
        bench.offsets.replay(record, 0, -1, -1)
    assert bench.offsets.count == 1
    assert not bench.offsets.pending
    assert bench.offsets.tombstones("g") == []
