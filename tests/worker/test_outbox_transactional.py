"""Letters and offsets in one transaction: a letter goes exactly with the commit that covers its message."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker
from tests.worker.fakes import assigned, job
from tests.worker.running import Place, Run
from tidelog.client.admin import Admin
from tidelog.client.errors import MessageTooLarge
from tidelog.client.message import Message
from tidelog.testing import Broker
from tidelog.worker import Worker
from tidelog.worker.assigned import Assigned
from tidelog.worker.commits import Commits
from tidelog.worker.job import Job, Lane
from tidelog.worker.letters import foreign_letter
from tidelog.worker.outbox_plain import MetadataLimit
from tidelog.worker.outbox_transactional import TransactionalOutbox


class Desk:
    """An outbox on a real broker, and a group of one that commits by hand."""

    def __init__(self, place: Place, metadata_bytes: int) -> None:
        self.place = place
        self.consumer = Consumer({"bootstrap.servers": place.bootstrap, "group.id": place.group, "log_level": 0})
        worker = Worker(place.bootstrap, group=place.group, topics=[place.topic], exactly_once=True)
        limit = MetadataLimit(metadata_bytes)
        self.outbox = TransactionalOutbox(worker._options, self.consumer, self._finished, limit)
        self.commits = Commits(self.outbox, limit, 1.0)

    def _finished(self, each: Job) -> None:
        each.assigned.offsets.finish([each.offset])

    def partition(self, number: int, count: int) -> Assigned:
        """With so many messages begun."""
        made = assigned(partition=number)
        made.topic = self.place.topic
        made.offsets.begin(list(range(count)))
        return made

    def fail(self, of: Assigned, offset: int) -> None:
        letter = foreign_letter(of.topic, of.partition, 0, offset, None, self.place.group)
        self.outbox.send(self.place.topic, of.partition, letter, job(Lane(), offset, of))

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
    assert kept.backlog == given_up.backlog == 0


def test_a_letter_that_the_metadata_has_no_room_for_waits_until_the_position_covers_it(place: Place, desks: list[Desk]) -> None:
    desks.append(desk := Desk(place, 0))
    partition = desk.partition(0, 3)
    desk.fail(partition, 1)
    assert desk.commits.commit([partition], 0)
    assert desk.letters() == []
    assert not desk.outbox.is_urgent
    assert partition.backlog == 1, "it counts as read ahead"
    partition.offsets.finish([0])
    assert desk.commits.commit([partition], 0)
    wait_until(lambda: desk.letters() == [(0, 1)], "it is there", 10)
    assert place.committed()[0] == (2, "")


def test_letters_that_others_of_their_partition_wait_for_are_not_held_back(place: Place, desks: list[Desk]) -> None:
    desks.append(desk := Desk(place, 0))
    partition = desk.partition(0, 3)
    partition.parked = 1
    desk.fail(partition, 1)
    assert desk.commits.commit([partition], 0)
    wait_until(lambda: desk.letters() == [(0, 1)], "it is there", 10)


@pytest.mark.tidelog_only
def test_a_broker_that_allows_less_metadata_gets_less() -> None:
    with Broker(configs={"offset.metadata.max.bytes": 20}) as broker:
        place = Place(broker.bootstrap_servers)
        desk = Desk(place, 4096)
        partition = desk.partition(0, 40)
        for offset in range(1, 40, 2):
            partition.offsets.finish([offset])
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
