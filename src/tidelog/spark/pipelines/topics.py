"""How pipelines are told about a cluster (``--bootstrap``, ``--kafka NAME=VALUE``), and what they ask it about topics."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from tidelog.client.admin import Admin
from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.client import FetchClient
from tidelog.client.fetch.settings import librdkafka_settings
from tidelog.client.topic_partition import Partition
from tidelog.spark.options import SourceOptions
from tidelog.spark.pipelines.offset_ranges import OffsetRange

BOOTSTRAP = "127.0.0.1:9092"


class FoundTopic(NamedTuple):
    name: str
    topic_id: str
    """Of letters; empty where the cluster has no ids for topics."""
    partitions: int


def kafka_settings(pairs: Sequence[str]) -> dict[str, str]:
    """librdkafka's settings, from what ``--kafka`` was given."""
    settings = {}
    for pair in pairs:
        name, is_pair, value = pair.removeprefix("kafka.").partition("=")
        if not is_pair or not name:
            raise InvalidArgument(f"--kafka {pair}: expected NAME=VALUE, as in sasl.username=me")
        settings[name] = value
    return settings


def spark_options(bootstrap: str, pairs: Sequence[str]) -> dict[str, str]:
    """The same, for ``format("tidelog")``."""
    return {"bootstrap": bootstrap} | {f"kafka.{name}": value for name, value in kafka_settings(pairs).items()}


def find_topics(bootstrap: str, pairs: Sequence[str], names: Sequence[str]) -> list[FoundTopic]:
    """UnknownTopic when one is missing."""
    with FetchClient(bootstrap, settings=kafka_settings(pairs)) as client:
        found = client.topics(list(names))
    return [FoundTopic(name, id_text(found[name].topic_id), found[name].partitions) for name in names]


def id_text(topic_id: bytes) -> str:
    """As tables keep it."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if any(topic_id) else ""


SETTINGS_SECONDS_MAX = 30.0


class TopicSnapshot(NamedTuple):
    topic: str
    topic_id: bytes
    log_starts: Mapping[int, int]
    ends: Mapping[int, int]
    """Of what a reader sees: before transactions that are open."""
    settings: Mapping[str, str]

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.settings.get("cleanup.policy", "")


def source_options(bootstrap: str, kafka: Sequence[str], topic: str) -> dict[str, str]:
    """librdkafka reads: whoever looks at a table's rows must not look with the eyes of who wrote them."""
    ours = {"subscribe": topic, "fetcher": "librdkafka", "includeHeaders": "true", "failOnDataLoss": "false"}
    return {**spark_options(bootstrap, kafka), **ours}


def topic_snapshot(given: Mapping[str, str]) -> TopicSnapshot:
    """By the options of the source."""
    options = SourceOptions.parse(given, is_stream=False)
    (topic,) = options.topics.names
    connection = options.connection
    settings = dict(connection.settings)
    with FetchClient(connection.bootstrap, settings=settings, isolation=options.isolation, fetcher=options.fetcher) as client:
        info = client.topics([topic])[topic]
        partitions = [Partition(topic, number) for number in range(info.partitions)]
        # The ends first: where a log starts only grows, and no start must be taken for later than it was.
        ends = client.offsets(partitions, "latest")
        starts = client.offsets(partitions, "earliest")
    return TopicSnapshot(
        topic, info.topic_id, _numbered(starts), _numbered(ends), _settings(connection.bootstrap, settings, topic)
    )


def _numbered(offsets: Mapping[Partition, int]) -> dict[int, int]:
    return {partition.partition: offset for partition, offset in offsets.items()}


def _settings(bootstrap: str, given: Mapping[str, str], topic: str) -> dict[str, str]:
    with Admin(bootstrap, timeout=SETTINGS_SECONDS_MAX, config=librdkafka_settings(given)) as admin:
        return {name: str(setting.value) for name, setting in admin.describe_configs("topic", topic).items()}


def topic_rows(spark: SparkSession, options: Mapping[str, str], topic: str, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Rows of these offsets, with headers; of what retention takes meanwhile, nothing."""
    wanted: dict[str, list[tuple[int, int]]] = {}
    for each in ranges:
        wanted.setdefault(str(each.partition), []).append((each.start, each.end))
    reader = spark.read.format("tidelog").options(**options)
    reader = reader.option("minPartitions", spark.sparkContext.defaultParallelism)
    return reader.option("offsetRanges", json.dumps({topic: wanted})).load()
