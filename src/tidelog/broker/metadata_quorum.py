"""Runs the metadata quorum on this node: it carries out what ``raft.quorum.RaftNode`` decides, and reports what became durable.

The core decides and touches nothing. Here its states are stored (quorum-state file, in a helper thread), its log is synced with
the group commit and cut with the data directory's durable truncation, its requests go out over a channel per address, and its
time-outs are timers of the broker. ``broker.metadata_snapshots`` takes and installs snapshots. Requests of other nodes come in
through ``handle``. Every input is followed by ``_carry_out``, which repeats until the core wants nothing more.

At a start the latest snapshot is loaded, and the log is applied from its end on. Committed batches are applied in the order of
the log and never beyond the high watermark, also at a start, because what lies above it may still be cut. A proposer is called
back right after its batch was applied. If the leadership is lost first, it learns that the outcome is not known. A proposal that
could not be appended is not in the log.

If a store or a sync fails, or a committed batch cannot be applied, the node goes silent for good: it no longer knows what it has
promised, or what the cluster has agreed on. The next start finds out from the disk.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import NamedTuple, cast

from tidelog.broker.config import BrokerConfig
from tidelog.broker.metadata_log import PartitionRaftLog
from tidelog.broker.metadata_snapshots import MetadataSnapshots, ReplicatedState, SnapshotPolicy, SnapshotPorts
from tidelog.broker.peer_channel import PeerChannel, PeerError, PeerOptions, PeerRequest, PeerTimedOut, PeerUnreachable
from tidelog.broker.quorum_recovery import QuorumRecovery
from tidelog.broker.quorum_wire import QUORUM_APIS, decode_quorum_reply, encode_quorum_request
from tidelog.broker.timers import Timer, Timers
from tidelog.config.cluster import bootstrap_servers_of, names_a_quorum, quorum_voters_of
from tidelog.config.listeners import ListenerRole
from tidelog.log.data_directory import DataDirectory
from tidelog.log.environment import is_scarcity
from tidelog.log.time_budget import TimeBudget
from tidelog.ports.clock import Clock
from tidelog.ports.executor import Completion, Executor
from tidelog.ports.network import Network
from tidelog.ports.randomness import Randomness
from tidelog.raft.errors import QuorumError, VotersUnknown
from tidelog.raft.messages import QuorumReply, QuorumRequest, SnapshotId
from tidelog.raft.quorum import ProposalResult, RaftConfig, RaftNode, RaftState, Ready, Request, RequestFailure
from tidelog.raft.quorum_state import NO_DIRECTORY, NOBODY, QuorumState, QuorumStateFile
from tidelog.raft.snapshot_file import SnapshotUnusable
from tidelog.raft.voters import ControlRecord, ReplicaKey, Voter, VoterEndpoint, VoterSet, voter_set
from tidelog.records.batch import build_batch
from tidelog.records.record import Record
from tidelog.wire.errors import MalformedRequest

OnDone = Callable[[Exception | None], None]
Report = Callable[[str, dict[str, object]], None]

# How long to wait before a state is stored again that lacked a descriptor, memory or space.
STORE_RETRY_MS = 100
# What a follower applies before the loop gets its turn: each batch is read, checked and replayed, in some 30 us for a small one.
BATCHES_PER_SLICE = 128
_OWN_ELECTION = frozenset(("state", "leader"))
DEFAULT_POLICY = SnapshotPolicy()
_NOTHING = Ready((), None, None, None, None, (), ())


def _ignore_change() -> None:
    """For those who do not follow the leadership."""


def raft_config(config: BrokerConfig, directory_id: bytes | None) -> RaftConfig:
    """The part of this node in the quorum, from its settings.

    Without a quorum in the settings the node is its only voter. Otherwise the voters stand in the settings, or in the log and
    its snapshots; a node that is not among them observes."""
    values = config.values
    endpoints = tuple(
        VoterEndpoint(listener.name, listener.advertised.host, listener.advertised.port)
        for listener in config.listeners
        if listener.role is ListenerRole.CONTROLLER
    )
    named = quorum_voters_of(values)
    name = endpoints[0].listener if endpoints else next(iter(values["controller.listener.names"]), "CONTROLLER")
    voters = [Voter(node_id, NO_DIRECTORY, (VoterEndpoint(name, *astuple(address)),)) for node_id, address in named]
    if not names_a_quorum(values):
        voters = [Voter(config.node_id, NO_DIRECTORY, endpoints)]
    servers = bootstrap_servers_of(values) or tuple(voter.address for voter in named if voter.node_id != config.node_id)
    return RaftConfig(
        node_id=config.node_id,
        directory_id=directory_id or NO_DIRECTORY,
        cluster_id=config.cluster_id,
        endpoints=endpoints,
        static_voters=voter_set(voters),
        bootstrap_servers=tuple((server.host, server.port) for server in servers),
        auto_join=bool(values["controller.quorum.auto.join.enable"]),
        election_timeout_ms=int(values["controller.quorum.election.timeout.ms"]),
        election_backoff_max_ms=int(values["controller.quorum.election.backoff.max.ms"]),
        fetch_timeout_ms=int(values["controller.quorum.fetch.timeout.ms"]),
        request_timeout_ms=int(values["controller.quorum.request.timeout.ms"]),
        retry_backoff_ms=int(values["controller.quorum.retry.backoff.ms"]),
    )


@dataclass(frozen=True, slots=True)
class QuorumPorts:
    """What the quorum runs on."""

    directory: DataDirectory
    log: PartitionRaftLog
    state_file: QuorumStateFile
    clock: Clock
    randomness: Randomness
    executor: Executor
    timers: Timers
    network: Network
    report: Report


class ReplicaStatus(NamedTuple):
    """What the leader knows of a replica. Offsets and times (of the wall clock) are -1 while they are not known."""

    key: ReplicaKey
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


class QuorumStatus(NamedTuple):
    """The quorum as its leader sees it."""

    leader_id: int
    epoch: int
    high_watermark: int
    log_end_offset: int
    voters: tuple[ReplicaStatus, ...]
    observers: tuple[ReplicaStatus, ...]


class MetadataQuorum:
    __slots__ = (
        "_applied_offset",
        "_apply_timer",
        "_channels",
        "_config",
        "_has_led",
        "_is_carrying_out",
        "_is_closed",
        "_node",
        "_on_applied",
        "_on_change",
        "_ports",
        "_proposal_count",
        "_proposers",
        "_recovery",
        "_results",
        "_seen",
        "_state",
        "_storage_error",
        "_timer",
        "_timer_deadline_ms",
        "_unreachable",
        "elections",
        "snapshots",
    )

    def __init__(
        self, config: RaftConfig, ports: QuorumPorts, state: ReplicatedState, policy: SnapshotPolicy = DEFAULT_POLICY
    ) -> None:
        self._config = config
        self._ports = ports
        self._state = state
        self._on_change: Callable[[], None] = _ignore_change
        self._on_applied: Callable[[], None] = _ignore_change
        # What was true when ``_on_change`` was last called.
        self._seen: tuple[object, ...] = ()
        snapshot_ports = SnapshotPorts(
            directory=ports.directory,
            log=ports.log,
            clock=ports.clock,
            executor=ports.executor,
            timers=ports.timers,
            report=ports.report,
        )
        self.snapshots = MetadataSnapshots(state, snapshot_ports, policy, self._control_records_at)
        self._node: RaftNode | None = None
        # The other voters and the bootstrap servers, by address: a handful.
        self._channels: dict[tuple[str, int], PeerChannel] = {}
        self._has_led = False
        self._is_carrying_out = False
        self._is_closed = False
        # The image has everything below this offset.
        self._applied_offset = 0
        # Runs when more is committed than one slice applies.
        self._apply_timer: Timer | None = None
        # The proposers that wait, by the number that the core knows their proposals by.
        self._proposers: dict[Hashable, OnDone] = {}
        self._proposal_count = 0
        self._results: deque[ProposalResult] = deque()
        # The recovery of a lost quorum that is under way, and where the log ended after it.
        self._recovery: tuple[QuorumRecovery, int] | None = None
        self._storage_error: Exception | None = None
        self._timer: Timer | None = None
        self._timer_deadline_ms = 0
        # How often this node stood for election.
        self.elections = 0
        # The peers whose last request failed, and why.
        self._unreachable: dict[str, str] = {}

    @property
    def failure(self) -> Exception | None:
        """Why this node has gone silent for good; None while it takes part."""
        return self._storage_error

    @property
    def unreachable_peers(self) -> list[str]:
        return [f"{address}: {reason}" for address, reason in sorted(self._unreachable.items())]

    @property
    def epoch(self) -> int:
        return self._node.epoch if self._node is not None else 0

    @property
    def _is_alone(self) -> bool:
        return self._node is not None and self._node.voters.ids == (self._config.node_id,)

    @property
    def leader_id(self) -> int:
        """The leader of this epoch as far as this node knows; -1 if it knows none."""
        return self._node.leader_id if self._node is not None else NOBODY

    @property
    def hears_leader(self) -> bool:
        """Whether this node leads, or the leader answers it."""
        return self._node is not None and self._node.hears_leader

    @property
    def leader_address(self) -> tuple[str, int] | None:
        """The leader's listener of controllers; None if no other node is known to lead."""
        peer = self._node.leader_peer if self._node is not None else None
        return (peer.host, peer.port) if peer is not None else None

    @property
    def voters(self) -> VoterSet:
        return self._node.voters if self._node is not None else self._config.static_voters

    @property
    def kraft_version(self) -> int:
        """1 if the voters stand in the log, 0 if they stand in the settings."""
        return self._node.kraft_version if self._node is not None else 0

    @property
    def end_offset(self) -> int:
        """Where the next record will stand, if this node leads."""
        return self._ports.log.end_offset

    @property
    def applied_offset(self) -> int:
        """The image has everything below this offset."""
        return self._applied_offset

    @property
    def is_leader(self) -> bool:
        """Whether this node may decide: it leads, and everything that was committed before its epoch is applied."""
        return self._node is not None and self._node.is_leading and self._applied_offset >= self._node.high_watermark

    @property
    def state(self) -> RaftState:
        return self._node.state if self._node is not None else RaftState.UNATTACHED

    @property
    def high_watermark(self) -> int:
        return self._node.high_watermark if self._node is not None else 0

    def status(self) -> QuorumStatus:
        """What a leader knows of its replicas; on any other node, only what it knows of itself and the leader."""
        ports, node = self._ports, self._node
        now_ms = ports.clock.now_ms()
        offset_ms = now_ms - ports.clock.monotonic_ms()
        end_offset = ports.log.end_offset
        own = ReplicaKey(self._config.node_id, self._config.directory_id)
        known = {own: ReplicaStatus(own, end_offset, now_ms, now_ms)}
        for replica in node.replicas if node is not None else ():
            times = [at_ms + offset_ms if at_ms >= 0 else -1 for at_ms in (replica.fetched_at_ms, replica.caught_up_at_ms)]
            known[replica.key] = ReplicaStatus(replica.key, replica.fetch_offset, *times)
        voters = []
        for voter in self.voters.voters:
            found = next((each for each in known if voter.matches(each)), None)
            status = known.pop(found) if found is not None else ReplicaStatus(voter.key, -1, -1, -1)
            # A voter of the settings is known by its id alone, whatever directory it has.
            voters.append(status._replace(key=voter.key))
        known.pop(own, None)
        return QuorumStatus(self.leader_id, self.epoch, self.high_watermark, end_offset, tuple(voters), tuple(known.values()))

    def watch(self, on_change: Callable[[], None], on_applied: Callable[[], None]) -> None:
        """``on_change`` is called when the leader, its address or the epoch has changed, when the leader is or is no longer heard
        of, and when this node begins or ceases to lead or fails; ``on_applied`` when ``applied_offset`` has moved."""
        self._on_change = on_change
        self._on_applied = on_applied

    def start(self) -> None:
        """Take part in the quorum.

        Raises QuorumStateUnusable or CorruptMetadataLog when the disk does not hold what it should."""
        ports = self._ports
        ports.log.check_snapshots()
        snapshot = ports.log.latest_snapshot
        if snapshot is None or not ports.log.is_behind_snapshot:
            self._join()
            return

        def begun_again(error: BaseException | None) -> None:
            if self._is_closed:
                return
            try:
                if error is not None:
                    raise error
                self._join()
            except Exception as failure:
                self._storage_error = failure
                self._on_change()

        ports.directory.begin_again(ports.log.log, snapshot.end_offset, begun_again)

    def _join(self) -> None:
        """Load the latest snapshot and begin."""
        ports = self._ports
        recovery = QuorumRecovery(ports.directory.disk, ports.log.log.directory)
        self._applied_offset = self.snapshots.load()
        stored = ports.state_file.load()
        if recovery.is_requested:
            own = self._config
            records = recovery.records(own.node_id, own.directory_id, own.endpoints)
            self._recovery = recovery, ports.log.append_control(records, recovery.first_epoch(stored, ports.log.last_epoch))
        if self._config.static_voters.ids != (self._config.node_id,):
            # A sync of this file may have failed before. Then the page cache holds a vote that the disk does not have.
            ports.state_file.store(stored)
        self._node = node = RaftNode(self._config, ports.log, stored, ports.randomness, ports.clock.monotonic_ms())
        self._check_voters(node, stored)
        self._carry_out(self._node)

    def _check_voters(self, node: RaftNode, stored: QuorumState) -> None:
        """Compare the voters of the settings with those of the log, which count. Raises VotersUnknown."""
        named, found = self._config.static_voters.ids, node.voters.ids
        if not found and self._config.node_id in (stored.leader_id, stored.voted_id):
            raise VotersUnknown(
                f"{self._ports.log.log.directory}: node {self._config.node_id} has led this cluster, whose voters stood in its "
                "settings, and now the settings name none. Start it without controller.quorum.bootstrap.servers, move the voters "
                "into the log (tidelog quorum upgrade), and name the servers then"
            )
        if named and named != found:
            # The voters have changed since the settings were written, or the settings are those of another cluster.
            self._ports.report("quorum_settings_outdated", {"voters_of_settings": named, "voters_of_log": found})

    def handle(self, request: QuorumRequest, on_reply: Callable[[QuorumReply], None]) -> None:
        """Handle another node's request. A node whose storage failed, that stops, or that has not loaded its metadata yet, never
        answers."""
        if self._is_closed or self._node is None:
            return
        node = self._tick()
        node.step(request, on_reply)
        self._carry_out(node)

    def resign(self) -> None:
        """Stop leading before this node stops, so that the others elect somebody at once."""
        if self._node is not None and not self._is_closed:
            node = self._tick()
            node.resign()
            self._carry_out(node)

    def close(self) -> None:
        """Hear, say and write nothing more: the broker stops, and its directory may soon have another owner."""
        self._is_closed = True
        self.snapshots.close()
        for channel in self._channels.values():
            channel.close()
        for timer in (self._timer, self._apply_timer):
            if timer is not None:
                timer.cancel()

    def propose(self, values: Sequence[bytes], on_done: OnDone) -> None:
        """Write records as one batch. If nothing could be written, ``on_done`` may be called before this returns."""
        assert values, "a batch holds at least one record"
        now_ms = self._ports.clock.now_ms()
        batch = build_batch([Record(index, now_ms, None, value) for index, value in enumerate(values)])
        node = self._tick()
        token = self._proposal_count + 1
        try:
            node.propose(batch, token)
        except QuorumError as error:
            if self._ports.log.log.offline_reason is not None:
                # It can neither append nor be followed any further: somebody else has to lead.
                self._fail(node, "writing the metadata log", error)
            # The time that has passed may have ended the leadership.
            self._carry_out(node)
            # Why the log could not be written matters more to the proposer than that it could not.
            on_done(error.__cause__ if isinstance(error.__cause__, Exception) else error)
            return
        self._proposal_count = token
        self._proposers[token] = on_done
        self._carry_out(node)

    # -- carrying out --------------------------------------------------------------------------------------------------------

    def _tick(self) -> RaftNode:
        """Tell the core the time, which comes before every other input."""
        node = self._node
        assert node is not None, "the quorum has started"
        node.tick(self._ports.clock.monotonic_ms())
        return node

    def _carry_out(self, node: RaftNode) -> None:
        """Do what the core wants until it wants nothing. What is done here may be an input again: the outer call goes on."""
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while (ready := node.ready()) != _NOTHING or self._apply(node):
                self._begin(ready)
        finally:
            self._is_carrying_out = False
        self._arm(node)
        seen = node.epoch, node.leader_id, node.hears_leader, self.leader_address, self.is_leader, self._storage_error
        self._has_led = self._has_led or self.is_leader
        if seen != self._seen:
            self._seen = seen
            self._on_change()

    def _begin(self, ready: Ready) -> None:
        ports = self._ports
        self._results += ready.results
        if ready.store is not None:
            self._store(ready.store)
        if ready.truncate_to is not None:
            ports.directory.truncate(ports.log.log, ready.truncate_to, self._truncated)
        if ready.install is not None:
            self.snapshots.install(ready.install, partial(self._installed, ready.install))
        if ready.sync_to is not None:
            ports.directory.commit.wait(ports.log.log, ready.sync_to, self._synced)
            # Decisions are rare and somebody waits for each, so each is synced at once and not at the end of a burst of appends.
            ports.directory.kick()
        for message in ready.messages:
            if isinstance(message, Request):
                self._send(message)
            else:
                # ``handle`` gave the core its callback to answer to.
                cast("Callable[[QuorumReply], None]", message.reply_to)(message.reply)
        for name, fields in ready.events:
            self._report(name, dict(fields))

    def _control_records_at(self, end_offset: int) -> tuple[ControlRecord, ...]:
        return self._node.control_records_at(end_offset) if self._node is not None else ()

    def _report(self, name: str, fields: dict[str, object]) -> None:
        if name == "state" and fields["state"] == RaftState.CANDIDATE.value:
            self.elections += 1
        if name == "storage_failed" and self._storage_error is None:
            # The core itself found out: what it read made no sense, or could not be read.
            self._storage_error = QuorumError(str(fields["reason"]))
        # That a broker elects itself is news to nobody.
        if not (self._is_alone and name in _OWN_ELECTION):
            self._ports.report(f"quorum_{name}", fields)
        if name == "append_failed" and self._is_alone and not self._has_led and self._node is not None:
            # Whoever starts this broker waits for it, and nobody else can lead.
            self._fail(self._node, "writing the first record of an epoch", QuorumError(str(fields["reason"])))

    # -- other nodes ---------------------------------------------------------------------------------------------------------

    def _send(self, message: Request) -> None:
        peer, request = message.peer, message.request
        address = peer.host, peer.port
        channel = self._channels.get(address)
        if channel is None:
            options = PeerOptions(f"quorum-{self._config.node_id}")
            channel = self._channels[address] = PeerChannel(self._ports.network, self._ports.timers, *address, options)
        api = QUORUM_APIS[type(request)]
        channel.send(
            PeerRequest(
                api.key,
                api.versions,
                partial(encode_quorum_request, request),
                partial(self._replied, message),
                partial(self._request_failed, message),
                self._config.request_timeout_ms,
            )
        )

    def _replied(self, message: Request, version: int, body: memoryview) -> None:
        if self._is_closed:
            return
        try:
            reply = decode_quorum_reply(message.request, version, body)
        except MalformedRequest as error:
            self._request_failed(message, PeerError(f"{message.peer.host}:{message.peer.port} answered nonsense: {error}"))
            return
        self._unreachable.pop(f"{message.peer.host}:{message.peer.port}", None)
        node = self._tick()
        node.receive(message, reply)
        self._carry_out(node)

    def _request_failed(self, message: Request, error: PeerError) -> None:
        if self._is_closed:
            return
        self._unreachable[f"{message.peer.host}:{message.peer.port}"] = str(error)
        failure = RequestFailure.TIMED_OUT if isinstance(error, PeerTimedOut) else RequestFailure.LOST
        if isinstance(error, PeerUnreachable) and error.is_refused:
            failure = RequestFailure.REFUSED
        node = self._tick()
        node.request_failed(message, failure)
        self._carry_out(node)

    # -- the disk ------------------------------------------------------------------------------------------------------------

    def _store(self, state: QuorumState) -> None:
        ports = self._ports
        if not self._is_closed:
            ports.executor.submit(partial(ports.state_file.store, state), partial(self._stored, state))

    def _stored(self, state: QuorumState, completion: Completion) -> None:
        error = completion.error
        if isinstance(error, OSError) and is_scarcity(error) and not self._is_closed:
            # A shortage passes, and until the state is stored nobody has heard of it.
            self._ports.timers.schedule(STORE_RETRY_MS, partial(self._store, state))
            return
        self._ended("storing the quorum state", error, RaftNode.state_stored)

    def _synced(self, error: Exception | None) -> None:
        self._ended("syncing the metadata log", error, RaftNode.log_synced)

    def _truncated(self, error: BaseException | None) -> None:
        self._ended("truncating the metadata log", error, RaftNode.truncated)

    def _installed(self, snapshot_id: SnapshotId, error: Exception | None) -> None:
        if self._is_closed:
            return
        node = self._tick()
        if error is None:
            self._applied_offset = snapshot_id.end_offset
            node.snapshot_installed()
            self._on_applied()
        elif isinstance(error, SnapshotUnusable):
            node.snapshot_rejected(str(error))
        else:
            self._fail(node, "installing a snapshot", error)
        self._carry_out(node)

    def _ended(self, work: str, error: BaseException | None, report: Callable[[RaftNode], None]) -> None:
        if self._is_closed:
            return
        node = self._tick()
        if error is None:
            report(node)
        else:
            self._fail(node, work, error)
        self._carry_out(node)

    def _fail(self, node: RaftNode, work: str, error: BaseException) -> None:
        if self._storage_error is None:
            self._storage_error = error if isinstance(error, Exception) else QuorumError(f"{work} failed: {error!r}")
            node.storage_failed(f"{work} failed: {error}")

    # -- following -----------------------------------------------------------------------------------------------------------

    def _apply(self, node: RaftNode) -> bool:
        """Hand on what is committed, and call back those who wait for it. Returns whether anybody was called: they may have given
        the core something to do."""
        was_called = False
        if node.high_watermark > self._applied_offset and self._storage_error is None and self._apply_timer is None:
            was_called = True
            try:
                self._apply_slice(node)
            except Exception as error:
                # A node whose image stopped following the log must not decide, or vote as if it had everything.
                self._fail(node, "applying the metadata log", error)
            self._on_applied()
        return self._answer_proposers() or was_called

    def _apply_slice(self, node: RaftNode) -> None:
        """Apply what is committed, or as much of it as may hold the loop at a time.

        A broker that was cut off during many decisions serves its clients while it catches up. A leader applies everything at
        once: it decides only with everything that was committed before, and what follows are its own decisions, one by one."""
        budget = TimeBudget(self._ports.clock, BATCHES_PER_SLICE)
        for batch in self._ports.log.committed_batches(self._applied_offset):
            if budget.is_over and node.state is not RaftState.LEADER:
                self._apply_timer = self._ports.timers.schedule(0, self._apply_more)
                return
            if batch.values:
                self._state.apply(batch)
            self.snapshots.note_applied(batch)
            self._applied_offset = batch.last_offset + 1
            self._answer_proposers()
            budget.spend()
        self._finish_recovery()
        self.snapshots.take_if_due()

    def _apply_more(self) -> None:
        self._apply_timer = None
        if not self._is_closed:
            self._carry_out(self._tick())

    def _finish_recovery(self) -> None:
        """This node is the only voter, and that is committed."""
        if self._recovery is not None and self._applied_offset >= self._recovery[1]:
            (recovery, end_offset), self._recovery = self._recovery, None
            recovery.finish()
            self._ports.report("quorum_recovered", {"voters": self.voters.ids, "epoch": self.epoch, "offset": end_offset - 1})

    def _answer_proposers(self) -> bool:
        was_called = False
        while self._results:
            token, end_offset, error = self._results[0]
            is_applied = error is None and end_offset <= self._applied_offset
            if error is None and not is_applied and self._storage_error is None:
                break
            self._results.popleft()
            self._proposers.pop(token)(None if is_applied else self._storage_error or error)
            was_called = True
        return was_called

    def _arm(self, node: RaftNode) -> None:
        deadline_ms = node.next_deadline_ms
        if self._timer is not None and self._timer.action is not None:
            if deadline_ms is not None and self._timer_deadline_ms <= deadline_ms:
                return  # A timer that is too early costs one needless tick.
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer_deadline_ms = deadline_ms
            delay_ms = max(0, deadline_ms - self._ports.clock.monotonic_ms())
            self._timer = self._ports.timers.schedule(delay_ms, self._on_timer)

    def _on_timer(self) -> None:
        if not self._is_closed:
            self._carry_out(self._tick())
