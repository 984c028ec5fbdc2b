"""The broker of the toolkit's tests: Tidelog, or Apache Kafka where TIDELOG_TEST_ON=kafka (``make test-on-kafka``).

The toolkit speaks only Kafka, so its tests take the fixture ``kafka`` and ask it for nothing but ``bootstrap``. A test that wants
more of its broker (to kill it, to look into it) starts a ``tidelog.testing.Broker`` of its own, and is marked ``tidelog_only``
when there would be nothing left of it on another broker.

A topic of Apache Kafka is not seen everywhere in the moment in which its creation is answered: ``create_topic`` waits for that.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.compatibility.apache_kafka import ApacheKafka, KafkaUnavailable, kafka_classpath, wait_until
from tidelog.client.admin import Admin, NewTopicSpec

# Tests send messages with old timestamps, and retention would delete them when the shared broker is five minutes old.
CONFIGS = {"log.retention.check.interval.ms": str(24 * 3_600_000)}
IS_ON_KAFKA = os.environ.get("TIDELOG_TEST_ON") == "kafka"


class ToolkitBroker(NamedTuple):
    bootstrap: str

    @property
    def bootstrap_servers(self) -> str:
        """As ``Broker`` calls it."""
        return self.bootstrap


def create_topic(bootstrap: str, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    """Returns its name, when clients can see it and its leaders answer."""
    with Admin(bootstrap) as admin:
        error = admin.create_topics([NewTopicSpec(name, partitions, configs=dict(config or {}))])[name]
        if error is not None:
            raise error
        wait_until(lambda: name in admin.describe_cluster().topics, f"topic {name} is seen")
        admin.list_offsets([(name, number) for number in range(partitions)], "latest")
    return name


def wait_for_markers(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """The end of a transaction is answered before its markers are written, and up to them readers see an open transaction."""
    wanted = [(topic, number) for number in range(partitions)]
    with Admin(bootstrap) as admin:
        wait_until(
            lambda: admin.list_offsets(wanted, "latest", isolation="read_committed") == admin.list_offsets(wanted, "latest"),
            f"the markers of the last transaction in {topic}",
        )


def apache_kafka() -> Iterator[ToolkitBroker]:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="toolkit-on-kafka-") as root, ApacheKafka(Path(root), configs=CONFIGS) as broker:
        yield ToolkitBroker(broker.bootstrap_servers)


if IS_ON_KAFKA:

    @pytest.fixture(scope="session")
    def kafka() -> Iterator[ToolkitBroker]:
        yield from apache_kafka()

    # Tests that took the plug-in's fixture run on Apache Kafka too.
    @pytest.fixture(scope="session")
    def tidelog_broker(kafka: ToolkitBroker) -> ToolkitBroker:
        return kafka

else:
    from tidelog.testing import Broker

    @pytest.fixture(scope="session")
    def kafka(tidelog_broker: Broker) -> ToolkitBroker:
        return ToolkitBroker(tidelog_broker.bootstrap_servers)
