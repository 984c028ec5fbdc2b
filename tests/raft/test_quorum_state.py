import pytest

from simulation.clock import SimulatedClock
from simulation.disk import Crashed, SimulatedDisk
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tests.metadata.kafka_fixture import QUORUM_STATE_PATH
from tidelog.raft.errors import QuorumStateUnusable
from tidelog.raft.quorum_state import QuorumState, QuorumStateFile, format_state, parse_state

STATE = QuorumState(leader_epoch=7, leader_id=3, voted_id=2, voted_directory_id=bytes(range(240, 256)))
OF_KAFKA = b'{"leaderId":3,"leaderEpoch":7,"votedId":2,"votedDirectoryId":"8PHy8_T19vf4-fr7_P3-_w","data_version":1}'


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk(SimulatedClock(Scheduler()))
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def test_the_bytes_are_kafkas_both_ways() -> None:
    assert format_state(STATE) == OF_KAFKA
    assert parse_state(OF_KAFKA) == STATE


def test_the_file_that_kafka_wrote_is_read() -> None:
    """Version 0: no directory ids, but the voters."""
    assert parse_state(QUORUM_STATE_PATH.read_bytes()) == QuorumState(leader_epoch=2, leader_id=1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"{}",
        OF_KAFKA.replace(b":7", b":-1"),
        OF_KAFKA.replace(b":7", b":null"),
        OF_KAFKA.replace(b":7", b":true"),
        OF_KAFKA.replace(b":7", b":7.0"),
        OF_KAFKA.replace(b':3,"', b':"3","'),
        OF_KAFKA.replace(b'"data_version":1', b'"data_version":2'),
        OF_KAFKA.replace(b',"data_version":1', b""),
        OF_KAFKA.replace(b"8PHy8", b"8PHy"),
        OF_KAFKA.replace(b"8PHy8", b"8PHy!"),
    ],
)
def test_damage_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(QuorumStateUnusable):
        parse_state(data)


def test_a_node_that_never_took_part_is_in_epoch_0() -> None:
    assert QuorumStateFile(new_disk(), "/data").load() == QuorumState(leader_epoch=0, leader_id=-1, voted_id=-1)


def test_what_is_stored_survives_a_power_cut_and_replaces_what_was_longer() -> None:
    disk = new_disk()
    longer = QuorumState(leader_epoch=1_000_000, leader_id=1_000, voted_id=1_000)
    QuorumStateFile(disk, "/data").store(longer)
    QuorumStateFile(disk, "/data").store(STATE)
    assert QuorumStateFile(disk.crash_image(keep="none"), "/data").load() == STATE


def test_what_a_crash_left_of_a_longer_state_is_overwritten() -> None:
    disk = new_disk()
    disk.open("/data/quorum-state.tmp", "create").write(0, [b"x" * 1000])
    QuorumStateFile(disk, "/data").store(STATE)
    assert QuorumStateFile(disk, "/data").load() == STATE


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_at_any_moment_leaves_the_old_state_or_the_new(seed: int) -> None:
    randomness = SimulatedRandomness(seed)
    disk = new_disk()
    file = QuorumStateFile(disk, "/data")
    old = QuorumState(leader_epoch=6, leader_id=3)
    file.store(old)
    left = randomness.integer(0, 5)

    def die_later(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crashed

    disk.on_operation = die_later
    try:
        file.store(STATE)
        allowed = [STATE]
    except Crashed:
        allowed = [old, STATE]
    assert QuorumStateFile(disk.crash_image(randomness), "/data").load() in allowed
