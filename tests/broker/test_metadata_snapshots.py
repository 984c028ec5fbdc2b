"""Snapshots of the metadata on a simulated disk: taken by bytes and by time, loaded at a start, fetched in pieces by a node that
lags, and never trusted unless they are whole. Power is cut at every disk operation of taking and installing one."""

from functools import partial

import pytest

from simulation.disk import Keep
from simulation.randomness import SimulatedRandomness
from tests.broker.quorum_cluster import CLUSTER_ID, PATH, PORT, QuorumCluster, QuorumNode, directory_id_of, host_of
from tests.broker.test_metadata_quorum import QuorumOnDisk
from tidelog.broker.metadata_log import CommittedBatch
from tidelog.broker.metadata_snapshots import RETRY_MS, ImageState, SnapshotPolicy
from tidelog.metadata.image import ClusterImage, ImageDelta
from tidelog.metadata.records import (
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.ports.steps import run_to_end
from tidelog.raft.errors import CorruptMetadataLog
from tidelog.raft.messages import AddVoter, ChangeVoterReply, QuorumReply, RemoveVoter, SnapshotId
from tidelog.raft.snapshot_file import SnapshotFiles, parse_snapshot_file_name
from tidelog.raft.voters import ReplicaKey, VoterEndpoint
from tidelog.wire.errors import ErrorCode

# Every batch of a few values is worth a snapshot, and what one covers is deleted at once.
EAGER = SnapshotPolicy(record_bytes_max=200, interval_ms=0, retention_bytes=0)
KEEPING = SnapshotPolicy(record_bytes_max=200, interval_ms=0)
NEVER = SnapshotPolicy(interval_ms=0)


def snapshot_ids(quorum_on_disk: QuorumOnDisk) -> list[SnapshotId]:
    log = quorum_on_disk.store.log(METADATA_TOPIC, 0)
    names = quorum_on_disk.store.disk.list_directory(log.directory)
    return [found for found in map(parse_snapshot_file_name, names) if found is not None]


def alone(policy: SnapshotPolicy) -> QuorumOnDisk:
    quorum_on_disk = QuorumOnDisk()
    quorum_on_disk.policy = policy
    quorum_on_disk.start()
    return quorum_on_disk


def fill(quorum_on_disk: QuorumOnDisk, count: int) -> list[bytes]:
    values = [b"%d" % number * 20 for number in range(count)]
    for value in values:
        assert quorum_on_disk.propose(value) is None
    return values


def settle(quorum_on_disk: QuorumOnDisk) -> None:
    """Let everything that was begun come to its end."""
    store = quorum_on_disk.store
    for _ in range(200):
        quorum_on_disk.timers.run_due()
        store.directory.kick()
        store.scheduler.run_for(2_000)


# -- taking and loading --------------------------------------------------------------------------------------------------------


def test_a_start_reads_the_latest_snapshot_and_what_comes_after_it() -> None:
    quorum_on_disk = alone(KEEPING)
    values = fill(quorum_on_disk, 10)
    settle(quorum_on_disk)
    ids = snapshot_ids(quorum_on_disk)
    assert len(ids) >= 2
    quorum_on_disk.policy = NEVER
    quorum_on_disk.store.close()
    quorum_on_disk.start()
    quorum_on_disk.state.batches.clear()
    assert quorum_on_disk.propose(b"last") is None
    quorum_on_disk.store.close()
    quorum_on_disk.start()
    assert quorum_on_disk.replayed == [*values, b"last"]
    assert quorum_on_disk.state.loads == 1
    assert quorum_on_disk.state.batches[0].first_offset >= ids[-1].end_offset


def test_what_a_snapshot_covers_is_deleted_and_nothing_else() -> None:
    quorum_on_disk = alone(EAGER)
    values = fill(quorum_on_disk, 12)
    settle(quorum_on_disk)
    log = quorum_on_disk.store.log(METADATA_TOPIC, 0)
    (latest,) = snapshot_ids(quorum_on_disk)
    assert log.log_start_offset == latest.end_offset
    assert log.segments[0].base_offset > 0
    quorum_on_disk.store.lose_power()
    quorum_on_disk.start()
    assert quorum_on_disk.replayed == values


def test_time_alone_is_enough_but_not_without_records() -> None:
    quorum_on_disk = alone(SnapshotPolicy(interval_ms=60_000))
    fill(quorum_on_disk, 1)
    settle(quorum_on_disk)
    assert snapshot_ids(quorum_on_disk) == []
    quorum_on_disk.store.scheduler.run_for(60_000_000)
    settle(quorum_on_disk)
    (taken,) = snapshot_ids(quorum_on_disk)
    quorum_on_disk.store.scheduler.run_for(120_000_000)
    settle(quorum_on_disk)
    assert snapshot_ids(quorum_on_disk) == [taken]


def test_a_snapshot_that_cannot_be_written_is_tried_again() -> None:
    quorum_on_disk = alone(KEEPING)
    store = quorum_on_disk.store
    store.disk.faults.fail("write", lambda path: ".part" in path)
    values = fill(quorum_on_disk, 4)
    settle(quorum_on_disk)
    assert snapshot_ids(quorum_on_disk) == []
    assert "metadata_snapshot_failed" in [name for name, _ in store.events]
    assert not [name for name in store.disk.list_directory(store.log(METADATA_TOPIC, 0).directory) if name.endswith(".part")]
    store.disk.faults.clear()
    store.scheduler.run_for(RETRY_MS * 1000)
    settle(quorum_on_disk)
    assert len(snapshot_ids(quorum_on_disk)) == 1
    store.close()
    quorum_on_disk.start()
    assert quorum_on_disk.replayed == values


def test_nothing_is_deleted_for_a_snapshot_that_is_not_durable() -> None:
    quorum_on_disk = alone(EAGER)
    values = fill(quorum_on_disk, 6)
    settle(quorum_on_disk)
    (sealed,) = snapshot_ids(quorum_on_disk)
    quorum_on_disk.store.disk.faults.fail("sync", lambda path: ".part" in path)
    values += fill(quorum_on_disk, 12)
    settle(quorum_on_disk)
    assert snapshot_ids(quorum_on_disk) == [sealed]
    assert quorum_on_disk.store.log(METADATA_TOPIC, 0).log_start_offset == sealed.end_offset
    quorum_on_disk.store.lose_power()
    quorum_on_disk.start()
    assert quorum_on_disk.replayed == values


@pytest.mark.parametrize("keep", ["none", "some", "all"])
def test_a_power_cut_at_any_moment_loses_nothing(keep: Keep) -> None:
    """Every number of events after which the power may fail, while snapshots are taken and the log's beginning is deleted."""
    for events in range(0, 260, 7):
        quorum_on_disk = alone(EAGER)
        answers: list[Exception | None] = []
        values = [b"%d" % number * 30 for number in range(6)]
        for value in values:
            quorum_on_disk.quorum.propose([value], answers.append)
        for _ in range(events):
            quorum_on_disk.timers.run_due()
            if not quorum_on_disk.store.scheduler.step():
                break
        quorum_on_disk.store.lose_power(keep)
        quorum_on_disk.start()
        assert quorum_on_disk.replayed[: len(answers)] == values[: len(answers)], events


# -- damage --------------------------------------------------------------------------------------------------------------------


def damage(quorum_on_disk: QuorumOnDisk, snapshot_id: SnapshotId) -> None:
    disk = quorum_on_disk.store.disk
    files = SnapshotFiles(disk, quorum_on_disk.store.log(METADATA_TOPIC, 0).directory)
    file = disk.open(files.path(snapshot_id), "write")
    file.truncate(files.size(snapshot_id) - 70)
    file.sync()


def test_a_damaged_snapshot_is_set_aside_if_the_log_still_has_what_it_held() -> None:
    quorum_on_disk = alone(KEEPING)
    values = fill(quorum_on_disk, 10)
    settle(quorum_on_disk)
    *older, latest = snapshot_ids(quorum_on_disk)
    quorum_on_disk.store.close()
    quorum_on_disk.store.open()
    damage(quorum_on_disk, latest)
    quorum_on_disk.store.close()
    quorum_on_disk.policy = NEVER
    quorum_on_disk.start()
    assert quorum_on_disk.replayed == values
    assert snapshot_ids(quorum_on_disk) == older
    assert "snapshot_set_aside" in [name for name, _ in quorum_on_disk.store.events]


def test_a_log_that_begins_later_without_a_sound_snapshot_is_refused() -> None:
    quorum_on_disk = alone(EAGER)
    fill(quorum_on_disk, 10)
    settle(quorum_on_disk)
    (latest,) = snapshot_ids(quorum_on_disk)
    quorum_on_disk.store.close()
    quorum_on_disk.store.open()
    damage(quorum_on_disk, latest)
    quorum_on_disk.store.close()
    with pytest.raises(CorruptMetadataLog, match=r"Nothing else holds what it held"):
        quorum_on_disk.start()
    disk = quorum_on_disk.store.disk
    disk.remove(
        f"{quorum_on_disk.store.log(METADATA_TOPIC, 0).directory}/{latest.end_offset:020d}-{latest.epoch:010d}.checkpoint"
    )
    quorum_on_disk.store.close()
    with pytest.raises(CorruptMetadataLog, match="no snapshot covers what is missing"):
        quorum_on_disk.start()


# -- several nodes -------------------------------------------------------------------------------------------------------------


def lagging(seed: int = 1, piece: int = 64, *, is_dynamic: bool = False) -> tuple[QuorumCluster, QuorumNode, list[bytes]]:
    """A cluster of three in which node 3, which never ran, can only begin with a snapshot."""
    cluster = QuorumCluster(seed, policy=EAGER, is_dynamic=is_dynamic)
    cluster.snapshot_piece_max = piece
    cluster.start(1, 2)
    values = [b"%d" % number * 20 for number in range(12)]
    for value in values:
        assert cluster.propose(value) is None
    cluster.run_until(lambda: log_start(cluster.nodes[1]) > 0 and log_start(cluster.nodes[2]) > 0)
    return cluster, cluster.nodes[3], values


def log_start(node: QuorumNode) -> int:
    return node.directory.logs[METADATA_TOPIC, 0].log_start_offset


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_node_that_lags_fetches_a_snapshot_in_pieces(is_dynamic: bool) -> None:
    cluster, late, values = lagging(is_dynamic=is_dynamic)
    cluster.start(3)
    cluster.run_until(lambda: late.applied == values)
    # The bootstrap snapshot is loaded too.
    assert late.state.loads == 1 + is_dynamic
    assert log_start(late) > 0
    assert cluster.propose(b"more") is None
    cluster.run_until(lambda: late.applied == [*values, b"more"])
    # What it installed is what a start finds.
    late.crash("none")
    cluster.start(3)
    cluster.run_until(lambda: late.applied == [*values, b"more"])


def test_a_list_of_epochs_that_is_older_than_the_snapshot_is_not_believed() -> None:
    """When a log was deleted up to its end, a power cut can bring back an older list of its epochs, and no batch is left to
    correct it. The node would claim that its log ends in an epoch before the snapshot's, and be offered what it has."""
    cluster = QuorumCluster(policy=EAGER).start()
    assert cluster.propose(b"first") is None
    first = cluster.lead()
    first.crash("all")
    cluster.run_until(lambda: cluster.leader not in (None, first))
    cluster.start(first.node_id)
    follower = next(node for node in cluster.nodes.values() if node not in (first, cluster.leader))

    def is_empty() -> bool:
        log = follower.directory.logs[METADATA_TOPIC, 0]
        return log.log_start_offset == log.log_end_offset > 0

    for number in range(20):
        assert cluster.propose(b"%d" % number * 20) is None
        cluster.run_for(300_000)
        if is_empty():
            break
    assert is_empty()
    follower.crash("all")
    epochs = follower.disk.open(f"{PATH}/{METADATA_TOPIC}-0/leader-epoch-checkpoint", "create")
    epochs.truncate(0)
    epochs.write(0, [b"0\n1\n1 0\n"])
    cluster.start(follower.node_id)
    assert cluster.propose(b"last") is None
    cluster.run_until(lambda: follower.applied[-1:] == [b"last"])


def test_an_observer_learns_the_voters_from_a_snapshot() -> None:
    cluster = QuorumCluster(count=1, observers=1, policy=EAGER, is_dynamic=True)
    cluster.start(1)
    for number in range(12):
        assert cluster.propose(b"%d" % number * 20) is None
    cluster.run_until(lambda: log_start(cluster.nodes[1]) > 0)
    cluster.start(2)
    observer = cluster.nodes[2]
    cluster.run_until(lambda: observer.applied == cluster.nodes[1].applied)
    assert observer.quorum is not None
    (voter,) = observer.quorum.voters.voters
    assert (voter.node_id, voter.directory_id) == (1, directory_id_of(1))


def test_a_torn_snapshot_is_fetched_again() -> None:
    """The file that the pieces went to lost its end before it was installed."""
    cluster, late, values = lagging()
    cluster.start(3)
    directory = late.directory.logs[METADATA_TOPIC, 0].directory

    def partial_files() -> list[str]:
        return [name for name in late.disk.list_directory(directory) if name.endswith(".part")]

    torn = 0

    def tear() -> bool:
        nonlocal torn
        for name in partial_files():
            file = late.disk.open(f"{directory}/{name}", "write")
            if not torn and file.size() > 200:
                file.write(100, [b"not what was sent"])
                torn += 1
        return late.applied == values

    cluster.run_until(tear)
    assert torn == 1
    assert [facts for name, facts in late.events if name == "quorum_snapshot_rejected"]
    assert partial_files() == []


@pytest.mark.parametrize("seed", range(12))
def test_power_cuts_while_a_snapshot_is_installed(seed: int) -> None:
    """The node is cut off at moments that the seed chooses, and each time begins again with what its disk has."""
    cluster, late, values = lagging(seed)
    draw = SimulatedRandomness(seed).fork("cuts").integer
    keeps: list[Keep] = ["none", "some", "all"]
    for _ in range(4):
        cluster.start(3)
        cluster.run_for(draw(0, 60_000))
        assert late.applied == values[: len(late.applied)]
        late.crash(keeps[draw(0, 2)])
    cluster.start(3)
    cluster.run_until(lambda: late.applied == values)


# -- the image -----------------------------------------------------------------------------------------------------------------


def batch_of(records: list[MetadataRecord], first_offset: int) -> CommittedBatch:
    return CommittedBatch(first_offset, first_offset + len(records) - 1, 1, [encode_record(record) for record in records])


def make_state() -> tuple[ClusterImage, ImageState, list[ImageDelta]]:
    image, deltas = ClusterImage(), list[ImageDelta]()
    replay = lambda batch: deltas.append(image.replay([decode_record(each)[0] for each in batch.values], batch.last_offset))  # noqa: E731 - one line
    return image, ImageState(image, replay, deltas.append), deltas


def test_an_open_transaction_is_never_part_of_a_snapshot() -> None:
    _, state, _ = make_state()
    state.apply(batch_of([BeginTransactionRecord(), TopicRecord("orders", bytes(15) + b"\1")], 0))
    assert state.freeze() is None
    state.apply(batch_of([EndTransactionRecord()], 2))
    values = state.freeze()
    assert values is not None
    assert [decode_record(value)[0] for value in values] == [TopicRecord("orders", bytes(15) + b"\1")]


def test_an_installed_image_reports_its_difference() -> None:
    topic_id, other_id = bytes(15) + b"\1", bytes(15) + b"\2"
    _, leader, _ = make_state()
    image, follower, deltas = make_state()
    first = batch_of([TopicRecord("orders", topic_id), PartitionRecord(0, topic_id, (1,), (1,), leader=1)], 0)
    for each in (leader, follower):
        each.apply(first)
    leader.apply(batch_of([TopicRecord("bills", other_id), PartitionRecord(0, other_id, (1,), (1,), leader=1)], 2))
    values = leader.freeze()
    assert values is not None
    run_to_end(follower.load([list(values)], 3))()
    assert list(deltas[-1].topics_created) == [other_id]
    assert deltas[-1].partitions_changed == {other_id: {0: None}}
    assert not deltas[-1].topics_deleted
    assert image.last_offset == 3
    assert image.topic("bills") is not None


# -- voters that change --------------------------------------------------------------------------------------------------------


def change(cluster: QuorumCluster, request: AddVoter | RemoveVoter) -> ChangeVoterReply:
    leader = cluster.lead()
    assert leader.quorum is not None
    replies: list[QuorumReply] = []
    leader.quorum.handle(request, replies.append)
    cluster.run_until(lambda: bool(replies))
    (reply,) = replies
    assert isinstance(reply, ChangeVoterReply)
    return reply


def add_request(node_id: int, cluster_id: str = CLUSTER_ID) -> AddVoter:
    endpoint = VoterEndpoint("CONTROLLER", host_of(node_id), PORT)
    return AddVoter(ReplicaKey(node_id, directory_id_of(node_id)), (endpoint,), 5_000, cluster_id)


def is_caught_up(cluster: QuorumCluster, node_id: int) -> bool:
    """Whether the leader knows that this observer has everything."""
    quorum = cluster.lead().quorum
    assert quorum is not None
    status = quorum.status()
    ends = [each.log_end_offset for each in status.observers if each.key == (node_id, directory_id_of(node_id))]
    return ends == [status.log_end_offset]


def voter_ids(cluster: QuorumCluster, node_id: int) -> tuple[int, ...]:
    quorum = cluster.nodes[node_id].quorum
    assert quorum is not None
    return quorum.voters.ids


def test_a_quorum_grows_from_one_voter_to_three_and_survives_the_first() -> None:
    """The observers begin with a snapshot, become voters, and lead when the first voter has left."""
    cluster = QuorumCluster(count=1, observers=2, policy=EAGER, is_dynamic=True).start(1)
    values = [b"%d" % number * 20 for number in range(12)]
    for value in values:
        assert cluster.propose(value) is None
    cluster.run_until(lambda: log_start(cluster.nodes[1]) > 0)
    cluster.start(2, 3)
    for node_id in (2, 3):
        cluster.run_until(partial(is_caught_up, cluster, node_id))
        assert change(cluster, add_request(node_id)).error is ErrorCode.NONE
    cluster.run_until(lambda: all(voter_ids(cluster, each) == (1, 2, 3) for each in (1, 2, 3)))
    assert change(cluster, RemoveVoter(ReplicaKey(1, directory_id_of(1)), CLUSTER_ID)).error is ErrorCode.NONE
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.node_id != 1)
    assert cluster.propose(b"without the first") is None
    cluster.run_until(lambda: all(node.applied == [*values, b"without the first"] for node in cluster.nodes.values()))
    # The voters are what a start finds, whether they stand in the log or in a snapshot.
    cluster.nodes[2].crash("none")
    cluster.start(2)
    cluster.run_until(lambda: cluster.nodes[2].applied == [*values, b"without the first"])
    assert voter_ids(cluster, 2) == (2, 3)


