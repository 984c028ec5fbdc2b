"""Commits of the plain outbox: a broker that allows less metadata gets less, and the last commit gets through without."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.worker.fakes import assigned
from tidelog.worker import Worker
from tidelog.worker.assigned import Assigned
from tidelog.worker.job import Job
from tidelog.worker.outbox import Position
from tidelog.worker.outbox_plain import MetadataLimit, PlainOutbox

LIMIT = 1000


class Refusing:
    """A consumer whose broker takes metadata up to a length. librdkafka raises when all that was committed was refused, and says
    it of each otherwise."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.taken: dict[tuple[str, int], tuple[int, str]] = {}

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> list[Any] | None:
        refused = [each for each in offsets if len(each.metadata) > self._bytes_max]
        self.taken |= {(each.topic, each.partition): (each.offset, each.metadata) for each in offsets if each not in refused}
        if len(refused) == len(offsets):
            raise KafkaException(KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE))
        return [Committed(each, each in refused) for each in offsets]


class Committed:
    def __init__(self, place: TopicPartition, is_refused: bool) -> None:
        self.topic, self.partition = place.topic, place.partition
        self.error = KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE) if is_refused else None


def outbox(consumer: Refusing, limit: MetadataLimit) -> PlainOutbox:
    def finished(_: Job) -> None:
        raise AssertionError("no letter was sent")

    options = Worker("127.0.0.1:9092", group="email", topics=["orders"])._options
    return PlainOutbox(options, consumer, finished, limit)


def sent(offset: int, metadata: str) -> Assigned:
    partition = assigned()
    partition.committed = (offset, metadata)
    return partition


@pytest.mark.parametrize("lengths", [(50,), (50, 60), (0, 50)])
def test_the_last_commit_gets_through_without_metadata_and_the_next_ones_have_less(lengths: tuple[int, ...]) -> None:
    consumer, limit = Refusing(30), MetadataLimit(LIMIT)
    positions = [Position(assigned(partition=number), 7 + number, "x" * length) for number, length in enumerate(lengths)]
    outbox(consumer, limit).commit(positions, is_last=True)
    assert consumer.taken == {("orders", number): (7 + number, "") for number in range(len(lengths))}
    assert limit.bytes_max == LIMIT // 2


def test_what_is_taken_keeps_its_metadata() -> None:
    consumer, limit = Refusing(30), MetadataLimit(LIMIT)
    positions = [Position(assigned(partition=number), 7, "x" * length) for number, length in enumerate((20, 40))]
    outbox(consumer, limit).commit(positions, is_last=True)
    assert consumer.taken == {("orders", 0): (7, "x" * 20), ("orders", 1): (7, "")}
    assert limit.bytes_max == LIMIT // 2
    outbox(consumer, limit).commit([positions[0]], is_last=True)
    assert limit.bytes_max == LIMIT // 2, "nothing was refused this time"


def test_a_commit_that_is_not_the_last_is_sent_again_by_the_next() -> None:
    consumer, limit = Refusing(30), MetadataLimit(LIMIT)
    partition = sent(7, "x" * 40)
    outbox(consumer, limit).commit([Position(partition, 7, "x" * 40)], is_last=False)
    assert consumer.taken == {}
    assert (partition.committed, limit.bytes_max) == ((None, ""), LIMIT // 2)
