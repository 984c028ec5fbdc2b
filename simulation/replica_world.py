"""A simulated cluster with replicated data: three nodes of production code, topics of three replicas, and clients that write
and read them while nodes and links fail.

Plain and idempotent producers write with acks=all, readers read, ask for the ends and commit to groups. Beside the faults of
``cluster_nemesis`` the power of all nodes fails at once, disks are slow, and nodes die one after the other so that a leader has
to be elected from the eligible replicas. ``ReplicaChecker`` says what must hold. In the end everything heals, every partition
takes another write, and everything is read once more.
"""

from collections.abc import Callable, Iterator, Mapping

from simulation.checker import Violation, noticed_problems
from simulation.cluster_nemesis import CLUSTER_FAULTS, ClusterNemesis
from simulation.cluster_world import NODE_COUNT, ClusterWorld, host_of
from simulation.disk import SimulatedDisk
from simulation.executor import RUN_DELAY_US
from simulation.node import DATA_PATH, SimulatedBroker
from simulation.pipelined_producer import PipelinedProducer
from simulation.replica_checker import ImageWatcher, Place, ReplicaChecker
from simulation.replica_clients import At, ClientSteps, ClusterClient, ReplicaProducer, ReplicaReader
from simulation.replica_transactions import CommittedReplicaReader, TransactionalReplicaWorker
from simulation.script import Sleep, call
from simulation.transaction_graph import TransactionGraph
from tidelog.log import names
from tidelog.log.durability.checkpoints import read_offset_checkpoint
from tidelog.log.durability.durable_marks import DurableMarks
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.records.header import BatchHeader, iterate_headers
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

SENDS_MIN = 100
FAULTS_MIN = 3
DATA_FAULTS_US_MAX = 60_000_000
WATCH_US = 20_000
SLOW_DISK_US = (20_000, 300_000)
DOWN_US = (50_000, 3_000_000)
STAGE_US_MAX = 6_000_000
PARTITIONS = {"orders": 2, "events": 1}
TOPIC_CONFIGS = {"min.insync.replicas": "2"}
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "replica.lag.time.max.ms": "1500",
    "min.insync.replicas": "2",
    "metadata.max.retention.bytes": "1",
}
# Values too small for real life, so that segments roll, and logs of metadata are behind a snapshot.
UNCHECKED = {"segment.bytes": 4_000, "metadata.log.max.record.bytes.between.snapshots": 1_200}
# What a batch of seeds must show, beside every kind of fault.
EVENTS = (
    "truncation",
    "damaged replica discarded",
    "in-sync set shrunk",
    "eligible leader elected",
    "snapshot installed",
    "coordinator reloaded",
    "transaction committed",
    "late request",
)
_EVENT_OF_REPORT = {
    "replica_truncated": "truncation",
    "metadata_snapshot_installed": "snapshot installed",
    "damaged_replica_discarded": "damaged replica discarded",
}
_PROBLEMS = frozenset(
    ("truncation_refused", "committed_records_truncated", "replica_offline", "log_offline", "partition_offline", "stray_log")
)


class TopicCreator(ClusterClient):
    """Creates the topics, and ends when all of them have leaders."""

    def steps(self) -> ClientSteps:
        for name, partitions in PARTITIONS.items():
            configs = [{"name": key, "value": value} for key, value in TOPIC_CONFIGS.items()]
            topic = {"name": name, "num_partitions": partitions, "replication_factor": NODE_COUNT, "configs": configs}
            while True:
                wanted = call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 5_000})
                answer = yield At(self.any_node(), wanted)
                if answer is not None and answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    break
                yield Sleep(20_000)


