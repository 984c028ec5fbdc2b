"""The messages of the quorum as data: one class for each of Kafka's requests and responses, reduced to the one partition that the
quorum has.

Every response names the leader that its sender knows and the sender's epoch; whoever hears of a later epoch adopts it. A replica
judges a response together with the request that it answers, so an answer that comes late, twice or never does no harm.
"""

from typing import NamedTuple

from tidelog.raft.quorum_state import NOBODY
from tidelog.raft.voters import ReplicaKey, VoterEndpoint
from tidelog.wire.errors import ErrorCode

# In a Fetch: the follower's version of the API does not tell its high watermark, so news of it is no reason to answer.
UNKNOWN_HIGH_WATERMARK = 2**63 - 1


class SnapshotId(NamedTuple):
    """A snapshot covers the log below ``end_offset``, whose last record is of ``epoch``."""

    end_offset: int
    epoch: int


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


class LeaderNews(NamedTuple):
    """What the sender of a response knows: its epoch, and the leader of that epoch."""

    epoch: int
    leader_id: int = NOBODY
    leader_endpoint: VoterEndpoint | None = None


class Vote(NamedTuple):
    """``pre_vote`` asks whether the vote would be granted; then ``epoch`` is the epoch that the sender is in."""

    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: int
    last_offset: int
    pre_vote: bool = False
    cluster_id: str | None = None


class VoteReply(NamedTuple):
    error: ErrorCode
    news: LeaderNews
    vote_granted: bool = False


class BeginQuorumEpoch(NamedTuple):
    epoch: int
    leader_id: int
    voter: ReplicaKey
    leader_endpoints: tuple[VoterEndpoint, ...] = ()
    cluster_id: str | None = None


class BeginQuorumEpochReply(NamedTuple):
    error: ErrorCode
    news: LeaderNews


class EndQuorumEpoch(NamedTuple):
    """``preferred_candidates`` begins with the voter that has most of the log."""

    epoch: int
    leader_id: int
    preferred_candidates: tuple[ReplicaKey, ...] = ()
    cluster_id: str | None = None


class EndQuorumEpochReply(NamedTuple):
    error: ErrorCode
    news: LeaderNews


class QuorumFetch(NamedTuple):
    """``fetch_offset`` says what the replica has on its disk: everything below it."""

    epoch: int
    replica: ReplicaKey
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int = UNKNOWN_HIGH_WATERMARK
    max_wait_ms: int = 0
    size_max: int = 1 << 20
    cluster_id: str | None = None


class QuorumFetchReply(NamedTuple):
    error: ErrorCode
    news: LeaderNews
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEnd | None = None
    snapshot_id: SnapshotId | None = None
    records: object = None
    """Whole batches as the log gave them, opaque to the quorum; None when there are none."""


class FetchSnapshot(NamedTuple):
    epoch: int
    replica: ReplicaKey
    snapshot_id: SnapshotId
    position: int
    size_max: int = 1 << 20
    cluster_id: str | None = None


class FetchSnapshotReply(NamedTuple):
    error: ErrorCode
    news: LeaderNews
    snapshot_id: SnapshotId | None = None
    size: int = 0
    position: int = 0
    data: bytes = b""


class AddVoter(NamedTuple):
    """A node that adds itself does not wait for the commitment: it may have to fetch the record first, and asks one thing at a
    time."""

    voter: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...]
    timeout_ms: int
    cluster_id: str | None = None
    ack_when_committed: bool = True


class RemoveVoter(NamedTuple):
    voter: ReplicaKey
    cluster_id: str | None = None


class UpgradeKRaftVersion(NamedTuple):
    """UpdateFeatures of ``kraft.version``, at the leader. It is never sent as such to another node."""

    version: int
    timeout_ms: int
    validate_only: bool = False
    cluster_id: str | None = None


class ChangeVoterReply(NamedTuple):
    """The answer to AddVoter, RemoveVoter and UpgradeKRaftVersion."""

    error: ErrorCode
    message: str = ""


class UpdateVoter(NamedTuple):
    epoch: int
    voter: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...]
    kraft_version_min: int
    kraft_version_max: int
    cluster_id: str | None = None


class UpdateVoterReply(NamedTuple):
    error: ErrorCode
    news: LeaderNews


QuorumRequest = (
    Vote
    | BeginQuorumEpoch
    | EndQuorumEpoch
    | QuorumFetch
    | FetchSnapshot
    | AddVoter
    | RemoveVoter
    | UpdateVoter
    | UpgradeKRaftVersion
)
QuorumReply = (
    VoteReply
    | BeginQuorumEpochReply
    | EndQuorumEpochReply
    | QuorumFetchReply
    | FetchSnapshotReply
    | ChangeVoterReply
    | UpdateVoterReply
)
