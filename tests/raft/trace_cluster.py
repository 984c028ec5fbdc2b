"""Runs the commands of a text trace on a small quorum, and says in text what each did.

Nothing happens by itself: messages stay in transit until they are delivered or dropped, disk work until the disk does it, timers
until they expire. So a trace shows exactly what waits for what. The commands are in ``COMMANDS``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from simulation.quorum_host import (
    Origin,
    QuorumHost,
    SimulatedRaftLog,
    SnapshotStore,
    directory_id,
    endpoint,
    make_voters,
    replica,
)
from tidelog.raft.errors import QuorumError
from tidelog.raft.messages import (
    AddVoter,
    BeginQuorumEpoch,
    ChangeVoterReply,
    EndQuorumEpoch,
    FetchSnapshot,
    FetchSnapshotReply,
    QuorumFetch,
    QuorumFetchReply,
    QuorumReply,
    QuorumRequest,
    RemoveVoter,
    SnapshotId,
    UpdateVoter,
    UpgradeKRaftVersion,
    Vote,
    VoteReply,
)
from tidelog.raft.quorum import ProposalResult, QuorumTimer, RaftConfig, RaftEvent, RaftPeer, Reply, Request, RequestFailure
from tidelog.raft.quorum_state import NO_DIRECTORY, NOBODY, QuorumState
from tidelog.raft.voters import KRaftVersion, LeaderChange, ReplicaKey, VoterSet, VotersRecord
from tidelog.wire.errors import ErrorCode

STEPS_MAX = 300


class NothingThere(Exception):
    """A trace wants to deliver a message that does not exist."""


class InTransit(NamedTuple):
    source: int
    to: int
    origin: Origin
    reply: QuorumReply | None


class LowRandomness:
    """The shortest time each time, so that a trace does not depend on draws."""

    def integer(self, low: int, high: int) -> int:
        return low

    def fraction(self) -> float:
        return 0.0

    def token(self, length: int) -> bytes:
        return bytes(length)


class TraceCluster:
    def __init__(self) -> None:
        self.hosts: dict[int, QuorumHost] = {}
        self.transit: list[InTransit] = []
        self.store = SnapshotStore()
        self.now_ms = 0
        self.lines: list[str] = []

    def run(self, command: str) -> str:
        name, *words = command.split()
        self.lines = []
        try:
            COMMANDS[name](self, *words)
        except NothingThere as error:
            self.lines.append(str(error))
        except QuorumError as error:
            self.lines.append(f"{type(error).__name__}: {error}")
        return "\n".join(self.lines)

    # -- commands ------------------------------------------------------------------------------------------------------------

    def cluster(self, *words: str) -> None:
        """cluster voters=1,2,3 [observers=4] [static] [bootstrap] [auto-join]"""
        options = dict(word.split("=") for word in words if "=" in word)
        voter_ids = [int(each) for each in options["voters"].split(",")]
        observer_ids = [int(each) for each in options.get("observers", "").split(",") if each]
        everybody = (*voter_ids, *observer_ids)
        for node_id in everybody:
            voters = make_voters(voter_ids)
            log = SimulatedRaftLog(self.store)
            if "static" in words:
                voters = VoterSet(tuple(voter._replace(directory_id=NO_DIRECTORY) for voter in voters.voters))
            else:
                log.bootstrap(voters)
            has_bootstrap = "bootstrap" in words or node_id in observer_ids
            config = RaftConfig(
                node_id,
                directory_id(node_id),
                cluster_id="cluster",
                endpoints=(endpoint(node_id),),
                static_voters=voters if "static" in words else VoterSet(),
                bootstrap_servers=tuple((f"n{each}", 9093) for each in everybody if each != node_id) if has_bootstrap else (),
                snapshot_piece_max=60,
                auto_join="auto-join" in words,
            )
            self.hosts[node_id] = QuorumHost(config, log, QuorumState())
            self._start(node_id)

    def expire(self, node: str, timer: str) -> None:
        """expire 1 election: let a timer run out"""
        self.hosts[int(node)].running().expire(QuorumTimer(timer))
        self._collect(int(node))

    def pass_time(self, milliseconds: str) -> None:
        """tick 500: let time pass for every node, whatever is due happens"""
        self.now_ms += int(milliseconds)
        for node_id, host in self.hosts.items():
            if host.node is not None:
                host.node.tick(self.now_ms)
                self._collect(node_id)

    def disk(self, node: str, *kinds: str) -> None:
        """disk 1 [store|sync|cut|install ...]: the disk does its work"""
        host = self.hosts[int(node)]
        works = {
            "store": (host.storing, host.finish_store),
            "sync": (host.syncing, host.finish_sync),
            "cut": (host.cutting, host.finish_cut),
            "install": (host.installing, host.finish_install),
        }
        for kind in kinds:
            wanted, finish = works[kind]
            if wanted is None:
                raise NothingThere(f"the disk of {node} has nothing to {kind}")
            finish()
        if not kinds:
            host.finish_disk_work()
        self._collect(int(node))

    def fail_disk(self, node: str) -> None:
        """fail-disk 1: the work that the disk is asked for fails"""
        self.hosts[int(node)].running().storage_failed("EIO")
        self._collect(int(node))

    def deliver(self, way: str) -> None:
        """deliver 1->2: the oldest message on this way arrives"""
        self._deliver(self._take(way))

    def duplicate(self, way: str) -> None:
        """duplicate 1->2: the oldest message on this way is there twice"""
        message = self._take(way)
        self.transit[:0] = [message, message]

    def drop(self, way: str) -> None:
        """drop 1->2: the oldest message on this way is lost, and its sender notices in time"""
        self._fail(self._take(way), RequestFailure.TIMED_OUT)

    def refuse(self, way: str) -> None:
        """refuse 1->2: the oldest message on this way finds nobody who listens"""
        self._fail(self._take(way), RequestFailure.REFUSED)

    def stabilize(self, *nodes: str) -> None:
        """stabilize [1 2]: disks and network of these nodes (or all) work until there is nothing to do"""
        among = {int(node) for node in nodes} or set(self.hosts)
        for _ in range(STEPS_MAX):
            for node_id in sorted(among):
                if self.hosts[node_id].node is not None and self.hosts[node_id].has_disk_work:
                    self.hosts[node_id].finish_disk_work()
                    self._collect(node_id)
            index = next((index for index, each in enumerate(self.transit) if {each.source, each.to} <= among), None)
            if index is None:
                return
            self._deliver(self.transit.pop(index))
        self.lines.append("... and so on")

    def propose(self, node: str, value: str) -> None:
        self.hosts[int(node)].running().propose(value, value)
        self._collect(int(node))

    def fetch_at(self, node: str, leader: str, offset: str, epoch: str) -> None:
        """fetch 2 1 offset last-epoch: node 2 asks node 1 for records from an offset"""
        epoch_now = self.hosts[int(leader)].running().epoch
        request = QuorumFetch(epoch_now, replica(int(node)), int(offset), int(epoch), cluster_id="cluster")
        self._ask(int(leader), request)

    def add(self, leader: str, voter: str) -> None:
        """add 1 4: ask node 1 to add voter 4"""
        request = AddVoter(replica(int(voter)), (endpoint(int(voter)),), 5_000, "cluster")
        self._ask(int(leader), request)

    def remove(self, leader: str, voter: str) -> None:
        """remove 1 3: ask node 1 to remove voter 3"""
        self._ask(int(leader), RemoveVoter(replica(int(voter)), "cluster"))

    def request(self, node: str, kind: str, *words: str) -> None:
        """request 1 vote epoch=3 candidate=2 last=0,0 [pre] [cluster=x] [voter=9]: a request from outside"""
        options = dict(word.split("=") for word in words if "=" in word)
        epoch, cluster_id = int(options.get("epoch", "0")), options.get("cluster", "cluster")
        candidate = int(options.get("candidate", "2"))
        if kind == "vote":
            last_epoch, last_offset = (int(each) for each in options.get("last", "0,0").split(","))
            voter = replica(int(options.get("voter", node)))
            self._ask(int(node), Vote(epoch, replica(candidate), voter, last_epoch, last_offset, "pre" in words, cluster_id))
        elif kind == "begin":
            self._ask(int(node), BeginQuorumEpoch(epoch, candidate, replica(int(node)), (endpoint(candidate),), cluster_id))
        elif kind == "end":
            self._ask(int(node), EndQuorumEpoch(epoch, candidate, (), cluster_id))
        else:
            key = ReplicaKey(candidate, directory_id(candidate))
            self._ask(int(node), UpdateVoter(epoch, key, (endpoint(candidate + 10),), 0, 1, cluster_id))

    def resign(self, node: str) -> None:
        self.hosts[int(node)].running().resign()
        self._collect(int(node))

    def upgrade(self, node: str, version: str = "1", *words: str) -> None:
        """upgrade 1 [version] [validate]: ask node 1 to raise kraft.version"""
        self._ask(int(node), UpgradeKRaftVersion(int(version), 5_000, "validate" in words, "cluster"))

    def snapshot(self, node: str, offset: str) -> None:
        """snapshot 1 5: node 1 replaces its log below offset 5 by a snapshot"""
        self.hosts[int(node)].log.take_snapshot(int(offset))

    def crash(self, node: str, kept: str = "0") -> None:
        """crash 1 [kept]: a power cut, which so many unsynced entries survive; what was in transit from and to it is lost"""
        node_id = int(node)
        self.hosts[node_id].crash(int(kept))
        lost = [each for each in self.transit if node_id in (each.source, each.to)]
        self.transit = [each for each in self.transit if node_id not in (each.source, each.to)]
        for message in lost:
            if message.origin.node_id in self.hosts and self.hosts[message.origin.node_id].node is not None:
                self._fail(message, RequestFailure.LOST)

    def start(self, node: str) -> None:
        self._start(int(node))

    def format(self, node: str, generation: str = "1") -> None:
        """format 3 [generation]: an empty disk, and a new directory id if the generation says so"""
        host = self.hosts[int(node)]
        log = SimulatedRaftLog(self.store)
        config = host.config
        if generation != "1":
            fields = {name: getattr(config, name) for name in config.__slots__}
            config = RaftConfig(**{**fields, "directory_id": directory_id(int(node), int(generation))})
        self.hosts[int(node)] = QuorumHost(config, log, QuorumState())

    def behead(self, node: str, offset: str) -> None:
        """behead 1 5: the log begins at 5 and there is no snapshot"""
        log = self.hosts[int(node)].log
        log.take_snapshot(int(offset))
        log.snapshot_id = None

    def damage_piece(self, way: str) -> None:
        """damage 1->2: the next piece of a snapshot on this way has other bytes"""
        message = self._take(way)
        assert isinstance(message.reply, FetchSnapshotReply)
        damaged = message.reply._replace(data=bytes(len(message.reply.data)))
        self.transit.insert(0, message._replace(reply=damaged))

    def status(self) -> None:
        for node_id, host in self.hosts.items():
            if host.node is None:
                self.lines.append(f"{node_id} is down")
                continue
            node, log = host.node, host.log
            role = node.state.value if node.is_voter else f"{node.state.value} (observer)"
            disk = f"disk epoch={host.stored.leader_epoch} vote={host.stored.voted_id} end={log.durable_end_offset}"
            self.lines.append(
                f"{node_id} {role} epoch={node.epoch} leader={node.leader_id} voters={_ids(node.voters)} log=[{log.start_offset},"
                f"{log.end_offset}) hw={node.high_watermark} leading={node.is_leading}; {disk}"
            )

    def show_log(self, node: str) -> None:
        log = self.hosts[int(node)].log
        entries = " ".join(f"{entry.epoch}:{_value(entry.value)}" for entry in log.entries)
        self.lines.append(f"[{log.start_offset} {entries}")

    # -- the rest ------------------------------------------------------------------------------------------------------------

    def _start(self, node_id: int) -> None:
        self.hosts[node_id].start(LowRandomness(), self.now_ms)
        self._collect(node_id)

    def _ask(self, node_id: int, request: QuorumRequest) -> None:
        self.hosts[node_id].running().step(request, Origin(NOBODY, Request(RaftPeer(node_id, "", 0), request, 0), 0))
        self._collect(node_id)

    def _take(self, way: str) -> InTransit:
        source, to = (int(each) for each in way.split("->"))
        index = next((index for index, each in enumerate(self.transit) if (each.source, each.to) == (source, to)), None)
        if index is None:
            raise NothingThere(f"nothing is on its way from {source} to {to}")
        return self.transit.pop(index)

    def _deliver(self, message: InTransit) -> None:
        host = self.hosts[message.to]
        if host.node is None:
            self._fail(message, RequestFailure.REFUSED)
            return
        if message.reply is None:
            host.node.step(message.origin.sent.request, message.origin)
        elif message.origin.incarnation == host.incarnation:
            host.node.receive(message.origin.sent, message.reply)
        self._collect(message.to)

    def _fail(self, message: InTransit, failure: RequestFailure) -> None:
        origin = message.origin
        host = self.hosts[origin.node_id]
        if host.node is not None and origin.incarnation == host.incarnation:
            host.node.request_failed(origin.sent, failure)
            self._collect(origin.node_id)

    def _collect(self, node_id: int) -> None:
        host = self.hosts[node_id]
        before = host.storing, host.syncing, host.cutting, host.installing
        host.collect()
        works = ("store", "sync", "cut", "install")
        after = host.storing, host.syncing, host.cutting, host.installing
        self.lines += [f"{node_id}: {_event(event)}" for event in host.events]
        for name, old, new in zip(works, before, after, strict=True):
            if new is not None and (new != old or name not in self._announced(node_id)):
                self.lines.append(f"{node_id}: wants the disk to {name} {_work(new)}")
                self._announced(node_id).add(name)
            elif new is None:
                self._announced(node_id).discard(name)
        self.lines += [f"{node_id}: {_result(result)}" for result in host.results]
        host.events, host.results = [], []
        for message in host.take_messages():
            self._sent(node_id, message)

    def _announced(self, node_id: int) -> set[str]:
        return self.__dict__.setdefault("_works", {}).setdefault(node_id, set())  # type: ignore[no-any-return]  # a scratch field

    def _sent(self, node_id: int, message: Request | Reply) -> None:
        if isinstance(message, Request):
            to = message.peer.node_id if message.peer.node_id != NOBODY else int(message.peer.host[1:])
            self.transit.append(InTransit(node_id, to, self.hosts[node_id].origin(message), None))
            self.lines.append(f"{node_id} -> {to} {_request(message.request)}")
            return
        origin = message.reply_to
        assert isinstance(origin, Origin)
        if origin.node_id == NOBODY:
            self.lines.append(f"{node_id}: answers {_reply(message.reply)}")
        else:
            self.transit.append(InTransit(node_id, origin.node_id, origin, message.reply))
            self.lines.append(f"{node_id} -> {origin.node_id} {_reply(message.reply)}")


COMMANDS: dict[str, Callable[..., None]] = {
    "cluster": TraceCluster.cluster,
    "expire": TraceCluster.expire,
    "tick": TraceCluster.pass_time,
    "disk": TraceCluster.disk,
    "fail-disk": TraceCluster.fail_disk,
    "deliver": TraceCluster.deliver,
    "duplicate": TraceCluster.duplicate,
    "drop": TraceCluster.drop,
    "refuse": TraceCluster.refuse,
    "stabilize": TraceCluster.stabilize,
    "propose": TraceCluster.propose,
    "fetch": TraceCluster.fetch_at,
    "add": TraceCluster.add,
    "remove": TraceCluster.remove,
    "request": TraceCluster.request,
    "resign": TraceCluster.resign,
    "upgrade": TraceCluster.upgrade,
    "snapshot": TraceCluster.snapshot,
    "crash": TraceCluster.crash,
    "start": TraceCluster.start,
    "format": TraceCluster.format,
    "behead": TraceCluster.behead,
    "damage": TraceCluster.damage_piece,
    "status": TraceCluster.status,
    "log": TraceCluster.show_log,
}


def _ids(voters: VoterSet) -> str:
    return ",".join(map(str, voters.ids))


def _work(value: Any) -> str:
    if isinstance(value, QuorumState):
        return f"epoch={value.leader_epoch} leader={value.leader_id} vote={value.voted_id}"
    if isinstance(value, SnapshotId):
        return f"{value.end_offset}-{value.epoch}"
    return f"up to {value[0]}" if isinstance(value, tuple) else f"at {value}"


def _event(event: RaftEvent) -> str:
    return " ".join([f"[{event.name}]", *(f"{name}={value}" for name, value in event.fields)])


def _result(result: ProposalResult) -> str:
    outcome = "committed" if result.error is None else type(result.error).__name__
    return f"{result.token} is {outcome} at {result.end_offset}"


def _value(value: Any) -> str:
    if isinstance(value, LeaderChange):
        return f"leader-{value.leader_id}"
    if isinstance(value, VotersRecord):
        return f"voters-{_ids(value.voter_set)}"
    return f"kraft-{value.version}" if isinstance(value, KRaftVersion) else str(value)


def _request(request: QuorumRequest) -> str:
    if isinstance(request, Vote):
        name = "PreVote" if request.pre_vote else "Vote"
        return (
            f"{name} epoch={request.epoch} candidate={request.candidate.node_id} last={request.last_epoch},{request.last_offset}"
        )
    if isinstance(request, QuorumFetch):
        position = f"from={request.fetch_offset} last={request.last_fetched_epoch}"
        return f"Fetch epoch={request.epoch} {position} hw={request.high_watermark}"
    if isinstance(request, FetchSnapshot):
        return f"FetchSnapshot epoch={request.epoch} {_work(request.snapshot_id)} at={request.position}"
    if isinstance(request, EndQuorumEpoch):
        preferred = ",".join(str(key.node_id) for key in request.preferred_candidates)
        return f"EndQuorumEpoch epoch={request.epoch} leader={request.leader_id} preferred={preferred}"
    if isinstance(request, BeginQuorumEpoch):
        return f"BeginQuorumEpoch epoch={request.epoch} leader={request.leader_id}"
    if isinstance(request, AddVoter | RemoveVoter):
        return f"{type(request).__name__} {request.voter.node_id} directory={request.voter.directory_id[1]}"
    assert isinstance(request, UpdateVoter)
    return f"UpdateVoter epoch={request.epoch} endpoints={','.join(each.host for each in request.endpoints)}"


def _reply(reply: QuorumReply) -> str:
    parts = [type(reply).__name__]
    if reply.error is not ErrorCode.NONE:
        parts.append(reply.error.name)
    if isinstance(reply, ChangeVoterReply):
        return " ".join([*parts, reply.message or "done"])
    parts.append(f"epoch={reply.news.epoch} leader={reply.news.leader_id}")
    if isinstance(reply, VoteReply):
        parts.append("granted" if reply.vote_granted else "refused")
    if isinstance(reply, QuorumFetchReply) and reply.error is ErrorCode.NONE:
        parts.append(f"hw={reply.high_watermark}")
        if reply.diverging_epoch is not None:
            parts.append(f"diverging={reply.diverging_epoch.epoch},{reply.diverging_epoch.end_offset}")
        if reply.snapshot_id is not None:
            parts.append(f"snapshot={_work(reply.snapshot_id)}")
        if isinstance(reply.records, tuple):
            parts.append("records=" + " ".join(f"{entry.epoch}:{_value(entry.value)}" for entry in reply.records[1]))
    if isinstance(reply, FetchSnapshotReply) and reply.error is ErrorCode.NONE:
        parts.append(f"at={reply.position} bytes={len(reply.data)} of={reply.size}")
    return " ".join(parts)
