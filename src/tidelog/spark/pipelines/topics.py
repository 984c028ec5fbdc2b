"""Looks up what pipelines need to know about topics before they begin, and reads rows of a topic by ranges of offsets."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from tidelog.client.admin import Admin
from tidelog.client.fetch.client import FetchClient
from tidelog.client.fetch.settings import librdkafka_settings
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.options import SourceOptions
from tidelog.spark.pipelines.offset_ranges import OffsetRange
from tidelog.spark.pipelines.options import ClusterOptions
from tidelog.spark.spark_session import parallelism

SETTINGS_SECONDS_MAX = 30.0


class FoundTopic(NamedTuple):
    name: str
    topic_id: str
    """The id as text; empty if the cluster has no topic ids."""
    partitions: int


def find_topics(options: ClusterOptions, names: Sequence[str]) -> list[FoundTopic]:
    """Raises UnknownTopic when one is missing."""
    with FetchClient(options.bootstrap, settings=options.settings) as client:
        found = client.topics(list(names))
    return [FoundTopic(name, id_text(found[name].topic_id), found[name].partitions) for name in names]


def id_text(topic_id: bytes) -> str:
    """The id as tables keep it."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if any(topic_id) else ""


class TopicSnapshot(NamedTuple):
    topic: str
    topic_id: bytes
    log_starts: Mapping[int, int]
    ends: Mapping[int, int]
    """The last stable offsets: a reader sees nothing of transactions that are open."""
    settings: Mapping[str, str]

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.settings.get("cleanup.policy", "")


def librdkafka_source(options: ClusterOptions, topic: str) -> dict[str, str]:
    """Use librdkafka, so that a table is checked against another fetcher than the one that filled it."""
    ours = {"subscribe": topic, "fetcher": "librdkafka", "includeHeaders": "true", "failOnDataLoss": "false"}
    return {**options.connection, **ours}


def topic_snapshot(given: Mapping[str, str]) -> TopicSnapshot:
    """Look up the topics in the cluster that the source's options name."""
    options = SourceOptions.parse(given, is_stream=False)
    (topic,) = options.topics.names
    connection = options.connection
    settings = dict(connection.settings)
    with FetchClient(connection.bootstrap, settings=settings, isolation=options.isolation, fetcher=options.fetcher) as client:
        info = client.topics([topic])[topic]
        partitions = [TopicPartition(topic, number) for number in range(info.partitions)]
        # Look up the ends first: a log's start only grows, and no start must appear later than it was.
        ends = client.offsets(partitions, "latest")
        starts = client.offsets(partitions, "earliest")
    return TopicSnapshot(
        topic, info.topic_id, _numbered(starts), _numbered(ends), _settings(connection.bootstrap, settings, topic)
    )


def _numbered(offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {partition.partition: offset for partition, offset in offsets.items()}


def _settings(bootstrap: str, given: Mapping[str, str], topic: str) -> dict[str, str]:
    with Admin(bootstrap, timeout=SETTINGS_SECONDS_MAX, config=librdkafka_settings(given)) as admin:
        return {name: str(setting.value) for name, setting in admin.describe_configs("topic", topic).items()}


def topic_rows(spark: SparkSession, options: Mapping[str, str], topic: str, ranges: Sequence[OffsetRange]) -> DataFrame:
    """The rows of these offsets, with headers. Rows that retention deletes in the meantime are missing."""
    wanted: dict[str, list[tuple[int, int]]] = {}
    for each in ranges:
        wanted.setdefault(str(each.partition), []).append((each.start, each.end))
    reader = spark.read.format("tidelog").options(**options)
    reader = reader.option("minPartitions", parallelism(spark))
    return reader.option("offsetRanges", json.dumps({topic: wanted})).load()
