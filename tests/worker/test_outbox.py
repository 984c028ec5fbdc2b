"""The outbox. Plain: a broker that allows less metadata gets less, and the last commit succeeds without it. Transactional: a
letter goes exactly with the commit that covers its message."""

from collections.abc import Container, Iterable, Iterator

import pytest

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker
from tests.worker.fakes import assigned, begin, plain_letter
from tests.worker.running import Place, Run
from tidelog.client.admin import Admin
from tidelog.client.errors import CommitMetadataTooLarge, MessageTooLarge, Rebalanced, TidelogError
from tidelog.client.message import Message
from tidelog.client.raw_consumer import OffsetCommit, RawConsumer
from tidelog.client.topic_partition import TopicPartition
from tidelog.testing import Broker
from tidelog.worker import Worker
from tidelog.worker.outbox import (
    CommitSchedule,
    MetadataLimit,
    OutgoingLetter,
    PartitionCommit,
    PlainOutbox,
    TransactionalOutbox,
)
from tidelog.worker.partitions import AssignedPartition, WorkItem

LIMIT = 1000


# -- plain -------------------------------------------------------------------------------------------------------------------


class RefusingConsumer:
    """Its broker accepts metadata up to a length. librdkafka raises if everything was refused, and names each otherwise."""

    def __init__(self, bytes_max: int, fenced: Container[TopicPartition] = ()) -> None:
        """``fenced`` are partitions whose commits it refuses for another reason."""
        self._bytes_max = bytes_max
        self._fenced = fenced
        self.accepted: dict[TopicPartition, tuple[int, str]] = {}

    def try_commit(self, commits: Iterable[OffsetCommit]) -> dict[TopicPartition, TidelogError]:
        wanted = list(commits)
        refused = [each for each in wanted if len(each.metadata) > self._bytes_max]
        if len(refused) == len(wanted):
            raise CommitMetadataTooLarge("commit")
        errors: dict[TopicPartition, TidelogError] = {each.partition: CommitMetadataTooLarge("commit") for each in refused}
        errors |= {each.partition: Rebalanced("commit") for each in wanted if each.partition in self._fenced}
        self.accepted |= {each.partition: (each.offset, each.metadata) for each in wanted if each.partition not in errors}
        return errors

    start_commit = try_commit


def plain_outbox(consumer: RefusingConsumer, limit: MetadataLimit) -> PlainOutbox:
    options = Worker("127.0.0.1:9092", group="email", topics=["orders"])._options
    return PlainOutbox(options, consumer, limit)  # type: ignore[arg-type]  # the part of a consumer that commits


def commits_of(*lengths: int) -> list[PartitionCommit]:
    return [PartitionCommit(assigned(partition=number), 7 + number, "x" * length) for number, length in enumerate(lengths)]


@pytest.mark.parametrize("lengths", [(50,), (50, 60), (0, 50)])
def test_the_last_commit_succeeds_without_metadata_and_the_next_ones_have_less(lengths: tuple[int, ...]) -> None:
    consumer, limit = RefusingConsumer(30), MetadataLimit(LIMIT)
    assert plain_outbox(consumer, limit).commit(commits_of(*lengths), is_last=True)
    assert consumer.accepted == {("orders", number): (7 + number, "") for number in range(len(lengths))}
    assert limit.bytes_max == LIMIT // 2


def test_what_is_accepted_keeps_its_metadata() -> None:
    consumer, limit = RefusingConsumer(30), MetadataLimit(LIMIT)
    commits = commits_of(20, 40)
    assert plain_outbox(consumer, limit).commit(commits, is_last=True)
    assert consumer.accepted == {("orders", 0): (7, "x" * 20), ("orders", 1): (8, "")}
    assert limit.bytes_max == LIMIT // 2
    assert plain_outbox(consumer, limit).commit([commits[0]], is_last=True)
    assert limit.bytes_max == LIMIT // 2, "nothing was refused this time"


def test_the_last_commit_of_one_partition_is_repeated_without_metadata_whatever_happens_to_another() -> None:
    consumer = RefusingConsumer(30, fenced=[TopicPartition("orders", 1)])
    assert not plain_outbox(consumer, MetadataLimit(LIMIT)).commit(commits_of(50, 0), is_last=True)
    assert consumer.accepted == {("orders", 0): (7, "")}


