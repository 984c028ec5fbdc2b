import pytest

from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    InconsistentRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

ID = b"i" * 16
OTHER_ID = b"j" * 16


def image_of(*records: MetadataRecord) -> ClusterImage:
    image = ClusterImage()
    image.replay(records, len(records) - 1)
    return image


def orders(partitions: int = 1, topic_id: bytes = ID, name: str = "orders") -> list[MetadataRecord]:
    return [
        TopicRecord(name, topic_id),
        *(PartitionRecord(index, topic_id, (1, 2), (1,), leader=1, leader_epoch=0) for index in range(partitions)),
    ]


def test_a_new_image_is_empty_and_a_replayed_one_is_not() -> None:
    assert ClusterImage().is_empty
    image = ClusterImage()
    image.replay([NoOpRecord()], 7)
    assert not image.is_empty
    assert image.last_offset == 7


def test_the_version_moves_only_with_what_changed() -> None:
    image = image_of(*orders())
    assert image.version == 1
    image.replay([NoOpRecord(), ProducerIdsRecord(1, 5, 2000)], 3)
    assert image.version == 1
    assert image.next_producer_id == 2000
    image.replay([ConfigRecord(ResourceType.TOPIC, "orders", "retention.ms", "5")], 4)
    assert image.version == 2


def test_a_delta_tells_what_was_created_and_changed() -> None:
    image = ClusterImage()
    delta = image.replay([*orders(2), ConfigRecord(ResourceType.TOPIC, "orders", "retention.ms", "5")], 3)
    assert [topic.name for topic in delta.topics_created.values()] == ["orders"]
    assert delta.partitions_changed == {ID: {0: None, 1: None}}
    assert delta.configs_changed == {(ResourceType.TOPIC, "orders"): None}
    delta = image.replay([PartitionChangeRecord(1, ID, leader=2), FeatureLevelRecord("metadata.version", 30)], 4)
    assert delta.topics_created == {}
    assert delta.partitions_changed == {ID: {1: None}}
    assert delta.features_changed == {"metadata.version": None}
    delta = image.replay([RegisterBrokerRecord(3)], 5)
    assert delta.brokers_changed == {3: None}
    assert image.replay([RegisterControllerRecord(1, ID)], 6).is_empty


def test_a_deleted_topic_takes_its_configs_and_is_handed_out_as_it_was() -> None:
    image = image_of(*orders(2), ConfigRecord(ResourceType.TOPIC, "orders", "retention.ms", "5"))
    delta = image.replay([RemoveTopicRecord(ID)], 4)
    assert [(topic.name, len(topic.partitions)) for topic in delta.topics_deleted.values()] == [("orders", 2)]
    assert delta.partitions_changed == {}
    assert image.topic("orders") is None
    assert image.topic_by_id(ID) is None
    assert image.configs_of(ResourceType.TOPIC, "orders") == {}
    assert list(image.configs.resources()) == []


def test_a_topic_that_came_and_went_in_one_batch_is_not_news() -> None:
    image = image_of(*orders())
    delta = image.replay([*orders(2, OTHER_ID, "short"), RemoveTopicRecord(OTHER_ID)], 9)
    assert delta.is_empty


def test_deleted_and_created_again_in_one_batch_is_both() -> None:
    image = image_of(*orders())
    delta = image.replay([RemoveTopicRecord(ID), *orders(1, OTHER_ID)], 9)
    assert list(delta.topics_deleted) == [ID]
    assert list(delta.topics_created) == [OTHER_ID]
    assert delta.partitions_changed == {OTHER_ID: {0: None}}


def test_a_transaction_counts_when_it_ends() -> None:
    image = ClusterImage()
    assert image.replay([BeginTransactionRecord(), *orders()], 2).is_empty
    assert (image.in_transaction, image.topic("orders")) == (True, None)
    delta = image.replay([ConfigRecord(ResourceType.TOPIC, "orders", "retention.ms", "5"), EndTransactionRecord()], 4)
    assert (image.in_transaction, list(delta.topics_created)) == (False, [ID])
    assert image.topic("orders") is not None


def test_an_aborted_transaction_leaves_nothing() -> None:
    image = ClusterImage()
    delta = image.replay([BeginTransactionRecord(), *orders(), AbortTransactionRecord("why"), *orders(1, OTHER_ID)], 6)
    assert list(delta.topics_created) == [OTHER_ID]
    assert image.topic_by_id(ID) is None
    assert not image.in_transaction


@pytest.mark.parametrize(
    "records",
    [
        [EndTransactionRecord()],
        [AbortTransactionRecord()],
        [BeginTransactionRecord(), BeginTransactionRecord()],
        [PartitionRecord(0, ID, (1,), (1,))],
        [PartitionChangeRecord(0, ID)],
        [*orders(), PartitionChangeRecord(1, ID)],
        [*orders(), *orders()],
        [*orders(), TopicRecord("orders", OTHER_ID)],
        [*orders(), TopicRecord("other", ID)],
        [RemoveTopicRecord(ID)],
    ],
)
def test_a_log_that_does_not_fit_together_is_refused(records: list[MetadataRecord]) -> None:
    with pytest.raises(InconsistentRecord):
        image_of(*records)
