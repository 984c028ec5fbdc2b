"""Who votes in the metadata quorum, and the control records that say so.

A voter is a node id with a directory id: a node that comes back with an empty disk has another directory id, and is another
voter (KIP-853). Under ``kraft.version`` 0 the voters stand in the configuration, without directory ids; the id of such a voter is
``NO_DIRECTORY``, which matches any. Under version 1 the log holds them: the latest voters record counts, committed or not.

A node never trusts one voter set for good: ``VoterHistory`` remembers at which offset each record stands, so that a truncation
brings back the set before.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.raft.quorum_state import NO_DIRECTORY


class VoterEndpoint(NamedTuple):
    listener: str
    host: str
    port: int


class ReplicaKey(NamedTuple):
    """The identity of a replica. Nobody else has this id and this directory."""

    node_id: int
    directory_id: bytes = NO_DIRECTORY


class Voter(NamedTuple):
    node_id: int
    directory_id: bytes
    endpoints: tuple[VoterEndpoint, ...]
    kraft_version_min: int = 0
    kraft_version_max: int = 1

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)

    def matches(self, key: ReplicaKey) -> bool:
        """A voter of the configuration has no directory id, so its node id alone decides."""
        return self.node_id == key.node_id and self.directory_id in (NO_DIRECTORY, key.directory_id)


class VoterSet(NamedTuple):
    """The voters, in the order of their ids."""

    voters: tuple[Voter, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(voter.node_id for voter in self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def find(self, key: ReplicaKey) -> Voter | None:
        return next((voter for voter in self.voters if voter.matches(key)), None)

    def by_id(self, node_id: int) -> Voter | None:
        return next((voter for voter in self.voters if voter.node_id == node_id), None)

    def with_voter(self, voter: Voter) -> "VoterSet":
        """This set with the voter, in place of the one that has the same id."""
        return voter_set([*(each for each in self.voters if each.node_id != voter.node_id), voter])

    def without(self, node_id: int) -> "VoterSet":
        return VoterSet(tuple(each for each in self.voters if each.node_id != node_id))


def voter_set(voters: Iterable[Voter]) -> VoterSet:
    return VoterSet(tuple(sorted(voters)))


class LeaderChange(NamedTuple):
    """The first record of every epoch: who leads it, and who voted for that."""

    leader_id: int
    voters: tuple[ReplicaKey, ...]
    granting_voters: tuple[ReplicaKey, ...]


class KRaftVersion(NamedTuple):
    version: int


class VotersRecord(NamedTuple):
    voter_set: VoterSet


ControlRecord = LeaderChange | KRaftVersion | VotersRecord
PlacedControlRecord = tuple[int, ControlRecord]


class VoterHistory:
    """The voter sets and kraft versions of the log by offset, above those of the configuration."""

    __slots__ = ("_records", "_static_voters")

    def __init__(self, static_voters: VoterSet) -> None:
        self._static_voters = static_voters
        self._records: tuple[PlacedControlRecord, ...] = ()

    @property
    def records(self) -> Sequence[PlacedControlRecord]:
        return self._records

    def note(self, records: Iterable[PlacedControlRecord]) -> None:
        self._records += tuple(placed for placed in records if not isinstance(placed[1], LeaderChange))

    def truncate(self, end_offset: int) -> None:
        self._records = tuple(placed for placed in self._records if placed[0] < end_offset)

    def clear(self) -> None:
        self._records = ()

    def as_of(self, end_offset: int) -> tuple[ControlRecord, ...]:
        """The kraft version and the voters that the log states below ``end_offset``, for a snapshot of it; empty under version
        0, where the configuration has them."""
        before = [record for offset, record in self._records if offset < end_offset]
        version = next((record for record in reversed(before) if isinstance(record, KRaftVersion)), None)
        voters = next((record for record in reversed(before) if isinstance(record, VotersRecord)), None)
        if version is None or version.version < 1:
            return ()
        return (version,) if voters is None else (version, voters)

    @property
    def voters(self) -> VoterSet:
        for _, record in reversed(self._records):
            if isinstance(record, VotersRecord):
                return record.voter_set
        return self._static_voters

    def may_include(self, key: ReplicaKey, committed_offset: int) -> bool:
        """Whether this replica may still be a voter: it is in one of the sets of which any may be the latest committed one."""
        for offset, record in reversed(self._records):
            if isinstance(record, VotersRecord):
                if record.voter_set.find(key) is not None:
                    return True
                if offset < committed_offset:
                    return False
        return self._static_voters.find(key) is not None

    @property
    def voters_offset(self) -> int:
        """Where the latest voters record stands; -1 for voters of the configuration or of the bootstrap snapshot."""
        return next((offset for offset, record in reversed(self._records) if isinstance(record, VotersRecord)), -1)

    @property
    def kraft_version(self) -> int:
        return next((record.version for _, record in reversed(self._records) if isinstance(record, KRaftVersion)), 0)