def test_changes_of_the_voters_that_are_refused() -> None:
    cluster = QuorumCluster(count=1, observers=2, is_dynamic=True).start(1, 2)
    cluster.propose(b"a")
    cluster.run_until(lambda: is_caught_up(cluster, 2))
    first = ReplicaKey(1, directory_id_of(1))
    refused: dict[str, tuple[AddVoter | RemoveVoter, ErrorCode]] = {
        "another cluster": (add_request(2, "another"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        "a node that does not fetch": (add_request(3), ErrorCode.REQUEST_TIMED_OUT),
        "a voter already": (add_request(1), ErrorCode.DUPLICATE_VOTER),
        "the last voter": (RemoveVoter(first, CLUSTER_ID), ErrorCode.INVALID_REQUEST),
        "another directory": (RemoveVoter(ReplicaKey(1, directory_id_of(9)), CLUSTER_ID), ErrorCode.VOTER_NOT_FOUND),
        "an observer": (RemoveVoter(ReplicaKey(2, directory_id_of(2)), CLUSTER_ID), ErrorCode.VOTER_NOT_FOUND),
    }
    for what, (request, error) in refused.items():
        assert change(cluster, request).error is error, what
    assert voter_ids(cluster, 1) == (1,)
    leader = cluster.lead().quorum
    assert leader is not None
    replies: list[QuorumReply] = []
    leader.handle(add_request(2), replies.append)
    leader.handle(add_request(2), replies.append)
    cluster.run_until(lambda: len(replies) == 2)
    assert {reply.error for reply in replies} == {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT}, "one change at a time"
    assert voter_ids(cluster, 1) == (1, 2)
