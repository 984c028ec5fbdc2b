"""The quorum on this node's disk: what is committed is applied in order, and a crash loses nothing of it."""

import errno
from collections.abc import Callable
from itertools import pairwise

import pytest

from simulation.disk import Crashed, FaultyOperation, SimulatedDisk
from simulation.network import SimulatedNetwork
from tests.broker.harness import Machine
from tests.broker.quorum_cluster import PORT, QuorumCluster, ValuesState, host_of
from tests.log.harness import Store
from tests.metadata.kafka_fixture import LOG_PATH, read_batches
from tidelog.broker.metadata_log import METADATA_LOG_SETTINGS, METADATA_TOPIC_ID, CommittedBatch, PartitionRaftLog
from tidelog.broker.metadata_quorum import BATCHES_PER_SLICE, DEFAULT_POLICY, MetadataQuorum, QuorumPorts
from tidelog.broker.timers import Timers
from tidelog.log.errors import LogOffline, StorageError
from tidelog.metadata.records import InconsistentRecord
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.raft.errors import CorruptMetadataLog, LeadershipLost, NotQuorumLeader, QuorumError
from tidelog.raft.messages import EpochEnd, QuorumReply, SnapshotId, Vote, VoteReply
from tidelog.raft.quorum import RaftConfig
from tidelog.raft.quorum_state import NO_DIRECTORY, QuorumState, QuorumStateFile, parse_state
from tidelog.raft.voters import ReplicaKey, Voter, VoterSet
from tidelog.records.batch import build_batch
from tidelog.records.record import Record


class QuorumOnDisk:
    """A store and the quorum on its metadata log."""

    def __init__(self, seed: int = 1) -> None:
        self.store = Store(METADATA_LOG_SETTINGS, seed=seed, is_open=False)
        self.state = ValuesState()
        self.policy = DEFAULT_POLICY
        self.quorum: MetadataQuorum
        self.timers: Timers

    def make(self) -> MetadataQuorum:
        """A quorum of one on what the disk holds, not started yet."""
        batches = self.state.batches
        self.state = ValuesState()
        self.state.batches = batches
        store = self.store
        log = PartitionRaftLog(store.open())
        self.timers = Timers(store.clock)
        ports = QuorumPorts(
            directory=store.directory,
            log=log,
            state_file=QuorumStateFile(store.disk, log.log.directory),
            clock=store.clock,
            randomness=store.randomness,
            executor=store.executor,
            timers=self.timers,
            network=SimulatedNetwork(store.scheduler, store.randomness).host("alone"),
            report=lambda event, facts: store.events.append((event, facts)),
        )
        config = RaftConfig(1, NO_DIRECTORY, static_voters=VoterSet((Voter(1, NO_DIRECTORY, ()),)))
        self.quorum = MetadataQuorum(config, ports, self.state, self.policy)
        return self.quorum

    def start(self) -> None:
        quorum = self.make()
        quorum.start()
        self.store.scheduler.run_until(lambda: quorum.is_leader)

    def propose(self, *values: bytes) -> BaseException | None:
        return self.store.wait(lambda done: self.quorum.propose(values, done))

    @property
    def replayed(self) -> list[bytes]:
        return self.state.values

    @property
    def batches(self) -> list[CommittedBatch]:
        return self.state.batches


def test_the_log_is_made_with_kafkas_name_and_id() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.start()
    log = quorum_on_disk.store.log(METADATA_TOPIC, 0)
    assert log.topic_id == METADATA_TOPIC_ID == bytes.fromhex("00000000000000000000000000000001")
    assert log.high_watermark == log.log_end_offset == 1


def test_what_was_committed_is_there_after_a_clean_stop() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.start()
    assert quorum_on_disk.propose(b"a", b"b") is None
    quorum_on_disk.store.close()
    quorum_on_disk.start()
    assert quorum_on_disk.replayed == [b"a", b"b"]
    assert quorum_on_disk.propose(b"c") is None
    assert quorum_on_disk.replayed == [b"a", b"b", b"c"]
    assert quorum_on_disk.quorum.epoch == 2


def test_what_was_committed_is_there_after_a_power_cut() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.start()
    assert quorum_on_disk.propose(b"a") is None
    quorum_on_disk.quorum.propose([b"never heard of"], lambda error: None)
    quorum_on_disk.store.lose_power()
    quorum_on_disk.start()
    assert quorum_on_disk.replayed == [b"a"]
    assert quorum_on_disk.quorum.epoch == 2


