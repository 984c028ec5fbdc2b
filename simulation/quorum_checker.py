"""What must hold in a quorum at every moment, whatever happened. The simulation and the explorer ask it after every step.

- An epoch has one leader.
- A replica votes for one candidate in an epoch, across crashes.
- Nothing is sent before it is durable: a message's epoch, a vote, a fetch offset.
- What was committed once stays as it is, on every node, and every later leader has it.
- Nobody is ahead of the high watermark that a leader announced.
- A decision that was answered is there exactly once; one that was not is there at most once.
- A node's voters are those of its log. A leader changes them one at a time, and not before a record of its epoch is committed.
"""

from collections.abc import Hashable

from simulation.quorum_host import Entry, Origin, QuorumHost
from tidelog.raft.messages import QuorumFetch, QuorumFetchReply, Vote, VoteReply
from tidelog.raft.quorum import RaftState, Reply, Request
from tidelog.raft.voters import KRaftVersion, VoterSet, VotersRecord


class QuorumViolation(Exception):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class QuorumChecker:
    __slots__ = ("_entries_seen", "announced", "answered", "committed", "leaders", "votes")

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, bytes, int], Hashable] = {}
        self.committed: tuple[Entry, ...] = ()
        self.answered: frozenset[Hashable] = frozenset()
        # The entries with which each node's voters were compared last.
        self._entries_seen: dict[int, tuple[Entry, ...]] = {}
        # The highest high watermark that a leader had.
        self.announced = 0

    def copy(self) -> "QuorumChecker":
        copy = QuorumChecker()
        copy.leaders, copy.votes = dict(self.leaders), dict(self.votes)
        copy.committed, copy.answered, copy.announced = self.committed, self.answered, self.announced
        return copy

    def sent(self, host: QuorumHost, message: Request | Reply) -> None:
        """A message leaves a node."""
        body = message.request if isinstance(message, Request) else message.reply
        node_id, stored = host.config.node_id, host.stored
        epoch: int = getattr(getattr(body, "news", body), "epoch", 0)
        if epoch > stored.leader_epoch:
            raise QuorumViolation(
                "heard before durable", f"node {node_id} sent epoch {epoch}, its disk has {stored.leader_epoch}: {body}"
            )
        if isinstance(body, QuorumFetch) and body.fetch_offset > host.log.durable_end_offset:
            raise QuorumViolation("heard before durable", f"node {node_id} fetches at {body.fetch_offset}, and has not synced it")
        if isinstance(body, Vote) and not body.pre_vote:
            self._voted(host, body.epoch, body.candidate)
        if isinstance(body, VoteReply) and body.vote_granted and isinstance(message, Reply):
            origin = message.reply_to
            vote = origin.sent.request if isinstance(origin, Origin) else None
            if isinstance(vote, Vote) and not vote.pre_vote:
                self._voted(host, vote.epoch, vote.candidate)
        if isinstance(body, QuorumFetchReply) and body.high_watermark > self.announced:
            raise QuorumViolation("high watermark", f"node {node_id} announced {body.high_watermark}, beyond {self.announced}")

    def _voted(self, host: QuorumHost, epoch: int, candidate: Hashable) -> None:
        voter = host.config.node_id, host.config.directory_id, epoch
        if self.votes.setdefault(voter, candidate) != candidate:
            raise QuorumViolation("two votes", f"node {voter[0]} voted for {self.votes[voter]} and {candidate} in epoch {epoch}")

    def look_at(self, host: QuorumHost) -> None:
        """A node has done something."""
        node = host.running()
        node_id = host.config.node_id
        if node.failure is not None:
            raise QuorumViolation("node failed", f"node {node_id}: {node.failure}")
        if self._entries_seen.get(node_id) is not host.log.entries and host.cutting is None:
            self._entries_seen[node_id] = host.log.entries
            voters = latest_voters(host)
            if voters is not None and node.voters != voters:
                raise QuorumViolation("wrong voters", f"node {node_id} counts {node.voters.ids}, its log says {voters.ids}")
        if node.state is RaftState.LEADER:
            self._lead(host, node.epoch)
        if self.leaders.get(node.epoch) == node_id:
            # It leads, or has resigned in this very step.
            self._announce(host, node.epoch)
        if node.high_watermark > self.announced:
            raise QuorumViolation("ahead", f"node {node_id} is at {node.high_watermark}, the high watermark is {self.announced}")
        if node.high_watermark > len(self.committed):
            start = len(self.committed)
            more = [host.log.entry_at(offset) for offset in range(start, node.high_watermark)]
            if None in more:
                raise QuorumViolation("ahead", f"node {node_id} has a high watermark of {node.high_watermark} beyond its log")
            self.committed += tuple(entry for entry in more if entry is not None)
            self._check_decisions()
        self._compare(host, node.high_watermark)
        if host.results:
            self.answered |= {result.token for result in host.results if result.error is None}
            self._check_decisions()

    def _announce(self, host: QuorumHost, epoch: int) -> None:
        high_watermark = host.running().high_watermark
        if high_watermark <= self.announced:
            return
        self.announced = high_watermark
        last = host.log.entry_at(high_watermark - 1)
        if last is not None and last.epoch < epoch:
            text = (
                f"node {host.config.node_id} leads epoch {epoch} and committed up to {high_watermark}, an entry of {last.epoch}"
            )
            raise QuorumViolation("older epoch committed by counting", text)

    def _lead(self, host: QuorumHost, epoch: int) -> None:
        """One that leads an older epoch, and does not know that it is over, need not have what was committed since."""
        node_id = host.config.node_id
        leader = self.leaders.setdefault(epoch, node_id)
        if leader != node_id:
            raise QuorumViolation("two leaders", f"nodes {leader} and {node_id} lead epoch {epoch}")
        if epoch == max(self.leaders):
            if host.log.end_offset < len(self.committed):
                raise QuorumViolation("committed entry lost", f"leader {node_id} of epoch {epoch} lacks a committed entry")
            self._compare(host, len(self.committed))
        _check_voter_changes(host, epoch)

    def _compare(self, host: QuorumHost, end_offset: int) -> None:
        log = host.log
        for offset in range(log.start_offset, end_offset):
            if log.entry_at(offset) != self.committed[offset]:
                raise QuorumViolation(
                    "committed entry changed",
                    f"node {host.config.node_id} has {log.entry_at(offset)} at offset {offset}, not {self.committed[offset]}",
                )
        if log.snapshot_id is not None and log.snapshot_id.end_offset and log.image != self.committed[: len(log.image)]:
            raise QuorumViolation("images differ", f"the snapshot of node {host.config.node_id} is not what was committed")

    def _check_decisions(self) -> None:
        values = [entry.value for entry in self.committed if isinstance(entry.value, str)]
        if len(set(values)) != len(values):
            raise QuorumViolation("decision twice", f"{values}")
        missing = self.answered.difference(values)
        if missing:
            raise QuorumViolation("answered decision lost", f"{sorted(map(str, missing))}")


def latest_voters(host: QuorumHost) -> VoterSet | None:
    log = host.log
    for entry in (*reversed(log.entries), *reversed(log.image)):
        if isinstance(entry.value, VotersRecord):
            return entry.value.voter_set
    return None


def _check_voter_changes(host: QuorumHost, epoch: int) -> None:
    """The first batch of an epoch may repeat the voters, after the kraft version; every other record of them is a change."""
    log, high_watermark = host.log, host.running().high_watermark
    first = max(high_watermark - log.start_offset, 0)
    changes = [
        index
        for index, entry in enumerate(log.entries[first:], first)
        if entry.epoch == epoch
        and isinstance(entry.value, VotersRecord)
        and not (index and isinstance(log.entries[index - 1].value, KRaftVersion))
    ]
    if len(changes) > 1:
        raise QuorumViolation("two voter changes", f"of the leader {host.config.node_id}, not committed: {changes}")
    committed = log.entry_at(high_watermark - 1) if high_watermark else None
    if changes and (committed is None or committed.epoch != epoch):
        raise QuorumViolation(
            "early voter change", f"of the leader {host.config.node_id} at offset {log.start_offset + changes[0]}"
        )
