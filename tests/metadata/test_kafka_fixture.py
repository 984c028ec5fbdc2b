"""Apache Kafka's own metadata log: read, written back byte for byte, and replayed into what its admin client said."""

import base64

from tests.metadata.kafka_fixture import read_batches, read_expected
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import SCHEMAS, decode_record, encode_record

# A single broker writes none of these: nobody is unregistered, old versions fenced by other records, nothing was aborted.
NOT_IN_THE_FIXTURE = {
    "UnregisterBrokerRecord",
    "FenceBrokerRecord",
    "UnfenceBrokerRecord",
    "AbortTransactionRecord",
    "ClientQuotaRecord",
}


def replayed() -> ClusterImage:
    image = ClusterImage()
    for batch in read_batches():
        if not batch.is_control:
            image.replay([decode_record(value)[0] for value in batch.values], batch.last_offset)
    return image


def librdkafka_id(topic_id: bytes) -> str:
    return base64.b64encode(topic_id).decode().rstrip("=")


def test_every_record_is_written_back_as_it_was() -> None:
    values = [value for batch in read_batches() if not batch.is_control for value in batch.values]
    assert len(values) == 79
    for value in values:
        record, version = decode_record(value)
        assert encode_record(record, version) == value


def test_the_fixture_has_every_kind_of_record_that_a_broker_alone_writes() -> None:
    records = [decode_record(value)[0] for batch in read_batches() if not batch.is_control for value in batch.values]
    known = {schema.record_type.__name__ for schema in SCHEMAS.values()}
    assert {type(record).__name__ for record in records} == known - NOT_IN_THE_FIXTURE


def test_topics_and_partitions_are_those_that_kafka_describes() -> None:
    image, expected = replayed(), read_expected()
    assert sorted(topic.name for topic in image.topics) == expected["listed"]
    for name, described in expected["topics"].items():
        topic = image.topic(name)
        assert topic is not None
        assert image.topic_by_id(topic.topic_id) is topic
        assert librdkafka_id(topic.topic_id) == described["topic_id"]
        partitions = [
            {
                "partition": index,
                "leader": partition.leader,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
            }
            for index, partition in sorted(topic.partitions.items())
        ]
        assert partitions == described["partitions"]


def test_configs_are_those_that_kafka_describes() -> None:
    image, expected = replayed(), read_expected()
    for name, described in expected["topics"].items():
        assert image.configs_of(ResourceType.TOPIC, name) == described["configs"]
    assert image.configs_of(ResourceType.TOPIC, "gone") == {}
    assert image.configs_of(ResourceType.BROKER, str(expected["node_id"])) == expected["broker_configs"]
    assert image.configs_of(ResourceType.BROKER, ALL_BROKERS) == {"min.insync.replicas": "1"}


def test_the_rest_of_the_image() -> None:
    image, expected = replayed(), read_expected()
    broker = image.brokers.find(expected["node_id"])
    assert broker is not None
    assert broker.is_active
    assert broker.broker_epoch == 66
    assert [(point.name, point.host, point.port) for point in broker.end_points] == [("PLAINTEXT", "127.0.0.1", expected["port"])]
    assert list(image.controllers) == [expected["node_id"]]
    assert image.features["metadata.version"] == 30
    assert image.features["transaction.version"] == 2
    assert image.next_producer_id == 1000
    assert not image.in_transaction
    # Led, lost its leader by the stop, led again by the restart.
    plain = image.topic("plain")
    assert plain is not None
    assert plain.partitions[0].leader_epoch == 2
    assert plain.partitions[0].partition_epoch == 2
