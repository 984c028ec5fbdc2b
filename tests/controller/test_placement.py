from collections import Counter

import pytest

from tests.controller.cluster import DIRECTORY, new_image, randomness
from tidelog.controller.errors import ApiError
from tidelog.controller.placement import new_partitions, place
from tidelog.metadata.records import RegisterBrokerRecord
from tidelog.wire.errors import ErrorCode


def test_small_topics_do_not_all_begin_on_one_broker() -> None:
    image = new_image((1, 2, 3))
    draws = randomness()
    assert {place(image, 1, 1, draws)[0] for _ in range(50)} == {(1,), (2,), (3,)}


def test_every_partition_has_the_replicas_asked_for() -> None:
    for replication_factor in (1, 2, 3):
        placed = place(new_image((1, 2, 3)), 5, replication_factor, randomness())
        assert [len(set(replicas)) for replicas in placed] == [replication_factor] * 5


def test_a_broker_that_is_down_gets_only_the_replicas_that_nobody_else_can_have() -> None:
    image = new_image((1, 2, 3), fenced=(2,))
    for replication_factor, with_the_second in ((1, 0), (2, 0), (3, 20)):
        placed = place(image, 20, replication_factor, randomness())
        assert all(replicas[0] != 2 for replicas in placed), "it cannot lead"
        assert sum(2 in replicas for replicas in placed) == with_the_second
        assert {len(set(replicas)) for replicas in placed} == {replication_factor}
    for fenced, factor, reason in (
        ((2,), 4, "only 3 broker\\(s\\) are registered"),
        ((1, 2, 3), 1, "all brokers are currently fenced"),
    ):
        with pytest.raises(ApiError, match=reason) as refused:
            place(new_image((1, 2, 3), fenced=fenced), 1, factor, randomness())
        assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_partition_whose_brokers_are_all_away_has_no_leader() -> None:
    (partition,) = new_partitions(new_image((1,), fenced=(1,)), b"i" * 16, 3, [(1,)])
    assert (partition.partition_id, partition.leader, partition.isr) == (3, -1, ())


def test_the_log_directory_is_named_where_there_is_one_only() -> None:
    image = new_image((1, 2))
    image.replay([RegisterBrokerRecord(2, fenced=False, log_dirs=(b"a" * 16, b"b" * 16))], 1)
    assert [partition.directories for partition in new_partitions(image, b"i" * 16, 0, [(1, 2), (2, 1), (1, 2)])] == [
        (DIRECTORY, bytes(16)),
        (bytes(16), DIRECTORY),
        (DIRECTORY, bytes(16)),
    ]


def test_replicas_are_in_as_many_racks_as_there_are() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    image = new_image(tuple(racks))
    image.replay([RegisterBrokerRecord(broker, fenced=False, rack=rack) for broker, rack in racks.items()], 1)
    for replicas in place(image, 12, 3, randomness()):
        assert {racks[broker] for broker in replicas} == {"a", "b", "c"}
    placed = place(image, 12, 3, randomness())
    assert Counter(broker for replicas in placed for broker in replicas) == dict.fromkeys(racks, 6)
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(racks, 2)


def test_fewer_racks_than_replicas_and_racks_of_different_size() -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    image = new_image(tuple(racks))
    image.replay([RegisterBrokerRecord(broker, fenced=False, rack=rack) for broker, rack in racks.items()], 1)
    for replicas in place(image, 8, 3, randomness()):
        assert 4 in replicas
        assert len(set(replicas)) == 3
