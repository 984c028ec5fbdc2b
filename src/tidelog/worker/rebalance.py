"""What a rebalance does to a worker: partitions come, are given up in order, or are gone.

Assigned: the group's commit says where to go on and, in its metadata, what is finished above that; with ``order="key"`` the retry
partitions are scanned before anything of them or of their source is read. Revoked: nothing more is begun, what is under way is
waited for within ``drain_timeout``, and all that is finished is committed. Lost: somebody else has them already, so nothing is
committed and what comes back is ignored.

The callbacks run in the polling thread, within a poll.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, KafkaException, TopicPartition

from tidelog.client.errors import GroupError, from_kafka_error
from tidelog.ports.clock import Clock
from tidelog.worker.assigned import Assigned, Home
from tidelog.worker.assignment import Assignment
from tidelog.worker.commits import Commits
from tidelog.worker.job import Lane
from tidelog.worker.offsets import PartitionOffsets
from tidelog.worker.options import Options
from tidelog.worker.outbox import Outbox
from tidelog.worker.retry_levels import Role
from tidelog.worker.retry_scan import RetryScan
from tidelog.worker.route import Route
from tidelog.worker.run_lengths import Run, decode
from tidelog.worker.settlement import Settlement

log = logging.getLogger("tidelog.worker")

COMMITTED_SECONDS_MAX = 60.0
COMMITTED_TRY_SECONDS = 10.0
LOOK_AGAIN_SECONDS = 0.005


class Rebalance:
    def __init__(
        self,
        options: Options,
        roles: dict[str, Role],
        routes: dict[str, Route],
        assignment: Assignment,
        settlement: Settlement,
        outbox: Outbox,
        commits: Commits,
        scan: RetryScan | None,
        *,
        clock: Clock,
        is_hurried: Callable[[], bool],
        look_at_homes: Callable[[], None],
    ) -> None:
        """``routes`` by source topic. ``look_at_homes`` says which are whole, after partitions came."""
        self._options = options
        self._roles = roles
        self._routes = routes
        self._assignment = assignment
        self._settlement = settlement
        self._outbox = outbox
        self._commits = commits
        self._scan = scan
        self._clock = clock
        self._is_hurried = is_hurried
        self._look_at_homes = look_at_homes
        self._is_eager = options.order == "key"
        self.count = 0

    # -- librdkafka's callbacks ----------------------------------------------------------------------------------------------

    def assigned(self, consumer: Any, partitions: list[Any]) -> None:
        self.count += 1
        log.info("assigned: %s", _names(partitions))
        added: list[tuple[Assigned, int | None, list[Run]]] = []
        for committed in self._committed(consumer, partitions):
            offset = committed.offset if committed.offset >= 0 else None
            runs = [] if offset is None else decode(offset, committed.metadata)
            added.append((self._add(committed.topic, committed.partition, offset, runs), offset, runs))
        starts = [_start(assigned, offset) for assigned, offset, _ in added]
        if self._is_eager:
            consumer.assign(starts)
        else:
            consumer.incremental_assign(starts)
        self._look_at_homes()
        held = [assigned for assigned, _, _ in added if self._scan is not None or not assigned.home.is_whole]
        if held:
            for assigned in held:
                assigned.is_paused = True
            consumer.pause([TopicPartition(assigned.topic, assigned.partition) for assigned in held])
        if self._scan is not None and added:
            homes: dict[Home, None] = dict.fromkeys(assigned.home for assigned, _, _ in added)
            self._scan.begin([each for each in added if not each[0].is_source], list(homes))

    def revoked(self, consumer: Any, partitions: list[Any]) -> None:
        log.info("revoked: %s", _names(partitions))
        self.give_up(self._found(partitions))
        self._unassign(consumer, partitions)

    def lost(self, consumer: Any, partitions: list[Any]) -> None:
        log.warning("lost: %s: another member may have them already", _names(partitions))
        self._close(self._found(partitions))
        self._unassign(consumer, partitions)

    # -- for the end of the worker too ---------------------------------------------------------------------------------------

    def give_up(self, partitions: Sequence[Assigned]) -> bool:
        """Drain and commit. False when something was still under way when the time was over, or could not be committed."""
        deadline_ms = self._clock.monotonic_ms() + self._options.drain_timeout * 1000
        for assigned in partitions:
            assigned.is_stopping = True
        executions = list(dict.fromkeys(route.execution for route in self._routes.values()))
        is_drained = False
        while True:
            for execution in executions:
                execution.discard_stopping()
                # What was handled before a slow message of another partition is reported without it.
                execution.rescue(self._clock.monotonic_ns())
            self._settlement.settle()
            self._outbox.poll()
            is_drained = not any(
                self._outbox.is_at(assigned) or assigned.route.execution.is_at(assigned) for assigned in partitions
            )
            if is_drained or self._is_hurried() or self._clock.monotonic_ms() >= deadline_ms:
                break
            self._outbox.wait(LOOK_AGAIN_SECONDS)
        self._settlement.settle()
        if not is_drained:
            log.warning("gave up waiting for what is under way in %d partitions: it will be handled again", len(partitions))
        is_committed = not self._is_hurried() and self._commits.commit(partitions, self._clock.monotonic_ms(), is_last=True)
        self._close(partitions)
        return is_drained and is_committed

    def _close(self, partitions: Sequence[Assigned]) -> None:
        for assigned in partitions:
            self._assignment.remove(assigned)
            self._outbox.forget(assigned)
            if self._scan is not None:
                self._scan.forget(assigned)
        for route in self._routes.values():
            route.execution.discard_stopping()

    def _add(self, topic: str, partition: int, committed: int | None, runs: list[Run]) -> Assigned:
        role = self._roles[topic]
        route = self._routes[role.source]
        home = self._assignment.home(role.source, partition)
        assigned = Assigned(topic, partition, role.level, home, route, PartitionOffsets(committed, runs))
        if self._options.order == "partition":
            assigned.lane = Lane()
        elif self._options.order == "none":
            assigned.lane = route.execution.lane_of(None)
        if committed is not None:
            assigned.committed = (committed, "")
        self._assignment.add(assigned)
        return assigned

    def _committed(self, consumer: Any, partitions: list[Any]) -> list[Any]:
        """Of the group. A coordinator that is just loading or restarting is asked again."""
        deadline_ms = self._clock.monotonic_ms() + COMMITTED_SECONDS_MAX * 1000
        while True:
            try:
                found: list[Any] = consumer.committed(partitions, timeout=COMMITTED_TRY_SECONDS)
                failed = next((each.error for each in found if each.error is not None), None)
            except KafkaException as error:
                failed = error.args[0]
            if failed is None:
                return found
            if self._is_hurried() or self._clock.monotonic_ms() >= deadline_ms:
                raise from_kafka_error(failed, "ask for the group's commits", self._options.addresses, otherwise=GroupError)

    def _found(self, partitions: list[Any]) -> list[Assigned]:
        return [found for each in partitions if (found := self._assignment.get(each.topic, each.partition)) is not None]

    def _unassign(self, consumer: Any, partitions: list[Any]) -> None:
        # librdkafka remembers what was paused: a partition that comes back would never be read again.
        consumer.resume(partitions)
        if self._is_eager:
            consumer.unassign()
        else:
            consumer.incremental_unassign(partitions)


def _start(assigned: Assigned, committed: int | None) -> Any:
    """Where to go on. A retry topic is read from its beginning whatever auto.offset.reset says: letters must not be passed
    over."""
    if committed is None:
        committed = OFFSET_STORED if assigned.is_source else OFFSET_BEGINNING
    return TopicPartition(assigned.topic, assigned.partition, committed)


def _names(partitions: list[Any]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}" for each in partitions) or "nothing"
