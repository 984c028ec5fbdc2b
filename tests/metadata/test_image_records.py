"""An image, frozen and written as records, gives an equal image; and the difference of two images is what the records between
them would have reported."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.metadata.client_quotas import quota_entity
from tidelog.metadata.image import ClusterImage, ImageDelta
from tidelog.metadata.image_difference import image_difference
from tidelog.metadata.image_records import image_records
from tidelog.metadata.records import (
    BrokerEndpoint,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    SupportedFeature,
    TopicRecord,
    UnregisterBrokerRecord,
    decode_record,
    encode_record,
)
from tidelog.ports.steps import run_to_end


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def records_of(image: ClusterImage) -> list[MetadataRecord]:
    return list(image_records(image.freeze()))


def state_of(image: ClusterImage) -> list[bytes]:
    return sorted(encode_record(record) for record in records_of(image))


def read_back(records: list[MetadataRecord], last_offset: int) -> ClusterImage:
    image = ClusterImage()
    image.replay([decode_record(encode_record(record))[0] for record in records], last_offset)
    return image


EVERYTHING: list[MetadataRecord] = [
    FeatureLevelRecord("transaction.version", 2),
    FeatureLevelRecord("metadata.version", 30),
    RegisterBrokerRecord(
        1,
        incarnation_id=topic_id(9),
        broker_epoch=4,
        end_points=(BrokerEndpoint("PLAINTEXT", "a.example", 9092, 0),),
        features=(SupportedFeature("metadata.version", 1, 30),),
        rack="b",
        fenced=False,
        log_dirs=(topic_id(8),),
    ),
    RegisterControllerRecord(3, topic_id(7), end_points=(BrokerEndpoint("CONTROLLER", "b.example", 9093, 0),)),
    TopicRecord("orders", topic_id(1)),
    PartitionRecord(
        0, topic_id(1), (1, 2), (1,), adding_replicas=(2,), leader=1, leader_epoch=3, partition_epoch=5,
        directories=(topic_id(8), topic_id(8)), eligible_leader_replicas=(2,),
    ),
    PartitionRecord(1, topic_id(1), (2,), (2,), leader=2, leader_epoch=0, partition_epoch=0),
    ConfigRecord(2, "orders", "retention.ms", "5"),
    ConfigRecord(4, "", "num.partitions", "7"),
    ClientQuotaRecord(quota_entity([("user", "ann"), ("client-id", None)]), "producer_byte_rate", 5.0),
    ProducerIdsRecord(1, 4, 2000),
]  # fmt: skip


def test_an_image_is_its_records() -> None:
    image = read_back(EVERYTHING, 10)
    records = records_of(image)
    assert records[0] == FeatureLevelRecord("metadata.version", 30)
    copy = read_back(records, 10)
    assert state_of(copy) == state_of(image)
    assert [topic.partitions for topic in copy.topics] == [topic.partitions for topic in image.topics]
    assert copy.next_producer_id == 2000


def test_a_frozen_image_stays_as_it_was() -> None:
    image = read_back(EVERYTHING, 10)
    frozen = image.freeze()
    before = list(image_records(frozen))
    image.replay(
        [
            PartitionChangeRecord(0, topic_id(1), isr=(1, 2)),
            PartitionRecord(2, topic_id(1), (1,), (1,), leader=1),
            ConfigRecord(2, "orders", "retention.ms", "6"),
            ConfigRecord(4, "", "num.partitions", None),
            ClientQuotaRecord(quota_entity([("user", "ann"), ("client-id", None)]), "producer_byte_rate", remove=True),
            FenceBrokerRecord(1, 4),
            FeatureLevelRecord("transaction.version", 0),
            TopicRecord("more", topic_id(2)),
        ],
        18,
    )
    assert list(image_records(frozen)) == before
    assert state_of(image) != sorted(map(encode_record, before))


def test_an_image_that_becomes_another_keeps_its_parts() -> None:
    """Others hold the parts of an image, and topics: they see the new content through what they hold."""
    image, other = read_back(EVERYTHING, 10), read_back(EVERYTHING, 10)
    topics, quotas, orders, features = image.topics, image.client_quotas, image.topic("orders"), image.features
    other.replay([PartitionChangeRecord(0, topic_id(1), leader=2), FeatureLevelRecord("transaction.version", 1)], 12)
    expected = state_of(other)
    image.become(other)
    assert (image.topics, image.client_quotas, image.topic("orders"), image.features) == (topics, quotas, orders, features)
    assert orders is not None
    assert orders.partitions[0].leader == 2
    assert orders is topics.find_by_id(topic_id(1))
    assert features["transaction.version"] == 1
    assert state_of(image) == expected
    assert image.last_offset == 12


# -- any history ---------------------------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[MetadataRecord], list[MetadataRecord]]:
    """A sequence of records that fit each other, in two parts."""
    image, records = ClusterImage(), list[MetadataRecord]()
    next_id = 1
    for offset in range(draw(st.integers(0, 25))):
        topics = list(image.topics)
        kind = draw(st.sampled_from(("topic", "partition", "change", "remove", "config", "quota", "broker", "feature")))
        record: MetadataRecord = FeatureLevelRecord(draw(st.sampled_from("ab")), draw(st.integers(0, 2)))
        if kind == "topic":
            record = TopicRecord(draw(st.sampled_from(["x", "y", "z"])), topic_id(next_id))
            if image.topic(record.name) is not None:
                continue
            next_id += 1
        elif kind in ("partition", "change", "remove") and topics:
            topic = draw(st.sampled_from(topics))
            record = RemoveTopicRecord(topic.topic_id)
            if kind == "partition":
                record = PartitionRecord(len(topic.partitions), topic.topic_id, (1,), (1,), leader=1)
            elif kind == "change" and topic.partitions:
                record = PartitionChangeRecord(0, topic.topic_id, leader=draw(st.integers(1, 2)))
        elif kind == "config":
            record = ConfigRecord(2, draw(st.sampled_from("xy")), "c", draw(st.sampled_from([None, "1", "2"])))
        elif kind == "quota":
            record = ClientQuotaRecord(quota_entity([("user", "u")]), "k", draw(st.sampled_from([1.0, 2.0])), draw(st.booleans()))
        elif kind == "broker":
            record = RegisterBrokerRecord(draw(st.integers(1, 2)), broker_epoch=offset)
            if record.broker_id in image.brokers and draw(st.booleans()):
                known = image.brokers.find(record.broker_id)
                assert known is not None
                record = UnregisterBrokerRecord(known.broker_id, known.broker_epoch)
        image.replay([record], offset)
        records.append(record)
    cut = draw(st.integers(0, len(records)))
    return records[:cut], records[cut:]


@given(histories())
@settings(max_examples=150)
def test_a_difference_is_what_the_records_between_report(parts: tuple[list[MetadataRecord], list[MetadataRecord]]) -> None:
    first, second = parts
    image, followed = read_back(first, len(first)), read_back(first, len(first))
    after = read_back([*first, *second], len(first) + len(second))
    snapshot = read_back(records_of(after), after.last_offset)
    assert state_of(snapshot) == state_of(after)

    reported = followed.replay(second, after.last_offset)
    delta = run_to_end(image_difference(image, snapshot))
    image.become(snapshot)
    assert state_of(image) == state_of(followed)
    check_covered(delta, reported, image)


def check_covered(delta: ImageDelta, reported: ImageDelta, image: ClusterImage) -> None:
    """The difference names exactly the topics, and no more than what the records named: they may have changed something back."""
    assert set(delta.topics_deleted) == set(reported.topics_deleted)
    assert set(delta.topics_created) == set(reported.topics_created)
    for each in delta.topics_created.values():
        assert image.topic_by_id(each.topic_id) is each
    for each_id, indexes in delta.partitions_changed.items():
        assert set(indexes) <= set(reported.partitions_changed[each_id])
    for each_id in reported.topics_created:
        assert set(delta.partitions_changed.get(each_id, {})) == set(reported.partitions_changed.get(each_id, {}))
    assert set(delta.brokers_changed) <= set(reported.brokers_changed)
    assert set(delta.features_changed) <= set(reported.features_changed)
    assert reported.quotas_changed or not delta.quotas_changed
