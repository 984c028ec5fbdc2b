import pytest

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.scheduler import Scheduler
from tests.metadata.kafka_fixture import LOG_PATH, read_batches
from tests.raft.memory_log import MemoryLog
from tidelog.raft.errors import CorruptMetadataLog, NotQuorumLeader
from tidelog.raft.quorum_state import QuorumState, QuorumStateFile
from tidelog.raft.single_voter import CommittedBatch, MetadataQuorum, build_leader_change, leader_change_value
from tidelog.records.batch import build_batch, read_records
from tidelog.records.control import ControlType, control_key
from tidelog.records.header import iterate_headers, read_header
from tidelog.records.record import Record


class Node:
    def __init__(self, log: MemoryLog | None = None, disk: SimulatedDisk | None = None) -> None:
        self.clock = SimulatedClock(Scheduler())
        self.disk = disk if disk is not None else SimulatedDisk(self.clock)
        self.disk.make_directory("/data")
        self.log = log if log is not None else MemoryLog()
        self.state_file = QuorumStateFile(self.disk, "/data")
        self.heard: list[object] = []
        self.quorum = MetadataQuorum(1, self.log, self.state_file, self.clock, self.heard.append)

    def lead(self) -> "Node":
        self.quorum.start(self.heard.append)
        self.log.sync()
        assert self.quorum.is_leader
        self.heard.clear()
        return self

    def propose(self, *values: bytes) -> None:
        self.quorum.propose(values, lambda error: self.heard.append((values, error)))


def test_a_new_node_leads_epoch_1_once_its_leader_change_is_durable() -> None:
    node = Node()
    node.quorum.start(node.heard.append)
    assert (node.quorum.is_leader, node.heard) == (False, [])
    assert node.state_file.load() == QuorumState(leader_epoch=1, leader_id=1)
    ((_, header),) = iterate_headers(node.log.data)
    assert (header.is_control, header.leader_epoch) == (True, 1)
    node.log.sync()
    assert node.heard == [None]
    assert (node.quorum.is_leader, node.quorum.epoch) == (True, 1)


def test_the_epoch_is_durable_before_anything_is_appended_in_it() -> None:
    node = Node()
    states: list[QuorumState] = []
    append = node.log.append

    def look_and_append(batch: bytes, epoch: int) -> tuple[int, int]:
        states.append(QuorumStateFile(node.disk.crash_image(keep="none"), "/data").load())
        return append(batch, epoch)

    node.disk.sync_directory("/")
    node.log.append = look_and_append  # type: ignore[method-assign]  # the test looks at the disk from within
    node.quorum.start(node.heard.append)
    assert states == [QuorumState(leader_epoch=1, leader_id=1)]


def test_each_start_leads_a_later_epoch() -> None:
    first = Node().lead()
    second = Node(MemoryLog(first.log.data), first.disk).lead()
    assert second.quorum.epoch == 2


def test_an_epoch_that_only_the_log_knows_is_not_led_again() -> None:
    log = MemoryLog()
    log.append(build_batch([Record(0, 0, None, b"value")]), 9)
    node = Node(log)
    node.state_file.store(QuorumState(leader_epoch=4, leader_id=1))
    assert node.lead().quorum.epoch == 10


def test_proposals_are_handed_on_when_durable_in_order_each_before_its_proposer() -> None:
    node = Node().lead()
    node.propose(b"a", b"b")
    node.propose(b"c")
    assert node.heard == []
    node.log.sync()
    assert node.heard == [
        CommittedBatch(1, 2, 1, (b"a", b"b")),
        ((b"a", b"b"), None),
        CommittedBatch(3, 3, 1, (b"c",)),
        ((b"c",), None),
    ]


def test_a_proposal_is_one_batch() -> None:
    node = Node().lead()
    node.propose(b"a", b"b", b"c")
    headers = [header for _, header in iterate_headers(node.log.data)]
    assert [(header.record_count, header.leader_epoch) for header in headers] == [(1, 1), (3, 1)]


