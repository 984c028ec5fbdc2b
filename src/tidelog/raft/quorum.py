"""The metadata quorum: who leads it, and which records are committed. Every decision of the quorum is in this file.

``RaftNode`` is KRaft (KIP-595, 630, 853, 996, 1166) in the shape of etcd's raft: no thread, no clock, no disk and no network. Its
host tells it what happened and then takes ``ready()``, carries out what that says, and reports what became durable:

    tick(now_ms)                               time; comes before any other input, and when ``next_deadline_ms`` is due
    step(request, reply_to)                    a request arrived; its answer comes as Reply(reply_to, ...)
    receive(sent, reply)                       the answer to a Request that this node sent
    request_failed(sent, failure)              that Request has no answer
    propose(batch, token)                      the leader appends a batch; how it ends comes as ProposalResult(token, ...)
    resign()                                   the host wants to stop
    state_stored(), log_synced(), truncated(), snapshot_installed(), snapshot_rejected(), storage_failed()

**Nothing is heard before it is durable.** Votes and epochs are a ``QuorumState`` that ``ready()`` asks the host to store. A
message is built under some state and leaves only when that state, or a later one, is stored. At most one store is under way at a
time, so stores cannot overtake each other. A follower's fetch offset is what it has on disk: it asks for more only when all that
it appended is synced. A new leader writes its first record only when its leadership is stored, and counts only what it has
synced itself. So a crash at any moment leaves a node that keeps every promise that anybody heard.

**States.** *Unattached*: no leader is known in this epoch; the node may have voted. *Prospective*: it asks whether it would be
elected (pre-vote), and its epoch stands still. *Candidate*: it voted for itself in a new epoch. *Leader*. *Follower*: it fetches
from the leader. *Resigned*: it led this epoch, never will again, and says so. A node that is not a voter is an *observer*: it is
unattached or a follower, and never stands for election. The exception is a node whose removal stands in its own log and may be
uncommitted: if nobody else has that record, the voters that are left may need this longer log to decide anything. It stands
without a vote of its own, and resigns once the removal is committed. A start never resumes a leadership or a candidacy: whoever
led goes on as resigned, so no epoch has two leaders and no offset of an epoch has two contents.

**Commitment.** The high watermark is what a majority of the latest voter set has on disk, once that includes a record of the
leader's own epoch: records of older epochs are committed only together with it. Nothing above ``high_watermark`` may reach an
image.

**Bounds.** One request per peer is in flight; one fetch per replica is parked; a fetch and a piece of a snapshot have a size;
only so many proposals wait, and only so many observers are remembered.

A node whose storage failed goes silent for good: it cannot know what it has promised.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from tidelog.ports.randomness import Randomness
from tidelog.raft.errors import (
    CorruptMetadataLog,
    LeadershipLost,
    NotQuorumLeader,
    QuorumError,
    TooManyProposals,
)
from tidelog.raft.messages import (
    AddVoter,
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    ChangeVoterReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    EpochEnd,
    FetchSnapshot,
    FetchSnapshotReply,
    LeaderNews,
    QuorumFetch,
    QuorumFetchReply,
    QuorumReply,
    QuorumRequest,
    RemoveVoter,
    SnapshotId,
    UpdateVoter,
    UpdateVoterReply,
    UpgradeKRaftVersion,
    Vote,
    VoteReply,
)
from tidelog.raft.quorum_state import NOBODY, QuorumState
from tidelog.raft.voters import (
    ControlRecord,
    KRaftVersion,
    LeaderChange,
    PlacedControlRecord,
    ReplicaKey,
    Voter,
    VoterEndpoint,
    VoterHistory,
    VoterSet,
    VotersRecord,
)
from tidelog.wire.errors import ErrorCode

KRAFT_VERSION_MIN = 0
KRAFT_VERSION_MAX = 1
# A leader that died takes its followers' connections with it at the same moment. They stand for election this far apart at most,
# so that mostly the first wins before the second begins.
EVIDENCE_JITTER_MS = 100
ELECTION_BACKOFF_BASE_MS = 100
# Each waiting proposal holds a client's request.
PROPOSALS_MAX = 1_000
# More than any cluster has brokers. Beyond it the observer that has been silent longest is forgotten.
OBSERVERS_MAX = 1_000
OBSERVER_EXPIRY_MS = 300_000


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """The identity of the node, the peers that it begins with, and the times of ``controller.quorum.*``."""

    node_id: int
    directory_id: bytes
    cluster_id: str | None = None
    endpoints: tuple[VoterEndpoint, ...] = ()
    static_voters: VoterSet = VoterSet()  # noqa: RUF009 - a NamedTuple is immutable
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    auto_join: bool = False
    """Whether this node, while it observes, asks to become a voter (KIP-1186)."""
    election_timeout_ms: int = 1_000
    election_backoff_max_ms: int = 1_000
    fetch_timeout_ms: int = 2_000
    request_timeout_ms: int = 2_000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    fetch_size_max: int = 8 << 20
    snapshot_piece_max: int = 1 << 20


class RaftState(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


class QuorumTimer(Enum):
    ELECTION = "election"
    FETCH = "fetch"
    CHECK_QUORUM = "check-quorum"
    BEGIN_EPOCH = "begin-epoch"
    UPDATE_VOTER = "update-voter"
    OBSERVERS = "observers"
    VOTER_CHANGE = "voter-change"


class RequestFailure(Enum):
    REFUSED = "refused"
    """The peer's machine answered that nobody listens there."""
    LOST = "lost"
    """The connection ended."""
    TIMED_OUT = "timed out"


class RaftPeer(NamedTuple):
    """Where a request goes. The id is ``NOBODY`` for a bootstrap server, which may be any node."""

    node_id: int
    host: str
    port: int


class SnapshotPiece(NamedTuple):
    size: int
    data: bytes


class RaftLog(Protocol):
    """The log as the quorum uses it. Appends are in the page cache when they return; ``ready().sync_to`` makes them durable."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def durable_end_offset(self) -> int:
        """Everything below it survives a power cut. A sync that began before a truncation must not raise it."""
        ...

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch, else of the latest snapshot, else 0."""
        ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        """The oldest one that is kept. If the log does not begin at 0, it ends where the log begins."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """The greatest epoch at or below ``epoch`` that the log or its snapshot knows, and where it ends; (0, 0) if none."""
        ...

    def append(self, batch: Any, epoch: int) -> int:
        """Append a proposed batch and return the new end offset. After a QuorumError nothing of it is in the log."""
        ...

    def append_control(self, records: Sequence[ControlRecord], epoch: int) -> int:
        """Append the records as one control batch and return the new end offset. Raises QuorumError as ``append`` does."""
        ...

    def append_fetched(self, records: Any) -> None:
        """Append batches exactly as the leader has them. Raises QuorumError when they do not continue this log."""
        ...

    def read(self, offset: int, size_max: int) -> object:
        """Whole batches from ``offset`` on, at least one if there is one; None at the end. Raises QuorumError if it cannot."""
        ...

    def control_records(self, offset: int) -> Iterable[PlacedControlRecord]:
        """The control records from ``offset`` on. Those of the latest snapshot stand at its end offset less one. Raises
        QuorumError when the log cannot be read."""
        ...

    def advance_high_watermark(self, offset: int) -> None: ...

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, size_max: int) -> SnapshotPiece | None:
        """None when there is no such snapshot."""
        ...

    def write_snapshot(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """Keep a piece of a snapshot that is being fetched; position 0 begins a new one. Raises QuorumError if it cannot."""
        ...


class Request(NamedTuple):
    """The host hands it back with its answer. The number tells this request from an equal one that was abandoned."""

    peer: RaftPeer
    request: QuorumRequest
    number: int


class Reply(NamedTuple):
    reply_to: Hashable
    reply: QuorumReply


class ProposalResult(NamedTuple):
    """``error`` is None once the proposal is committed; after LeadershipLost it may or may not be."""

    token: Hashable
    end_offset: int
    error: QuorumError | None


class RaftEvent(NamedTuple):
    """Something that an operator or the host wants to know."""

    name: str
    fields: tuple[tuple[str, object], ...]


class Ready(NamedTuple):
    """What the host has to do. It reports ``store``, ``sync_to``, ``truncate_to`` and ``install`` when they are durable."""

    messages: tuple[Request | Reply, ...]
    store: QuorumState | None
    sync_to: int | None
    truncate_to: int | None
    install: SnapshotId | None
    results: tuple[ProposalResult, ...]
    events: tuple[RaftEvent, ...]


class Replica(NamedTuple):
    """What the leader knows of a replica that fetches."""

    key: ReplicaKey
    fetch_offset: int
    confirmed_offset: int
    """The highest fetch offset in this epoch. A replica that is below it has lost something, and does not count."""
    log_end_offset: int
    """Where the leader's log ended at the last fetch."""
    is_caught_up: bool
    is_silent: bool
    """It did not fetch since the observers were last looked through."""
    fetched_at_ms: int
    caught_up_at_ms: int

    @property
    def counted_offset(self) -> int:
        return self.fetch_offset if self.fetch_offset >= self.confirmed_offset else -1


class InFlight(NamedTuple):
    sent: Request
    deadline_ms: int


class ParkedFetch(NamedTuple):
    request: QuorumFetch
    reply_to: Hashable
    deadline_ms: int


class VoterChange(NamedTuple):
    """A change that was asked for: it is answered when the record at ``offset`` is committed."""

    offset: int
    reply_to: Hashable
    text: str


