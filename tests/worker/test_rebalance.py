"""Rebalances: what was revoked is drained and committed, what was lost is not."""

from collections import deque
from typing import Any

from confluent_kafka import TopicPartition

from tests.worker.fakes import FakeOutbox, job, route
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.worker import Backoff, Worker
from tidelog.worker.assignment import Assignment
from tidelog.worker.commits import Commits
from tidelog.worker.execution import Report
from tidelog.worker.failures import FailurePolicy
from tidelog.worker.job import Job, Lane
from tidelog.worker.metrics import Counts
from tidelog.worker.outbox_plain import MetadataLimit
from tidelog.worker.pauses import Pauses
from tidelog.worker.rebalance import Rebalance
from tidelog.worker.retry_levels import Role
from tidelog.worker.settlement import Settlement

ROLES = {"orders": Role("orders", -1), "orders.email.retry.0": Role("orders", 0)}


class FakeConsumer:
    def __init__(self, committed: dict[tuple[str, int], tuple[int, str]]) -> None:
        self._committed = committed
        self.positions: dict[tuple[str, int], int] = {}
        self.unassigned: list[tuple[str, int]] = []
        self.resumed: list[tuple[str, int]] = []

    def resume(self, partitions: list[Any]) -> None:
        self.resumed += [(each.topic, each.partition) for each in partitions]

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        nothing = (-1001, "")
        return [
            TopicPartition(each.topic, each.partition, offset, metadata=metadata)
            for each in partitions
            for offset, metadata in [self._committed.get((each.topic, each.partition), nothing)]
        ]

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.positions |= {(each.topic, each.partition): each.offset for each in partitions}

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self.unassigned += [(each.topic, each.partition) for each in partitions]


class Member:
    """A rebalance with all around it, and no broker."""

    def __init__(self, committed: dict[tuple[str, int], tuple[int, str]]) -> None:
        options = Worker("127.0.0.1:9092", group="email", topics=["orders"], drain_timeout=0.05)._options
        policy = FailurePolicy(retries=1, in_place_retries=0, backoff=Backoff(), retriable=None, levels=1)
        clock = RealClock()
        self.assignment = Assignment()
        self.outbox = FakeOutbox()
        self.reports: deque[Report] = deque()
        self.route = route()
        self.consumer = FakeConsumer(committed)
        pauses = Pauses(100, 100)
        self.settlement = Settlement(options, policy, Counts(), self.reports, pauses, clock=clock, randomness=RealRandomness())
        self.settlement.outbox = self.outbox
        self.rebalance = Rebalance(
            options,
            ROLES,
            {"orders": self.route},
            self.assignment,
            self.settlement,
            self.outbox,
            Commits(self.outbox, MetadataLimit(4096), 1.0),
            None,
            clock=clock,
            is_hurried=lambda: False,
            look_at_homes=lambda: None,
        )

    def assigned(self, *places: tuple[str, int]) -> None:
        self.rebalance.assigned(self.consumer, [TopicPartition(*place) for place in places])

    def begin(self, topic: str, count: int) -> list[Job]:
        partition = self.assignment.get(topic, 0)
        assert partition is not None
        first = partition.offsets.position or 0
        partition.offsets.begin(list(range(first, first + count)))
        return [job(Lane(), first + number, partition) for number in range(count)]

    def report(self, jobs: list[Job]) -> None:
        done = Report(self.route.execution)
        done.handled = jobs
        self.reports.append(done)


PLACES = ("orders", 0), ("orders.email.retry.0", 0)


def test_reading_goes_on_at_the_commit_and_retry_topics_begin_at_their_beginning() -> None:
    member = Member({("orders", 0): (10, "tidelog:1:AQE=")})
    member.assigned(*PLACES)
    assert member.consumer.positions == {("orders", 0): 10, ("orders.email.retry.0", 0): -2}
    partition = member.assignment.get("orders", 0)
    assert partition is not None
    assert [partition.offsets.is_finished_before(offset) for offset in (10, 11, 12)] == [False, True, False]


def test_what_is_revoked_is_committed_with_what_is_finished_above() -> None:
    member = Member({("orders", 0): (10, "")})
    member.assigned(*PLACES)
    jobs = member.begin("orders", 4)
    member.report([jobs[0], jobs[2]])
    partition = jobs[0].assigned
    member.rebalance.revoked(member.consumer, [TopicPartition("orders", 0)])
    ((positions, is_last),) = member.outbox.commits
    assert [(each.assigned, each.offset, each.metadata) for each in positions] == [(partition, 11, "tidelog:1:AQE=")]
    assert is_last
    assert partition.is_closed
    assert member.assignment.get("orders", 0) is None
    assert member.assignment.get("orders.email.retry.0", 0) is not None
    assert member.consumer.unassigned == member.consumer.resumed == [("orders", 0)]


def test_giving_up_is_graceful_only_when_it_is_committed() -> None:
    for takes_commits in (True, False):
        member = Member({})
        member.assigned(*PLACES)
        member.outbox.takes_commits = takes_commits
        member.report(member.begin("orders", 2))
        assert member.rebalance.give_up(list(member.assignment)) is takes_commits


def test_what_is_lost_is_not_committed_and_what_comes_back_of_it_is_ignored() -> None:
    member = Member({("orders", 0): (10, "")})
    member.assigned(*PLACES)
    jobs = member.begin("orders", 2)
    member.rebalance.lost(member.consumer, [TopicPartition("orders", 0)])
    assert member.outbox.commits == []
    assert member.outbox.forgotten == [jobs[0].assigned]
    member.report(jobs)
    member.settlement.settle()
    assert jobs[0].assigned.offsets.position == 10
