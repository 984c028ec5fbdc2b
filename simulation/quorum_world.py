"""A simulated quorum: 1, 3 or 5 voters and up to 3 observers, on disks that lose what was not synced and a network that loses,
delays, doubles and reorders messages.

The nodes run the production core (``tidelog.raft.quorum``) and keep epoch and vote in the production ``quorum-state`` file on the
simulated disk. Their log is ``SimulatedRaftLog``. Decisions are proposed at whichever node leads, an operator changes the voters,
nodes take snapshots, and ``QuorumChecker`` looks at every message that leaves and at every node after every step.

There are three phases. *Faults*: until enough decisions are committed and enough faults struck. *A majority heals*: the links
among a majority work, while one-way partitions to the rest stay; a leader must be there within 5 s. *Everything heals*: every
node gets everything, and a last decision is committed.
"""

from collections.abc import Callable

from simulation.checker import Violation, noticed_problems
from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.history import History
from simulation.quorum_checker import QuorumChecker, QuorumViolation, latest_voters
from simulation.quorum_host import Origin, QuorumHost, SimulatedRaftLog, SnapshotStore, directory_id, endpoint, make_voters
from simulation.quorum_nemesis import QuorumNemesis
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import EVENTS_MAX, Event, Scheduler
from simulation.stage import PHASE_US_MAX, NoProgress
from tidelog.raft.errors import QuorumError, QuorumStateUnusable
from tidelog.raft.messages import (
    AddVoter,
    FetchSnapshot,
    FetchSnapshotReply,
    QuorumFetch,
    QuorumFetchReply,
    QuorumReply,
    RemoveVoter,
    UpgradeKRaftVersion,
    Vote,
    VoteReply,
)
from tidelog.raft.quorum import QuorumTimer, RaftConfig, RaftNode, RaftPeer, RaftState, Reply, Request, RequestFailure
from tidelog.raft.quorum_state import NO_DIRECTORY, NOBODY, QuorumStateFile
from tidelog.raft.voters import ReplicaKey, Voter, VoterSet
from tidelog.wire.errors import ErrorCode

DECISIONS_MIN = 25
FAULTS_MIN = 10
FAULTS_US_MAX = 30_000_000
LEADER_US_MAX = 5_000_000
HEALED_US_MAX = 20_000_000
DECISION_INTERVAL_US = (1_000, 120_000)
LINK_DELAY_US = (100, 3_000)
DISK_DELAY_US = (50, 3_000)
DIRECTORY = "/data"
# How late a leader may notice that it has lost its majority: the fetch time-out, and a while for a slow disk.
STALE_LEADER_MS_MAX = 2_600
FETCH_TIMEOUT_MS = 2_000


class QuorumMember(QuorumHost):
    """A node with its disk. What happens to it while it is paused happens when it goes on."""

    __slots__ = ("_disk", "_file", "_randomness", "_waiting", "begun", "disk_delay_us", "is_broken", "is_paused", "timer")

    def __init__(self, config: RaftConfig, log: SimulatedRaftLog, scheduler: Scheduler, randomness: SimulatedRandomness) -> None:
        self._disk = SimulatedDisk(SimulatedClock(scheduler))
        self._disk.make_directory(DIRECTORY)
        self._disk.sync_directory("/")
        self._file = QuorumStateFile(self._disk, DIRECTORY)
        super().__init__(config, log, self._file.load())
        self._randomness = randomness
        self._waiting: list[Callable[[], None]] = []
        self.disk_delay_us = DISK_DELAY_US
        # The disk work that is under way, by name.
        self.begun: dict[str, object] = {}
        self.is_paused = False
        # Its log is damaged, so that it refuses to start until somebody replaces the disk.
        self.is_broken = False
        self.timer: Event | None = None

    def finish_store(self) -> None:
        assert self.storing is not None
        self._file.store(self.storing)
        super().finish_store()

    def crash(self, kept_unsynced: int = 0) -> None:
        """Cut the power; ``kept_unsynced`` is drawn here."""
        del kept_unsynced
        unsynced = len(self.log.entries) - len(self.log.durable)
        super().crash(self._randomness.integer(0, unsynced))
        self._disk.crash(self._randomness)
        self._waiting.clear()
        self.begun.clear()
        self.is_paused = False
        self.stored = self._file.load()

    def run(self, action: Callable[[], None]) -> None:
        if self.is_paused:
            self._waiting.append(action)
        else:
            action()

    def use_fast_disk(self) -> None:
        self.disk_delay_us = DISK_DELAY_US

    def resume(self) -> None:
        self.is_paused = False
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            self.run(action)