def test_a_start_hands_on_what_the_log_holds_and_nothing_of_the_quorums_own() -> None:
    first = Node().lead()
    first.propose(b"a", b"b")
    first.propose(b"c")
    second = Node(MemoryLog(first.log.data), first.disk)
    second.quorum.start(second.heard.append)
    assert second.heard == [CommittedBatch(1, 2, 1, [b"a", b"b"]), CommittedBatch(3, 3, 1, [b"c"])]


def test_the_log_that_kafka_wrote_is_handed_on() -> None:
    node = Node(MemoryLog(LOG_PATH.read_bytes()))
    node.quorum.start(node.heard.append)
    batches = [batch for batch in read_batches() if not batch.is_control]
    heard = [batch for batch in node.heard if isinstance(batch, CommittedBatch)]
    assert [(batch.last_offset, batch.epoch, batch.values) for batch in heard] == [
        (batch.last_offset, batch.leader_epoch, batch.values) for batch in batches
    ]
    assert node.quorum.epoch == 3


def test_a_failed_append_is_told_and_nothing_is_handed_on() -> None:
    node = Node().lead()
    error = OSError("full")
    node.log.append_error = error
    node.propose(b"a")
    assert node.heard == [((b"a",), error)]
    node.log.append_error = None
    node.propose(b"b")
    node.log.sync()
    assert node.heard[1:] == [CommittedBatch(1, 1, 1, (b"b",)), ((b"b",), None)]


def test_a_failed_sync_is_told_and_ends_the_leadership() -> None:
    node = Node().lead()
    error = OSError("broken")
    node.propose(b"a")
    node.log.sync(error)
    assert node.heard == [((b"a",), error)]
    node.propose(b"b")
    assert isinstance(node.heard[1], tuple)
    assert isinstance(node.heard[1][1], NotQuorumLeader)
    assert len(node.heard) == 2


def test_nothing_is_taken_before_the_node_leads() -> None:
    node = Node()
    node.propose(b"a")
    node.quorum.start(lambda error: None)
    node.propose(b"b")
    errors = [said[1] for said in node.heard if isinstance(said, tuple)]
    assert [type(error) for error in errors] == [NotQuorumLeader, NotQuorumLeader]


def test_a_leader_change_that_fails_makes_no_leader() -> None:
    node = Node()
    node.log.append_error = OSError("full")
    node.quorum.start(node.heard.append)
    assert node.heard == [node.log.append_error]
    assert not node.quorum.is_leader


def test_a_leader_change_that_is_never_durable_makes_no_leader() -> None:
    node = Node()
    node.quorum.start(node.heard.append)
    error = OSError("broken")
    node.log.sync(error)
    assert node.heard == [error]
    assert not node.quorum.is_leader


def damaged(position: int, byte: int) -> bytes:
    data = bytearray(build_batch([Record(0, 0, None, b"value")]))
    data[position] = byte
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        damaged(-1, 0xFF),  # CRC
        damaged(16, 1),  # magic
        build_batch([Record(0, 0, b"key", None)]),
    ],
)
def test_a_damaged_log_is_a_typed_error(data: bytes) -> None:
    node = Node()
    node.log.committed_batches = lambda: iter([data])  # type: ignore[method-assign]  # the log itself would not hold it
    with pytest.raises(CorruptMetadataLog):
        node.quorum.start(node.heard.append)
    assert node.heard == []


def test_the_bytes_are_those_that_kafka_wrote() -> None:
    of_kafka = [value for batch in read_batches() if batch.is_control for value in batch.values]
    assert of_kafka == [leader_change_value(1, [1], [1])] * 2


def test_several_voters() -> None:
    value = leader_change_value(2, [1, 2, 3], [2, 3])
    assert value == bytes.fromhex("0000 00000002 04 0000000100 0000000200 0000000300 03 0000000200 0000000300 00")


def test_it_is_a_control_batch() -> None:
    batch = build_leader_change(1, [1], [1], 1234)
    header = read_header(batch, 0)
    assert header.is_control
    assert header.max_timestamp == 1234
    (record,) = read_records(batch, 0, header, size_max=1000, count_max=1)
    assert record.key == control_key(ControlType.LEADER_CHANGE)
    assert record.value == leader_change_value(1, [1], [1])
