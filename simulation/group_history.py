"""What members of groups were given, committed and read, beside what ``History`` knows of their records.

Times are both moments of the history (an order) and simulated microseconds: whether a member may still think that a partition is
its own is a matter of time-outs. Every commit carries metadata of its own, so a committed offset that is read names the commit
that wrote it.
"""

from dataclasses import dataclass, field

from simulation.history import NEVER, History, Outcome, PartitionId
from simulation.scheduler import Scheduler


@dataclass(slots=True)
class Ownership:
    """A member was told that a partition is its own, in a generation or member epoch, until it gave it up, or went.

    The coordinator must let it be until ``assured_us``, unless the member itself says that it gives up or leaves."""

    group: str
    member: str
    partition: PartitionId
    epoch: int
    since: int
    since_us: int
    assured_us: int
    until: int = NEVER
    until_us: int = NEVER


@dataclass(slots=True)
class Commit:
    """One partition of an OffsetCommit. ``epoch`` is the generation or member epoch that it was sent with."""

    group: str
    member: str
    partition: PartitionId
    epoch: int
    offset: int
    metadata: str
    sent_at: int
    outcome: Outcome = Outcome.OPEN
    ended_at: int = NEVER


@dataclass(slots=True)
class OffsetRead:
    """One partition of an OffsetFetch; -1 and no metadata when nothing is committed."""

    reader: str
    group: str
    partition: PartitionId
    offset: int
    metadata: str
    sent_at: int
    ended_at: int
    is_final: bool = False


@dataclass(slots=True)
class GroupHistory:
    base: History
    scheduler: Scheduler
    groups: dict[str, list[str]] = field(default_factory=dict)
    """Which members a group has."""
    ownerships: list[Ownership] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    reads: list[OffsetRead] = field(default_factory=list)
    acked: int = 0
    """Commits that were acknowledged."""

    def owned(self, group: str, member: str, partition: PartitionId, epoch: int, assured_us: int) -> Ownership:
        ownership = Ownership(group, member, partition, epoch, self.base.now(), self.scheduler.now_us, assured_us)
        self.ownerships.append(ownership)
        self.scheduler.record(f"{member} owns {self.base.name_of(partition)} in {epoch}")
        return ownership

    def given_up(self, ownership: Ownership) -> None:
        ownership.until, ownership.until_us = self.base.now(), self.scheduler.now_us

    def committing(self, group: str, member: str, partition: PartitionId, epoch: int, offset: int) -> Commit:
        metadata = f"{member}:{len(self.commits)}"
        commit = Commit(group, member, partition, epoch, offset, metadata, self.base.now())
        self.commits.append(commit)
        return commit

    def committed(self, commit: Commit, outcome: Outcome) -> None:
        commit.outcome = outcome
        commit.ended_at = self.base.now()
        self.acked += outcome is Outcome.ACKED