_FINISHES: dict[str, Callable[[QuorumMember], None]] = {
    "storing": QuorumMember.finish_store,
    "syncing": QuorumMember.finish_sync,
    "cutting": QuorumMember.finish_cut,
    "installing": QuorumMember.finish_install,
}


class QuorumWorld:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.randomness = SimulatedRandomness(seed)
        self.scheduler = Scheduler()
        self.history = History()
        self.checker = QuorumChecker()
        self.store = SnapshotStore()
        draw = self.randomness.fork("shape").integer
        voters = (1, 3, 3, 3, 3, 5)[draw(0, 5)]
        self.voter_ids = list(range(1, voters + 1))
        self.node_ids = list(range(1, voters + draw(0, 3) + 1))
        self.is_static = draw(0, 3) == 0
        self.has_long_waits = draw(0, 1) == 1
        # Nodes that become voters by themselves, while the operator changes the voters too.
        self.joins_by_itself = draw(0, 2) == 0
        self.nodes: dict[int, QuorumMember] = {}
        self._draw = self.randomness.fork("world").integer
        self._decisions = 0
        self._is_proposing = True
        self._link_delay_us = LINK_DELAY_US
        for node_id in self.node_ids:
            self.nodes[node_id] = self._make_node(node_id, generation=1)
        # When each node last had an answer of its leader, unless a connection was refused since.
        self._leader_heard_ms: dict[int, int] = {}
        # When each leader last had a fetch of each other node, and since when it leads which epoch with which voters.
        self._fetched_ms: dict[tuple[int, int], int] = {}
        self._led_since: dict[int, tuple[tuple[int, tuple[int, ...]], int]] = {}
        self.nemesis = QuorumNemesis(self)

    def _make_node(self, node_id: int, generation: int) -> QuorumMember:
        voters = make_voters(self.voter_ids)
        log = SimulatedRaftLog(self.store)
        static_voters = VoterSet()
        if self.is_static:
            static_voters = VoterSet(tuple(voter._replace(directory_id=NO_DIRECTORY) for voter in voters.voters))
        elif generation == 1:
            log.bootstrap(voters)
        config = RaftConfig(
            node_id,
            directory_id(node_id, generation),
            cluster_id="cluster",
            endpoints=(endpoint(node_id),),
            static_voters=static_voters,
            bootstrap_servers=tuple((f"n{each}", 9093) for each in self.node_ids if each != node_id),
            auto_join=self.joins_by_itself,
            fetch_max_wait_ms=500 if self.has_long_waits else 50,
            snapshot_piece_max=40,
        )
        randomness = self.randomness.fork(f"node {node_id} {generation}")
        return QuorumMember(config, log, self.scheduler, randomness)

    # -- phases --------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises NoProgress when a phase does not end; any other problem is in the history."""
        for node_id in self.node_ids:
            self.start(node_id)
        self._propose_later()
        self.nemesis.start()
        try:
            # Some mixtures of faults leave no majority for long: that is no failure as long as it ends with them.
            self.run_until("faults", self._has_seen_enough)
            self.nemesis.heal_majority()
            self.run_until("a leader of the healed majority", lambda: self.leader() is not None, LEADER_US_MAX)
            self.nemesis.heal_all()
            self.run_until("the end", self._is_settled, HEALED_US_MAX)
        except QuorumViolation as violation:
            self.history.problem(violation.kind, violation.text)

    def _has_seen_enough(self) -> bool:
        is_long = self.scheduler.now_us > FAULTS_US_MAX
        return self.fault_count >= FAULTS_MIN and (is_long or self.operations >= DECISIONS_MIN)

    def _is_settled(self) -> bool:
        """Stop proposing after a last decision; then all have everything."""
        leader = self.leader()
        if leader is None or self.operations < DECISIONS_MIN:
            return False
        self._is_proposing = False
        running = [node for node in self.nodes.values() if not node.is_broken]
        ends = {node.running().high_watermark if node.node is not None else -1 for node in running}
        return ends == {leader.log.end_offset}

    @property
    def operations(self) -> int:
        return len(self.checker.answered)

    @property
    def fault_count(self) -> int:
        return sum(self.nemesis.counts.values())

    def check(self) -> list[Violation]:
        return list(noticed_problems(self.history))

    def run_until(self, phase: str, condition: Callable[[], bool], duration_us_max: int = PHASE_US_MAX) -> None:
        scheduler = self.scheduler
        scheduler.record(f"until {phase}")
        deadline_us = scheduler.now_us + duration_us_max
        for _ in range(EVENTS_MAX):
            if condition():
                return
            if scheduler.now_us > deadline_us:
                raise NoProgress(f"{phase}: not within {duration_us_max / 1_000_000:g} s; {self._describe()}")
            scheduler.step()
        raise NoProgress(f"{phase}: not within {EVENTS_MAX} events; {self._describe()}")

    def _describe(self) -> str:
        return ", ".join(
            f"{node_id} {'down' if node.node is None else f'{node.node.state.value} epoch {node.node.epoch}'}"
            f" log {node.log.end_offset}"
            for node_id, node in self.nodes.items()
        )

    def leader(self) -> QuorumMember | None:
        """The node that leads the highest epoch, if it knows all that was committed."""
        leading = [node for node in self.nodes.values() if node.node is not None and node.node.is_leading]
        return max(leading, key=lambda node: node.running().epoch, default=None)

    def set_link_delay(self, delay_us: tuple[int, int] | None) -> None:
        self._link_delay_us = delay_us if delay_us is not None else LINK_DELAY_US

    # -- nodes ---------------------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if node.node is not None or node.is_broken:
            return
        try:
            node.start(self.randomness.fork(f"core {node_id} {node.incarnation}"), self.now_ms)
        except (QuorumError, QuorumStateUnusable) as error:
            raise QuorumViolation("start refused", f"node {node_id}: {error}") from error
        self.settle(node)

    def crash(self, node_id: int) -> None:
        node = self.nodes[node_id]
        self.scheduler.record(f"crash {node_id}")
        self._leader_heard_ms.pop(node_id, None)
        node.crash()
        for other in self.nodes.values():
            if other is not node and other.node is not None:
                self._break_connections(other, node_id)

    def _break_connections(self, node: QuorumMember, to: int) -> None:
        """The requests that wait for an answer of a process that died fail, if the network lets the news through."""
        for peer, in_flight in list(getattr(node.running(), "_in_flight").items()):  # noqa: B009 - a host knows what it sent
            if int(peer.host[1:]) == to and self.nemesis.is_linked(to, node.config.node_id):
                self._fail_later(node, in_flight.sent, RequestFailure.LOST)

    def replace(self, node_id: int) -> None:
        """An empty disk in the place of a broken one: another directory id, so another replica."""
        generation = self.nodes[node_id].config.directory_id[1] + 1
        self.nodes[node_id] = self._make_node(node_id, generation)
        self.start(node_id)

    @property
    def now_ms(self) -> int:
        return self.scheduler.now_us // 1000

    def act(self, node: QuorumMember, incarnation: int, action: Callable[[RaftNode], None]) -> None:
        """Let a node do something now, or when it goes on, or never if its process is gone."""

        def run() -> None:
            if node.incarnation == incarnation and node.node is not None:
                node.node.tick(self.now_ms)
                node.collect()
                self.checker.look_at(node)
                action(node.node)
                node.collect()
                self.settle(node)

        node.run(run)

    def settle(self, node: QuorumMember) -> None:
        """A node has done something: look at it, send what it sends, start what its disk has to do, set its timer."""
        self.checker.look_at(node)
        self._check_leader(node)
        for event in node.events:
            self.scheduler.record(f"{node.config.node_id} {event.name} {event.fields}")
            if event.name == "leader":
                self.nemesis.leader_elected()
        for result in node.results:
            self.scheduler.record(f"{node.config.node_id} {result.token} {result.error is None}")
        node.events, node.results = [], []
        for message in node.take_messages():
            self.checker.sent(node, message)
            self._send(node, message)
        self._start_disk_work(node)
        self._set_timer(node)

    def _check_leader(self, node: QuorumMember) -> None:
        """A leader from which no majority fetches has resigned by now."""
        core, node_id = node.running(), node.config.node_id
        if core.state is not RaftState.LEADER:
            self._led_since.pop(node_id, None)
            return
        term = core.epoch, core.voters.ids
        known, since_ms = self._led_since.setdefault(node_id, (term, self.now_ms))
        if known != term:
            self._led_since[node_id] = term, self.now_ms
            return
        early_ms = self.now_ms - STALE_LEADER_MS_MAX
        recent = [each for each in core.voters.ids if each == node_id or self._fetched_ms.get((node_id, each), -1) > early_ms]
        if since_ms < early_ms and len(recent) < core.voters.majority:
            raise QuorumViolation("leads without a majority", f"node {node_id} leads epoch {core.epoch}, fetched by {recent}")

    def _check_pre_vote(self, node: QuorumMember, reply: QuorumReply, vote: object) -> None:
        """A node that has heard from its leader just now grants no pre-vote."""
        if not isinstance(reply, VoteReply) or not isinstance(vote, Vote) or not (reply.vote_granted and vote.pre_vote):
            return
        core, node_id = node.running(), node.config.node_id
        heard_ms = self._leader_heard_ms.get(node_id, -FETCH_TIMEOUT_MS)
        is_following = core.state is RaftState.FOLLOWER and self.now_ms - heard_ms < FETCH_TIMEOUT_MS
        if is_following or core.state is RaftState.LEADER:
            raise QuorumViolation("pre-vote beside a leader", f"node {node_id}, a {core.state.value}, granted {vote}")

    def _set_timer(self, node: QuorumMember) -> None:
        if node.timer is not None:
            node.timer.cancel()
        deadline_ms = node.running().next_deadline_ms
        node.timer = None
        if deadline_ms is not None:
            incarnation = node.incarnation
            delay_us = max(0, deadline_ms * 1000 - self.scheduler.now_us)
            label = f"tick {node.config.node_id}"
            node.timer = self.scheduler.schedule(delay_us, label, lambda: self.act(node, incarnation, lambda _: None))

    def _start_disk_work(self, node: QuorumMember) -> None:
        for name in ("storing", "syncing", "cutting", "installing"):
            wanted = getattr(node, name)
            if wanted is not None and wanted != node.begun.get(name):
                node.begun[name] = wanted
                self._finish_later(node, name, wanted)

    def _finish_later(self, node: QuorumMember, name: str, wanted: object) -> None:
        incarnation = node.incarnation

        def run() -> None:
            # A sync that a later one covers is over when that one is.
            if node.incarnation == incarnation and node.node is not None and getattr(node, name) == wanted:
                node.begun.pop(name, None)
                node.node.tick(self.now_ms)
                _FINISHES[name](node)
                self.settle(node)

        self.scheduler.schedule(self._draw(*node.disk_delay_us), f"{name} {node.config.node_id}", lambda: node.run(run))

    # -- the network ---------------------------------------------------------------------------------------------------------

    def _send(self, node: QuorumMember, message: Request | Reply) -> None:
        source = node.config.node_id
        if isinstance(message, Reply):
            origin = message.reply_to
            assert isinstance(origin, Origin)
            if origin.node_id == NOBODY:
                self.nemesis.operator_heard(origin.sent.request, message.reply)
                return
            way_back, reply = origin, message.reply
            self._check_pre_vote(node, reply, origin.sent.request)
            self._transmit(source, origin.node_id, lambda: self._deliver_reply(way_back, reply))
            return
        to = int(message.peer.host[1:])
        own = node.origin(message)
        if self.nodes[to].node is None and self.nemesis.is_linked(source, to) and self.nemesis.is_linked(to, source):
            self._fail_later(node, message, RequestFailure.REFUSED)
            return
        self._transmit(source, to, lambda: self._deliver_request(own, to))

    def _transmit(self, source: int, to: int, deliver: Callable[[], None]) -> None:
        for copy in range(self.nemesis.copies(source, to)):
            delay_us = self._draw(*self._link_delay_us) * (1 + copy)
            self.scheduler.schedule(delay_us, f"{source} -> {to}", deliver)

    def _deliver_request(self, origin: Origin, to: int) -> None:
        node, request = self.nodes[to], origin.sent.request

        def deliver(core: RaftNode) -> None:
            if isinstance(request, QuorumFetch | FetchSnapshot) and request.epoch == core.epoch:
                self._fetched_ms[to, origin.node_id] = self.now_ms
            core.step(request, origin)

        if node.node is not None and self.nemesis.is_linked(origin.node_id, to):
            self.act(node, node.incarnation, deliver)

    def _deliver_reply(self, origin: Origin, reply: QuorumReply) -> None:
        node = self.nodes[origin.node_id]

        def deliver(core: RaftNode) -> None:
            core.receive(origin.sent, reply)
            is_fetch = isinstance(reply, QuorumFetchReply | FetchSnapshotReply) and reply.error is ErrorCode.NONE
            # An answer to an older question says nothing about the leader of today.
            if is_fetch and core.deadline_of(QuorumTimer.FETCH) == self.now_ms + FETCH_TIMEOUT_MS:
                self._leader_heard_ms[origin.node_id] = self.now_ms

        if node.node is not None:
            self.act(node, origin.incarnation, deliver)

    def _fail_later(self, node: QuorumMember, sent: Request, failure: RequestFailure) -> None:
        incarnation = node.incarnation

        def fail(core: RaftNode) -> None:
            self._leader_heard_ms.pop(node.config.node_id, None)
            core.request_failed(sent, failure)

        label = f"{failure.value} {node.config.node_id}"
        self.scheduler.schedule(self._draw(*LINK_DELAY_US), label, lambda: self.act(node, incarnation, fail))

    # -- those who use the quorum --------------------------------------------------------------------------------------------

    def _propose_later(self) -> None:
        self.scheduler.schedule(self._draw(*DECISION_INTERVAL_US), "propose", self._propose)

    def _propose(self) -> None:
        leading = [node for node in self.nodes.values() if node.node is not None and node.node.is_leading and not node.is_paused]
        if leading and self._is_proposing:
            # Perhaps one that has lost its quorum and does not know it yet.
            node = leading[self._draw(0, len(leading) - 1)]
            self._decisions += 1
            value = f"decision-{self._decisions}"

            def propose(core: RaftNode) -> None:
                if core.is_leading:
                    core.propose(value, value)

            self.act(node, node.incarnation, propose)
        self._propose_later()

    def ask(self, leader: QuorumMember, request: AddVoter | RemoveVoter | UpgradeKRaftVersion) -> bool:
        """An operator's request, to a node that leads."""
        if leader.is_paused:
            return False
        origin = Origin(NOBODY, Request(RaftPeer(leader.config.node_id, "", 0), request, 0), 0)
        what = request.version if isinstance(request, UpgradeKRaftVersion) else request.voter.node_id
        self.scheduler.record(f"operator {type(request).__name__} {what}")
        self.act(leader, leader.incarnation, lambda core: core.step(request, origin))
        return True

    def any_leader(self) -> QuorumMember | None:
        """A node that leads, even if it has not committed anything yet, or its epoch is over and it does not know that."""
        leading = [node for node in self.nodes.values() if node.node is not None and node.node.state is RaftState.LEADER]
        return leading[self._draw(0, len(leading) - 1)] if leading else None

    def voter_views(self) -> list[VoterSet]:
        """The voters as each node sees them, also one that is down: while a change is under way, nodes see different ones."""
        views = [latest_voters(node) for node in self.nodes.values() if not node.is_broken]
        return [view for view in views if view is not None] or [make_voters(self.voter_ids)]

    def is_survivable(self, lost: set[ReplicaKey]) -> bool:
        """Whether a majority is left in every view when these replicas are gone for good."""
        return all(
            len([voter for voter in voters.voters if self.is_there(voter) and not any(voter.matches(key) for key in lost)])
            >= voters.majority
            for voters in self.voter_views()
        )

    def is_there(self, voter: Voter) -> bool:
        """Whether this voter's disk still exists."""
        node = self.nodes[voter.node_id]
        return not node.is_broken and voter.matches(ReplicaKey(voter.node_id, node.config.directory_id))