class ReplicaWorld(ClusterWorld):
    settings = SETTINGS
    unchecked = UNCHECKED

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.operators = []
        self.nemesis = ClusterNemesis(self, self.randomness.fork("replica nemesis"), REPLICA_FAULTS)
        self.checker = ReplicaChecker(self.history)
        self.graph = TransactionGraph(self.history)
        self.watcher = ImageWatcher()
        self.damaged: set[tuple[str, object]] = set()
        """The host and the name of each replica that was damaged once."""
        self.topic_names = list(PARTITIONS)
        self.places = [Place(name, index) for name, count in PARTITIONS.items() for index in range(count)]
        self.producers: list[ClusterClient] = [self._producer(f"producer{number}", number % 2 == 0) for number in range(4)]
        self.workers: list[ClusterClient] = [
            TransactionalReplicaWorker(self, f"worker{number}", self.places[number]) for number in range(2)
        ]
        self.readers = [
            *[ReplicaReader(self, f"reader{number}") for number in range(2)],
            CommittedReplicaReader(self, "committed"),
        ]

    def _producer(self, name: str, is_idempotent: bool) -> ClusterClient:
        return ReplicaProducer(self, name, is_idempotent)

    @property
    def client_hosts(self) -> list[str]:
        return [client.name for client in (*self.producers, *self.workers, *self.readers)]

    @property
    def events(self) -> dict[str, int]:
        committed = {"transaction committed": self.graph.committed} if self.graph.committed else {}
        return {**self.watcher.counts, **committed}

    def reported(self, node_id: int, event: str, facts: dict[str, object]) -> None:
        if event in _EVENT_OF_REPORT:
            self.watcher.count(_EVENT_OF_REPORT[event])
        if event in _PROBLEMS and (host_of(node_id), facts.get("partition")) not in self.damaged:
            self.history.problem(event, f"node {node_id}: {facts}")

    # -- phases --------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for node in self.nodes.values():
            node.start()
        self.run_until("the cluster is there", lambda: self.is_whole)
        creator = TopicCreator(self, "creator")
        creator.start()
        self.run_until("the topics are there", lambda: creator.is_over)
        for client in (*self.producers, *self.workers, *self.readers):
            client.start()
        self._watch()
        self.nemesis.start()
        self.run_until("enough happened", self._has_enough, DATA_FAULTS_US_MAX)
        writers = *self.producers, *self.workers
        for writer in writers:
            writer.stop()
        self.nemesis.heal()
        self.run_until("all is written", lambda: all(writer.is_over for writer in writers))
        for reader in self.readers:
            reader.stop()
        self.run_until("readers are done", lambda: all(reader.is_over for reader in self.readers))
        self._serve_again()
        self.run_until("all replicas are equal", lambda: self.is_whole and self._are_in_sync())
        for node in self.nodes.values():
            self.checker.compare(node)

    def _has_enough(self) -> bool:
        self.operations = self.checker.acked
        return self.checker.acked >= SENDS_MIN and self.fault_count >= FAULTS_MIN and self.nemesis.is_calm

    def _serve_again(self) -> None:
        """Every partition takes writes again, and a new reader finds everything."""
        last = ReplicaProducer(self, "last", True)
        first = len(self.checker.sends)
        last.start()

        def is_written() -> bool:
            acked = {send.place for send in self.checker.sends[first:] if send.base_offset >= 0}
            return len(acked) == len(self.places)

        self.run_until("every partition takes a write", is_written)
        last.stop()
        self.run_until("the last write is done", lambda: last.is_over)
        final, committed = ReplicaReader(self, "final"), CommittedReplicaReader(self, "final committed")
        for reader in (final, committed):
            reader.start()
        self.run_until("everything is read", lambda: final.has_read_everything and committed.has_read_everything)
        self.graph.is_complete(committed.name, self.places)
        for reader in (final, committed):
            reader.stop()
        self.run_until("the last readers are done", lambda: final.is_over and committed.is_over)

    def is_in_sync_everywhere(self) -> bool:
        """Whether every node knows that all replicas are in sync."""
        images = [node.broker.image for node in self.nodes.values() if node.broker is not None]
        states = [state for image in images for topic in image.topics for state in topic.partitions.values()]
        return all(len(state.isr) == NODE_COUNT for state in states)

    def _are_in_sync(self) -> bool:
        for topic in next(iter(self.nodes.values())).serving().image.topics:
            for index, state in topic.partitions.items():
                logs = [node.serving().directory.logs.get((topic.name, index)) for node in self.nodes.values()]
                if len(state.isr) != NODE_COUNT or len({log.high_watermark if log else -1 for log in logs}) != 1:
                    return False
        return True

    def _watch(self) -> None:
        self.scheduler.schedule(WATCH_US, "the checker looks", self._watch)
        for node in self.nodes.values():
            if node.broker is not None:
                self.watcher.look_at(node.broker.image)
                self.looked_at(node.broker.image)
            self.checker.compare(node)

    def looked_at(self, image: ClusterImage) -> None:
        """For what the images of some worlds show beyond this."""

    def check(self) -> list[Violation]:
        return [*noticed_problems(self.history), *self.checker.check(), *self.graph.check()]

    # -- for the nemesis -----------------------------------------------------------------------------------------------------

    def wait_for(self, condition: Callable[[], bool], then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Call ``then`` as soon as the condition holds, or ``otherwise`` after too long a time."""
        deadline_us = self.scheduler.now_us + STAGE_US_MAX

        def look() -> None:
            if condition():
                then()
            elif self.scheduler.now_us > deadline_us:
                otherwise()
            else:
                self.scheduler.schedule(1_000, "the nemesis waits", look)

        look()


class PipelinedReplicaWorld(ReplicaWorld):
    """The same with idempotent producers that have several batches of a partition on the wire."""

    def _producer(self, name: str, is_idempotent: bool) -> ClusterClient:
        return PipelinedProducer(self, name) if is_idempotent else super()._producer(name, is_idempotent)


# -- faults --------------------------------------------------------------------------------------------------------------------


def _cut_power_of_all(nemesis: ClusterNemesis) -> bool:
    node = nemesis.draw_node()
    if node is None:
        return False
    for each in nemesis.world.nodes.values():
        each.cut_power("some" if nemesis.randomness.integer(0, 1) else "none")
        each.start_after(nemesis.randomness.integer(*DOWN_US))
    return True


def _slow_disk(nemesis: ClusterNemesis) -> bool:
    node = nemesis.draw_node()
    if node is None:
        return False
    slowest_us = nemesis.randomness.integer(*SLOW_DISK_US)
    node.executor.run_delay_us = (slowest_us // 2, slowest_us)

    def make_fast() -> None:
        node.executor.run_delay_us = RUN_DELAY_US

    nemesis.strike_for_a_while(node, make_fast)
    return True


def _dominoes(nemesis: ClusterNemesis) -> bool:
    """Kill one node; as soon as it is back, but not in sync, kill the second one, and then the third, which has been alone in
    sync. The second one returns first: it is eligible, and must lead."""
    first = nemesis.draw_node()
    world = nemesis.world
    if first is None or not isinstance(world, ReplicaWorld):
        return False
    others = [node for node in world.nodes.values() if node is not first]
    second, third = others if nemesis.randomness.integer(0, 1) else reversed(others)
    ids = {node: node_id for node_id, node in world.nodes.items()}
    nemesis.begin(first)

    def isrs(of: SimulatedBroker) -> list[tuple[int, ...]]:
        image = of.broker.image if of.broker is not None else None
        topics = image.topics if image is not None else ()
        return [state.isr for topic in topics for state in topic.partitions.values()]

    def is_back() -> bool:
        if third.broker is None or not first.is_serving:
            return False
        broker = third.broker.image.brokers.find(ids[first])
        return broker is not None and broker.is_active

    def end() -> None:
        for node in world.nodes.values():
            if node.is_down and not nemesis.is_over:
                node.start_after(nemesis.randomness.integer(0, 500_000))
        nemesis.end()

    def kill_second() -> None:
        if not nemesis.is_over and second.broker is not None:
            second.kill()
            world.wait_for(lambda: nemesis.is_over or (ids[third],) in isrs(third), kill_third, end)

    def kill_third() -> None:
        if not nemesis.is_over and third.broker is not None:
            third.kill()
            second.start_after(nemesis.randomness.integer(0, 300_000))
            world.scheduler.schedule(nemesis.randomness.integer(500_000, 3_000_000), "the third domino rises", end)

    def start_first() -> None:
        if not nemesis.is_over:
            first.start()
            world.wait_for(lambda: nemesis.is_over or is_back(), kill_second, end)

    first.kill()
    world.wait_for(lambda: nemesis.is_over or all(ids[first] not in isr for isr in isrs(third)), start_first, end)
    return True


def _damage(nemesis: ClusterNemesis) -> bool:
    """Kill a node, and flip a bit of a record that is known to be durable, or cut off the file there. All other replicas are in
    sync, so it is copied again. The record lies above the recovery point: a start does not read what is below."""
    node, world = nemesis.draw_node(), nemesis.world
    if node is None or not isinstance(world, ReplicaWorld) or not world.is_in_sync_everywhere():
        return False
    node.kill()
    marks = DurableMarks.open(node.disk, DATA_PATH)
    recovery_points = read_offset_checkpoint(node.disk, names.join(DATA_PATH, names.RECOVERY_POINT_CHECKPOINT))
    candidates: list[tuple[str, int, BatchHeader]] = []
    for name in marks.names():
        parsed = names.parse_partition_directory_name(name)
        mark = marks.mark(name, marks.topic_id(name) or b"") or 0
        if parsed is not None and parsed.topic != METADATA_TOPIC:
            recovery_point = recovery_points.get((parsed.topic, parsed.partition), 0)
            for path, position, header in _batches_on(node.disk, names.join(DATA_PATH, name)):
                if recovery_point <= header.base_offset and header.next_offset <= mark:
                    candidates.append((path, position, header))
    if candidates:
        path, position, header = candidates[nemesis.randomness.integer(0, len(candidates) - 1)]
        position += nemesis.randomness.integer(0, header.size - 1)
        world.damaged.add((node.host, path.split("/")[-2]))
        if nemesis.randomness.integer(0, 1):
            node.disk.flip_bit(path, position)
        else:
            file = node.disk.open(path, "write")
            file.truncate(position)
            file.sync()
    nemesis.strike_for_a_while(node, lambda: node.start_after(0))
    return bool(candidates)


def _batches_on(disk: SimulatedDisk, directory: str) -> Iterator[tuple[str, int, BatchHeader]]:
    """The path and position of each batch in the segments of a partition that is not open."""
    for name in disk.list_directory(directory) if disk.is_directory(directory) else ():
        if name.endswith(names.LOG_SUFFIX):
            path = names.join(directory, name)
            data = disk.open(path, "read").read(0, disk.file_size(path))
            for position, header in iterate_headers(data):
                yield path, position, header


REPLICA_FAULTS: Mapping[str, Callable[[ClusterNemesis], bool]] = {
    **{name: fault for name, fault in CLUSTER_FAULTS.items() if name != "disconnect operator"},
    "power cut of all": _cut_power_of_all,
    "slow disk": _slow_disk,
    "dominoes": _dominoes,
    "damaged log": _damage,
}