def test_a_long_log_is_read_in_several_runs() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.start()
    values = [bytes([number]) * 300_000 for number in range(12)]
    for value in values:
        assert quorum_on_disk.propose(value) is None
    quorum_on_disk.store.close()
    quorum_on_disk.start()
    assert quorum_on_disk.replayed == values


def test_a_failed_sync_takes_the_log_offline_and_nothing_is_replayed() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.start()
    quorum_on_disk.store.disk.faults.fail("sync", lambda path: METADATA_TOPIC in path)
    error = quorum_on_disk.propose(b"a")
    assert isinstance(error, LogOffline)
    assert quorum_on_disk.replayed == []
    assert quorum_on_disk.propose(b"b") is not None


def test_an_offline_log_is_not_made_again() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.start()
    directory = quorum_on_disk.store.directory
    del directory.logs[METADATA_TOPIC, 0]
    directory.offline[METADATA_TOPIC, 0] = "broken"
    with pytest.raises(LogOffline, match="broken"):
        PartitionRaftLog(directory)


def dying_at(operation_number: int) -> Callable[[str, str], None]:
    left = operation_number

    def before(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crashed

    return before


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_before_any_operation_loses_nothing_committed_and_repeats_no_epoch(seed: int) -> None:
    for operation_number in range(60):
        quorum_on_disk = QuorumOnDisk(seed * 1000 + operation_number)
        quorum_on_disk.store.disk.on_operation = dying_at(operation_number)
        committed: list[bytes] = []
        epoch = 0
        try:
            quorum_on_disk.start()
            epoch = quorum_on_disk.quorum.epoch
            for value in (b"a", b"b", b"c"):
                assert quorum_on_disk.propose(value) is None
                committed.append(value)
        except Crashed:
            pass
        quorum_on_disk.store.lose_power("some")
        quorum_on_disk.start()
        assert quorum_on_disk.replayed[: len(committed)] == committed
        assert len(quorum_on_disk.replayed) <= len(committed) + 1
        assert quorum_on_disk.quorum.epoch > epoch


def test_a_new_node_leads_epoch_1_once_its_leader_change_is_durable() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum = quorum_on_disk.make()
    disk = quorum_on_disk.store.disk
    state_file = f"/data/{METADATA_TOPIC}-0/quorum-state"
    appended_under: list[bytes] = []

    def look(operation: str, path: str) -> None:
        if operation == "write" and path.endswith(".log") and METADATA_TOPIC in path:
            # The epoch is durable before anything is written in it.
            appended_under.append(disk.crash_image(keep="none").open(state_file, "read").read(0, 1000))

    disk.on_operation = look
    quorum.start()
    assert not quorum.is_leader
    quorum_on_disk.store.scheduler.run_until(lambda: quorum.is_leader)
    assert (quorum.is_leader, quorum.epoch) == (True, 1)
    assert [parse_state(state) for state in appended_under] == [QuorumState(leader_epoch=1, leader_id=1, voted_id=1)]


def test_an_epoch_that_only_the_log_knows_is_not_led_again() -> None:
    quorum_on_disk = QuorumOnDisk()
    log = PartitionRaftLog(quorum_on_disk.store.open())
    log.append(build_batch([Record(0, 0, None, b"value")]), 9)
    quorum_on_disk.store.commit(log.log)
    quorum_on_disk.store.close()
    quorum_on_disk.start()
    assert quorum_on_disk.quorum.epoch == 10
    assert quorum_on_disk.replayed == [b"value"]


def test_each_proposal_is_one_batch_applied_before_its_proposer_hears() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.start()
    heard: list[object] = []
    quorum_on_disk.quorum.propose([b"a", b"b"], lambda error: heard.append((error, list(quorum_on_disk.replayed))))
    quorum_on_disk.quorum.propose([b"c"], lambda error: heard.append((error, list(quorum_on_disk.replayed))))
    assert heard == []
    quorum_on_disk.store.scheduler.run_until(lambda: len(heard) == 2)
    assert heard == [(None, [b"a", b"b"]), (None, [b"a", b"b", b"c"])]
    assert [batch[:4] for batch in quorum_on_disk.batches] == [(1, 2, 1, [b"a", b"b"]), (3, 3, 1, [b"c"])]


def test_a_proposer_may_propose_again_when_it_hears() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.start()
    heard: list[Exception | None] = []
    quorum_on_disk.quorum.propose([b"a"], lambda _: quorum_on_disk.quorum.propose([b"b"], heard.append))
    quorum_on_disk.store.scheduler.run_until(lambda: bool(heard))
    assert (heard, quorum_on_disk.replayed) == ([None], [b"a", b"b"])


def test_a_failed_append_is_told_and_is_not_in_the_log() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.start()
    quorum_on_disk.store.disk.faults.fail("write", lambda path: METADATA_TOPIC in path, errno.ENOSPC, times=1)
    assert isinstance(quorum_on_disk.propose(b"a"), StorageError | OSError)
    assert quorum_on_disk.propose(b"b") is None
    assert quorum_on_disk.replayed == [b"b"]


def test_nothing_is_taken_before_the_node_leads() -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum = quorum_on_disk.make()
    quorum.start()
    heard: list[Exception | None] = []
    quorum.propose([b"a"], heard.append)
    assert [type(error) for error in heard] == [NotQuorumLeader]


@pytest.mark.parametrize("operation", ["write", "names", "sync"])
def test_a_quorum_state_that_cannot_be_stored_makes_no_leader(operation: FaultyOperation) -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum = quorum_on_disk.make()
    quorum_on_disk.store.disk.faults.fail(operation, lambda path: "quorum-state" in path)
    quorum.start()
    quorum_on_disk.store.scheduler.run_until(lambda: quorum.failure is not None)
    assert isinstance(quorum.failure, OSError)
    assert not quorum.is_leader


def damaged(position: int, byte: int) -> bytes:
    data = bytearray(build_batch([Record(0, 0, None, b"value")]))
    data[position] = byte
    return bytes(data)


@pytest.mark.parametrize("data", [damaged(-1, 0xFF), damaged(16, 1), build_batch([Record(0, 0, b"key", None)])])
def test_a_damaged_log_stops_the_start(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checksum, a magic byte, and a record without a value."""
    quorum_on_disk = QuorumOnDisk()
    quorum = quorum_on_disk.make()
    # The log itself would not take it.
    monkeypatch.setattr(PartitionRaftLog, "_pieces", lambda self, offset, isolation, size_max=0: iter([data]))
    monkeypatch.setattr(PartitionRaftLog, "control_records", lambda self, offset: iter(()))
    quorum.start()
    quorum_on_disk.store.scheduler.run_until(lambda: quorum.failure is not None)
    assert isinstance(quorum.failure, CorruptMetadataLog)
    assert not quorum.is_leader


def test_an_image_that_cannot_follow_ends_the_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.start()

    def fail(batch: CommittedBatch) -> None:
        raise InconsistentRecord("no such topic")

    monkeypatch.setattr(quorum_on_disk.state, "apply", fail)
    error = quorum_on_disk.propose(b"a")
    assert isinstance(error, InconsistentRecord)
    assert not quorum_on_disk.quorum.is_leader
    assert isinstance(quorum_on_disk.propose(b"b"), NotQuorumLeader)


def test_the_log_that_kafka_wrote_is_applied() -> None:
    quorum_on_disk = QuorumOnDisk()
    log = PartitionRaftLog(quorum_on_disk.store.open())
    log.append_fetched(LOG_PATH.read_bytes())
    quorum_on_disk.store.commit(log.log)
    quorum_on_disk.store.close()
    quorum_on_disk.start()
    batches = [batch for batch in read_batches() if not batch.is_control]
    assert [(batch.last_offset, batch.epoch, batch.values) for batch in quorum_on_disk.batches] == [
        (batch.last_offset, batch.leader_epoch, batch.values) for batch in batches
    ]
    assert quorum_on_disk.quorum.epoch == 3


def test_where_an_epoch_ends() -> None:
    quorum_on_disk = QuorumOnDisk()
    log = PartitionRaftLog(quorum_on_disk.store.open())
    assert (log.last_epoch, log.end_offset_for_epoch(7)) == (0, EpochEnd(0, 0))
    for epoch in (2, 2, 5):
        log.append(build_batch([Record(0, 0, None, b"value")]), epoch)
    ends = [log.end_offset_for_epoch(epoch) for epoch in (1, 2, 4, 5, 6)]
    assert ends == [EpochEnd(0, 0), EpochEnd(2, 2), EpochEnd(2, 2), EpochEnd(5, 3), EpochEnd(5, 3)]
    assert log.last_epoch == 5


def test_snapshots_from_before_the_log_that_a_crash_brought_back_do_not_count() -> None:
    """A follower whose epochs end before the log begins would be told to cut what it has committed."""
    log = PartitionRaftLog(QuorumOnDisk().store.open())
    for epoch in (2, 2, 5):
        log.append(build_batch([Record(0, 0, None, b"value")]), epoch)
    log.snapshots.add(SnapshotId(1, 2), 100)
    log.snapshots.add(SnapshotId(3, 5), 100)
    assert log.earliest_snapshot == SnapshotId(1, 2)
    log.log.raise_start(3)
    assert log.earliest_snapshot == SnapshotId(3, 5)


# -- several nodes -----------------------------------------------------------------------------------------------------------


def test_three_nodes_elect_a_leader_and_apply_the_same() -> None:
    cluster = QuorumCluster().start()
    for number in range(20):
        assert cluster.propose(b"%d" % number, b"again") is None
    expected = [value for number in range(20) for value in (b"%d" % number, b"again")]
    cluster.run_until(lambda: all(node.applied == expected for node in cluster.nodes.values()))
    assert len({node.directory.logs[METADATA_TOPIC, 0].log_end_offset for node in cluster.nodes.values()}) == 1


@pytest.mark.parametrize("seed", range(5))
def test_what_was_answered_survives_the_death_of_leaders_and_a_cut_of_everything(seed: int) -> None:
    cluster = QuorumCluster(seed).start()
    answered: list[bytes] = []

    def decide(value: bytes) -> None:
        if cluster.propose(value) is None:
            answered.append(value)

    for round_number in range(4):
        for number in range(3):
            decide(b"%d-%d" % (round_number, number))
        dead = cluster.lead()
        assert dead.quorum is not None
        dead.quorum.propose([b"nobody hears %d" % round_number], lambda error: None)
        epoch = dead.quorum.epoch
        began_us = cluster.scheduler.now_us
        dead.crash("some")
        leader = cluster.lead()
        assert leader.quorum is not None
        assert leader.quorum.epoch > epoch
        assert cluster.scheduler.now_us - began_us < 5_000_000
        decide(b"%d without one" % round_number)
        dead.start()
    for node in cluster.nodes.values():
        node.crash("none")
    for node in cluster.nodes.values():
        node.start()
    assert cluster.propose(b"last") is None
    cluster.run_until(lambda: len({tuple(node.applied) for node in cluster.nodes.values()}) == 1)
    applied = cluster.nodes[1].applied
    assert [value for value in applied if not value.startswith(b"nobody")] == [*answered, b"last"]
    assert len(set(applied)) == len(applied)


def test_a_minority_decides_nothing_and_follows_again() -> None:
    cluster = QuorumCluster(7).start()
    alone = cluster.lead()
    assert alone.quorum is not None
    others = [node for node in cluster.nodes.values() if node is not alone]
    for node in others:
        cluster.network.partition(host_of(alone.node_id), host_of(node.node_id))
    heard: list[Exception | None] = []
    alone.quorum.propose([b"in the minority"], heard.append)
    cluster.run_until(lambda: bool(heard))
    assert isinstance(heard[0], LeadershipLost)
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader is not alone)
    assert cluster.propose(b"in the majority") is None
    cluster.network.heal_all()
    cluster.run_until(lambda: alone.applied == [b"in the majority"])
    # What it had appended alone was cut.
    assert alone.directory.logs[METADATA_TOPIC, 0].log_end_offset == others[0].directory.logs[METADATA_TOPIC, 0].log_end_offset


def test_a_leader_that_can_no_longer_write_makes_way() -> None:
    cluster = QuorumCluster(3).start()
    assert cluster.propose(b"before") is None
    leader = cluster.lead()
    assert leader.quorum is not None
    leader.disk.faults.fail("write", lambda path: path.endswith(".log"), times=1)
    assert isinstance(cluster.propose(b"never"), LogOffline)
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader is not leader)
    assert cluster.propose(b"after") is None
    assert cluster.lead().applied == [b"before", b"after"]


def test_a_vote_whose_sync_failed_is_not_given_twice() -> None:
    """The directory's sync fails, the node is stopped and started again, and then the power fails."""
    cluster = QuorumCluster(4)
    node = cluster.nodes[1]

    def run_for(duration_ms: int) -> None:
        end_us = cluster.scheduler.now_us + duration_ms * 1000
        cluster.run_until(lambda: cluster.scheduler.now_us >= end_us)

    def vote(candidate: int) -> bool:
        granted: list[QuorumReply] = []
        assert node.quorum is not None
        node.quorum.handle(Vote(5, ReplicaKey(candidate), ReplicaKey(1), 0, 0, False, "cluster"), granted.append)
        run_for(50)
        return any(isinstance(reply, VoteReply) and reply.vote_granted for reply in granted)

    def restart() -> None:
        assert node.quorum is not None
        node.quorum.close()
        node.directory.close()
        cluster.network.crash(host_of(1))
        node.start()
        run_for(5)

    node.start()
    run_for(50)
    restart()
    node.disk.faults.fail("sync", lambda path: path.endswith(f"{METADATA_TOPIC}-0"), times=1)
    assert not vote(2)
    restart()
    may_have_heard = vote(2)
    node.crash("none")
    node.start()
    run_for(5)
    assert not (may_have_heard and vote(3))


def test_a_start_that_cannot_write_says_why_and_does_not_hang() -> None:
    machine = Machine(is_started=False)
    machine.disk.faults.fail("write", lambda path: METADATA_TOPIC in path and path.endswith(".log"))
    error = machine.start()
    assert isinstance(error, QuorumError)
    assert "cannot be written" in str(error)


def test_a_start_survives_a_shortage_during_its_first_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(is_started=False)
    left = 1

    def short_of_descriptors(disk: SimulatedDisk, path: str) -> None:
        nonlocal left
        if left and machine.scheduler.now_us:
            left -= 1
            raise OSError(errno.ENFILE, "too many open files in the system", path)
        sync_directory(disk, path)

    sync_directory = SimulatedDisk.sync_directory
    monkeypatch.setattr(SimulatedDisk, "sync_directory", short_of_descriptors)
    assert machine.start() is None
    assert left == 0


def test_a_follower_that_cannot_read_its_log_goes_silent_and_the_others_go_on() -> None:
    cluster = QuorumCluster().start()
    assert cluster.propose(b"a") is None
    follower = next(node for node in cluster.nodes.values() if node is not cluster.leader)
    follower.disk.faults.fail("read", lambda path: METADATA_TOPIC in path)
    assert cluster.propose(b"b") is None
    cluster.run_until(lambda: "quorum_storage_failed" in [event for event, _ in follower.events])
    assert cluster.propose(b"c") is None
    assert follower.applied == [b"a"]


def test_a_leader_that_cannot_read_its_log_is_replaced() -> None:
    cluster = QuorumCluster().start()
    assert cluster.propose(b"a") is None
    old = cluster.lead()
    assert old.quorum is not None
    old.disk.faults.fail("read", lambda path: METADATA_TOPIC in path)
    heard: list[Exception | None] = []
    old.quorum.propose([b"b"], heard.append)
    cluster.run_until(lambda: cluster.leader not in (None, old))
    assert "quorum_log_not_read" in [event for event, _ in old.events]
    assert cluster.propose(b"c") is None
    cluster.run_until(lambda: bool(heard))
    assert isinstance(heard[0], LeadershipLost)


def test_who_follows_the_leadership_hears_that_the_same_leader_was_found_again() -> None:
    """Requests that came while no leader was known wait for that."""
    cluster = QuorumCluster().start()
    leader = cluster.lead()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    quorum = follower.quorum
    assert quorum is not None
    cluster.run_until(lambda: quorum.leader_address is not None)
    epoch, heard = quorum.epoch, list[tuple[str, int] | None]()
    quorum.watch(lambda: heard.append(quorum.leader_address), lambda: None)
    for node in cluster.nodes.values():
        if node is not follower:
            cluster.network.partition(host_of(follower.node_id), host_of(node.node_id))
    cluster.run_until(lambda: quorum.leader_address is None)
    cluster.network.heal_all()
    cluster.run_until(lambda: quorum.leader_address is not None)
    assert quorum.epoch == epoch
    assert heard == [None, (host_of(leader.node_id), PORT)]


def test_a_node_that_comes_back_to_many_decisions_applies_them_in_slices() -> None:
    cluster = QuorumCluster(count=3).start()
    leader = cluster.lead()
    assert leader.quorum is not None
    late = next(node for node in cluster.nodes.values() if node is not leader)
    late.crash("all")
    heard: list[Exception | None] = []
    values = [b"%d" % number for number in range(4 * BATCHES_PER_SLICE)]
    for value in values:
        leader.quorum.propose([value], heard.append)
    cluster.run_until(lambda: len(heard) == len(values))
    assert set(heard) == {None}
    late.start()
    seen: list[int] = []

    def is_done() -> bool:
        seen.append(len(late.applied))
        return late.applied == values

    cluster.run_until(is_done)
    # A turn of this cluster can be two of the loop: one that brings the decisions, and one for the timers.
    assert max(after - before for before, after in pairwise(seen)) <= 2 * BATCHES_PER_SLICE
