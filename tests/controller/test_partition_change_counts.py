"""Elections and changes of in-sync sets are counted by what their records say, and unclean elections name what may be lost."""

from tests.controller.cluster import new_image, replay, topic_id
from tidelog.controller.partition_change_counts import PartitionChangeCounts
from tidelog.metadata.records import MetadataRecord, NoOpRecord, PartitionChangeRecord

ID = topic_id("orders")


def test_clean_and_unclean_elections_are_told_apart() -> None:
    image = replay(new_image((1, 2, 3), orders=2), [PartitionChangeRecord(1, ID, isr=(1,), leader=-1, last_known_elr=(1,))])
    counts = PartitionChangeCounts()
    records: list[MetadataRecord] = [
        NoOpRecord(),
        PartitionChangeRecord(0, ID, isr=(1, 2)),
        PartitionChangeRecord(0, ID, leader=-1),
        PartitionChangeRecord(0, ID, leader=2),
        PartitionChangeRecord(1, ID, isr=(3,), leader=3, leader_recovery_state=1),
    ]
    (loss,) = counts.count(counts.find(image, records))
    assert (counts.clean_elections, counts.unclean_elections) == (1, 1)
    assert (loss["partition"], loss["leader"], loss["had_every_record"]) == ("orders-1", 3, [1])
    assert "broker 3 does not have" in str(loss["may_be_lost"])


def test_in_sync_sets_that_shrink_and_grow() -> None:
    image = replay(new_image((1, 2, 3), orders=2), [PartitionChangeRecord(1, ID, isr=(1,))])
    counts = PartitionChangeCounts()
    records: list[MetadataRecord] = [
        PartitionChangeRecord(0, ID, isr=(1, 3)),
        PartitionChangeRecord(1, ID, isr=(2, 1)),
        PartitionChangeRecord(1, ID, leader=1),
    ]
    assert counts.count(counts.find(image, records)) == []
    assert (counts.isr_shrinks, counts.isr_expansions) == (1, 1)


def test_what_was_not_committed_is_not_counted() -> None:
    counts = PartitionChangeCounts()
    assert len(counts.find(new_image((1, 2), orders=1), [PartitionChangeRecord(0, ID, leader=2)])) == 1
    assert (counts.clean_elections, counts.unclean_elections) == (0, 0)
