"""One run of a worker: the thread that polls, and what it does between two polls.

Each turn reads what has arrived and passes it to the intake; settles what was reported; dispatches letters that are due; looks at
circuit breakers; pauses and resumes partitions; commits; and shows that it is alive. All decisions are made in other modules;
this one calls them in turn, and is the only one that reads from the consumer.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tidelog.client.admin import Admin
from tidelog.client.errors import CommitMetadataTooLarge, TidelogError
from tidelog.client.librdkafka import CONNECT_TIMEOUT_SECONDS
from tidelog.client.raw_consumer import OffsetCommit, RawConsumer
from tidelog.ports.clock import Clock
from tidelog.ports.randomness import Randomness
from tidelog.worker.breaker import BreakerState
from tidelog.worker.execution import BundleReport, HandlerExecution
from tidelog.worker.failures import FailurePolicy
from tidelog.worker.intake import Intake
from tidelog.worker.membership import GroupMembership
from tidelog.worker.metrics import WorkerCounts
from tidelog.worker.options import WorkerOptions
from tidelog.worker.outbox import CommitSchedule, MetadataLimit, Outbox, PlainOutbox, TransactionalOutbox
from tidelog.worker.partitions import AssignedPartition, AssignedPartitions, ReadAhead
from tidelog.worker.pipeline import MessagePipeline
from tidelog.worker.retry_scan import RetryScan
from tidelog.worker.retry_topics import PartitionGrowth, ensure_roles
from tidelog.worker.settlement import Settlement

log = logging.getLogger("tidelog.worker")

READ_MESSAGES_MAX = 1_000
# What is read is accepted as a whole, so a partition may exceed its share by this much.
READ_BYTES_MAX = 4 << 20
# The weight of the newest read in the average size of a message.
AVERAGE_WEIGHT = 0.2
IDLE_SECONDS = 0.05
BUSY_SECONDS = 0.005
LAG_EVERY_MS = 1_000
RESCUE_EVERY_MS = 20
NANOSECONDS_PER_MILLISECOND = 1_000_000
CLOSE_SECONDS_MAX = 10.0
TOUCH_MS = 1_000


class Liveness:
    """Whether a worker is alive, for a supervisor: it polls, and no handler runs for longer than ``timeout`` seconds.

    Code in the same process calls ``is_alive``. A supervisor outside looks at the age of ``file``, which is touched about once a
    second while the worker is alive. Waiting for a broker counts as alive, because a restart would not help.
    """

    __slots__ = ("_beat_ms", "_file", "_timeout_ms", "_touched_ms")

    def __init__(self, timeout: float, file: str | os.PathLike[str] | None) -> None:
        self._timeout_ms = timeout * 1000
        self._file = None if file is None else Path(file)
        self._beat_ms: int | None = None
        self._touched_ms: int | None = None

    def beat(self, now_ms: int, longest_running_ms: int) -> None:
        """Called each time the polling thread completes a turn. ``longest_running_ms`` is how long the slowest handler has been
        running."""
        if longest_running_ms >= self._timeout_ms:
            return
        self._beat_ms = now_ms
        if self._file is not None and (self._touched_ms is None or now_ms - self._touched_ms >= TOUCH_MS):
            self._file.touch()
            self._touched_ms = now_ms

    def end(self) -> None:
        """Called when the worker no longer runs."""
        self._beat_ms = None

    def is_alive(self, now_ms: int) -> bool:
        return self._beat_ms is not None and now_ms - self._beat_ms < self._timeout_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSetup:
    """The parts that a worker hands to each of its runs."""

    options: WorkerOptions
    executions: Mapping[str, HandlerExecution]
    """The handlers by source topic."""
    policy: FailurePolicy
    counts: WorkerCounts
    reports: deque[BundleReport]
    clock: Clock
    randomness: Randomness
    liveness: Liveness
    stopping: threading.Event
    """Set when nothing more is begun."""


class _Stages(NamedTuple):
    """The stages that a run opens."""

    consumer: RawConsumer
    intake: Intake
    pipeline: MessagePipeline
    outbox: Outbox
    commits: CommitSchedule
    scan: RetryScan | None
    growth: PartitionGrowth
    membership: GroupMembership


class Session:
    def __init__(self, setup: SessionSetup) -> None:
        options = setup.options
        self._setup = setup
        self._options = options
        self._clock = setup.clock
        self._executions = list(dict.fromkeys(setup.executions.values()))
        self._partitions = AssignedPartitions(options.weights.share_of)
        self._read_ahead = ReadAhead(options.prefetch_messages, options.prefetch_bytes)
        self._metadata_limit = MetadataLimit(options.offset_metadata_bytes)
        # This starts large, so that the first reads are small: the size of messages is not known yet, and a backlog may wait.
        self._average_bytes = READ_BYTES_MAX / 16
        self._lag_at_ms = 0
        self._rescued_at_ms = 0
        self._is_stopping = False
        self._is_hurried = False
        self.lag: Mapping[tuple[str, int], int] = {}
        self.is_joined = False

    # -- from any thread -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Set a flag and nothing else: a signal may arrive while its own thread holds any lock."""
        self._is_stopping = True

    def stop_now(self) -> None:
        self._is_hurried = True
        self.stop()

    @property
    def in_flight(self) -> int:
        return sum(assigned.backlog for assigned in self._partitions)

    # -- the run -------------------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run until it is stopped. Returns False if handlers were still at work when it ended, or the last commit failed."""
        consumer = RawConsumer(
            self._options.addresses,
            self._options.config,
            defaults=self._options.consumer_defaults(),
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            on_commit=self._on_commit,
        )
        with ExitStack() as opened:
            opened.callback(consumer.close)
            stages = self._open(consumer, opened)
            # From here on, the end of the run closes the stages.
            opened.pop_all()
        membership = stages.membership
        try:
            consumer.subscribe(
                list(membership.roles),
                on_assigned=membership.on_assigned,
                on_revoked=membership.on_revoked,
                on_lost=membership.on_lost,
            )
            while not self._is_stopping:
                self._turn(stages)
                self.is_joined = membership.assignments > 0
            self._setup.stopping.set()
            return membership.give_up(list(self._partitions))
        finally:
            self._close(stages)

    def _open(self, consumer: RawConsumer, opened: ExitStack) -> _Stages:
        """Open the stages; those that hold connections are closed by ``opened`` if a later one cannot be opened."""
        setup, options, clock = self._setup, self._options, self._clock
        admin = Admin(options.addresses, config=options.connection_config())
        roles, partition_counts = ensure_roles(admin, options)
        growth = PartitionGrowth(options, admin, roles, partition_counts, self._partitions)
        outbox: Outbox
        if options.exactly_once:
            outbox = TransactionalOutbox(options, consumer, self._metadata_limit)
        else:
            outbox = PlainOutbox(options, consumer, self._metadata_limit)
        opened.callback(outbox.close, CLOSE_SECONDS_MAX)
        settlement = Settlement(
            options, setup.policy, setup.counts, self._read_ahead, outbox, clock=clock, randomness=setup.randomness
        )
        pipeline = MessagePipeline(self._executions, setup.reports, settlement, outbox, clock)
        scan = RetryScan(options) if options.order == "key" else None
        commits = CommitSchedule(outbox, self._metadata_limit, options.commit_interval)
        membership = GroupMembership(
            options=options,
            consumer=consumer,
            roles=roles,
            executions=setup.executions,
            partitions=self._partitions,
            pipeline=pipeline,
            outbox=outbox,
            commits=commits,
            scan=scan,
            growth=growth,
            clock=clock,
            is_hurried=lambda: self._is_hurried,
        )
        intake = Intake(self._partitions, settlement, order=options.order, group=options.group)
        return _Stages(consumer, intake, pipeline, outbox, commits, scan, growth, membership)

    def _close(self, stages: _Stages) -> None:
        """Leave the group, whatever happened, so that others take over at once. A worker that was told to stop now waits for
        nothing."""
        for assigned in self._partitions:
            self._partitions.remove(assigned)
            stages.outbox.forget(assigned)
        self._setup.liveness.end()
        if self._is_hurried:
            return
        if stages.scan is not None:
            stages.scan.close()
        stages.outbox.close(CLOSE_SECONDS_MAX)
        stages.consumer.close()

    def _turn(self, stages: _Stages) -> None:
        self._read(stages)
        stages.pipeline.settle()
        stages.pipeline.settle_letters()
        if stages.scan is not None:
            stages.scan.step()
        stages.intake.take_due(self._clock.now_ms())
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._rescued_at_ms >= RESCUE_EVERY_MS:
            self._rescued_at_ms = now_ms
            self._rescue(now_ms)
        self._probe(now_ms)
        self._pause_and_resume(stages.consumer, now_ms)
        stages.commits.tick(self._partitions, now_ms)
        if now_ms - self._lag_at_ms >= LAG_EVERY_MS:
            self._lag_at_ms = now_ms
            lags = {assigned.name: _lag(stages.consumer, assigned) for assigned in self._partitions}
            self.lag = {name: lag for name, lag in lags.items() if lag is not None}
        stages.growth.step(stages.consumer, stages.outbox, self._clock.monotonic_ms())

    # -- reading -------------------------------------------------------------------------------------------------------------

    def _read(self, stages: _Stages) -> None:
        if self._read_ahead.should_wait:
            time.sleep(BUSY_SECONDS)
            return
        room_bytes = min(READ_BYTES_MAX, self._read_ahead.room_bytes)
        count = max(1, min(READ_MESSAGES_MAX, self._read_ahead.room_messages, int(room_bytes / self._average_bytes)))
        fetched = stages.consumer.fetch(count, self._idle_seconds(stages.intake))
        for problem in fetched.problems:
            if problem.is_final:
                raise problem.error
            log.warning("%s", problem.error)
        if len(fetched.messages):
            runs = fetched.messages.runs()
            average_bytes = sum(run.value_bytes for run in runs) / len(fetched.messages) + 1
            self._average_bytes += (average_bytes - self._average_bytes) * AVERAGE_WEIGHT
            stages.intake.accept(runs)

    def _idle_seconds(self, intake: Intake) -> float:
        due_ms = intake.next_due_ms()
        if due_ms is None:
            return IDLE_SECONDS
        return min(IDLE_SECONDS, max(0.0, (due_ms - self._clock.now_ms()) / 1000))

    # -- between two reads ---------------------------------------------------------------------------------------------------

    def _rescue(self, now_ms: int) -> None:
        now_ns = self._clock.monotonic_ns()
        for execution in self._executions:
            execution.rescue(now_ns)
        longest_ns = max(execution.oldest_ns(now_ns) for execution in self._executions)
        self._setup.liveness.beat(now_ms, longest_ns // NANOSECONDS_PER_MILLISECOND)

    def _probe(self, now_ms: int) -> None:
        for execution in self._executions:
            breaker = execution.breaker
            if breaker is None:
                continue
            # A probe that left with its partition is never answered.
            is_unanswered = breaker.state is BreakerState.PROBING and execution.has_no_probe
            if (breaker.tick(now_ms) or is_unanswered) and not execution.probe():
                # Nothing waits: the next message that is read is as good a probe as any.
                breaker.succeeded(1, now_ms)
                execution.follow_breaker()

    def _pause_and_resume(self, consumer: RawConsumer, now_ms: int) -> None:
        to_pause, to_resume = self._read_ahead.changes(self._partitions, now_ms)
        consumer.pause(assigned.name for assigned in to_pause)
        consumer.resume(assigned.name for assigned in to_resume)

    def _on_commit(self, results: list[tuple[OffsetCommit, TidelogError | None]]) -> None:
        for commit, error in results:
            assigned = self._partitions.get(commit.partition)
            if error is None or assigned is None:
                continue
            assigned.forget_commit()
            if isinstance(error, CommitMetadataTooLarge):
                self._metadata_limit.halve()


def _lag(consumer: RawConsumer, assigned: AssignedPartition) -> int | None:
    position, end = assigned.offsets.position, consumer.cached_end(assigned.name)
    return None if position is None or end is None else max(0, end - position)
