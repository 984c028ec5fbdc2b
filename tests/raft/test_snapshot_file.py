"""A snapshot is trusted only if all of it is there, whatever its name says; and a power cut leaves all of it or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.clock import SimulatedClock
from simulation.disk import Keep, SimulatedDisk
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.ports.steps import run_to_end
from tidelog.raft.control_records import SnapshotFooter, build_control_batch
from tidelog.raft.messages import SnapshotId
from tidelog.raft.snapshot_file import (
    BOOTSTRAP_SNAPSHOT_ID,
    SnapshotFiles,
    SnapshotSummary,
    SnapshotUnusable,
    SnapshotWriter,
    check_snapshot,
    parse_snapshot_file_name,
    partial_path,
    snapshot_file_name,
    snapshot_values,
    write_bootstrap_snapshot,
)
from tidelog.raft.voters import KRaftVersion, Voter, VoterEndpoint, VotersRecord, voter_set

DIRECTORY = "/data"
ID = SnapshotId(4711, 12)
VALUES = [b"one", b"two", b"three"]
VOTERS = voter_set([Voter(1, bytes(15) + b"\7", (VoterEndpoint("CONTROLLER", "a.example", 9093),))])
CONTROL = (KRaftVersion(1), VotersRecord(VOTERS))


@pytest.fixture
def disk() -> SimulatedDisk:
    return new_disk()


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk(SimulatedClock(Scheduler()))
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    return disk


def write(disk: SimulatedDisk, snapshot_id: SnapshotId = ID, values: list[bytes] = VALUES) -> SnapshotWriter:
    writer = SnapshotWriter(disk, DIRECTORY, snapshot_id, now_ms=50)
    writer.begin(40, CONTROL)
    writer.append(values[:2])
    writer.append(values[2:])
    writer.end()
    return writer


def path_of(snapshot_id: SnapshotId = ID) -> str:
    return f"{DIRECTORY}/{snapshot_file_name(snapshot_id)}"


def overwrite(disk: SimulatedDisk, path: str, data: bytes) -> None:
    file = disk.open(path, "create")
    file.truncate(0)
    file.write(0, [data])


def content(disk: SimulatedDisk, path: str) -> bytes:
    return disk.open(path, "read").read(0, disk.file_size(path))


def test_names_are_kafkas() -> None:
    assert snapshot_file_name(ID) == "00000000000000004711-0000000012.checkpoint"
    assert parse_snapshot_file_name("00000000000000004711-0000000012.checkpoint") == ID
    assert snapshot_file_name(BOOTSTRAP_SNAPSHOT_ID) == "00000000000000000000-0000000000.checkpoint"
    for name in (
        "00000000000000004711-0000000012.checkpoint.part",
        "00000000000000004711-0000000012.checkpoint.deleted",
        "4711-12.checkpoint",
        "bootstrap.checkpoint",
        "00000000000000004711.log",
        "recovery-point-offset-checkpoint",
    ):
        assert parse_snapshot_file_name(name) is None, name


def test_what_is_written_is_read(disk: SimulatedDisk) -> None:
    write(disk).seal()
    files = SnapshotFiles(disk, DIRECTORY)
    assert files.ids == (ID,)
    file = files.open(ID)
    assert run_to_end(check_snapshot(file)) == SnapshotSummary(40, CONTROL)
    assert list(snapshot_values(file)) == [VALUES[:2], VALUES[2:]]


def test_the_bootstrap_snapshot_names_the_voters(disk: SimulatedDisk) -> None:
    write_bootstrap_snapshot(disk, DIRECTORY, VOTERS, now_ms=7)
    files = SnapshotFiles(disk, DIRECTORY)
    assert files.latest == BOOTSTRAP_SNAPSHOT_ID
    file = files.open(BOOTSTRAP_SNAPSHOT_ID)
    assert run_to_end(check_snapshot(file)) == SnapshotSummary(7, CONTROL)
    assert list(snapshot_values(file)) == []


def test_every_prefix_is_refused(disk: SimulatedDisk) -> None:
    """A torn snapshot never counts, wherever it is torn: also exactly between two batches, where only the footer is missing."""
    write(disk).seal()
    data = content(disk, path_of())
    for size in range(len(data)):
        overwrite(disk, path_of(), data[:size])
        with pytest.raises(SnapshotUnusable):
            run_to_end(check_snapshot(disk.open(path_of(), "read")))


@given(st.data())
def test_a_flipped_bit_is_refused(data: st.DataObject) -> None:
    """Each byte is covered, except for the epoch that the checksum of a batch leaves out."""
    disk = new_disk()
    write(disk).seal()
    sound = bytearray(content(disk, path_of()))
    position = data.draw(st.integers(0, len(sound) - 1))
    sound[position] ^= 1 << data.draw(st.integers(0, 7))
    overwrite(disk, path_of(), bytes(sound))
    try:
        run_to_end(check_snapshot(disk.open(path_of(), "read")))
    except SnapshotUnusable:
        return
    assert list(snapshot_values(disk.open(path_of(), "read"))) == [VALUES[:2], VALUES[2:]]


def test_nothing_follows_the_footer(disk: SimulatedDisk) -> None:
    write(disk).seal()
    data = content(disk, path_of())
    overwrite(disk, path_of(), data + build_control_batch([SnapshotFooter()], 50, base_offset=7, leader_epoch=12))
    with pytest.raises(SnapshotUnusable, match="after its footer"):
        run_to_end(check_snapshot(disk.open(path_of(), "read")))


def test_a_snapshot_that_is_not_sealed_is_removed_at_the_next_start(disk: SimulatedDisk) -> None:
    write(disk)
    assert disk.exists(partial_path(DIRECTORY, ID))
    assert SnapshotFiles(disk, DIRECTORY).ids == ()
    assert disk.list_directory(DIRECTORY) == []


@pytest.mark.parametrize("keep", ["none", "some", "all"])
def test_a_sealed_snapshot_survives_a_power_cut(keep: Keep) -> None:
    disk = new_disk()
    write(disk).seal()
    after = disk.crash_image(SimulatedRandomness(1), keep)
    files = SnapshotFiles(after, DIRECTORY)
    assert files.ids == (ID,)
    assert run_to_end(check_snapshot(files.open(ID))).control_records == CONTROL


def test_pieces_are_read_and_written_at_their_positions(disk: SimulatedDisk) -> None:
    write(disk).seal()
    files = SnapshotFiles(disk, DIRECTORY)
    size = files.size(ID)
    other = new_disk()
    fetched = SnapshotFiles(other, DIRECTORY)
    fetched.write_fetched(ID, 0, b"of an attempt that was abandoned, and longer than the first piece")
    position = 0
    while position < size:
        piece = files.read(ID, position, 33)
        assert piece is not None
        assert piece.size == size
        fetched.write_fetched(ID, position, piece.data)
        position += len(piece.data)
    assert fetched.ids == ()
    fetched.seal_fetched(ID)
    fetched.add(ID, size)
    assert content(other, path_of()) == content(disk, path_of())
    assert files.read(ID, size, 33) == (size, b"")
    assert files.read(SnapshotId(1, 1), 0, 33) is None


def test_forgotten_snapshots_no_longer_count(disk: SimulatedDisk) -> None:
    for offset in (10, 20, 30):
        write(disk, SnapshotId(offset, 1)).seal()
    files = SnapshotFiles(disk, DIRECTORY)
    assert (files.earliest, files.latest) == (SnapshotId(10, 1), SnapshotId(30, 1))
    assert files.forget([SnapshotId(10, 1), SnapshotId(20, 1), SnapshotId(99, 1)]) == [
        path_of(SnapshotId(10, 1)),
        path_of(SnapshotId(20, 1)),
    ]
    assert files.ids == (SnapshotId(30, 1),)
    assert files.read(SnapshotId(10, 1), 0, 10) is None
