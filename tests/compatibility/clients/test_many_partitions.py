"""A topic with a thousand partitions: made, described, written to, deleted."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import TopicCollection
from confluent_kafka.admin import NewTopic
from kafka.admin import KafkaAdminClient

from tests.compatibility.clients.client import CALL_SECONDS_MAX, NOW, Client
from tests.compatibility.clients.conftest import topic_name
from tests.compatibility.clients.kcat_client import KcatClient
from tests.compatibility.clients.waiting import wait_until
from tests.compatibility.kafka_records import SentRecord
from tidelog.testing import Broker

COUNT = 1_000


@pytest.fixture(scope="module")
def thousand(admin: Any) -> str:
    """One for all tests that do not delete it: removing so many files takes a slow disk seconds."""
    name = topic_name("thousand-shared")
    _create(admin, name)
    return name


def _create(admin: Any, name: str) -> None:
    new = NewTopic(name, COUNT, 1, config={"file.delete.delay.ms": "0"})
    admin.create_topics([new])[name].result(CALL_SECONDS_MAX)


def test_created_described_and_deleted(admin: Any, broker: Broker) -> None:
    name = topic_name("thousand")
    directories = Path(broker.data_path)

    _create(admin, name)
    described = admin.describe_topics(TopicCollection([name]))[name].result(CALL_SECONDS_MAX)
    assert sorted(partition.id for partition in described.partitions) == list(range(COUNT))
    assert {partition.leader.id for partition in described.partitions} == {1}
    wait_until(lambda: len(list(directories.glob(f"{name}-*"))) == COUNT, "a directory for each partition")

    admin.delete_topics([name])[name].result(CALL_SECONDS_MAX)
    assert name not in admin.list_topics(timeout=CALL_SECONDS_MAX).topics
    wait_until(lambda: not list(directories.glob(f"{name}-*")), "no directory of the deleted topic")


def test_written_and_read_here_and_there(client: Client, thousand: str) -> None:
    some = (COUNT - 1, 0, 500)
    ends = {partition: client.watermarks(thousand, partition).end_offset for partition in some}

    for partition in some:
        client.send(thousand, [SentRecord(None, str(partition).encode(), NOW)], partition=partition)

    for partition in some:
        (read,) = client.read(thousand, 1, partition=partition, offset=ends[partition])
        assert read.value == str(partition).encode()
    assert client.watermarks(thousand, 1) == (0, 0)


def kafka_python_partitions(bootstrap_servers: str, topic: str) -> int:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        (described,) = admin.describe_topics([topic])
        return len(described["partitions"])


def aiokafka_partitions(bootstrap_servers: str, topic: str) -> int:
    async def ask() -> int:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
        await admin.start()
        try:
            (described,) = await admin.describe_topics([topic])
            return len(described["partitions"])
        finally:
            await admin.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("partitions_of", [kafka_python_partitions, aiokafka_partitions])
def test_seen_by_other_clients(partitions_of: Callable[[str, str], int], broker: Broker, thousand: str) -> None:
    assert partitions_of(broker.bootstrap_servers, thousand) == COUNT


@pytest.mark.parametrize("client", [KcatClient.name], indirect=True)
def test_listed_by_kcat(client: KcatClient, thousand: str) -> None:
    assert f'topic "{thousand}" with {COUNT} partitions' in client.run("-L", "-t", thousand)
