"""The admin client of aiokafka: old versions of the admin APIs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidPartitionsError, OffsetOutOfRangeError

from tests.compatibility.clients.aiokafka_client import AiokafkaClient
from tests.compatibility.clients.client import CALL_SECONDS_MAX, NOW
from tests.compatibility.clients.conftest import MakeTopic, topic_name
from tests.compatibility.clients.waiting import LOOK_SECONDS
from tests.compatibility.kafka_records import SentRecord
from tidelog.testing import Broker

NODE_ID = 1
TOPIC_ALREADY_EXISTS = 36
INVALID_CONFIG = 40
UNKNOWN_TOPIC_OR_PARTITION = 3


@asynccontextmanager
async def started(broker: Broker) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


def with_admin(broker: Broker, work: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        async with started(broker) as admin:
            await work(admin)

    asyncio.run(run())


async def topic_configs(admin: Any, topic: str) -> dict[str, tuple[Any, ...]]:
    (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], include_synonyms=True)
    ((_, _, _, _, configs),) = response.resources
    return {name: (value, *rest) for name, value, *rest in configs}


def test_create_describe_and_delete_a_topic(broker: Broker) -> None:
    name = topic_name("aiokafka-create")

    async def work(admin: Any) -> None:
        new = NewTopic(name, 3, 1, topic_configs={"retention.ms": "60000"})
        assert [error[1] for error in (await admin.create_topics([new])).topic_errors] == [0]
        assert [error[1] for error in (await admin.create_topics([new])).topic_errors] == [TOPIC_ALREADY_EXISTS]
        (described,) = await admin.describe_topics([name])
        assert sorted((each["partition"], each["leader"]) for each in described["partitions"]) == [(n, NODE_ID) for n in range(3)]
        assert (await topic_configs(admin, name))["retention.ms"][0] == "60000"
        assert name in await admin.list_topics()
        assert [error[1] for error in (await admin.delete_topics([name])).topic_error_codes] == [0]
        assert name not in await admin.list_topics()
        assert [error[1] for error in (await admin.delete_topics([name])).topic_error_codes] == [UNKNOWN_TOPIC_OR_PARTITION]

    with_admin(broker, work)


def test_create_partitions(broker: Broker, new_topic: MakeTopic) -> None:
    name = new_topic(partitions=2)

    async def work(admin: Any) -> None:
        await admin.create_partitions({name: NewPartitions(4)})
        # Of several brokers, the one that is asked may hear of the new partitions a moment after they were created.
        async with asyncio.timeout(CALL_SECONDS_MAX):
            while len((await admin.describe_topics([name]))[0]["partitions"]) != 4:
                await asyncio.sleep(LOOK_SECONDS)
        with pytest.raises(InvalidPartitionsError):
            await admin.create_partitions({name: NewPartitions(4)})

    with_admin(broker, work)


def test_describe_and_alter_configs(broker: Broker, new_topic: MakeTopic) -> None:
    name = new_topic(configs={"segment.bytes": 1048576})

    def resource(**configs: str) -> Any:
        return ConfigResource(ConfigResourceType.TOPIC, name, {key.replace("_", "."): value for key, value in configs.items()})

    async def work(admin: Any) -> None:
        value, _, _, _, synonyms = (await topic_configs(admin, name))["segment.bytes"]
        assert (value, [synonym[0] for synonym in synonyms]) == ("1048576", ["segment.bytes", "log.segment.bytes"])
        (altered,) = await admin.alter_configs([resource(retention_ms="1000000")])
        assert altered.resources[0][0] == 0
        configs = await topic_configs(admin, name)
        assert (configs["retention.ms"][0], configs["segment.bytes"][0]) == ("1000000", "1073741824")
        (refused,) = await admin.alter_configs([resource(retention_ms="soon")])
        assert refused.resources[0][0] == INVALID_CONFIG
        (broker_configs,) = await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, str(NODE_ID))])
        assert "num.partitions" in [config[0] for config in broker_configs.resources[0][4]]

    with_admin(broker, work)


def test_describe_cluster(broker: Broker) -> None:
    async def work(admin: Any) -> None:
        cluster = await admin.describe_cluster()
        assert cluster["controller_id"] == NODE_ID
        assert [(each["node_id"], each["port"]) for each in cluster["brokers"]] == [(NODE_ID, broker.port)]

    with_admin(broker, work)


def test_delete_records(broker: Broker, new_topic: MakeTopic) -> None:
    name = new_topic()
    where = TopicPartition(name, 0)
    client = AiokafkaClient(broker.bootstrap_servers)
    client.send(name, [SentRecord(None, str(number).encode(), NOW) for number in range(10)])

    async def work(admin: Any) -> None:
        assert await admin.delete_records({where: RecordsToDelete(before_offset=4)}) == {where: 4}
        with pytest.raises(OffsetOutOfRangeError):
            await admin.delete_records({where: RecordsToDelete(before_offset=11)})

    with_admin(broker, work)
    assert client.watermarks(name) == (4, 10)
