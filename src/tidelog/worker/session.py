"""One run of a worker: the thread that polls, and what it does between two polls.

Each turn: read what there is; hand it out; settle what was reported; let letters whose time has come go on; look at breakers;
pause and resume partitions; commit; show that it lives. Everything that decides is in modules of its own; this one only calls
them in turn, and is the only one that touches the consumer.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tidelog.client.admin import Admin
from tidelog.client.errors import GroupError, from_kafka_error
from tidelog.client.librdkafka import ConnectionProblems, wait_for_broker
from tidelog.ports.clock import Clock
from tidelog.ports.randomness import Randomness
from tidelog.worker.assigned import Assigned
from tidelog.worker.assignment import Assignment
from tidelog.worker.breaker import Breaker, State
from tidelog.worker.commits import Commits
from tidelog.worker.execution import Report
from tidelog.worker.failures import FailurePolicy
from tidelog.worker.intake import Intake
from tidelog.worker.liveness import Liveness
from tidelog.worker.metrics import Counts
from tidelog.worker.options import Options
from tidelog.worker.outbox import Outbox
from tidelog.worker.outbox_plain import MetadataLimit, PlainOutbox
from tidelog.worker.outbox_transactional import TransactionalOutbox
from tidelog.worker.partition_growth import PartitionGrowth
from tidelog.worker.pauses import Pauses
from tidelog.worker.rebalance import Rebalance
from tidelog.worker.retry_levels import ensure_roles
from tidelog.worker.retry_scan import RetryScan
from tidelog.worker.route import Route
from tidelog.worker.settlement import Settlement

log = logging.getLogger("tidelog.worker")

READ_MESSAGES_MAX = 1_000
# Of one read: what is read is accepted whole, so this is by how much a partition may go beyond its share.
READ_BYTES_MAX = 4 << 20
IDLE_SECONDS = 0.05
BUSY_SECONDS = 0.005
LAG_EVERY_MS = 1_000
RESCUE_EVERY_MS = 20
NANOSECONDS_PER_MILLISECOND = 1_000_000
CLOSE_SECONDS_MAX = 10.0


class Session:
    def __init__(
        self,
        options: Options,
        routes: dict[str, Route],
        policy: FailurePolicy,
        counts: Counts,
        reports: deque[Report],
        *,
        clock: Clock,
        randomness: Randomness,
        liveness: Liveness,
        stopping: threading.Event,
    ) -> None:
        """``stopping`` is set when no more is begun."""
        self._options = options
        self._routes = routes
        self._executions = list(dict.fromkeys(route.execution for route in routes.values()))
        self._stopping = stopping
        self._clock = clock
        self._liveness = liveness
        self._assignment = Assignment()
        self._pauses = Pauses(options.prefetch_messages, options.prefetch_bytes)
        self._settlement = Settlement(options, policy, counts, reports, self._pauses, clock=clock, randomness=randomness)
        self._intake = Intake(self._assignment, self._settlement, counts, order=options.order, group=options.group)
        self._metadata = MetadataLimit(options.offset_metadata_bytes)
        self._problems = ConnectionProblems()
        # Large, so that the first reads are small: how large messages are is not known yet, and a backlog may wait.
        self._average_bytes = READ_BYTES_MAX / 16
        self._lag_at_ms = 0
        self._rescued_at_ms = 0
        self._consumer: Any = None
        self._is_stopping = False
        self._is_hurried = False
        self.lag: Mapping[tuple[str, int], int] = {}
        self.is_joined = False

    # -- from any thread -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing but a flag: a signal may come while its own thread holds any lock."""
        self._is_stopping = True

    def stop_now(self) -> None:
        self._is_hurried = True
        self.stop()

    @property
    def in_flight(self) -> int:
        return sum(assigned.backlog for assigned in self._assignment)

    # -- the run -------------------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Until it is stopped. False when handlers were still at work when it ended, or the last commit failed."""
        options = self._options
        callbacks = {"on_commit": self._committed, "error_cb": self._problems}
        self._consumer = Consumer(options.consumer_config(callbacks))
        wait_for_broker(self._consumer, options.addresses, self._problems)
        admin = Admin(options.addresses, config=options.connection_config())
        roles, counts = ensure_roles(admin, options.topics, options.group, options.levels)
        growth = PartitionGrowth(options, admin, roles, counts, self._assignment)
        outbox = self._open_outbox()
        scan = RetryScan(options) if options.order == "key" else None
        commits = Commits(outbox, self._metadata, options.commit_interval)
        rebalance = Rebalance(
            options,
            roles,
            self._routes,
            self._assignment,
            self._settlement,
            outbox,
            commits,
            scan,
            clock=self._clock,
            is_hurried=lambda: self._is_hurried,
            look_at_homes=growth.look,
        )
        self._consumer.subscribe(list(roles), on_assign=rebalance.assigned, on_revoke=rebalance.revoked, on_lost=rebalance.lost)
        try:
            while not self._is_stopping:
                self._turn(outbox, commits, scan)
                growth.step(self._consumer, outbox, self._clock.monotonic_ms())
                self.is_joined = rebalance.count > 0
            self._stopping.set()
            return rebalance.give_up(list(self._assignment))
        finally:
            self._close(outbox, scan)

    def _open_outbox(self) -> Outbox:
        finished = self._settlement.finish_one
        outbox: Outbox
        if self._options.exactly_once:
            outbox = TransactionalOutbox(self._options, self._consumer, finished, self._metadata)
        else:
            outbox = PlainOutbox(self._options, self._consumer, finished, self._metadata)
        self._settlement.outbox = outbox
        return outbox

    def _close(self, outbox: Outbox, scan: RetryScan | None) -> None:
        """Whatever happened: leave the group, so that others go on at once. Not when told to stop now: nothing is waited for."""
        for assigned in self._assignment:
            self._assignment.remove(assigned)
            outbox.forget(assigned)
        self._liveness.end()
        if self._is_hurried:
            return
        if scan is not None:
            scan.close()
        outbox.close(CLOSE_SECONDS_MAX)
        self._consumer.close()

    def _turn(self, outbox: Outbox, commits: Commits, scan: RetryScan | None) -> None:
        self._read()
        self._settlement.settle()
        outbox.poll()
        if scan is not None:
            scan.step()
        self._intake.take_due(self._clock.now_ms())
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._rescued_at_ms >= RESCUE_EVERY_MS:
            self._rescued_at_ms = now_ms
            self._rescue(now_ms)
        self._probe(now_ms)
        self._pause_and_resume(now_ms)
        commits.tick(self._assignment, now_ms)
        if now_ms - self._lag_at_ms >= LAG_EVERY_MS:
            self._lag_at_ms = now_ms
            self.lag = {(each.topic, each.partition): lag for each in self._assignment if (lag := self._lag_of(each)) is not None}

    # -- reading -------------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._pauses.should_wait:
            time.sleep(BUSY_SECONDS)
            return
        room_bytes = min(READ_BYTES_MAX, self._pauses.room_bytes)
        count = max(1, min(READ_MESSAGES_MAX, self._pauses.room_messages, int(room_bytes / self._average_bytes)))
        raws = self._consumer.consume(count, 0)
        if not raws:
            raw = self._consumer.poll(self._idle_seconds())
            if raw is None:
                return
            raws = [raw]
        if any(raw.error() is not None for raw in raws):
            raws = [raw for raw in raws if self._is_message(raw)]
        if raws:
            self._average_bytes += (sum(map(len, raws)) / len(raws) + 1 - self._average_bytes) * 0.2
            self._intake.accept(raws)

    def _idle_seconds(self) -> float:
        due_ms = self._intake.next_due_ms()
        if due_ms is None:
            return IDLE_SECONDS
        return min(IDLE_SECONDS, max(0.0, (due_ms - self._clock.now_ms()) / 1000))

    def _is_message(self, raw: Any) -> bool:
        error = raw.error()
        if error is None:
            return True
        if error.fatal() or error.code() in _HOPELESS:
            raise from_kafka_error(
                error, f"read {raw.topic() or 'as a member of the group'}", self._options.addresses, otherwise=GroupError
            )
        log.warning("read: %s", error.str())
        return False

    # -- between two reads ---------------------------------------------------------------------------------------------------

    def _rescue(self, now_ms: int) -> None:
        now_ns = self._clock.monotonic_ns()
        for execution in self._executions:
            execution.rescue(now_ns)
        longest_ns = max(execution.oldest_ns(now_ns) for execution in self._executions)
        self._liveness.beat(now_ms, longest_ns // NANOSECONDS_PER_MILLISECOND)

    def _probe(self, now_ms: int) -> None:
        for route in self._routes.values():
            breaker: Breaker | None = route.breaker
            if breaker is None or not (breaker.tick(now_ms) or self._is_unanswered(route, breaker)):
                continue
            if not route.execution.probe():
                # Nothing waits: the next message that is read is as good a probe as any.
                breaker.succeeded(1, now_ms)
                route.execution.resume()

    def _is_unanswered(self, route: Route, breaker: Breaker) -> bool:
        """Whether the probe went with its partition: nobody will say what became of it."""
        return breaker.state is State.PROBING and route.execution.has_no_probe

    def _pause_and_resume(self, now_ms: int) -> None:
        to_pause, to_resume = self._pauses.changes(self._assignment, now_ms)
        if to_pause:
            self._consumer.pause([TopicPartition(each.topic, each.partition) for each in to_pause])
        if to_resume:
            self._consumer.resume([TopicPartition(each.topic, each.partition) for each in to_resume])

    def _lag_of(self, assigned: Assigned) -> int | None:
        position = assigned.offsets.position
        _, end = self._consumer.get_watermark_offsets(TopicPartition(assigned.topic, assigned.partition), cached=True)
        return max(0, end - position) if position is not None and end >= 0 else None

    def _committed(self, error: Any, partitions: list[Any]) -> None:
        for each in partitions:
            problem = each.error or error
            assigned = self._assignment.get(each.topic, each.partition)
            if problem is None or assigned is None:
                continue
            # It is sent again with the next commit.
            assigned.committed = (None, "")
            if problem.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
                self._metadata.halve()


# What does not get better by waiting.
_HOPELESS = frozenset(
    (
        # The consumer is of no more use: another instance of its name took over, say.
        KafkaError._FATAL,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError._AUTHENTICATION,
    )
)
