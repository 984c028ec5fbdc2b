import dataclasses

from tidelog.metadata.records import PartitionChangeRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from tidelog.metadata.topics import PartitionImage, TopicsImage

ID = b"i" * 16
DIRECTORY = b"d" * 16
PARTITION = PartitionImage(
    replicas=(1, 2, 3),
    isr=(1, 2),
    leader=1,
    leader_epoch=4,
    partition_epoch=7,
    leader_recovery_state=1,
    removing_replicas=(3,),
    adding_replicas=(2,),
    directories=(DIRECTORY, DIRECTORY, DIRECTORY),
    eligible_leader_replicas=(3,),
    last_known_elr=(2,),
)


def topics_with_a_partition() -> TopicsImage:
    topics = TopicsImage()
    topics.create(TopicRecord("orders", ID))
    topics.set_partition(PartitionRecord(partition_id=0, topic_id=ID, **dataclasses.asdict(PARTITION)))
    return topics


def changed(record: PartitionChangeRecord) -> PartitionImage:
    return topics_with_a_partition().change_partition(record).partitions[0]


def test_a_partition_is_as_its_record_says() -> None:
    topic = topics_with_a_partition().find("orders")
    assert topic is not None
    assert topic.partitions == {0: PARTITION}


def test_what_a_change_does_not_name_stays_and_the_partition_epoch_moves() -> None:
    assert changed(PartitionChangeRecord(0, ID)) == dataclasses.replace(PARTITION, partition_epoch=8)


def test_a_change_of_everything() -> None:
    record = PartitionChangeRecord(0, ID, (2,), 2, (2, 4), (), (4,), 0, (DIRECTORY,), (), (9,))
    assert changed(record) == PartitionImage((2, 4), (2,), 2, 5, 8, 0, (), (4,), (DIRECTORY,), (), (9,))


def test_naming_the_same_leader_begins_a_leader_epoch() -> None:
    assert changed(PartitionChangeRecord(0, ID, leader=1)) == dataclasses.replace(PARTITION, leader_epoch=5, partition_epoch=8)


def test_losing_the_leader_begins_a_leader_epoch() -> None:
    assert changed(PartitionChangeRecord(0, ID, leader=-1)).leader == -1
    assert changed(PartitionChangeRecord(0, ID, leader=-1)).leader_epoch == 5


def test_names_alike_but_for_dots_and_underscores_are_found() -> None:
    topics = TopicsImage()
    topics.create(TopicRecord("a.b_c", ID))
    assert topics.name_like("a_b.c") == "a.b_c"
    assert topics.name_like("a-b.c") is None
    topics.remove(RemoveTopicRecord(ID))
    assert topics.name_like("a_b.c") is None


def test_topics_come_in_the_order_of_their_creation() -> None:
    topics = TopicsImage()
    for number, name in enumerate("cab"):
        topics.create(TopicRecord(name, bytes([number]) * 16))
    assert [topic.name for topic in topics] == ["c", "a", "b"]
    assert len(topics) == 3


def test_internal_topics_are_known_by_name() -> None:
    topics = TopicsImage()
    assert topics.create(TopicRecord("__consumer_offsets", ID)).is_internal
    assert not topics.create(TopicRecord("__mine", b"j" * 16)).is_internal
