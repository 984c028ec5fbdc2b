"""Committed offsets as clients use them: with metadata, one by one, with a seek, and with a reset where nothing is committed."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka.errors import CommitFailedError, OffsetMetadataTooLargeError, UnknownMemberIdError

from tests.compatibility.clients.aiokafka_client import AiokafkaClient
from tests.compatibility.clients.client import CALL_SECONDS_MAX
from tests.compatibility.clients.confluent_client import ConfluentClient
from tests.compatibility.clients.conftest import MakeTopic, topic_name
from tests.compatibility.clients.groups.admin import commit, committed_offsets
from tests.compatibility.clients.groups.conftest import fill
from tests.compatibility.clients.groups.member import Partition
from tests.compatibility.clients.kafka_python_client import KafkaPythonClient
from tidelog.testing import Broker

RECORDS = 10
# What offset.metadata.max.bytes allows, in letters of one byte.
METADATA_MAX = 4096
METADATA = ["", "plain", "Grüße, 日本", "x" * (METADATA_MAX - 1)]


@pytest.fixture
def topic(broker: Broker, new_topic: MakeTopic) -> str:
    name = new_topic(2)
    fill(broker.bootstrap_servers, name, 2, RECORDS)
    return name


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return topic_name(request.node.name)


@pytest.fixture
def consumer(broker: Broker, group: str) -> Iterator[Any]:
    """Of confluent-kafka, in no group but able to commit to it."""
    with closing(ConfluentClient(broker.bootstrap_servers).consumer(**{"group.id": group})) as consumer:
        yield consumer


@pytest.mark.parametrize("metadata", METADATA, ids=["empty", "plain", "unicode", "longest"])
def test_metadata_is_kept(broker: Broker, topic: str, group: str, consumer: Any, metadata: str) -> None:
    """Read with kafka-python: aiokafka does not show it, and confluent-kafka counts on what only it sends itself, the byte that
    ends a string in C."""

    def found() -> tuple[int, str]:
        with closing(KafkaPythonClient(broker.bootstrap_servers).consumer(group_id=group)) as reader:
            committed = reader.committed(kafka.TopicPartition(topic, 1), metadata=True)
        return committed.offset, committed.metadata

    consumer.commit(offsets=[TopicPartition(topic, 1, 3, metadata)], asynchronous=False)
    (of_its_own,) = consumer.committed([TopicPartition(topic, 1)], timeout=CALL_SECONDS_MAX)
    assert (of_its_own.offset, of_its_own.metadata) == (3, metadata)
    assert found() == (3, metadata + "\0")

    with closing(KafkaPythonClient(broker.bootstrap_servers).consumer(group_id=group)) as other:
        other.commit({kafka.TopicPartition(topic, 1): kafka.OffsetAndMetadata(4, metadata, -1)})
    assert found() == (4, metadata)

    async def commit_with_aiokafka() -> None:
        async with AiokafkaClient(broker.bootstrap_servers).consumer(group_id=group) as other:
            where = aiokafka.TopicPartition(topic, 1)
            other.assign([where])
            await other.commit({where: (5, metadata)})
            assert await other.committed(where) == 5

    asyncio.run(commit_with_aiokafka())
    assert found() == (5, metadata)


def test_metadata_that_is_too_long(broker: Broker, topic: str, group: str, consumer: Any) -> None:
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    too_long = "x" * (METADATA_MAX + 1)
    with pytest.raises(KafkaException) as told:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3, too_long)], asynchronous=False)
    assert told.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    other = KafkaPythonClient(broker.bootstrap_servers).consumer(group_id=group)
    with closing(other), pytest.raises(OffsetMetadataTooLargeError):
        other.commit({kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(3, too_long, -1)})
    assert consumer.committed([TopicPartition(topic, 0)], timeout=CALL_SECONDS_MAX)[0].offset == 2


def test_a_commit_from_outside_a_group_with_members_is_refused(broker: Broker, topic: str, group: str) -> None:
    with closing(ConfluentClient(broker.bootstrap_servers).consumer(**{"group.id": group})) as member:
        member.subscribe([topic])
        while not member.assignment():
            member.poll(0.1)
        other = KafkaPythonClient(broker.bootstrap_servers).consumer(group_id=group)
        with closing(other), pytest.raises((CommitFailedError, UnknownMemberIdError)):
            other.commit({kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(3, "", -1)})


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", RECORDS)])
def test_reset_where_nothing_is_committed(
    broker: Broker, admin: Any, topic: str, group: str, protocol: str, reset: str, first: int
) -> None:
    """And only there: the other partition goes on where it was committed."""
    commit(admin, group, {Partition(topic, 0): 7})
    settings = {"group.id": group, "group.protocol": protocol, "auto.offset.reset": reset}
    with closing(ConfluentClient(broker.bootstrap_servers).consumer(**settings)) as consumer:
        consumer.subscribe([topic])
        read: dict[int, list[int]] = {0: [], 1: []}
        while len(read[0]) < RECORDS - 7 or len(read[1]) < RECORDS - first:
            message = consumer.poll(CALL_SECONDS_MAX)
            assert message is not None
            assert message.error() is None
            read[message.partition()].append(message.offset())
        position = consumer.position([TopicPartition(topic, 1)])[0].offset if read[1] else first
    assert read == {0: list(range(7, RECORDS)), 1: list(range(first, RECORDS))}
    assert position == RECORDS


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_seek_of_a_member_changes_what_it_commits(broker: Broker, admin: Any, topic: str, group: str, protocol: str) -> None:
    settings = {"group.id": group, "group.protocol": protocol, "auto.offset.reset": "earliest"}
    with closing(ConfluentClient(broker.bootstrap_servers).consumer(**settings)) as consumer:
        consumer.subscribe([topic])
        seen = 0
        while seen < 2 * RECORDS:
            message = consumer.poll(CALL_SECONDS_MAX)
            assert message is not None
            seen += message.error() is None
        consumer.commit(asynchronous=False)
        assert set(committed_offsets(admin, group).values()) == {RECORDS}
        consumer.seek(TopicPartition(topic, 0, 4))
        message = consumer.poll(CALL_SECONDS_MAX)
        assert (message.partition(), message.offset()) == (0, 4)
        # An explicit commit may go back.
        consumer.commit(message=message, asynchronous=False)
    assert committed_offsets(admin, group) == {Partition(topic, 0): 5, Partition(topic, 1): RECORDS}
