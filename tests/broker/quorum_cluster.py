"""Nodes of a quorum on one simulated network: each with its own disk, log, timers and controllers' listener.

They run what a broker runs, without the rest of the broker: ``MetadataQuorum`` on a data directory, its channels, and the
decoding of what other nodes send.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from simulation.clock import SimulatedClock
from simulation.disk import Keep, SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.network import SimulatedNetwork
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.broker.handlers.quorum_requests import APIS
from tidelog.broker.metadata_log import METADATA_LOG_SETTINGS, CommittedBatch, PartitionRaftLog, format_metadata_log
from tidelog.broker.metadata_quorum import DEFAULT_POLICY, MetadataQuorum, QuorumPorts
from tidelog.broker.metadata_snapshots import SnapshotPolicy
from tidelog.broker.quorum_wire import BY_KEY
from tidelog.broker.timers import Timers
from tidelog.log.data_directory import DataDirectory
from tidelog.log.durability.checkpoints import MetaProperties, write_meta_properties
from tidelog.log.settings import DirectoryOptions
from tidelog.ports.network import Connection
from tidelog.ports.steps import Steps
from tidelog.raft.messages import QuorumReply
from tidelog.raft.quorum import RaftConfig
from tidelog.raft.quorum_state import NO_DIRECTORY, QuorumStateFile
from tidelog.raft.voters import Voter, VoterEndpoint, VoterSet, voter_set
from tidelog.wire.messages import decode_request, encode_response
from tidelog.wire.primitives import INT32
from tidelog.wire.protocol import ApiKey, parse_request_header, response_header

PORT = 9093
PATH = "/data"
CLUSTER_ID = "cluster"
TURN_US = 1_000


def host_of(node_id: int) -> str:
    return f"node{node_id}"


def directory_id_of(node_id: int) -> bytes:
    return bytes(15) + bytes([node_id])


class ValuesState:
    """The state of a quorum that is nothing but all of its records."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.batches: list[CommittedBatch] = []
        self.loads = 0

    def apply(self, batch: CommittedBatch) -> None:
        self.batches.append(batch)
        self.values += batch.values

    def freeze(self) -> Iterator[bytes] | None:
        return iter(list(self.values))

    def load(self, batches: Iterable[Sequence[bytes]], last_offset: int) -> Steps[Callable[[], None]]:
        loaded: list[bytes] = []
        for values in batches:
            loaded += values
            yield None

        def take_place() -> None:
            self.loads += 1
            self.values = loaded

        return take_place


