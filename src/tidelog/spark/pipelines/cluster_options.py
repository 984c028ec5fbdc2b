"""How pipelines are told of a cluster, ``--bootstrap`` and ``--kafka NAME=VALUE``, and what they ask it before they begin."""

import base64
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.client import FetchClient

BOOTSTRAP = "127.0.0.1:9092"


class Topic(NamedTuple):
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


def find_topics(bootstrap: str, pairs: Sequence[str], names: Sequence[str]) -> list[Topic]:
    """UnknownTopic when one is missing."""
    with FetchClient(bootstrap, settings=kafka_settings(pairs)) as client:
        found = client.topics(list(names))
    return [Topic(name, id_text(found[name].topic_id), found[name].partitions) for name in names]


def id_text(topic_id: bytes) -> str:
    """As tables keep it."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if any(topic_id) else ""