class Leadership:
    """What a leader keeps of its epoch. It is dropped when the epoch ends."""

    __slots__ = ("begin_pending", "change", "fetched", "is_begun", "parked", "proposals", "replicas", "start_offset")

    def __init__(self) -> None:
        # False until the leadership is stored and its first record is appended.
        self.is_begun = False
        # Where the first record of this epoch stands.
        self.start_offset = 0
        self.replicas: dict[ReplicaKey, Replica] = {}
        # When each voter last fetched.
        self.fetched: dict[int, int] = {}
        # Voters that are to be told of the epoch.
        self.begin_pending: set[int] = set()
        self.parked: dict[ReplicaKey, ParkedFetch] = {}
        self.proposals: deque[tuple[int, Hashable]] = deque()
        self.change: VoterChange | None = None


class RaftNode:
    __slots__ = (
        "_backoff",
        "_bootstrap_index",
        "_config",
        "_election_attempts",
        "_events",
        "_failure",
        "_granted",
        "_has_heard_leader",
        "_held_for_next_store",
        "_held_for_store",
        "_history",
        "_in_flight",
        "_is_leader_gone",
        "_is_leader_resigned",
        "_is_truncating",
        "_is_update_voter_due",
        "_leader_peer",
        "_leadership",
        "_log",
        "_messages",
        "_now_ms",
        "_preferred",
        "_randomness",
        "_refused",
        "_requests",
        "_results",
        "_snapshot_installing",
        "_snapshot_position",
        "_snapshot_wanted",
        "_stored",
        "_storing",
        "_sync_asked_to",
        "_timers",
        "_to_install",
        "_to_truncate",
        "high_watermark",
        "quorum_state",
        "state",
    )

    def __init__(self, config: RaftConfig, log: RaftLog, stored: QuorumState, randomness: Randomness, now_ms: int) -> None:
        """Start from what the disk holds. Raises CorruptMetadataLog when the log begins above 0 without a snapshot."""
        self._config = config
        self._log = log
        self._randomness = randomness
        self._now_ms = now_ms
        snapshot = log.latest_snapshot
        if log.start_offset > 0 and (snapshot is None or snapshot.end_offset < log.start_offset):
            raise CorruptMetadataLog(
                f"the metadata log begins at offset {log.start_offset}, and no snapshot covers what is missing; restore the "
                "directory, or format it and let the node fetch everything from the quorum"
            )
        self._history = VoterHistory(config.static_voters)
        self._history.note(log.control_records(0))
        self.high_watermark = snapshot.end_offset if snapshot is not None else log.start_offset
        self.state = RaftState.UNATTACHED
        self.quorum_state = self._stored = stored
        self._storing: QuorumState | None = None
        # Messages that wait for the store that is under way, and for the one after it.
        self._held_for_store: list[Request | Reply] = []
        self._held_for_next_store: list[Request | Reply] = []
        self._messages: list[Request | Reply] = []
        self._results: list[ProposalResult] = []
        self._events: list[RaftEvent] = []
        self._timers: dict[QuorumTimer, int] = {}
        self._in_flight: dict[RaftPeer, InFlight] = {}
        self._requests = 0
        self._backoff: dict[RaftPeer, int] = {}
        self._bootstrap_index = 0
        self._leader_peer: RaftPeer | None = None
        self._has_heard_leader = False
        self._is_leader_gone = False
        self._is_leader_resigned = False
        self._is_update_voter_due = False
        self._election_attempts = 0
        self._granted: set[int] = set()
        self._refused: set[int] = set()
        self._preferred: tuple[ReplicaKey, ...] = ()
        self._leadership: Leadership | None = None
        self._sync_asked_to = 0
        self._to_truncate: int | None = None
        self._is_truncating = False
        self._snapshot_wanted: SnapshotId | None = None
        self._snapshot_position = 0
        self._snapshot_installing = False
        self._to_install: SnapshotId | None = None
        self._failure: str | None = None
        self._start()

    def _start(self) -> None:
        log, state = self._log, self.quorum_state
        if log.last_epoch > state.leader_epoch:
            # The file is older than the log. Whether this node voted in the log's epoch is not known, so it does not vote there.
            self.quorum_state = QuorumState(log.last_epoch, NOBODY, self.node_id, self._config.directory_id)
        if self._is_lone_voter():
            self._become_candidate()
        elif self.quorum_state.leader_id == self.node_id:
            self._become_resigned()
        elif (peer := self._peer_of(self.quorum_state.leader_id)) is not None:
            self._follow(peer)
        else:
            self._become_unattached(self.epoch)
        self._proceed()

    # -- what others may know ------------------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._config.node_id

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self._config.node_id, self._config.directory_id)

    @property
    def epoch(self) -> int:
        return self.quorum_state.leader_epoch

    @property
    def leader_id(self) -> int:
        """The leader of this epoch as far as this node may tell others; ``NOBODY`` if there is none, or it has resigned."""
        if self.state is RaftState.RESIGNED or self._is_leader_resigned:
            return NOBODY
        if self.quorum_state.leader_id == self.node_id and (self.state is not RaftState.LEADER or self._failure is not None):
            return NOBODY  # It has resigned, and stands for election by now; or its disk failed.
        if self._leadership is not None and not self._leadership.is_begun:
            return NOBODY
        return self.quorum_state.leader_id

    @property
    def hears_leader(self) -> bool:
        """Whether this node leads, or the leader that it follows has answered within the fetch time-out."""
        if self._failure is not None:
            return False
        if self._leadership is not None:
            return self._leadership.is_begun
        return self.state is RaftState.FOLLOWER and self._has_heard_leader and not self._is_leader_gone

    @property
    def leader_peer(self) -> RaftPeer | None:
        """Where the leader is, for a follower; None if this node follows nobody."""
        return self._leader_peer

    @property
    def is_leading(self) -> bool:
        """Whether this node leads and has committed a record of its epoch. Only then does it know all that was committed."""
        leadership = self._leadership
        return leadership is not None and leadership.is_begun and self.high_watermark > leadership.start_offset

    @property
    def voters(self) -> VoterSet:
        return self._history.voters

    @property
    def kraft_version(self) -> int:
        return self._history.kraft_version

    @property
    def is_voter(self) -> bool:
        return self.voters.find(self.key) is not None

    @property
    def may_stand(self) -> bool:
        """Whether this node may stand for election: by its log it is a voter, or its removal may be uncommitted."""
        return self.is_voter or self._history.may_include(self.key, self.high_watermark)

    def control_records_at(self, end_offset: int) -> tuple[ControlRecord, ...]:
        """The kraft version and the voters that a snapshot with this end offset has to hold."""
        return self._history.as_of(end_offset)

    @property
    def failure(self) -> str | None:
        return self._failure

    @property
    def replicas(self) -> Sequence[Replica]:
        """What a leader knows of those that fetch from it, for DescribeQuorum and the metrics."""
        return list(self._leadership.replicas.values()) if self._leadership is not None else []

    @property
    def armed_timers(self) -> Sequence[QuorumTimer]:
        return list(self._timers)

    def deadline_of(self, timer: QuorumTimer) -> int | None:
        return self._timers.get(timer)

    @property
    def next_deadline_ms(self) -> int | None:
        """When ``tick`` has something to do at the latest."""
        deadlines = [*self._timers.values(), *self._backoff.values(), *[each.deadline_ms for each in self._in_flight.values()]]
        if self._leadership is not None:
            deadlines += [each.deadline_ms for each in self._leadership.parked.values()]
        return min(deadlines, default=None)

    # -- inputs --------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Let time pass: everything that is due happens."""
        self._now_ms = now_ms = max(now_ms, self._now_ms)
        for timer in QuorumTimer:
            if self._timers.get(timer, now_ms + 1) <= now_ms:
                self._expire(timer)
        for sent, deadline_ms in list(self._in_flight.values()):
            if deadline_ms <= now_ms:
                self._forget_request(sent, RequestFailure.TIMED_OUT)
        for peer in [peer for peer, until_ms in self._backoff.items() if until_ms <= now_ms]:
            del self._backoff[peer]
        if self._leadership is not None:
            parked = self._leadership.parked
            self._answer_parked(self._leadership, [key for key, each in parked.items() if each.deadline_ms <= now_ms])
        self._proceed()

    def expire(self, timer: QuorumTimer) -> None:
        """Let one timer run out now, whatever its time: for those who explore every order of events."""
        self._expire(timer)
        self._proceed()

    def step(self, request: QuorumRequest, reply_to: Hashable) -> None:
        """Handle a request. A node whose storage failed does not answer: the sender hears of it from the closed connection."""
        if self._failure is not None:
            return
        reply: QuorumReply | None
        if (
            request.cluster_id is not None
            and request.cluster_id != self._config.cluster_id
            and self._config.cluster_id is not None
        ):
            reply = self._refusal(request, ErrorCode.INCONSISTENT_CLUSTER_ID)
        else:
            try:
                reply = _REQUEST_HANDLERS[type(request)](self, request, reply_to)
            except QuorumError as error:
                # Only a change of the voters appends within a request.
                self._note("append_failed", epoch=self.epoch, reason=str(error))
                reply = self._refusal(request, ErrorCode.KAFKA_STORAGE_ERROR)
        if reply is not None:
            self._send(Reply(reply_to, reply))
        self._proceed()

    def receive(self, sent: Request, reply: QuorumReply) -> None:
        """Handle the answer to a request of this node. An answer that comes late is judged by what the question was."""
        if self._failure is not None:
            return
        peer = sent.peer
        if self._is_in_flight(sent):
            del self._in_flight[peer]
        if reply.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._note("inconsistent_cluster_id", peer=f"{peer.host}:{peer.port}", cluster_id=self._config.cluster_id)
            self._back_off(peer)
        elif isinstance(reply, ChangeVoterReply):
            self._on_change_voter_reply(peer, sent.request, reply)
        elif not self._learn(reply.news, peer, reply.error):
            _REPLY_HANDLERS[type(reply)](self, peer, sent.request, reply)
        self._proceed()

    def request_failed(self, sent: Request, failure: RequestFailure) -> None:
        self._forget_request(sent, failure)
        self._proceed()

    def propose(self, batch: Any, token: Hashable) -> None:
        """Append a batch as leader. Raises NotQuorumLeader, TooManyProposals or what the log raises: then nothing was appended.

        A leader takes proposals only once it knows everything that was committed before its epoch.
        """
        leadership = self._leadership
        if self._failure is not None or leadership is None or not self.is_leading:
            raise NotQuorumLeader(f"node {self.node_id} does not lead the metadata quorum")
        if len(leadership.proposals) >= PROPOSALS_MAX:
            raise TooManyProposals(f"{PROPOSALS_MAX} decisions wait for the metadata quorum already; try again later")
        leadership.proposals.append((self._log.append(batch, self.epoch), token))
        self._proceed()

    def resign(self) -> None:
        """Stop leading, so that the others elect somebody at once. The host calls it before it stops."""
        if self.state is RaftState.LEADER and self._failure is None:
            self._become_resigned()
        self._proceed()

    # -- inputs: the disk ----------------------------------------------------------------------------------------------------

    def state_stored(self) -> None:
        """The quorum state that ``ready`` asked to store is durable."""
        if self._storing is None or self._failure is not None:
            return
        self._stored, self._storing = self._storing, None
        held, self._held_for_store = self._held_for_store, []
        self._messages += [message for message in held if self._is_wanted(message)]
        leadership = self._leadership
        if leadership is not None and not leadership.is_begun and self._stored == self.quorum_state:
            self._begin_leadership(leadership)
        self._proceed()

    def log_synced(self) -> None:
        """A sync of the log ended: ``durable_end_offset`` may have moved."""
        self._proceed()

    def truncated(self) -> None:
        """The log was cut where ``ready`` said, and that is durable. It may end earlier, where a batch ends."""
        self._is_truncating = False
        self._history.truncate(self._log.end_offset)
        self._sync_asked_to = min(self._sync_asked_to, self._log.end_offset)
        self._proceed()

    def snapshot_installed(self) -> None:
        """The fetched snapshot is durable, and the log begins at its end."""
        if self._snapshot_wanted is not None:
            self._advance_high_watermark(self._snapshot_wanted.end_offset)
        self._stop_fetching_snapshot()
        self._sync_asked_to = self._log.end_offset
        self._history.clear()
        self._note_control_records(0)
        if self.state is RaftState.UNATTACHED and self.may_stand and QuorumTimer.ELECTION not in self._timers:
            # The snapshot made it a voter, and the leader that sent it may be gone by now.
            self._set_election_timer()
        self._proceed()

    def snapshot_rejected(self, reason: str) -> None:
        """The fetched snapshot is not whole. It is fetched from its beginning."""
        self._note("snapshot_rejected", snapshot=self._snapshot_wanted, reason=reason)
        self._snapshot_installing = False
        self._snapshot_position = 0
        if self._leader_peer is not None:
            self._back_off(self._leader_peer)
        self._proceed()

    def storage_failed(self, reason: str) -> None:
        """The quorum state or the log could not be made durable. Whatever is held back now never leaves."""
        self._failure = reason
        self._end_leadership(ErrorCode.BROKER_NOT_AVAILABLE)
        self._note("storage_failed", reason=reason)
        self._messages, self._held_for_store, self._held_for_next_store = [], [], []
        self._timers, self._in_flight, self._backoff = {}, {}, {}

    # -- output --------------------------------------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """Take what there is to do. Each thing is handed out once."""
        store = None
        if self._failure is None and self._storing is None and self._stored != self.quorum_state:
            store = self._storing = self.quorum_state
            self._held_for_store, self._held_for_next_store = self._held_for_next_store, []
        sync_to = None
        end_offset = self._log.end_offset
        if self._failure is None and not self._is_busy and max(self._sync_asked_to, self._log.durable_end_offset) < end_offset:
            sync_to = self._sync_asked_to = end_offset
        ready = Ready(
            tuple(self._messages),
            store,
            sync_to,
            self._to_truncate,
            self._to_install,
            tuple(self._results),
            tuple(self._events),
        )
        self._messages, self._results, self._events = [], [], []
        self._to_truncate = self._to_install = None
        return ready

    def _send(self, message: Request | Reply) -> None:
        """Let a message leave when the state under which it was built is durable."""
        if self.quorum_state == self._stored:
            self._messages.append(message)
        elif self.quorum_state == self._storing:
            self._held_for_store.append(message)
        else:
            self._held_for_next_store.append(message)

    def _is_wanted(self, message: Request | Reply) -> bool:
        """A request that was abandoned while it was held back is not sent at all."""
        return isinstance(message, Reply) or self._is_in_flight(message)

    def _is_in_flight(self, sent: Request) -> bool:
        in_flight = self._in_flight.get(sent.peer)
        return in_flight is not None and in_flight.sent.number == sent.number

    def _note(self, name: str, **fields: object) -> None:
        self._events.append(RaftEvent(name, tuple(fields.items())))

    # -- transitions ---------------------------------------------------------------------------------------------------------

    def _enter(self, state: RaftState) -> None:
        """Leave the present state: its requests, timers and leadership are over."""
        if self._leadership is not None:
            self._end_leadership(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.state = state
        self._in_flight.clear()
        self._backoff.clear()
        self._timers.clear()
        self._granted, self._refused = set(), set()
        self._leader_peer = None
        # Whether the leader was heard within the fetch time-out: when that runs out, the node leaves this state.
        self._has_heard_leader = self._is_leader_gone = self._is_update_voter_due = False
        if not self._snapshot_installing:
            self._stop_fetching_snapshot()
        self._note("state", state=state.value, epoch=self.epoch, leader=self.leader_id)

    def _adopt_epoch(self, state: QuorumState) -> None:
        if state.leader_epoch > self.epoch:
            self._is_leader_resigned = False
            self._election_attempts = 0
        self.quorum_state = state

    def _become_unattached(self, epoch: int, voted_for: ReplicaKey | None = None) -> None:
        state = self.quorum_state if epoch == self.epoch else QuorumState(epoch)
        if voted_for is not None:
            state = QuorumState(epoch, state.leader_id, voted_for.node_id, voted_for.directory_id)
        self._adopt_epoch(state)
        self._enter(RaftState.UNATTACHED)
        if self.may_stand:
            self._set_election_timer()

    def _become_prospective(self) -> None:
        self._enter(RaftState.PROSPECTIVE)
        self._set_election_timer()
        self._granted = self._own_vote()
        if len(self._granted) >= self.voters.majority:
            self._become_candidate()

    def _become_candidate(self) -> None:
        attempts = self._election_attempts
        self._adopt_epoch(QuorumState(self.epoch + 1, NOBODY, self.node_id, self._config.directory_id))
        self._enter(RaftState.CANDIDATE)
        self._election_attempts = attempts
        self._set_election_timer()
        self._granted = self._own_vote()
        if len(self._granted) >= self.voters.majority:
            self._become_leader()

    def _own_vote(self) -> set[int]:
        """A node that its own log no longer names as a voter may stand, but its vote does not count."""
        return {self.node_id} if self.is_voter else set()

    def _become_leader(self) -> None:
        granted = self._granted
        self._adopt_epoch(_led_by(self.quorum_state, self.node_id))
        self._leadership = None
        self._enter(RaftState.LEADER)
        self._granted = granted
        self._leadership = Leadership()
        self._election_attempts = 0
        self._set_timer(QuorumTimer.CHECK_QUORUM, self._config.fetch_timeout_ms)
        self._set_timer(QuorumTimer.OBSERVERS, OBSERVER_EXPIRY_MS)

    def _begin_leadership(self, leadership: Leadership) -> None:
        """The leadership is durable: write the first record of the epoch, and let the others know."""
        leadership.is_begun = True
        leadership.start_offset = self._log.end_offset
        granting = tuple(voter.key for voter in self.voters.voters if voter.node_id in self._granted)
        records: list[ControlRecord] = [LeaderChange(self.node_id, tuple(voter.key for voter in self.voters.voters), granting)]
        if self.kraft_version > 0 and self._history.voters_offset < 0:
            # They come from the bootstrap snapshot, which no other node has. From here on they are in the log.
            records += [KRaftVersion(self.kraft_version), VotersRecord(self.voters)]
        try:
            self._append_control(records)
        except QuorumError as error:
            self._note("append_failed", epoch=self.epoch, reason=str(error))
            self._become_resigned()
            return
        leadership.begin_pending = set(self.voters.ids) - {self.node_id}
        self._set_timer(QuorumTimer.BEGIN_EPOCH, self._config.fetch_timeout_ms // 2)
        self._note("leader", epoch=self.epoch, start_offset=leadership.start_offset)

    def _end_leadership(self, error: ErrorCode) -> None:
        leadership, self._leadership = self._leadership, None
        if leadership is None:
            return
        for parked in leadership.parked.values():
            self._send(Reply(parked.reply_to, QuorumFetchReply(error, LeaderNews(self.epoch))))
        for end_offset, token in leadership.proposals:
            self._results.append(
                ProposalResult(token, end_offset, LeadershipLost(f"node {self.node_id} no longer leads the metadata quorum"))
            )
        if leadership.change is not None:
            reply = ChangeVoterReply(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The leader changed before the change was committed.")
            self._send(Reply(leadership.change.reply_to, reply))

    def _become_resigned(self) -> None:
        """Led by this node, now or before a restart: it never leads this epoch again."""
        leadership = self._leadership
        preferred: list[ReplicaKey] = []
        if leadership is not None:
            known = [replica for replica in leadership.replicas.values() if self.voters.find(replica.key) is not None]
            preferred = [replica.key for replica in sorted(known, key=lambda each: (-each.counted_offset, each.key))]
        self._enter(RaftState.RESIGNED)
        self._preferred = tuple(preferred)
        self._set_election_timer()

    def _follow(self, peer: RaftPeer) -> None:
        self._adopt_epoch(_led_by(self.quorum_state, peer.node_id))
        self._enter(RaftState.FOLLOWER)
        self._leader_peer = peer
        self._election_attempts = 0
        # A node that wants to become a voter has to catch up first: for it the timer brings that up.
        self._is_update_voter_due = self.is_voter
        self._set_timer(QuorumTimer.FETCH, self._config.fetch_timeout_ms)
        self._set_timer(QuorumTimer.UPDATE_VOTER, self._config.fetch_timeout_ms)

    def _learn(self, news: LeaderNews, peer: RaftPeer | None, error: ErrorCode = ErrorCode.NONE) -> bool:
        """Adopt what another node knows of epoch and leader. Returns whether an answer with this news has nothing else to say."""
        epoch, leader_id, _ = news
        if epoch < self.epoch or error is ErrorCode.UNKNOWN_LEADER_EPOCH:
            return True
        if leader_id == self.node_id:
            if epoch > self.epoch:
                # This node led an epoch that it does not remember. It must not vote in it again.
                self._note("quorum_state_lost", epoch=epoch)
                self._become_unattached(epoch, voted_for=self.key)
                return True
            return False
        leader_peer = self._peer_of(leader_id, news.leader_endpoint)
        if epoch > self.epoch:
            if leader_peer is None:
                self._become_unattached(epoch)
            else:
                self._adopt_epoch(QuorumState(epoch))
                self._follow(leader_peer)
            return True
        if leader_peer is None or self._is_leader_resigned:
            return self._hears_of_resignation(peer, error)
        known_id = self.quorum_state.leader_id
        if known_id not in (NOBODY, leader_id):
            self._note("two_leaders", epoch=epoch, known=known_id, other=leader_id)
            return True
        if self.state is RaftState.UNATTACHED or (
            self.state in (RaftState.PROSPECTIVE, RaftState.CANDIDATE) and known_id == NOBODY
        ):
            self._follow(leader_peer)
            return error is not ErrorCode.NONE
        return False

    def _hears_of_resignation(self, peer: RaftPeer | None, error: ErrorCode) -> bool:
        """The node that this one follows says that it does not lead, and knows no other leader."""
        if self.state is RaftState.FOLLOWER and peer == self._leader_peer and error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._is_leader_resigned = True
            self._become_unattached(self.epoch)
            return True
        return False

    # -- timers --------------------------------------------------------------------------------------------------------------

    def _set_timer(self, timer: QuorumTimer, delay_ms: int) -> None:
        self._timers[timer] = self._now_ms + delay_ms

    def _set_election_timer(self) -> None:
        timeout_ms = self._config.election_timeout_ms
        self._set_timer(QuorumTimer.ELECTION, self._randomness.integer(timeout_ms, 2 * timeout_ms))

    def _expire(self, timer: QuorumTimer) -> None:
        if self._failure is None and self._timers.pop(timer, None) is not None:
            _TIMER_HANDLERS[timer](self)

    def _on_election_timer(self) -> None:
        if not self.may_stand:
            if self.state is not RaftState.UNATTACHED:
                self._become_unattached(self.epoch)
        elif self._is_busy:
            # The log is not yet what this node would stand for election with.
            self._set_election_timer()
        elif self.state is RaftState.PROSPECTIVE:
            self._end_prospective()
        else:
            self._become_prospective()

    def _end_prospective(self) -> None:
        """Nobody wants an election: go back to the leader if one is known, and else wait."""
        peer = self._peer_of(self.quorum_state.leader_id)
        if peer is not None and not self._is_leader_resigned:
            self._follow(peer)
        else:
            self._become_unattached(self.epoch)

    def _on_fetch_timer(self) -> None:
        if self._is_busy:
            self._set_timer(QuorumTimer.FETCH, self._config.fetch_timeout_ms)
        elif self.may_stand:
            self._become_prospective()
        else:
            self._become_unattached(self.epoch)

    def _on_check_quorum_timer(self) -> None:
        if self.voters.ids == (self.node_id,):
            self._set_timer(QuorumTimer.CHECK_QUORUM, self._config.fetch_timeout_ms)
            return
        self._note("no_majority_fetches", epoch=self.epoch, within_ms=self._config.fetch_timeout_ms)
        self._become_resigned()

    def _on_begin_epoch_timer(self) -> None:
        """Tell those voters of the epoch that do not fetch."""
        leadership = self._leadership
        if leadership is not None:
            recent_ms = self._now_ms - self._config.fetch_timeout_ms // 2
            recent = {each.key.node_id for each in leadership.replicas.values() if each.fetched_at_ms > recent_ms}
            leadership.begin_pending = set(self.voters.ids) - {self.node_id} - recent
            self._set_timer(QuorumTimer.BEGIN_EPOCH, self._config.fetch_timeout_ms // 2)

    def _on_update_voter_timer(self) -> None:
        self._is_update_voter_due = True
        self._set_timer(QuorumTimer.UPDATE_VOTER, self._config.fetch_timeout_ms)

    def _on_observers_timer(self) -> None:
        """Forget observers that have not fetched since the last time."""
        leadership = self._leadership
        if leadership is not None:
            kept = [each for each in leadership.replicas.values() if not each.is_silent or self.voters.find(each.key) is not None]
            leadership.replicas = {each.key: each._replace(is_silent=True) for each in kept}
            self._set_timer(QuorumTimer.OBSERVERS, OBSERVER_EXPIRY_MS)

    def _on_voter_change_timer(self) -> None:
        leadership = self._leadership
        if leadership is not None and leadership.change is not None:
            change, leadership.change = leadership.change, None
            message = f"{change.text} was not committed in time; it may still be. See the quorum's status before you try again."
            self._send(Reply(change.reply_to, ChangeVoterReply(ErrorCode.REQUEST_TIMED_OUT, message)))

    # -- requests of this node -----------------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        """Commit what can be, and ask whoever has to be asked."""
        if self._failure is not None:
            return
        if self._leadership is not None and self._leadership.is_begun:
            self._advance_as_leader(self._leadership)
        _REQUESTERS[self.state](self)

    def _ask(self, peer: RaftPeer, request: QuorumRequest) -> None:
        if peer not in self._in_flight and peer not in self._backoff:
            self._requests += 1
            sent = Request(peer, request, self._requests)
            self._in_flight[peer] = InFlight(sent, self._now_ms + self._config.request_timeout_ms)
            self._send(sent)

    def _forget_request(self, sent: Request, failure: RequestFailure) -> None:
        peer = sent.peer
        if not self._is_in_flight(sent):
            return
        del self._in_flight[peer]
        self._back_off(peer)
        if isinstance(sent.request, AddVoter | RemoveVoter | UpdateVoter):
            # Fetching is more important; the timer brings it up again.
            self._is_update_voter_due = False
        if (
            self.state is RaftState.FOLLOWER
            and peer == self._leader_peer
            and failure is RequestFailure.REFUSED
            and self._has_heard_leader
            and not self._is_leader_gone
        ):
            # The connection on which the leader answered is gone, and nobody listens there any more: its process has died.
            self._is_leader_gone = True
            self._set_timer(QuorumTimer.FETCH, self._randomness.integer(0, EVIDENCE_JITTER_MS))

    def _back_off(self, peer: RaftPeer) -> None:
        if self._config.retry_backoff_ms:
            self._backoff[peer] = self._now_ms + self._config.retry_backoff_ms

    def _ask_for_votes(self) -> None:
        is_pre_vote = self.state is RaftState.PROSPECTIVE
        if len(self._refused) > len(self.voters.voters) - self.voters.majority:
            return
        for voter in self.voters.voters:
            if voter.node_id in self._granted or voter.node_id in self._refused:
                continue
            log = self._log
            vote = Vote(self.epoch, self.key, voter.key, log.last_epoch, log.end_offset, is_pre_vote, self._config.cluster_id)
            self._ask(_peer_of_voter(voter), vote)

    def _announce_epoch(self) -> None:
        leadership = self._leadership
        if leadership is None or not leadership.is_begun:
            return
        for voter in self.voters.voters:
            if voter.node_id in leadership.begin_pending:
                request = BeginQuorumEpoch(self.epoch, self.node_id, voter.key, self._config.endpoints, self._config.cluster_id)
                self._ask(_peer_of_voter(voter), request)

    def _announce_resignation(self) -> None:
        request = EndQuorumEpoch(self.epoch, self.node_id, self._preferred, self._config.cluster_id)
        for voter in self.voters.voters:
            if voter.node_id != self.node_id and voter.node_id not in self._granted:
                self._ask(_peer_of_voter(voter), request)

    def _ask_leader(self) -> None:
        """As a follower: fetch what comes after what is on disk, or the next piece of a snapshot."""
        peer, wanted, config = self._leader_peer, self._snapshot_wanted, self._config
        if peer is None or self._is_busy:
            return
        if self._is_update_voter_due and (change := self._own_change()) is not None:
            self._ask(peer, change)
        elif wanted is not None:
            size_max = config.snapshot_piece_max
            self._ask(peer, FetchSnapshot(self.epoch, self.key, wanted, self._snapshot_position, size_max, config.cluster_id))
        elif self._log.durable_end_offset >= self._log.end_offset:
            self._ask(peer, self._fetch(config.fetch_max_wait_ms))

    def _look_for_leader(self) -> None:
        """Without a leader: ask the bootstrap servers in turn. Any node answers a fetch with the leader that it knows."""
        servers = self._config.bootstrap_servers
        is_free = not self._in_flight and not self._backoff and not self._is_busy
        if servers and is_free and self._log.durable_end_offset >= self._log.end_offset:
            # The next one each time, even after an answer: a server may go on to name a leader that is gone.
            host, port = servers[self._bootstrap_index % len(servers)]
            self._bootstrap_index += 1
            self._ask(RaftPeer(NOBODY, host, port), self._fetch(0))

    def _fetch(self, max_wait_ms: int) -> QuorumFetch:
        log, config = self._log, self._config
        return QuorumFetch(
            self.epoch,
            self.key,
            log.end_offset,
            log.last_epoch,
            self.high_watermark,
            max_wait_ms,
            config.fetch_size_max,
            config.cluster_id,
        )

    def _own_change(self) -> QuorumRequest | None:
        """What this node has to tell the leader about itself: that its endpoints are no longer those of the voter set, or that it
        wants to be a voter. Before that, a voter with its id and another directory goes: that one lost its disk."""
        voter, config = self.voters.find(self.key), self._config
        if self.kraft_version < 1 or not config.endpoints:
            return None
        if voter is not None:
            if voter == self._own_voter:
                return None
            return UpdateVoter(self.epoch, self.key, config.endpoints, KRAFT_VERSION_MIN, KRAFT_VERSION_MAX, config.cluster_id)
        if not config.auto_join:
            return None
        predecessor = self.voters.by_id(self.node_id)
        if predecessor is not None:
            return RemoveVoter(predecessor.key, config.cluster_id)
        return AddVoter(self.key, config.endpoints, config.request_timeout_ms, config.cluster_id, ack_when_committed=False)

    @property
    def _own_voter(self) -> Voter:
        config = self._config
        return Voter(self.node_id, config.directory_id, config.endpoints, KRAFT_VERSION_MIN, KRAFT_VERSION_MAX)

    def _on_change_voter_reply(self, peer: RaftPeer, request: QuorumRequest, reply: ChangeVoterReply) -> None:
        # Until this node has fetched the change, the timer is the one that asks again.
        self._is_update_voter_due = False
        if reply.error is not ErrorCode.NONE:
            what = "remove_predecessor" if isinstance(request, RemoveVoter) else "join"
            self._note("voter_not_joined", leader=peer.node_id, request=what, error=reply.error.name, reason=reply.message)

    @property
    def _is_busy(self) -> bool:
        """The log is being cut or replaced: until that is durable, nobody may hear of its end, and no election may rest on it."""
        return self._is_truncating or self._snapshot_installing

    def _is_lone_voter(self) -> bool:
        return self.is_voter and len(self.voters.voters) == 1

    def _peer_of(self, node_id: int, endpoint: VoterEndpoint | None = None) -> RaftPeer | None:
        if node_id in (NOBODY, self.node_id):
            return None
        if endpoint is not None:
            return RaftPeer(node_id, endpoint.host, endpoint.port)
        voter = self.voters.by_id(node_id)
        return _peer_of_voter(voter) if voter is not None and voter.endpoints else None

    # -- votes ---------------------------------------------------------------------------------------------------------------

    def _news(self) -> LeaderNews:
        leader_id = self.leader_id
        endpoint = None
        if leader_id == self.node_id:
            endpoint = self._config.endpoints[0] if self._config.endpoints else None
        elif leader_id != NOBODY:
            peer = self._leader_peer or self._peer_of(leader_id)
            endpoint = VoterEndpoint("", peer.host, peer.port) if peer is not None else None
        return LeaderNews(self.epoch, leader_id, endpoint)

    def _on_vote(self, request: Vote, _: Hashable) -> VoteReply:
        if request.epoch < self.epoch:
            return VoteReply(ErrorCode.FENCED_LEADER_EPOCH, self._news())
        is_sensible = (
            request.last_epoch < request.epoch + request.pre_vote and request.last_offset >= 0 and request.last_epoch >= 0
        )
        if not is_sensible or request.candidate.node_id in (NOBODY, self.node_id):
            return VoteReply(ErrorCode.INVALID_REQUEST, self._news())
        if request.epoch > self.epoch:
            self._become_unattached(request.epoch)
        if not self._is_addressed(request.voter):
            return VoteReply(ErrorCode.INVALID_VOTER_KEY, self._news())
        is_granted = self._grants(request)
        if is_granted and not request.pre_vote and self.quorum_state.voted_id == NOBODY:
            self._become_unattached(self.epoch, voted_for=request.candidate)
        return VoteReply(ErrorCode.NONE, self._news(), is_granted)

    def _grants(self, request: Vote) -> bool:
        is_up_to_date = (request.last_epoch, request.last_offset) >= (self._log.last_epoch, self._log.end_offset)
        if request.pre_vote:
            is_following = self.state is RaftState.FOLLOWER and self._has_heard_leader and not self._is_leader_gone
            return is_up_to_date and not is_following and self.state is not RaftState.LEADER
        state = self.quorum_state
        if state.voted_id != NOBODY:
            return (state.voted_id, state.voted_directory_id) == request.candidate
        return is_up_to_date and state.leader_id == NOBODY

    def _is_addressed(self, voter: ReplicaKey) -> bool:
        """Whether a request is meant for this replica: a node with an empty disk must not answer for its predecessor."""
        return voter.node_id in (NOBODY, self.node_id) and voter.directory_id in (bytes(16), self._config.directory_id)

    def _on_vote_reply(self, peer: RaftPeer, request: Vote, reply: VoteReply) -> None:
        wanted = RaftState.PROSPECTIVE if request.pre_vote else RaftState.CANDIDATE
        voter = self.voters.find(request.voter)
        if self.state is not wanted or request.epoch != self.epoch or voter is None or voter.node_id != peer.node_id:
            return
        if reply.error is ErrorCode.NONE and reply.vote_granted:
            self._granted.add(voter.node_id)
            if len(self._granted) >= self.voters.majority:
                self._become_candidate() if request.pre_vote else self._become_leader()
            return
        self._refused.add(voter.node_id)
        if len(self._refused) > len(self.voters.voters) - self.voters.majority:
            self._lose_election()

    def _lose_election(self) -> None:
        """Too many refused. Wait for a while that others do not wait for too, longer after each attempt."""
        self._election_attempts = attempts = self._election_attempts + 1
        if self.state is RaftState.PROSPECTIVE:
            self._end_prospective()
        if self.state is not RaftState.FOLLOWER:
            self._election_attempts = attempts
            spread_ms = min(ELECTION_BACKOFF_BASE_MS << min(attempts, 10), self._config.election_backoff_max_ms)
            self._set_timer(
                QuorumTimer.ELECTION, self._randomness.integer(min(ELECTION_BACKOFF_BASE_MS // 2, spread_ms), spread_ms)
            )

    # -- epochs --------------------------------------------------------------------------------------------------------------

    def _on_begin_quorum_epoch(self, request: BeginQuorumEpoch, _: Hashable) -> BeginQuorumEpochReply:
        if request.epoch < self.epoch:
            return BeginQuorumEpochReply(ErrorCode.FENCED_LEADER_EPOCH, self._news())
        if request.leader_id in (NOBODY, self.node_id):
            return BeginQuorumEpochReply(ErrorCode.INVALID_REQUEST, self._news())
        endpoint = request.leader_endpoints[0] if request.leader_endpoints else None
        self._learn(LeaderNews(request.epoch, request.leader_id, endpoint), None)
        if self.state is RaftState.FOLLOWER:
            self._has_heard_leader = True
        is_addressed = self._is_addressed(request.voter)
        return BeginQuorumEpochReply(ErrorCode.NONE if is_addressed else ErrorCode.INVALID_VOTER_KEY, self._news())

    def _on_begin_quorum_epoch_reply(self, peer: RaftPeer, request: BeginQuorumEpoch, reply: BeginQuorumEpochReply) -> None:
        leadership = self._leadership
        if leadership is not None and request.epoch == self.epoch:
            # One that is not the voter, or has an objection, is told again at the next round.
            leadership.begin_pending.discard(peer.node_id)
            if reply.error is not ErrorCode.NONE:
                self._back_off(peer)

    def _on_end_quorum_epoch(self, request: EndQuorumEpoch, _: Hashable) -> EndQuorumEpochReply:
        if request.epoch < self.epoch:
            return EndQuorumEpochReply(ErrorCode.FENCED_LEADER_EPOCH, self._news())
        if request.leader_id in (NOBODY, self.node_id):
            return EndQuorumEpochReply(ErrorCode.INVALID_REQUEST, self._news())
        known_id = self.quorum_state.leader_id
        if request.epoch > self.epoch or known_id == NOBODY:
            # It led this epoch, and nobody else can.
            self._become_unattached(request.epoch)
            self._adopt_epoch(_led_by(self.quorum_state, request.leader_id))
        elif known_id != request.leader_id:
            return EndQuorumEpochReply(ErrorCode.INVALID_REQUEST, self._news())
        self._is_leader_resigned = True
        if self.state is not RaftState.PROSPECTIVE and not self._is_busy:
            self._become_unattached(self.epoch)
            if self.may_stand:
                self._set_timer(QuorumTimer.ELECTION, self._succession_delay_ms(request.preferred_candidates))
        return EndQuorumEpochReply(ErrorCode.NONE, self._news())

    def _succession_delay_ms(self, preferred: Sequence[ReplicaKey]) -> int:
        """The preferred successor stands at once; the others give it time, the more the further down they are."""
        position = preferred.index(self.key) if self.key in preferred else len(preferred)
        if position == 0:
            return 0
        base_ms = min(ELECTION_BACKOFF_BASE_MS << (position - 1), self._config.election_backoff_max_ms)
        return base_ms + self._randomness.integer(0, EVIDENCE_JITTER_MS)

    def _on_end_quorum_epoch_reply(self, peer: RaftPeer, request: EndQuorumEpoch, reply: EndQuorumEpochReply) -> None:
        if self.state is RaftState.RESIGNED and request.epoch == self.epoch and reply.error is ErrorCode.NONE:
            self._granted.add(peer.node_id)
        elif reply.error is not ErrorCode.NONE:
            self._back_off(peer)

    # -- the leader's side of a fetch ----------------------------------------------------------------------------------------

    def _leader_error(self, epoch: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self._leadership is None or not self._leadership.is_begun:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def _on_fetch(self, request: QuorumFetch, reply_to: Hashable) -> None:
        is_sensible = 0 <= request.last_fetched_epoch <= request.epoch and request.fetch_offset >= 0 and request.max_wait_ms >= 0
        if not is_sensible or request.replica.node_id in (NOBODY, self.node_id):
            self._send(Reply(reply_to, QuorumFetchReply(ErrorCode.INVALID_REQUEST, self._news())))
        elif self._leadership is None or self._leader_error(request.epoch) is not ErrorCode.NONE:
            self._answer_fetch(request, reply_to)
        else:
            self._on_valid_fetch(self._leadership, request, reply_to)

    def _on_valid_fetch(self, leadership: Leadership, request: QuorumFetch, reply_to: Hashable) -> None:
        older = leadership.parked.pop(request.replica, None)
        if older is not None:
            # The replica asks again on another connection, so nobody waits for this answer; it ends the request all the same.
            self._send(Reply(older.reply_to, self._fetch_reply()))
        self._note_voter_heard(leadership, request.replica)
        self._note_fetched(leadership, request)
        if self._leadership is leadership and request.max_wait_ms and not self._has_news_for(request):
            parked = ParkedFetch(request, reply_to, self._now_ms + request.max_wait_ms)
            leadership.parked[request.replica] = parked
        else:
            self._answer_fetch(request, reply_to)

    def _answer_fetch(self, request: QuorumFetch, reply_to: Hashable) -> None:
        error = self._leader_error(request.epoch)
        if error is not ErrorCode.NONE:
            self._send(Reply(reply_to, QuorumFetchReply(error, self._news())))
            return
        reply = self._divergence(request)
        if reply is None:
            size_max = min(request.size_max, self._config.fetch_size_max)
            has_records = request.fetch_offset < self._log.end_offset
            try:
                reply = self._fetch_reply(self._log.read(request.fetch_offset, size_max) if has_records else None)
            except QuorumError as error:
                # A replica that gets nothing but errors does not count this as hearing of the leader, and elects another one.
                self._note("log_not_read", epoch=self.epoch, offset=request.fetch_offset, reason=str(error))
                reply = QuorumFetchReply(ErrorCode.KAFKA_STORAGE_ERROR, self._news())
        self._send(Reply(reply_to, reply))

    def _answer_parked(self, leadership: Leadership, replicas: Iterable[ReplicaKey]) -> None:
        for key in replicas:
            parked = leadership.parked.pop(key)
            self._answer_fetch(parked.request, parked.reply_to)

    def _fetch_reply(self, records: object = None) -> QuorumFetchReply:
        return QuorumFetchReply(ErrorCode.NONE, self._news(), self.high_watermark, self._log.start_offset, records=records)

    def _has_news_for(self, request: QuorumFetch) -> bool:
        """Whether a fetch is answered at once: with records, a divergence, or a high watermark that moves the replica's own."""
        return (
            request.fetch_offset != self._log.end_offset
            or request.high_watermark < min(self.high_watermark, request.fetch_offset)
            or self._divergence(request) is not None
        )

    def _divergence(self, request: QuorumFetch) -> QuorumFetchReply | None:
        """The answer to a replica whose log is not a prefix of this one: where to cut it, or which snapshot to begin with."""
        log, offset, epoch = self._log, request.fetch_offset, request.last_fetched_epoch
        earliest, latest = log.earliest_snapshot, log.latest_snapshot
        if log.start_offset == 0 and offset == 0 and epoch == 0 and (latest is None or latest.end_offset == 0):
            return None
        if earliest is not None and latest is not None and latest.end_offset > 0:
            is_at_start = offset == log.start_offset == earliest.end_offset
            is_older = offset < log.start_offset or offset == 0 or epoch < earliest.epoch
            if is_older or (is_at_start and epoch != earliest.epoch):
                return self._fetch_reply()._replace(snapshot_id=latest)
        end = log.end_offset_for_epoch(epoch)
        if end.epoch != epoch or end.end_offset < offset:
            return self._fetch_reply()._replace(diverging_epoch=end)
        return None

    def _note_voter_heard(self, leadership: Leadership, key: ReplicaKey) -> None:
        voter = self.voters.find(key)
        if voter is None:
            return
        leadership.fetched[voter.node_id] = self._now_ms
        leadership.begin_pending.discard(voter.node_id)
        self._extend_leadership(leadership)

    def _extend_leadership(self, leadership: Leadership) -> None:
        """Lead until the fetch time-out has passed since a majority, with this node if it votes, last fetched."""
        times = sorted((at for each, at in leadership.fetched.items() if self.voters.by_id(each) is not None), reverse=True)
        others = self.voters.majority - self.is_voter
        if len(times) >= others:
            since_ms = times[others - 1] if others else self._now_ms
            self._timers[QuorumTimer.CHECK_QUORUM] = since_ms + self._config.fetch_timeout_ms

    def _note_fetched(self, leadership: Leadership, request: QuorumFetch) -> None:
        """Note what the replica has on disk: everything below its fetch offset, if its log is a prefix of this one."""
        key, end_offset = request.replica, self._log.end_offset
        known = leadership.replicas.get(key) or self._replaced_replica(leadership, key)
        confirmed = known.confirmed_offset if known is not None else -1
        divergence = self._divergence(request)
        if divergence is None:
            offset = request.fetch_offset
        elif divergence.snapshot_id is not None and request.fetch_offset >= confirmed:
            # It lags behind the log's start, and has not lost anything.
            offset = confirmed
        else:
            offset = -1
        is_caught_up = offset >= end_offset or (known is not None and 0 <= known.log_end_offset <= offset)
        if known is not None and offset < confirmed <= known.fetch_offset and self.voters.find(key) is not None:
            self._note("voter_lost_records", voter=key.node_id, confirmed=confirmed, fetch_offset=request.fetch_offset)
        caught_up_at_ms = known.caught_up_at_ms if known is not None else -1
        leadership.replicas[key] = Replica(
            key=key,
            fetch_offset=offset,
            confirmed_offset=max(offset, confirmed),
            log_end_offset=end_offset,
            is_caught_up=is_caught_up,
            is_silent=False,
            fetched_at_ms=self._now_ms,
            caught_up_at_ms=self._now_ms if is_caught_up else caught_up_at_ms,
        )
        if len(leadership.replicas) > OBSERVERS_MAX:
            self._forget_oldest_observer(leadership)
        self._advance_as_leader(leadership)

    def _replaced_replica(self, leadership: Leadership, key: ReplicaKey) -> Replica | None:
        """A voter of the configuration that comes with another directory: what its predecessor confirmed is what it lost."""
        voter = self.voters.find(key)
        older = next((each for each in leadership.replicas if voter is not None and voter.matches(each)), None)
        return leadership.replicas.pop(older) if older is not None else None

    def _forget_oldest_observer(self, leadership: Leadership) -> None:
        observers = [each for each in leadership.replicas.values() if self.voters.find(each.key) is None]
        if observers:
            del leadership.replicas[min(observers, key=lambda each: (each.fetched_at_ms, each.key)).key]

    def _on_fetch_snapshot(self, request: FetchSnapshot, _: Hashable) -> FetchSnapshotReply:
        error = self._leader_error(request.epoch)
        if self._leadership is None or error is not ErrorCode.NONE:
            return FetchSnapshotReply(error, self._news())
        self._note_voter_heard(self._leadership, request.replica)
        size_max = min(request.size_max, self._config.snapshot_piece_max)
        piece = self._log.read_snapshot(request.snapshot_id, request.position, size_max)
        if piece is None:
            return FetchSnapshotReply(ErrorCode.SNAPSHOT_NOT_FOUND, self._news())
        if not 0 <= request.position <= piece.size:
            return FetchSnapshotReply(ErrorCode.POSITION_OUT_OF_RANGE, self._news())
        return FetchSnapshotReply(
            ErrorCode.NONE, self._news(), request.snapshot_id, piece.size, request.position, piece.data
        )  # fmt: skip

    # -- committing ----------------------------------------------------------------------------------------------------------

    def _append_control(self, records: Sequence[ControlRecord]) -> int:
        start_offset = self._log.end_offset
        end_offset = self._log.append_control(records, self.epoch)
        # They are one batch, so their offsets are known. Reading them back could fail after they were written.
        self._history.note(enumerate(records, start_offset))
        return end_offset

    def _confirmed_offset(self, leadership: Leadership, voter: Voter) -> int:
        if voter.matches(self.key):
            return self._log.durable_end_offset
        return max((each.counted_offset for each in leadership.replicas.values() if voter.matches(each.key)), default=-1)

    def _advance_as_leader(self, leadership: Leadership) -> None:
        """Commit what a majority has on disk, if a record of this epoch is part of it."""
        offsets = sorted((self._confirmed_offset(leadership, voter) for voter in self.voters.voters), reverse=True)
        offset = offsets[self.voters.majority - 1] if offsets else -1
        if offset > leadership.start_offset and offset > self.high_watermark:
            self._advance_high_watermark(offset)
        if self._leadership is not leadership:
            return
        parked = leadership.parked
        self._answer_parked(leadership, [key for key, each in parked.items() if self._has_news_for(each.request)])

    def _advance_high_watermark(self, offset: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        self._log.advance_high_watermark(offset)
        leadership = self._leadership
        if leadership is None:
            return
        while leadership.proposals and leadership.proposals[0][0] <= offset:
            end_offset, token = leadership.proposals.popleft()
            self._results.append(ProposalResult(token, end_offset, None))
        if leadership.change is not None and leadership.change.offset < offset:
            change, leadership.change = leadership.change, None
            self._timers.pop(QuorumTimer.VOTER_CHANGE, None)
            self._send(Reply(change.reply_to, ChangeVoterReply(ErrorCode.NONE)))
        if leadership.is_begun and self._history.voters_offset < offset and not self.is_voter:
            # The others have agreed on a quorum without this node.
            self._become_resigned()

    # -- the follower's side of a fetch --------------------------------------------------------------------------------------

    def _on_fetch_reply(self, peer: RaftPeer, request: QuorumFetch, reply: QuorumFetchReply) -> None:
        if reply.error is not ErrorCode.NONE:
            self._back_off(peer)
            return
        log = self._log
        is_present = (request.fetch_offset, request.last_fetched_epoch) == (log.end_offset, log.last_epoch)
        if self.state is not RaftState.FOLLOWER or request.epoch != self.epoch or not is_present or self._is_busy:
            return
        if self._snapshot_wanted is not None:
            return
        self._note_leader_heard()
        if reply.diverging_epoch is not None:
            self._cut(reply.diverging_epoch)
        elif reply.snapshot_id is not None:
            self._want_snapshot(reply.snapshot_id)
        else:
            self._append_fetched(peer, reply)

    def _note_leader_heard(self) -> None:
        self._has_heard_leader = True
        self._is_leader_gone = False
        self._set_timer(QuorumTimer.FETCH, self._config.fetch_timeout_ms)

    def _append_fetched(self, peer: RaftPeer, reply: QuorumFetchReply) -> None:
        log, start_offset = self._log, self._log.end_offset
        if reply.records is not None:
            try:
                log.append_fetched(reply.records)
            except QuorumError as error:
                self._note("fetched_records_refused", leader=peer.node_id, offset=start_offset, reason=str(error))
                self._back_off(peer)
                return
            self._note_control_records(start_offset)
            if self._failure is not None:
                return
        self._advance_high_watermark(min(reply.high_watermark, log.end_offset))

    def _note_control_records(self, offset: int) -> None:
        """Note the voters that the log names from ``offset`` on. A node that cannot read them does not know who votes, and goes
        silent."""
        try:
            self._history.note(self._log.control_records(offset))
        except QuorumError as error:
            self.storage_failed(f"reading the voters from offset {offset} of the metadata log on failed: {error}")

    def _cut(self, diverging: EpochEnd) -> None:
        """Cut the log where it stops being a prefix of the leader's."""
        own = self._log.end_offset_for_epoch(diverging.epoch)
        offset = min(own.end_offset, diverging.end_offset) if own.epoch == diverging.epoch else own.end_offset
        if offset < self.high_watermark or offset >= self._log.end_offset:
            self.storage_failed(
                f"the leader of epoch {self.epoch} has another history: it asked for a cut at offset {offset}, but everything "
                f"below {self.high_watermark} was committed and the log ends at {self._log.end_offset}. If the quorum was "
                "recovered from another node's directory, stop this node and remove __cluster_metadata-0: it fetches everything"
            )
            return
        # A fetch that is still held back would tell the leader of what is being cut.
        self._in_flight.clear()
        self._history.truncate(offset)
        self._is_truncating = True
        self._to_truncate = offset

    def _want_snapshot(self, snapshot_id: SnapshotId) -> None:
        if snapshot_id.end_offset <= self.high_watermark:
            self.storage_failed(
                f"the leader of epoch {self.epoch} offers a snapshot that ends at offset {snapshot_id.end_offset}, but "
                f"everything below {self.high_watermark} was committed"
            )
            return
        self._snapshot_wanted = snapshot_id
        self._snapshot_position = 0

    def _stop_fetching_snapshot(self) -> None:
        self._snapshot_wanted = None
        self._snapshot_position = 0
        self._snapshot_installing = False

    def _on_fetch_snapshot_reply(self, peer: RaftPeer, request: FetchSnapshot, reply: FetchSnapshotReply) -> None:
        is_present = (request.snapshot_id, request.position) == (self._snapshot_wanted, self._snapshot_position)
        if self.state is not RaftState.FOLLOWER or request.epoch != self.epoch or not is_present or self._is_busy:
            return
        if reply.error is not ErrorCode.NONE or reply.position != request.position:
            # The leader has a later snapshot by now: the next fetch says which.
            self._stop_fetching_snapshot()
            self._back_off(peer)
            return
        self._note_leader_heard()
        try:
            self._log.write_snapshot(request.snapshot_id, request.position, reply.data)
        except QuorumError as error:
            self._note("snapshot_not_written", snapshot=request.snapshot_id, reason=str(error))
            self._stop_fetching_snapshot()
            self._back_off(peer)
            return
        self._snapshot_position += len(reply.data)
        if self._snapshot_position >= reply.size:
            self._in_flight.clear()
            self._snapshot_installing = True
            self._to_install = request.snapshot_id
        elif not reply.data:
            self._back_off(peer)

    # -- voters --------------------------------------------------------------------------------------------------------------

    def _change_refusal(self, kraft_version_min: int = 1) -> ChangeVoterReply | None:
        """Why the voters cannot be changed now, if they cannot."""
        leadership = self._leadership
        if leadership is None or not leadership.is_begun:
            return ChangeVoterReply(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node does not lead the quorum.")
        if not self.is_leading:
            message = "The leader has not committed a record of its epoch yet, so an earlier change may be unfinished. Try again."
            return ChangeVoterReply(ErrorCode.REQUEST_TIMED_OUT, message)
        if self.kraft_version < kraft_version_min:
            message = (
                "The voters stand in the settings, because the feature kraft.version is at 0. Raise it to 1 to change them: "
                "tidelog quorum upgrade"
            )
            return ChangeVoterReply(ErrorCode.UNSUPPORTED_VERSION, message)
        if leadership.change is not None or self._history.voters_offset >= self.high_watermark:
            message = "Another change of the voters is under way. Try again when it is committed."
            return ChangeVoterReply(ErrorCode.REQUEST_TIMED_OUT, message)
        return None

    def _change_voters(self, records: Sequence[ControlRecord], change: tuple[Hashable, str, int] | None) -> None:
        """Append records that end with the new voters. ``change`` is whom to answer when they are committed, what was asked for,
        and for how long that waits; None if nobody waits for an answer."""
        leadership = self._leadership
        assert leadership is not None, "only a leader changes the voters"
        known_ids = {*self.voters.ids, self.node_id}
        offset = self._append_control(records) - 1
        if change is not None:
            reply_to, text, timeout_ms = change
            leadership.change = VoterChange(offset, reply_to, text)
            self._set_timer(QuorumTimer.VOTER_CHANGE, timeout_ms)
        leadership.begin_pending |= set(self.voters.ids) - known_ids
        # What a new voter fetched as an observer counts: a lone voter has never had to hear of anybody.
        for key, each in leadership.replicas.items():
            if self.voters.find(key) is not None:
                # A voter that fetches a snapshot has been heard of since it last fetched from the log.
                leadership.fetched[key.node_id] = max(each.fetched_at_ms, leadership.fetched.get(key.node_id, 0))
        self._extend_leadership(leadership)
        self._note("voters", voters=self.voters.ids, offset=offset)

    def _on_upgrade_kraft_version(self, request: UpgradeKRaftVersion, reply_to: Hashable) -> ChangeVoterReply | None:
        """Move the voters from the configuration into the log, with the directories that they have."""
        refusal = self._change_refusal(KRAFT_VERSION_MIN)
        if refusal is not None:
            return refusal
        if request.version == self.kraft_version:
            return ChangeVoterReply(ErrorCode.NONE)
        if request.version != KRAFT_VERSION_MAX:
            message = f"kraft.version is at {self.kraft_version} and cannot become {request.version}."
            return ChangeVoterReply(ErrorCode.INVALID_UPDATE_VERSION, message)
        voters = []
        for voter in self.voters.voters:
            directory_id = self._directory_of(voter)
            if directory_id is None:
                message = f"Voter {voter.node_id} does not fetch, so the id of its directory is not known: start it first."
                return ChangeVoterReply(ErrorCode.INVALID_UPDATE_VERSION, message)
            if not voter.endpoints:
                message = (
                    f"No other node could reach voter {voter.node_id}: name a listener for controllers in its settings "
                    "(listeners, controller.listener.names), and restart it."
                )
                return ChangeVoterReply(ErrorCode.INVALID_UPDATE_VERSION, message)
            voters.append(voter._replace(directory_id=directory_id))
        if request.validate_only:
            return ChangeVoterReply(ErrorCode.NONE)
        records: list[ControlRecord] = [KRaftVersion(request.version), VotersRecord(VoterSet(tuple(voters)))]
        self._change_voters(records, (reply_to, f"Raising kraft.version to {request.version}", request.timeout_ms))
        return None

    def _directory_of(self, voter: Voter) -> bytes | None:
        """The directory that a voter of the configuration has, if this leader knows it."""
        if voter.matches(self.key):
            return self._config.directory_id
        replicas = self._leadership.replicas if self._leadership is not None else ()
        return next((key.directory_id for key in replicas if voter.matches(key)), None)

    def _on_add_voter(self, request: AddVoter, reply_to: Hashable) -> ChangeVoterReply | None:
        refusal = self._change_refusal()
        if refusal is not None:
            return refusal
        leadership, voter = self._leadership, request.voter
        if self.voters.by_id(voter.node_id) is not None:
            return ChangeVoterReply(ErrorCode.DUPLICATE_VOTER, f"Node {voter.node_id} is a voter already. Remove it first.")
        if not request.endpoints or voter.node_id < 0 or voter.directory_id == bytes(16):
            return ChangeVoterReply(ErrorCode.INVALID_REQUEST, "A voter needs an id, a directory id and an endpoint.")
        replica = leadership.replicas.get(voter) if leadership is not None else None
        if replica is None or not replica.is_caught_up:
            state = "does not fetch" if replica is None else f"has fetched up to offset {replica.fetch_offset} only"
            message = f"Node {voter.node_id} {state}: a new voter must have caught up with offset {self._log.end_offset}."
            return ChangeVoterReply(ErrorCode.REQUEST_TIMED_OUT, message)
        silent_ms = self._now_ms - replica.fetched_at_ms
        if silent_ms > self._config.fetch_timeout_ms:
            message = (
                f"Node {voter.node_id} last fetched {silent_ms} ms ago. A voter that is not there would be missing from every "
                "majority: start it first."
            )
            return ChangeVoterReply(ErrorCode.REQUEST_TIMED_OUT, message)
        added = Voter(voter.node_id, voter.directory_id, request.endpoints, KRAFT_VERSION_MIN, KRAFT_VERSION_MAX)
        change = (reply_to, f"Adding voter {voter.node_id}", request.timeout_ms) if request.ack_when_committed else None
        self._change_voters([VotersRecord(self.voters.with_voter(added))], change)
        return None if change is not None else ChangeVoterReply(ErrorCode.NONE)

    def _on_remove_voter(self, request: RemoveVoter, reply_to: Hashable) -> ChangeVoterReply | None:
        refusal = self._change_refusal()
        if refusal is not None:
            return refusal
        voter = self.voters.find(request.voter)
        if voter is None:
            return ChangeVoterReply(
                ErrorCode.VOTER_NOT_FOUND, f"Node {request.voter.node_id} with this directory is not a voter."
            )
        if len(self.voters.voters) == 1:
            return ChangeVoterReply(ErrorCode.INVALID_REQUEST, "The last voter cannot be removed: add another one first.")
        left = self.voters.without(voter.node_id)
        silent = [each.node_id for each in left.voters if not self._is_heard(each)]
        if len(left.voters) - len(silent) < left.majority:
            message = (
                f"Without node {voter.node_id} the voters would be {_listed(left.ids)}, and {_listed(silent)} did not fetch "
                f"within {self._config.fetch_timeout_ms} ms. There would be no majority to decide anything, not even to take "
                "this back: start those nodes or remove them first."
            )
            return ChangeVoterReply(ErrorCode.INVALID_REQUEST, message)
        self._change_voters([VotersRecord(left)], (reply_to, f"Removing voter {voter.node_id}", self._config.request_timeout_ms))
        return None

    def _is_heard(self, voter: Voter) -> bool:
        """Whether the voter is there, as far as this leader knows."""
        fetched_ms = self._leadership.fetched.get(voter.node_id) if self._leadership is not None else None
        is_recent = fetched_ms is not None and self._now_ms - fetched_ms <= self._config.fetch_timeout_ms
        return is_recent or voter.matches(self.key)

    def _on_update_voter(self, request: UpdateVoter, _: Hashable) -> UpdateVoterReply:
        error = self._leader_error(request.epoch)
        if error is not ErrorCode.NONE:
            return UpdateVoterReply(error, self._news())
        refusal = self._change_refusal()
        if refusal is not None:
            return UpdateVoterReply(refusal.error, self._news())
        if self.voters.find(request.voter) is None or not request.endpoints:
            known = self.voters.by_id(request.voter.node_id)
            return UpdateVoterReply(ErrorCode.VOTER_NOT_FOUND if known is None else ErrorCode.INVALID_VOTER_KEY, self._news())
        if not request.kraft_version_min <= self.kraft_version <= request.kraft_version_max:
            return UpdateVoterReply(ErrorCode.INVALID_REQUEST, self._news())
        updated = Voter(*request.voter, request.endpoints, request.kraft_version_min, request.kraft_version_max)
        if self.voters.find(request.voter) != updated:
            self._append_control([VotersRecord(self.voters.with_voter(updated))])
        return UpdateVoterReply(ErrorCode.NONE, self._news())

    def _on_update_voter_reply(self, peer: RaftPeer, request: UpdateVoter, reply: UpdateVoterReply) -> None:
        # If the leader could not write it now, the next turn of the timer asks again.
        self._is_update_voter_due = False
        if reply.error is not ErrorCode.NONE:
            self._note("voter_update_refused", leader=peer.node_id, epoch=request.epoch, error=reply.error.name)

    def _refusal(self, request: QuorumRequest, error: ErrorCode) -> QuorumReply:
        if isinstance(request, AddVoter | RemoveVoter | UpgradeKRaftVersion):
            return ChangeVoterReply(error, f"{error.message} The id of this cluster is {self._config.cluster_id}.")
        return _REPLY_CLASSES[type(request)](error, self._news())


def _listed(node_ids: Sequence[int]) -> str:
    return ", ".join(str(node_id) for node_id in node_ids)


def _led_by(state: QuorumState, leader_id: int) -> QuorumState:
    """The same epoch and vote, and a leader."""
    return QuorumState(state.leader_epoch, leader_id, state.voted_id, state.voted_directory_id)


def _peer_of_voter(voter: Voter) -> RaftPeer:
    endpoint = voter.endpoints[0]
    return RaftPeer(voter.node_id, endpoint.host, endpoint.port)


# What each message, timer and state leads to, in one place.
_REQUEST_HANDLERS: dict[type, Callable[[RaftNode, Any, Hashable], Any]] = {
    Vote: RaftNode._on_vote,
    BeginQuorumEpoch: RaftNode._on_begin_quorum_epoch,
    EndQuorumEpoch: RaftNode._on_end_quorum_epoch,
    QuorumFetch: RaftNode._on_fetch,
    FetchSnapshot: RaftNode._on_fetch_snapshot,
    AddVoter: RaftNode._on_add_voter,
    RemoveVoter: RaftNode._on_remove_voter,
    UpdateVoter: RaftNode._on_update_voter,
    UpgradeKRaftVersion: RaftNode._on_upgrade_kraft_version,
}
_REPLY_HANDLERS: dict[type, Callable[[RaftNode, RaftPeer, Any, Any], None]] = {
    VoteReply: RaftNode._on_vote_reply,
    BeginQuorumEpochReply: RaftNode._on_begin_quorum_epoch_reply,
    EndQuorumEpochReply: RaftNode._on_end_quorum_epoch_reply,
    QuorumFetchReply: RaftNode._on_fetch_reply,
    FetchSnapshotReply: RaftNode._on_fetch_snapshot_reply,
    UpdateVoterReply: RaftNode._on_update_voter_reply,
}
_REPLY_CLASSES: dict[type, Callable[..., QuorumReply]] = {
    Vote: VoteReply,
    BeginQuorumEpoch: BeginQuorumEpochReply,
    EndQuorumEpoch: EndQuorumEpochReply,
    QuorumFetch: QuorumFetchReply,
    FetchSnapshot: FetchSnapshotReply,
    UpdateVoter: UpdateVoterReply,
}
_TIMER_HANDLERS: dict[QuorumTimer, Callable[[RaftNode], None]] = {
    QuorumTimer.ELECTION: RaftNode._on_election_timer,
    QuorumTimer.FETCH: RaftNode._on_fetch_timer,
    QuorumTimer.CHECK_QUORUM: RaftNode._on_check_quorum_timer,
    QuorumTimer.BEGIN_EPOCH: RaftNode._on_begin_epoch_timer,
    QuorumTimer.UPDATE_VOTER: RaftNode._on_update_voter_timer,
    QuorumTimer.OBSERVERS: RaftNode._on_observers_timer,
    QuorumTimer.VOTER_CHANGE: RaftNode._on_voter_change_timer,
}
_REQUESTERS: dict[RaftState, Callable[[RaftNode], None]] = {
    RaftState.UNATTACHED: RaftNode._look_for_leader,
    RaftState.PROSPECTIVE: RaftNode._ask_for_votes,
    RaftState.CANDIDATE: RaftNode._ask_for_votes,
    RaftState.LEADER: RaftNode._announce_epoch,
    RaftState.FOLLOWER: RaftNode._ask_leader,
    RaftState.RESIGNED: RaftNode._announce_resignation,
}
