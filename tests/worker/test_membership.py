"""Membership: what was revoked is drained and committed, what was lost is not."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from tests.worker.fakes import FakeOutbox, begin, execution
from tidelog.client.raw_consumer import BEGINNING, OffsetCommit
from tidelog.client.topic_partition import TopicPartition
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.worker import Backoff, Worker
from tidelog.worker.execution import BundleReport
from tidelog.worker.failures import FailurePolicy
from tidelog.worker.membership import GroupMembership
from tidelog.worker.metrics import WorkerCounts
from tidelog.worker.outbox import CommitSchedule, MetadataLimit
from tidelog.worker.partitions import AssignedPartition, AssignedPartitions, ReadAhead, WorkItem
from tidelog.worker.pipeline import MessagePipeline
from tidelog.worker.retry_topics import TopicRole
from tidelog.worker.settlement import Settlement

ROLES = {"orders": TopicRole("orders", -1), "orders.email.retry.0": TopicRole("orders", 0)}
SOURCE, RETRY = TopicPartition("orders", 0), TopicPartition("orders.email.retry.0", 0)


class FakeConsumer:
    def __init__(self, committed: dict[TopicPartition, OffsetCommit]) -> None:
        self._committed = committed
        self.starts: dict[TopicPartition, int | None] = {}
        self.resumed: list[TopicPartition] = []

    def committed(self, _partitions: list[TopicPartition], _timeout: float) -> dict[TopicPartition, OffsetCommit]:
        return self._committed

    def accept_assignment(self, starts: Mapping[TopicPartition, int | None]) -> None:
        self.starts |= starts

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        assert list(partitions) == []

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self.resumed += partitions


class NoGrowth:
    def check_families(self) -> None:
        pass


class Member:
    """A membership with all around it, and no broker."""

    def __init__(self, offset: int | None = None, metadata: str = "") -> None:
        options = Worker("127.0.0.1:9092", group="email", topics=["orders"], drain_timeout=0.05)._options
        policy = FailurePolicy(retries=1, in_place_retries=0, backoff=Backoff(), retriable=None, levels=1)
        clock = RealClock()
        self.partitions = AssignedPartitions()
        self.outbox = FakeOutbox()
        self.execution = execution()
        self.reports: deque[BundleReport] = deque()
        self.consumer = FakeConsumer({} if offset is None else {SOURCE: OffsetCommit(SOURCE, offset, metadata)})
        settlement = Settlement(
            options, policy, WorkerCounts(), ReadAhead(100, 100), self.outbox, clock=clock, randomness=RealRandomness()
        )
        self.pipeline = MessagePipeline([self.execution], self.reports, settlement, self.outbox, clock)
        given: dict[str, Any] = {"consumer": self.consumer, "growth": NoGrowth()}
        self.membership = GroupMembership(
            options=options,
            roles=ROLES,
            executions={"orders": self.execution},
            partitions=self.partitions,
            pipeline=self.pipeline,
            outbox=self.outbox,
            commits=CommitSchedule(self.outbox, MetadataLimit(4096), 1.0),
            scan=None,
            clock=clock,
            is_hurried=lambda: False,
            **given,
        )
        self.membership.on_assigned([SOURCE, RETRY])

    @property
    def source(self) -> AssignedPartition:
        found = self.partitions.get(SOURCE)
        assert found is not None
        return found

    def begin(self, count: int) -> list[WorkItem]:
        return begin(self.source, self.source.offsets.position or 0, count)

    def report(self, items: list[WorkItem]) -> None:
        self.reports.append(BundleReport(self.execution, items))


def test_reading_continues_at_the_commit_and_retry_topics_begin_at_their_beginning() -> None:
    member = Member(10, "tidelog:1:AQE=")
    assert member.consumer.starts == {SOURCE: 10, RETRY: BEGINNING}
    assert [member.source.offsets.was_finished(offset) for offset in (10, 11, 12)] == [False, True, False]
    assert Member().consumer.starts == {SOURCE: None, RETRY: BEGINNING}


def test_what_is_revoked_is_committed_with_what_is_finished_above() -> None:
    member = Member(10)
    items, partition = member.begin(4), member.source
    member.report([items[0], items[2]])
    member.membership.on_revoked([SOURCE])
    ((commits, is_last),) = member.outbox.commits
    assert [(each.assigned, each.offset, each.metadata) for each in commits] == [(partition, 11, "tidelog:1:AQE=")]
    assert is_last
    assert partition.is_closed
    assert member.partitions.get(SOURCE) is None
    assert member.partitions.get(RETRY) is not None
    assert member.consumer.resumed == [SOURCE]


def test_giving_up_is_graceful_only_when_it_is_committed() -> None:
    for takes_commits in (True, False):
        member = Member()
        member.outbox.takes_commits = takes_commits
        member.report(member.begin(2))
        assert member.membership.give_up(list(member.partitions)) is takes_commits


def test_what_is_lost_is_not_committed_and_its_results_are_ignored() -> None:
    member = Member(10)
    items, partition = member.begin(2), member.source
    member.membership.on_lost([SOURCE])
    assert member.outbox.commits == []
    assert member.outbox.forgotten == [partition]
    member.report(items)
    member.pipeline.settle()
    assert partition.offsets.position == 10
