"""The worker's membership in its group: partitions are assigned, given back in order, or lost.

*Assigned*: the group's commit says where to continue and, in its metadata, what is finished above that. With ``order="key"`` the
retry partitions are scanned before anything of them or of their source is read. *Revoked*: nothing more is begun, the worker
waits up to ``drain_timeout`` for what is under way, and everything that is finished is committed. *Lost*: another member may have
the partitions already, so nothing is committed and results are ignored.

The callbacks run in the polling thread, within a poll.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.client.errors import TidelogError
from tidelog.client.raw_consumer import BEGINNING, OffsetCommit, RawConsumer
from tidelog.client.topic_partition import TopicPartition
from tidelog.ports.clock import Clock
from tidelog.worker.dispatch import Lane
from tidelog.worker.execution import HandlerExecution
from tidelog.worker.offsets import PartitionOffsets, decode_runs
from tidelog.worker.options import WorkerOptions
from tidelog.worker.outbox import CommitSchedule, Outbox
from tidelog.worker.partitions import AssignedPartition, AssignedPartitions
from tidelog.worker.pipeline import MessagePipeline
from tidelog.worker.retry_scan import RetryScan, ScannedPartition
from tidelog.worker.retry_topics import PartitionGrowth, TopicRole

log = logging.getLogger("tidelog.worker")

COMMITTED_SECONDS_MAX = 60.0
COMMITTED_TRY_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class GroupMembership:
    options: WorkerOptions
    consumer: RawConsumer
    roles: Mapping[str, TopicRole]
    executions: Mapping[str, HandlerExecution]
    """The handlers' executions by source topic."""
    partitions: AssignedPartitions
    pipeline: MessagePipeline
    outbox: Outbox
    commits: CommitSchedule
    scan: RetryScan | None
    """Used with ``order="key"``."""
    growth: PartitionGrowth
    clock: Clock
    is_hurried: Callable[[], bool]
    assignments: int = 0
    """The number of assignments that the group has sent, including empty ones."""

    # -- callbacks -----------------------------------------------------------------------------------------------------------

    def on_assigned(self, names: list[TopicPartition]) -> None:
        self.assignments += 1
        log.info("assigned: %s", _listed(names))
        committed = self._committed(names)
        added = [self._add(name, committed.get(name)) for name in names]
        self.consumer.accept_assignment({each.assigned.name: _start(each) for each in added})
        self.growth.check_families()
        held = [each.assigned for each in added if self.scan is not None or not each.assigned.family.is_complete]
        for assigned in held:
            assigned.pause()
        self.consumer.pause(assigned.name for assigned in held)
        if self.scan is not None and added:
            families = dict.fromkeys(each.assigned.family for each in added)
            self.scan.begin([each for each in added if not each.assigned.is_source], list(families))

    def on_revoked(self, names: list[TopicPartition]) -> None:
        log.info("revoked: %s", _listed(names))
        self.give_up(self._found(names))
        self._resume(names)

    def on_lost(self, names: list[TopicPartition]) -> None:
        log.warning("lost: %s: another member may have them already", _listed(names))
        self._close(self._found(names))
        self._resume(names)

    # -- for the end of the worker too ---------------------------------------------------------------------------------------

    def give_up(self, partitions: Sequence[AssignedPartition]) -> bool:
        """Drain and commit. Returns False if messages were still under way when the time was up, or the commit failed."""
        is_drained = self.pipeline.drain(partitions, self.options.drain_timeout, self.is_hurried)
        is_committed = not self.is_hurried() and self.commits.commit(partitions, self.clock.monotonic_ms(), is_last=True)
        self._close(partitions)
        return is_drained and is_committed

    def _close(self, partitions: Sequence[AssignedPartition]) -> None:
        for assigned in partitions:
            self.partitions.remove(assigned)
            self.outbox.forget(assigned)
            if self.scan is not None:
                self.scan.forget(assigned)
        self.pipeline.discard_stopping()

    def _add(self, name: TopicPartition, commit: OffsetCommit | None) -> ScannedPartition:
        role = self.roles[name.topic]
        execution = self.executions[role.source]
        family = self.partitions.family(role.source, name.partition)
        committed = None if commit is None else commit.offset
        runs = [] if commit is None else decode_runs(commit.offset, commit.metadata)
        lane = None
        if self.options.order == "partition":
            lane = Lane(None, family.share)
        elif self.options.order == "none":
            lane = execution.lane_of(None, family.share)
        assigned = AssignedPartition(name, role.level, family, execution, PartitionOffsets(committed, runs), lane)
        if committed is not None:
            assigned.note_commit(committed, "")
        self.partitions.add(assigned)
        return ScannedPartition(assigned, committed, runs)

    def _committed(self, names: list[TopicPartition]) -> dict[TopicPartition, OffsetCommit]:
        """The group's commits. A coordinator that is loading or restarting is asked again."""
        deadline_ms = self.clock.monotonic_ms() + COMMITTED_SECONDS_MAX * 1000
        while True:
            try:
                return self.consumer.committed(names, COMMITTED_TRY_SECONDS)
            except TidelogError:
                if self.is_hurried() or self.clock.monotonic_ms() >= deadline_ms:
                    raise

    def _found(self, names: list[TopicPartition]) -> list[AssignedPartition]:
        return [found for name in names if (found := self.partitions.get(name)) is not None]

    def _resume(self, names: list[TopicPartition]) -> None:
        # librdkafka remembers what was paused: a partition that comes back would never be read again.
        self.consumer.resume(names)


def _start(each: ScannedPartition) -> int | None:
    """Where a partition starts. A retry topic is read from its beginning, whatever auto.offset.reset says: no letter may be
    skipped."""
    if each.committed is None and not each.assigned.is_source:
        return BEGINNING
    return each.committed


def _listed(names: list[TopicPartition]) -> str:
    return ", ".join(map(str, names)) or "nothing"