def test_a_commit_that_is_not_the_last_is_sent_again_by_the_next() -> None:
    consumer, limit = RefusingConsumer(30), MetadataLimit(LIMIT)
    (commit,) = commits_of(40)
    commit.assigned.note_commit(7, "x" * 40)
    assert not plain_outbox(consumer, limit).commit([commit], is_last=False)
    assert consumer.accepted == {}
    assert (commit.assigned.committed, limit.bytes_max) == ((None, ""), LIMIT // 2)


# -- transactional -----------------------------------------------------------------------------------------------------------


class Desk:
    """A transactional outbox on a real broker, and a group of one that commits by hand."""

    def __init__(self, place: Place, metadata_bytes: int) -> None:
        self.place = place
        self.consumer = RawConsumer(place.bootstrap, {"group.id": place.group})
        worker = Worker(place.bootstrap, group=place.group, topics=[place.topic], exactly_once=True)
        limit = MetadataLimit(metadata_bytes)
        self.outbox = TransactionalOutbox(worker._options, self.consumer, limit)
        self.commits = CommitSchedule(self.outbox, limit, 1.0)
        self.items: dict[AssignedPartition, list[WorkItem]] = {}

    def partition(self, number: int, count: int) -> AssignedPartition:
        """With that many messages begun."""
        made = assigned(partition=number, source=self.place.topic)
        self.items[made] = begin(made, 0, count)
        return made

    def finish(self, of: AssignedPartition, *offsets: int) -> None:
        of.finish([self.items[of][offset] for offset in offsets])

    def fail(self, of: AssignedPartition, offset: int) -> None:
        letter = plain_letter(offset, self.place.topic, self.place.group, partition=of.name.partition)
        assert self.outbox.send(OutgoingLetter(self.place.topic, letter, self.items[of][offset])), "it is finished at once"
        self.finish(of, offset)

    def letters(self) -> list[tuple[int, int]]:
        """Partition and offset of the messages that they are for."""
        return [
            (message.partition, int(message.headers["tidelog.origin.offset"] or b""))
            for message in self.place.read(self.place.topic)
        ]

    def close(self) -> None:
        self.outbox.close(5)
        self.consumer.close()


@pytest.fixture
def place(kafka: ToolkitBroker) -> Place:
    return Place(kafka.bootstrap)


@pytest.fixture
def desks() -> Iterator[list[Desk]]:
    made: list[Desk] = []
    yield made
    for each in made:
        each.close()


def test_letters_of_other_partitions_wait_for_their_own_commit(place: Place, desks: list[Desk]) -> None:
    desks.append(desk := Desk(place, 4096))
    given_up, kept = desk.partition(0, 3), desk.partition(1, 3)
    desk.fail(given_up, 0)
    desk.fail(kept, 0)
    assert desk.outbox.is_urgent
    assert desk.commits.commit([given_up], 0, is_last=True)
    assert desk.letters() == [(0, 0)]
    assert place.committed() == {0: (1, ""), 1: (-1001, "")}
    desk.outbox.forget(given_up)
    assert desk.commits.commit([kept], 0)
    wait_until(lambda: desk.letters() == [(0, 0), (1, 0)], "it follows with its offset", 10)
    assert place.committed() == {0: (1, ""), 1: (1, "")}
    assert kept.backlog == given_up.backlog == 2


def test_a_letter_that_the_metadata_has_no_room_for_waits_until_the_position_covers_it(place: Place, desks: list[Desk]) -> None:
    desks.append(desk := Desk(place, 0))
    partition = desk.partition(0, 3)
    desk.fail(partition, 1)
    assert desk.commits.commit([partition], 0)
    assert desk.letters() == []
    assert not desk.outbox.is_urgent
    assert partition.backlog == 3, "the letter counts as read ahead"
    desk.finish(partition, 0)
    assert desk.commits.commit([partition], 0)
    wait_until(lambda: desk.letters() == [(0, 1)], "it is there", 10)
    assert place.committed()[0] == (2, "")
    assert partition.backlog == 1


def test_letters_that_parked_messages_wait_for_are_not_held_back(place: Place, desks: list[Desk]) -> None:
    desks.append(desk := Desk(place, 0))
    partition = desk.partition(0, 3)
    partition.park(desk.items[partition][2])
    desk.fail(partition, 1)
    assert desk.commits.commit([partition], 0)
    wait_until(lambda: desk.letters() == [(0, 1)], "it is there", 10)


@pytest.mark.tidelog_only
def test_a_broker_that_allows_less_metadata_gets_less() -> None:
    with Broker(configs={"offset.metadata.max.bytes": 20}) as broker:
        place = Place(broker.bootstrap_servers)
        desk = Desk(place, 4096)
        partition = desk.partition(0, 40)
        desk.finish(partition, *range(1, 40, 2))
        desk.fail(partition, 38)
        assert not desk.commits.commit([partition], 0)
        assert partition.committed == (None, "")
        assert desk.commits.commit([partition], 0, is_last=True)
        assert place.committed()[0] == (0, "")
        assert desk.letters() == [], "its offset is not committed"
        desk.close()


def test_a_letter_that_is_refused_for_good_ends_the_run(place: Place) -> None:
    worker = place.worker(retries=0, exactly_once=True)

    @worker.handler
    def handle(_: Message) -> None:
        raise ValueError("never")

    run = Run(worker)
    run.until(lambda: worker.is_joined, "it has joined")
    with Admin(place.bootstrap) as admin:
        admin.alter_topic(place.dead_letters, max_message_bytes=100)
    place.send(["x" * 300])
    run.thread.join(30)
    assert isinstance(run.error, MessageTooLarge)
    assert sum(max(offset, 0) for offset, _ in place.committed().values()) == 0
