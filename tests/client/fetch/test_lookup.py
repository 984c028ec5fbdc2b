"""Questions about topics and offsets while leaders move: asked again where that helps, of those that have not answered."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.wire.fake_broker import HANG_UP, FakeBroker
from tidelog.client.fetch.lookup import PartitionLookup
from tidelog.client.fetch.settings import OwnSettings
from tidelog.client.fetch.types import TopicInfo
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.wire.errors import BrokerError, BrokerUnreachable
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

BOTH = [TopicPartition("t", 0), TopicPartition("t", 1)]
SETTINGS = OwnSettings(timeout_ms=20_000)


def listed(*answers: tuple[int, int, ErrorCode]) -> dict[str, Any]:
    partitions = [{"partition_index": index, "offset": offset, "error_code": error} for index, offset, error in answers]
    return {"topics": [{"name": "t", "partitions": partitions}]}


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as opened:
        opened.versions[ApiKey.LIST_OFFSETS] = (1, 10)
        yield opened


@pytest.fixture
def lookup(fake: FakeBroker) -> Iterator[PartitionLookup]:
    opened = PartitionLookup(fake.bootstrap_servers, SETTINGS, "read_committed")
    yield opened
    opened.close()


def asked_partitions(fake: FakeBroker) -> list[list[int]]:
    asked = fake.asked(ApiKey.LIST_OFFSETS)
    return [[each.partition_index for topic in request.topics for each in topic.partitions] for request in asked]


def test_only_those_that_have_not_answered_are_asked_again(fake: FakeBroker, lookup: PartitionLookup) -> None:
    moved = listed((0, 5, ErrorCode.NONE), (1, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    fake.answer(ApiKey.LIST_OFFSETS, moved, listed((1, 7, ErrorCode.NONE)))
    assert lookup.offsets(BOTH, "latest") == {BOTH[0]: 5, BOTH[1]: 7}
    assert asked_partitions(fake) == [[0, 1], [1]]
    (first, _) = fake.asked(ApiKey.LIST_OFFSETS)
    assert (first.isolation_level, first.topics[0].partitions[0].timestamp) == (1, -1)


def test_a_lost_connection_is_opened_again(fake: FakeBroker, lookup: PartitionLookup) -> None:
    fake.answer(ApiKey.LIST_OFFSETS, HANG_UP, listed((0, 5, ErrorCode.NONE)))
    assert lookup.offsets(BOTH[:1], "earliest") == {BOTH[0]: 5}


def test_what_is_not_allowed_is_said_at_once(fake: FakeBroker, lookup: PartitionLookup) -> None:
    fake.answer(ApiKey.LIST_OFFSETS, listed((0, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        lookup.offsets(BOTH[:1], "latest")
    assert len(asked_partitions(fake)) == 1


def test_a_topic_that_is_just_being_created(fake: FakeBroker, lookup: PartitionLookup) -> None:
    known = fake.metadata(1, {"t": 2})
    unknown = fake.metadata(1, {"t": 0})
    unknown["topics"][0]["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # The first is the greeting's.
    fake.answer(ApiKey.METADATA, known, unknown, unknown, known)
    assert lookup.topics(["t"]) == {"t": TopicInfo(bytes(16), 2)}
    assert all(not request.allow_auto_topic_creation for request in fake.asked(ApiKey.METADATA))


def test_a_pattern_passes_over_internal_and_broken_topics(fake: FakeBroker, lookup: PartitionLookup) -> None:
    answer = fake.metadata(1, {"t": 2, "__t": 1, "tt": 1})
    answer["topics"][1]["is_internal"] = True
    answer["topics"][2]["error_code"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    fake.answer(ApiKey.METADATA, answer)
    assert list(lookup.topics(re.compile(".*t"))) == ["t"]


def test_nobody_there_is_said_at_once_the_first_time() -> None:
    lookup = PartitionLookup("127.0.0.1:1", SETTINGS, "read_committed")
    with pytest.raises(BrokerUnreachable):
        lookup.topics(["t"])
