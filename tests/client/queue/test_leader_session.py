"""A session with a broker that answers as the test wants: from when on locks are counted, and which delivery may be settled."""

import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.client.wire.fake_broker import FakeBroker
from tidelog.client.queue.job import Job, JobOrigin
from tidelog.client.queue.leader_session import LeaderSession, ShareFetchAnswer, ShareSettlement
from tidelog.client.queue.queue import Queue
from tidelog.client.wire.connection import BrokerConnection
from tidelog.records.record import Record
from tidelog.wire.protocol import ApiKey

LOCK_SECONDS = 30
PARTITION = b"t" * 16, 0


class Received:
    """A session, and what came over it."""

    def __init__(self, fake: FakeBroker) -> None:
        fake.versions |= {ApiKey.SHARE_FETCH: (1, 2), ApiKey.SHARE_ACKNOWLEDGE: (1, 2)}
        fake.answer(ApiKey.SHARE_ACKNOWLEDGE, {"acquisition_lock_timeout_ms": LOCK_SECONDS * 1000})
        self.jobs: list[Job] = []
        self.locked_until: list[float] = []
        connection = BrokerConnection("127.0.0.1", fake.port, "test", 5, 5)
        self.session = LeaderSession(connection, "group", "member", 5, self.take)
        self.session.want(frozenset((PARTITION,)))

    def take(self, session: LeaderSession, answer: ShareFetchAnswer) -> None:
        origin = JobOrigin(cast(Queue, None), session, "jobs", *PARTITION)
        for fetched in answer.partitions:
            for first, _, deliveries in fetched.acquired:
                job = Job(origin, Record(first, 0, None, b"work", ()), deliveries, answer.locked_until)
                self.jobs.append(job)
                session.note([job])
        self.locked_until.append(answer.locked_until)

    def fetch(self) -> Job:
        self.session.begin_fetch(10, 0)
        self.session.end_fetch()
        return self.jobs[-1]


def acquired(deliveries: int) -> dict[str, Any]:
    piece = {"first_offset": 0, "last_offset": 0, "delivery_count": deliveries}
    partition = {"partition_index": PARTITION[1], "records": b"", "acquired_records": [piece]}
    topic = {"topic_id": PARTITION[0], "partitions": [partition]}
    return {"acquisition_lock_timeout_ms": LOCK_SECONDS * 1000, "responses": [topic]}


@pytest.fixture
def received(fake: FakeBroker) -> Iterator[Received]:
    received = Received(fake)
    yield received
    received.session.close()


def test_a_lock_is_counted_from_when_the_fetch_was_sent_however_long_its_answer_lies_unread(
    fake: FakeBroker, received: Received
) -> None:
    fake.answer(ApiKey.SHARE_FETCH, acquired(1))
    received.session.begin_fetch(10, 0)
    sent = time.monotonic()
    while time.monotonic() < sent + 0.05:
        assert received.session.is_fetching
    received.session.end_fetch()
    assert received.locked_until[0] <= sent + LOCK_SECONDS


def test_an_earlier_delivery_settles_nothing_once_the_record_came_again(fake: FakeBroker, received: Received) -> None:
    # A broker that has forgotten the group's state counts from the beginning.
    fake.answer(ApiKey.SHARE_FETCH, acquired(1), acquired(1))
    early, late = received.fetch(), received.fetch()
    for kind in (ShareSettlement.RELEASE, ShareSettlement.ACCEPT, ShareSettlement.RENEW):
        assert "received it again" in received.session.settle(kind, [early])[early]
    assert fake.asked(ApiKey.SHARE_ACKNOWLEDGE) == []
    assert received.session.settle(ShareSettlement.ACCEPT, [early, late]).keys() == {early}
    assert len(fake.asked(ApiKey.SHARE_ACKNOWLEDGE)) == 1


def test_a_later_delivery_counts_before_its_answer_was_read(fake: FakeBroker, received: Received) -> None:
    fake.answer(ApiKey.SHARE_FETCH, acquired(1), acquired(2))
    early = received.fetch()
    received.session.begin_fetch(10, 0)
    assert received.session.settle(ShareSettlement.RELEASE, [early])
    assert [job.deliveries for job in received.jobs] == [1, 2]
    assert fake.asked(ApiKey.SHARE_ACKNOWLEDGE) == []
