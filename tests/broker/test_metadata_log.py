"""Large decisions in slices: all or nothing, in the image and after a crash."""

from collections.abc import Sequence
from functools import partial

import pytest

from tests.broker.harness import Machine
from tidelog.broker.metadata_log import RECORDS_PER_SLICE, OnDone, SlicedProposals
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import AbortTransactionRecord, MetadataRecord, PartitionRecord, TopicRecord
from tidelog.wire.messages import encode_request
from tidelog.wire.protocol import ApiKey

ID, OTHER_ID = b"i" * 16, b"o" * 16
COUNT = 2 * RECORDS_PER_SLICE + 1


class Quorum:
    """Commits a batch when told to; the numbers in ``failing`` say which batches are not written."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.proposals = SlicedProposals(self.image, self._write)
        self.batches: list[list[MetadataRecord]] = []
        self.failing: set[int] = set()
        self.said: list[tuple[str, Exception | None]] = []
        self._pending: list[tuple[list[MetadataRecord], OnDone]] = []
        self._written = 0

    def _write(self, records: Sequence[MetadataRecord], on_done: OnDone) -> None:
        number, self._written = self._written, self._written + 1
        if number in self.failing:
            on_done(OSError("full"))
        else:
            self._pending.append((list(records), on_done))

    def propose(self, name: str, records: list[MetadataRecord]) -> None:
        self.proposals.propose(records, lambda error: self.said.append((name, error)))

    def commit_one(self) -> None:
        records, on_done = self._pending.pop(0)
        self.batches.append(records)
        self.image.replay(records, sum(map(len, self.batches)))
        on_done(None)

    def commit_all(self) -> None:
        while self._pending:
            self.commit_one()


def topic(name: str, topic_id: bytes, partitions: int) -> list[MetadataRecord]:
    return [TopicRecord(name, topic_id), *(PartitionRecord(index, topic_id, (1,), (1,)) for index in range(partitions))]


def partitions_of(image: ClusterImage, name: str) -> int | None:
    found = image.topic(name)
    return None if found is None else len(found.partitions)


def test_a_small_decision_is_one_batch() -> None:
    quorum = Quorum()
    records = topic("small", ID, RECORDS_PER_SLICE - 1)
    quorum.propose("small", records)
    quorum.commit_all()
    assert quorum.batches == [records]
    assert quorum.said == [("small", None)]


def test_a_large_one_is_several_and_seen_whole() -> None:
    quorum = Quorum()
    quorum.propose("large", topic("large", ID, COUNT))
    seen = []
    while not quorum.said:
        assert partitions_of(quorum.image, "large") is None
        quorum.commit_one()
        seen.append(partitions_of(quorum.image, "large"))
    assert seen == [None, None, COUNT]
    assert max(len(batch) for batch in quorum.batches) <= RECORDS_PER_SLICE + 1
    assert not quorum.image.in_transaction


def test_others_wait_until_it_is_done() -> None:
    quorum = Quorum()
    quorum.propose("large", topic("large", ID, COUNT))
    quorum.propose("small", topic("small", OTHER_ID, 1))
    quorum.commit_one()
    assert quorum.said == []
    quorum.commit_all()
    assert quorum.said == [("large", None), ("small", None)]
    assert partitions_of(quorum.image, "small") == 1


@pytest.mark.parametrize("failing", [{0}, {1}, {2}, {1, 2}])
def test_a_slice_that_cannot_be_written_takes_all_back(failing: set[int]) -> None:
    """Also when the abort cannot be written at once: the next decision begins with it."""
    quorum = Quorum()
    quorum.failing = failing
    quorum.propose("large", topic("large", ID, COUNT))
    quorum.propose("small", topic("small", OTHER_ID, 1))
    quorum.commit_all()
    assert [(name, type(error)) for name, error in quorum.said] == [("large", OSError), ("small", type(None))]
    assert (partitions_of(quorum.image, "large"), partitions_of(quorum.image, "small")) == (None, 1)
    assert not quorum.image.in_transaction
    aborts = [record for batch in quorum.batches for record in batch if isinstance(record, AbortTransactionRecord)]
    assert len(aborts) == (0 if 0 in failing else 1)
    # And once more, as the image has no trace of it.
    quorum.propose("again", topic("large", ID, COUNT))
    quorum.commit_all()
    assert partitions_of(quorum.image, "large") == COUNT


def test_a_topic_of_many_partitions_outlives_a_restart() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic("large", COUNT)
    assert client.append("large", partition=COUNT - 1).error == 0
    machine.restart()
    assert partitions_of(machine.broker.image, "large") == COUNT
    assert machine.client().append("large", partition=COUNT - 1).base_offset == 1


def test_a_crash_in_the_middle_leaves_nothing_of_it() -> None:
    found = set()
    for events in range(2, 20, 2):
        machine = Machine(seed=events)
        client = machine.client()
        replies = len(client.replies)
        large = {"name": "large", "num_partitions": COUNT, "replication_factor": 1}
        client.send(ApiKey.CREATE_TOPICS, 7, encode_request(ApiKey.CREATE_TOPICS, 7, {"topics": [large]}))
        machine.run_until(partial(next, iter([False] * events + [True])))
        is_answered = len(client.replies) > replies
        machine.crash("all")
        partitions = partitions_of(machine.broker.image, "large")
        assert partitions in ((COUNT,) if is_answered else (None, COUNT))
        found.add(partitions)
        assert not machine.broker.image.in_transaction
        machine.client().create_topic("next", 1)
    assert found == {None, COUNT}