class QuorumNode:
    def __init__(self, cluster: "QuorumCluster", node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.clock = SimulatedClock(cluster.scheduler)
        self.disk = SimulatedDisk(self.clock)
        self.randomness = cluster.randomness.fork(f"node {node_id}")
        self.executor = SimulatedExecutor(cluster.scheduler, self.randomness, self.disk, self.clock)
        self.quorum: MetadataQuorum | None = None
        self.timers = Timers(self.clock)
        self.state = ValuesState()
        self.events: list[tuple[str, dict[str, object]]] = []
        self.directory: DataDirectory
        self._unread: dict[Connection, bytes] = {}

    @property
    def applied(self) -> list[bytes]:
        return self.state.values

    def start(self) -> None:
        self.state = ValuesState()
        self._unread = {}
        if self.cluster.is_dynamic and not self.disk.exists(PATH):
            self._format()
        self.timers = Timers(self.clock)
        self.directory = DataDirectory(
            PATH,
            disk=self.disk,
            clock=self.clock,
            randomness=self.randomness,
            executor=self.executor,
            cluster_id=CLUSTER_ID,
            node_id=self.node_id,
            settings_for=lambda _: METADATA_LOG_SETTINGS,
            report=lambda event, facts: self.events.append((event, facts)),
            options=DirectoryOptions(syncfs_files_min=10_000),
        )
        log = PartitionRaftLog(self.directory)
        network = self.cluster.network.host(host_of(self.node_id))
        others = tuple((host_of(other), PORT) for other in self.cluster.node_ids if other != self.node_id)
        endpoint = VoterEndpoint("CONTROLLER", host_of(self.node_id), PORT)
        config = RaftConfig(
            self.node_id,
            self.directory.meta.directory_id or NO_DIRECTORY,
            CLUSTER_ID,
            (endpoint,),
            VoterSet() if self.cluster.is_dynamic else self.cluster.voters,
            bootstrap_servers=others,
            snapshot_piece_max=self.cluster.snapshot_piece_max,
        )
        ports = QuorumPorts(
            directory=self.directory,
            log=log,
            state_file=QuorumStateFile(self.disk, log.log.directory),
            clock=self.clock,
            randomness=self.randomness,
            executor=self.executor,
            timers=self.timers,
            network=network,
            report=lambda event, facts: self.events.append((event, facts)),
        )
        self.quorum = MetadataQuorum(config, ports, self.state, self.cluster.policy)
        network.listen(host_of(self.node_id), PORT, self)
        self.quorum.start()

    def _format(self) -> None:
        self.disk.make_directory(PATH)
        meta = MetaProperties(CLUSTER_ID, self.node_id, directory_id_of(self.node_id))
        write_meta_properties(self.disk, f"{PATH}/meta.properties", meta)
        voters = [voter._replace(directory_id=directory_id_of(voter.node_id)) for voter in self.cluster.voters.voters]
        if self.node_id in self.cluster.voters.ids:
            format_metadata_log(self.disk, PATH, VoterSet(tuple(voters)), self.clock.now_ms())

    def crash(self, keep: Keep) -> None:
        self.cluster.network.crash(host_of(self.node_id))
        self.executor.crash()
        self.disk = self.disk.crash_image(self.randomness, keep)
        self.executor.disk = self.disk
        self.quorum = None

    def run_due(self) -> None:
        if self.quorum is not None:
            self.timers.run_due()
            self.directory.kick()

    # The listener of controllers.

    def opened(self, connection: Connection) -> None:
        self._unread[connection] = b""

    def closed(self, connection: Connection, reason: str) -> None:
        self._unread.pop(connection, None)

    def received(self, connection: Connection, data: bytes) -> None:
        data = self._unread[connection] + data
        while len(data) >= INT32.size and len(data) >= (size := INT32.unpack_from(data)[0] + INT32.size):
            self._take(connection, memoryview(data)[INT32.size : size])
            data = data[size:]
        self._unread[connection] = data

    def _take(self, connection: Connection, frame: memoryview) -> None:
        header = parse_request_header(frame)
        if header.api_key == ApiKey.API_VERSIONS:
            keys = [{"api_key": api.key, "min_version": api.versions[0], "max_version": api.versions[1]} for api in APIS]
            body = encode_response(ApiKey.API_VERSIONS, header.api_version, {"error_code": 0, "api_keys": keys})
            self._send(connection, response_header(ApiKey.API_VERSIONS, header.api_version, header.correlation_id) + body)
            return
        api = BY_KEY[header.api_key]
        request = api.decode_request(decode_request(header, frame))
        assert self.quorum is not None

        def answer(reply: QuorumReply) -> None:
            body = encode_response(api.key, header.api_version, api.reply_fields(reply))
            self._send(connection, response_header(api.key, header.api_version, header.correlation_id) + body)

        self.quorum.handle(request, answer)

    @staticmethod
    def _send(connection: Connection, frame: bytes) -> None:
        connection.send([INT32.pack(len(frame)), frame])


class QuorumCluster:
    def __init__(
        self,
        seed: int = 1,
        count: int = 3,
        observers: int = 0,
        policy: SnapshotPolicy = DEFAULT_POLICY,
        *,
        is_dynamic: bool = False,
    ) -> None:
        """``is_dynamic``: the voters stand in the bootstrap snapshot and not in the settings."""
        self.scheduler = Scheduler()
        self.randomness = SimulatedRandomness(seed)
        self.network = SimulatedNetwork(self.scheduler, self.randomness.fork("network"))
        self.policy = policy
        self.snapshot_piece_max = 1 << 20
        self.node_ids = tuple(range(1, count + observers + 1))
        self.is_dynamic = is_dynamic
        self.voters = voter_set(
            Voter(node_id, NO_DIRECTORY, (VoterEndpoint("CONTROLLER", host_of(node_id), PORT),))
            for node_id in range(1, count + 1)
        )
        self.nodes = {node_id: QuorumNode(self, node_id) for node_id in self.node_ids}

    def start(self, *node_ids: int) -> "QuorumCluster":
        """Start these nodes, or all."""
        for node_id in node_ids or self.node_ids:
            self.nodes[node_id].start()
        return self

    def run_until(self, condition: Callable[[], bool], duration_ms: int = 20_000) -> None:
        deadline_us = self.scheduler.now_us + duration_ms * 1000
        while not condition():
            assert self.scheduler.now_us < deadline_us, {node.node_id: node.events[-3:] for node in self.nodes.values()}
            is_over: list[bool] = []
            self.scheduler.schedule(TURN_US, "turn", lambda is_over=is_over: is_over.append(True))  # type: ignore[misc]  # bound early
            while not is_over:
                self.scheduler.step()
            for node in self.nodes.values():
                node.run_due()

    def run_for(self, duration_us: int) -> None:
        until_us = self.scheduler.now_us + duration_us
        self.run_until(lambda: self.scheduler.now_us >= until_us)

    @property
    def leader(self) -> QuorumNode | None:
        leaders = [node for node in self.nodes.values() if node.quorum is not None and node.quorum.is_leader]
        return max(leaders, key=lambda node: node.quorum.epoch if node.quorum is not None else 0, default=None)

    def lead(self) -> QuorumNode:
        """Wait for a leader."""
        self.run_until(lambda: self.leader is not None)
        assert self.leader is not None
        return self.leader

    def propose(self, *values: bytes) -> Exception | None:
        leader = self.lead()
        assert leader.quorum is not None
        heard: list[Exception | None] = []
        leader.quorum.propose(values, heard.append)
        self.run_until(lambda: bool(heard))
        return heard[0]
