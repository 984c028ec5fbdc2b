"""Kafka made to open partitions that it did not write.

A KRaft broker opens a partition directory as its own when three ids agree with its metadata: ``cluster.id`` and ``node.id`` in
``meta.properties``, ``directory.id`` there (another one is a disk that the topics do not live on), and the topic's id in
``partition.metadata`` (another one, or none, makes the directory a stray: renamed, and an empty partition put in its place). So
the topics are created in Kafka first, its ids are handed to the writer of the directory, and then Kafka starts again, with
the same metadata, on that directory.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.compatibility.apache_kafka import ApacheKafka, KafkaFailed
from tests.compatibility.kafka_client import ReadPartition, admin_client, create_topic, read_partition


class KafkaIdentity(NamedTuple):
    """What the directory has to say so that Kafka takes it for its own. Ids are base64url, as in the files."""

    cluster_id: str
    node_id: int
    directory_id: str
    topic_ids: dict[str, str]


class KafkaFound(NamedTuple):
    everything: ReadPartition
    committed: ReadPartition


class KafkaReading(NamedTuple):
    partitions: dict[tuple[str, int], KafkaFound]
    output: str
    """The broker's own log, which says what it recovered, rebuilt or refused."""

    def lines_about(self, topic: str, *words: str) -> list[str]:
        """The lines on a topic's partitions that have one of these words in them."""
        about = [line for line in self.output.splitlines() if f"partition={topic}-" in line or f"/{topic}-" in line]
        return [line for line in about if any(word in line for word in words)]


def create_topics(root: Path, topics: Mapping[str, Mapping[str, str]]) -> KafkaIdentity:
    """Start Kafka under ``root``, create the topics (name to configs; one partition each), stop it; the ids it gave."""
    with ApacheKafka(root) as kafka:
        admin = admin_client(kafka.bootstrap_servers)
        for topic, configs in topics.items():
            create_topic(admin, topic, configs)
        read_partition(kafka.bootstrap_servers, next(iter(topics)), 0, committed_only=False)
    directory = kafka.data_directory
    meta = read_properties(directory / "meta.properties", "=")
    topic_ids = {topic: read_properties(directory / f"{topic}-0" / "partition.metadata", ": ")["topic_id"] for topic in topics}
    return KafkaIdentity(meta["cluster.id"], int(meta["node.id"]), meta["directory.id"], topic_ids)


def read_properties(path: Path, separator: str) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition(separator) for line in lines)}


def read_with_kafka(root: Path, data_directory: Path, partitions: Iterable[tuple[str, int]]) -> KafkaReading:
    """Start Kafka, with the metadata under ``root``, on ``data_directory``, and read the partitions whole."""
    found: dict[tuple[str, int], KafkaFound] = {}
    with ApacheKafka(root, data_directory=data_directory) as kafka:
        for topic, partition in partitions:
            everything, committed = (
                read_partition(kafka.bootstrap_servers, topic, partition, committed_only=committed_only)
                for committed_only in (False, True)
            )
            found[topic, partition] = KafkaFound(everything, committed)
        output = kafka.output()
    strays = [path.name for path in data_directory.glob("*-stray")]
    if strays:
        raise KafkaFailed(f"Kafka does not take these for its own: {strays}")
    return KafkaReading(found, output)
