"""Checks whether groups could have produced a history: owners of partitions, committed offsets, and what was read for a group.

``GroupHistory`` records what members were assigned, committed and read. Its times are both moments of the history (an order) and
simulated microseconds, because time-outs decide whether a member may still think that it owns a partition. Every commit has its
own metadata, so that a committed offset that is read names the commit that wrote it.

Each check is a function from a history to violations and is listed in ``CHECKS``. The records that members fetched are checked
separately, like those of any consumer (``checker``).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from simulation.checker import Violation
from simulation.history import NEVER, History, Outcome, PartitionId
from simulation.scheduler import Scheduler


@dataclass(slots=True)
class Ownership:
    """The time in which a member was told that it owns a partition, in a generation or member epoch, until it released it or
    disappeared.

    The coordinator must not reassign the partition before ``assured_us``, unless the member itself releases it or leaves."""

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
    """The members of each group."""
    ownerships: list[Ownership] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    reads: list[OffsetRead] = field(default_factory=list)
    acked: int = 0
    """The number of commits that were acknowledged."""

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


Check = Callable[[GroupHistory], Iterator[Violation]]


def one_owner_per_generation(history: GroupHistory) -> Iterator[Violation]:
    owners: dict[tuple[str, PartitionId, int], str] = {}
    for one in history.ownerships:
        known = owners.setdefault((one.group, one.partition, one.epoch), one.member)
        if known != one.member:
            text = f"{_of(history, one)} in {one.epoch}: {known} and {one.member}"
            yield Violation("two owners in one generation", text)


def one_owner_at_a_time(history: GroupHistory) -> Iterator[Violation]:
    """No two members own a partition at a time for which the coordinator has promised to wait for both."""
    by_partition: dict[tuple[str, PartitionId], list[Ownership]] = defaultdict(list)
    for one in history.ownerships:
        earlier = by_partition[one.group, one.partition]
        for other in earlier:
            both_us = min(_end_us(one), _end_us(other)) - max(one.since_us, other.since_us)
            if other.member != one.member and both_us > 0:
                text = f"{_of(history, one)}: {one.member} in {one.epoch}, while {other.member} has it in {other.epoch}"
                yield Violation("two owners at a time", f"{text}, for {both_us} us")
        earlier.append(one)


def _end_us(ownership: Ownership) -> int:
    return min(ownership.until_us, ownership.assured_us)


def owners_know_later_generations(history: GroupHistory) -> Iterator[Violation]:
    """Generations and member epochs never go back for one member."""
    newest: dict[tuple[str, str, PartitionId], int] = {}
    for one in history.ownerships:
        key = one.group, one.member, one.partition
        if one.epoch < newest.get(key, one.epoch):
            yield Violation("epoch went back", f"{_of(history, one)}: {one.member} in {one.epoch} after {newest[key]}")
        newest[key] = one.epoch


def only_owners_commit(history: GroupHistory) -> Iterator[Violation]:
    """A commit of an earlier generation is refused once somebody knows that the partition has moved to another member."""
    by_partition: dict[tuple[str, PartitionId], list[Ownership]] = defaultdict(list)
    for one in history.ownerships:
        by_partition[one.group, one.partition].append(one)
    for commit in history.commits:
        if commit.outcome is not Outcome.ACKED:
            continue
        for other in by_partition[commit.group, commit.partition]:
            if other.member != commit.member and other.epoch > commit.epoch and other.since < commit.sent_at:
                text = f"{commit.member} at {commit.offset} in {commit.epoch}, after {other.member} had it in {other.epoch}"
                yield Violation("stale commit accepted", f"{_of(history, commit)}: {text}")
                break


def committed_offsets_are_there(history: GroupHistory) -> Iterator[Violation]:
    """An offset that is read was committed and not refused, and no commit that was known before the read came after it."""
    by_metadata = {commit.metadata: commit for commit in history.commits}
    known = _known_commits(history, by_metadata)
    for read in history.reads:
        where = f"{_of(history, read)}: {read.reader} reads {read.offset}"
        source = by_metadata.get(read.metadata)
        if read.offset >= 0 and (source is None or (source.partition, source.group) != (read.partition, read.group)):
            yield Violation("never committed", where)
            continue
        if source is not None and (source.outcome is Outcome.FAILED or source.offset != read.offset):
            yield Violation("refused but committed", f"{where}, {source.member} committed {source.offset} ({source.outcome})")
        # A commit that nobody was told of may take effect at any time.
        taken_by = -1 if source is None else source.ended_at if source.outcome is Outcome.ACKED else NEVER
        for commit, known_at in known[read.group, read.partition]:
            if commit is not source and known_at < read.sent_at and commit.sent_at > taken_by:
                yield Violation("lost commit", f"{where}, after {commit.offset} of {commit.member} was committed")
                break


def _known_commits(
    history: GroupHistory, by_metadata: dict[str, Commit]
) -> dict[tuple[str, PartitionId], list[tuple[Commit, int]]]:
    """Commits that took effect, and when that was known at the latest: when it was acknowledged, or read."""
    known_at = {commit.metadata: commit.ended_at for commit in history.commits if commit.outcome is Outcome.ACKED}
    for read in history.reads:
        if read.metadata in by_metadata:
            known_at[read.metadata] = min(read.ended_at, known_at.get(read.metadata, NEVER))
    known: dict[tuple[str, PartitionId], list[tuple[Commit, int]]] = defaultdict(list)
    for metadata, moment in known_at.items():
        commit = by_metadata[metadata]
        known[commit.group, commit.partition].append((commit, moment))
    return known


def nothing_is_committed_that_was_not_read(history: GroupHistory) -> Iterator[Violation]:
    """A group's commit says that everything before it was read: no member's position may skip anything."""
    groups = {member: group for group, members in history.groups.items() for member in members}
    read: dict[tuple[str, PartitionId], int] = defaultdict(int)
    polls = iter(sorted((poll for poll in history.base.polls if poll.consumer in groups), key=lambda poll: poll.ended_at))
    poll = next(polls, None)
    for commit in history.commits:
        while poll is not None and poll.ended_at < commit.sent_at:
            key = groups[poll.consumer], poll.partition
            for offset, _ in poll.records:
                read[key] += offset == read[key]
            poll = next(polls, None)
        known = read[commit.group, commit.partition]
        if commit.offset > known:
            text = f"{_of(history, commit)}: {commit.member} commits {commit.offset}, read is {known}"
            yield Violation("committed unread records", text)


def final_ends(history: History) -> dict[PartitionId, int]:
    """Where each partition ends, according to the final reads."""
    ends: dict[PartitionId, int] = {}
    for poll in history.polls:
        if poll.is_final:
            ends[poll.partition] = max(ends.get(poll.partition, 0), poll.high_watermark)
    return ends


def everything_is_drained(history: GroupHistory) -> Iterator[Violation]:
    """At the end each group has committed the end of each partition."""
    ends = final_ends(history.base)
    finals = {(read.group, read.partition): read for read in history.reads if read.is_final}
    for group in history.groups:
        for partition, end in ends.items():
            read = finals.get((group, partition))
            if end and (read is None or read.offset != end):
                text = f"{group} of {history.base.name_of(partition)}: {read and read.offset} of {end}"
                yield Violation("not drained", text)


CHECKS: tuple[Check, ...] = (
    one_owner_per_generation,
    one_owner_at_a_time,
    owners_know_later_generations,
    only_owners_commit,
    committed_offsets_are_there,
    nothing_is_committed_that_was_not_read,
    everything_is_drained,
)


def check_groups(history: GroupHistory) -> list[Violation]:
    """Return all violations, each once."""
    return list(dict.fromkeys(violation for one in CHECKS for violation in one(history)))


def _of(history: GroupHistory, thing: Ownership | Commit | OffsetRead) -> str:
    return f"{thing.group} of {history.base.name_of(thing.partition)}"
