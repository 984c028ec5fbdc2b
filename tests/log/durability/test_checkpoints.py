"""Kafka's text files, both ways, and what is said of damaged ones."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tests.log.disks import DIRECTORY, read_file, simulated_disk, write_file
from tidelog.log.durability import checkpoints
from tidelog.log.durability.checkpoints import (
    CheckpointPorts,
    CheckpointWriter,
    MetaProperties,
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
    read_whole,
    write_atomically,
)
from tidelog.log.durability.disk_reserve import DiskReserve
from tidelog.log.errors import CorruptCheckpoint
from tidelog.ports.disk import Disk
from tidelog.ports.real_disk import RealDisk

PATH = f"{DIRECTORY}/file"
ID = bytes.fromhex("bffe058f00dd2548dbe3a28597f17c27")
ID_TEXT = "v_4FjwDdJUjb46KFl_F8Jw"
# Written by Apache Kafka 4.3.
KAFKA_META_PROPERTIES = f"""#
#Sun Nov 15 23:37:55 UTC 2026
node.id=1
directory.id={ID_TEXT}
version=1
cluster.id=dGlkZWxvZy1rYWZrYS4uLg
""".encode()

topics = st.text("abzAZ019._-", min_size=1, max_size=249).filter(lambda name: name not in (".", ".."))
offsets = st.dictionaries(st.tuples(topics, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), max_size=6)


def disk_with(data: bytes) -> Disk:
    disk = simulated_disk()
    write_file(disk, PATH, data)
    return disk


def test_offset_checkpoint_bytes_are_kafkas() -> None:
    disk = simulated_disk()
    checkpoints.write_offset_checkpoint(disk, PATH, {("orders", 3): 100, ("a", 10): 0, ("orders", 1): 2**63 - 1})
    assert read_file(disk, PATH) == b"0\n3\na 10 0\norders 1 9223372036854775807\norders 3 100\n"
    checkpoints.write_offset_checkpoint(disk, PATH, {})
    assert read_file(disk, PATH) == b"0\n0\n"


@given(offsets)
def test_offset_checkpoints_round_trip(entries: dict[tuple[str, int], int]) -> None:
    disk = simulated_disk()
    checkpoints.write_offset_checkpoint(disk, PATH, entries)
    assert read_offset_checkpoint(disk, PATH) == entries
    assert read_offset_checkpoint(disk.crash_image(keep="none"), PATH) == entries


def test_on_a_real_disk(tmp_path: Path) -> None:
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    assert read_offset_checkpoint(RealDisk(), path) == {}
    checkpoints.write_offset_checkpoint(RealDisk(), path, {("orders", 3): 100})
    assert read_offset_checkpoint(RealDisk(), path) == {("orders", 3): 100}
    assert [file.name for file in tmp_path.iterdir()] == ["recovery-point-offset-checkpoint"]


@pytest.mark.parametrize("data", [b"", b"0\n0", b"0\n0\n", b"0\r\n0\r\n"])
def test_a_checkpoint_without_entries(data: bytes) -> None:
    assert read_offset_checkpoint(disk_with(data), PATH) == {}


def test_spaces_and_line_ends_as_kafka_tolerates_them() -> None:
    assert read_offset_checkpoint(disk_with(b"0\n1\norders  3\t7"), PATH) == {("orders", 3): 7}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"1\n0\n", "line 1: version '1'"),
        (b"\n", "line 1: version ''"),
        (b"0\n", "line 2: the number of entries is missing"),
        (b"0\nx\n", "line 2: number of entries 'x'"),
        (b"0\n-1\n", "line 2: number of entries '-1'"),
        (b"0\n2\na 0 5\n", "line 2: the file should have 2 entries, but has 1"),
        (b"0\n0\na 0 5\n", "line 2: the file should have 0 entries, but has 1"),
        (b"0\n2\na 0 5\n\n", "line 4: '' is not of the form 'topic partition offset'"),
        (b"0\n2\na 0 5\na 1\n", "line 4: 'a 1' is not of the form"),
        (b"0\n1\na 0 5 6\n", "line 3"),
        (b"0\n1\na/b 0 5\n", "line 3: topic name 'a/b'"),
        (b"0\n1\na x 5\n", "line 3: partition 'x'"),
        (b"0\n1\na 2147483648 5\n", "line 3: partition '2147483648'"),
        (b"0\n1\na 0 9223372036854775808\n", "line 3: offset '9223372036854775808'"),
        (b"0\n1\na 0 1_0\n", "line 3: offset '1_0'"),
        (b"0\n1\na 0 " + b"9" * 5000, "line 3: offset '999"),
        ("0\n1\na 0 \u0665\n".encode(), "line 3: offset"),
        (b"0\n2\na 0 5\na 0 6\n", "line 4: a-0 occurs twice"),
        (b"0\n1\na 0 \xff\n", "line 3: byte 0xff is not UTF-8"),
        (b"\0" * 100, "line 1"),
    ],
)
def test_a_damaged_checkpoint_names_the_line(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptCheckpoint) as caught:
        read_offset_checkpoint(disk_with(data), PATH)
    assert str(caught.value).startswith(f"{PATH}: {problem}")


def test_an_unreadable_checkpoint_says_why() -> None:
    disk = simulated_disk()
    write_file(disk, PATH, b"0\n0\n")
    disk.faults.fail("read", lambda path: True, errno.EIO)
    with pytest.raises(CorruptCheckpoint, match=r"cannot be read: .*Input/output error"):
        read_offset_checkpoint(disk, PATH)


@given(st.binary(max_size=60) | st.text("0123 \n-ab", max_size=40).map(str.encode))
def test_no_bytes_get_past_the_format(data: bytes) -> None:
    disk = disk_with(data)
    try:
        entries = read_offset_checkpoint(disk, PATH)
    except CorruptCheckpoint:
        return
    checkpoints.write_offset_checkpoint(disk, PATH, entries)
    assert read_offset_checkpoint(disk, PATH) == entries


def test_kafkas_meta_properties() -> None:
    found = read_meta_properties(disk_with(KAFKA_META_PROPERTIES), PATH)
    assert found == MetaProperties(cluster_id="dGlkZWxvZy1rYWZrYS4uLg", node_id=1, directory_id=ID)


@pytest.mark.parametrize("cluster_id", ["abc", "with space", r"a=b:c#d!e\f", "", "  x "])
@pytest.mark.parametrize("directory_id", [None, ID])
def test_meta_properties_round_trip(cluster_id: str, directory_id: bytes | None) -> None:
    disk = simulated_disk()
    properties = MetaProperties(cluster_id, 2**31 - 1, directory_id)
    checkpoints.write_meta_properties(disk, PATH, properties)
    assert read_meta_properties(disk.crash_image(keep="none"), PATH) == properties


def test_a_cluster_id_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="printable"):
        checkpoints.write_meta_properties(simulated_disk(), PATH, MetaProperties("a\nversion=2", 1, None))


def test_no_meta_properties() -> None:
    assert read_meta_properties(simulated_disk(), PATH) is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "line 1: version is missing"),
        (b"version=0\nbroker.id=1\n", "line 1: version '0'"),
        (b"version=1\nnode.id=1\n", "line 1: cluster.id is missing"),
        (b"version=1\ncluster.id=x\n", "line 1: node.id is missing"),
        (b"# x\nversion=1\ncluster.id=x\nnode.id=-1\n", "line 4: node.id '-1'"),
        (b"version=1\ncluster.id=x\nnode.id=1\ndirectory.id=short\n", "line 4: directory.id 'short'"),
        (b"version=1\nnonsense\n", "line 2: 'nonsense' is not of the form"),
        (b"version=1\n\xfe\n", "line 2: byte 0xfe"),
    ],
)
def test_damaged_meta_properties_name_the_line(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptCheckpoint) as caught:
        read_meta_properties(disk_with(data), PATH)
    assert str(caught.value).startswith(f"{PATH}: {problem}")


def test_partition_metadata_bytes_are_kafkas_both_ways() -> None:
    disk = simulated_disk()
    checkpoints.write_partition_metadata(disk, PATH, ID)
    assert read_file(disk, PATH) == f"version: 0\ntopic_id: {ID_TEXT}".encode()
    assert read_partition_metadata(disk.crash_image(keep="none"), PATH) == ID
    assert read_partition_metadata(simulated_disk(), PATH) is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "line 1: expected a version and a topic id"),
        (b"version: 0\n", "line 2: expected a version and a topic id"),
        (f"version: 0\ntopic_id: {ID_TEXT}\nmore".encode(), "line 3: expected a version and a topic id"),
        (f"version: 1\ntopic_id: {ID_TEXT}".encode(), "line 1: version '1'"),
        (f"version 0\ntopic_id: {ID_TEXT}".encode(), "line 1: 'version 0'"),
        (f"version: 0\ntopic: {ID_TEXT}".encode(), "line 2: 'topic: "),
        (f"version: 0\ntopic_id: {ID_TEXT[:-1]}".encode(), "line 2: topic_id"),
        (f"version: 0\ntopic_id: {ID_TEXT}==".encode(), "line 2: topic_id"),
        (f"version: 0\ntopic_id: *{ID_TEXT}".encode(), "line 2: topic_id"),
        (f"version: 0\ntopic_id: {ID_TEXT[:-1]}x".encode(), "line 2: topic_id"),
        ("version: 0\ntopic_id: \u00fc".encode(), "line 2: topic_id"),
    ],
)
def test_damaged_partition_metadata_names_the_line(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptCheckpoint) as caught:
        read_partition_metadata(disk_with(data), PATH)
    assert str(caught.value).startswith(f"{PATH}: {problem}")


def test_an_id_has_sixteen_bytes() -> None:
    with pytest.raises(ValueError, match="16 bytes, not 15"):
        checkpoints.write_partition_metadata(simulated_disk(), PATH, ID[1:])


def test_the_clean_shutdown_mark_is_durable_when_written_and_gone_when_removed() -> None:
    disk = simulated_disk()
    assert not checkpoints.was_cleanly_shut_down(disk, DIRECTORY)
    checkpoints.write_clean_shutdown(disk, DIRECTORY, 41)
    assert read_file(disk, f"{DIRECTORY}/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":41}'
    assert checkpoints.was_cleanly_shut_down(disk.crash_image(keep="none"), DIRECTORY)
    checkpoints.remove_clean_shutdown(disk, DIRECTORY)
    assert not checkpoints.was_cleanly_shut_down(disk.crash_image(keep="none"), DIRECTORY)
    checkpoints.remove_clean_shutdown(disk, DIRECTORY)


# A file that is replaced whole is the old one or the new one after any crash.


OLD, NEW = b"old " * 5000, b"new " * 3000


def test_every_crash_leaves_the_old_or_the_new_bytes() -> None:
    for seed in range(30):
        disk = simulated_disk()
        write_atomically(disk, PATH, OLD)
        write_file(disk, f"{PATH}.tmp", b"left by a crash" * 2000)
        randomness = SimulatedRandomness(seed)
        found: list[bytes | None] = []
        disk.on_operation = lambda operation, path: found.append(read_whole(disk.crash_image(randomness), PATH))  # noqa: B023 -- used within the same turn
        write_atomically(disk, PATH, NEW)
        disk.on_operation = None
        assert len(found) >= 5
        assert set(found) <= {OLD, NEW}
        assert read_whole(disk.crash_image(keep="none"), PATH) == NEW


def test_a_failed_write_leaves_the_old_bytes() -> None:
    disk = simulated_disk()
    write_atomically(disk, PATH, OLD)
    disk.faults.fail("sync", lambda path: True, errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(disk, PATH, NEW)
    assert read_file(disk, PATH) == OLD


def test_reading_what_is_not_there() -> None:
    disk = simulated_disk()
    assert read_whole(disk, PATH) is None
    write_file(disk, PATH, b"")
    assert read_whole(disk, PATH) == b""


# One write at a time; a request is answered by a write whose offsets are at least as new as the request.


POINTS_PATH = "/checkpoint"


class Machine:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        clock = SimulatedClock(self.scheduler)
        self.disk = SimulatedDisk(clock)
        self.offset = 0
        self.reports: list[str] = []
        executor = SimulatedExecutor(self.scheduler, SimulatedRandomness(1), self.disk, clock)

        def report(event: str, facts: dict[str, object]) -> None:
            self.reports.append(event)

        ports = CheckpointPorts(self.disk, executor, report, DiskReserve(self.disk, "/", 0, report))
        self.writer = CheckpointWriter(ports, POINTS_PATH, lambda: {("orders", 0): self.offset})

    def durable(self) -> int | None:
        return read_offset_checkpoint(self.disk.crash_image(keep="none"), POINTS_PATH).get(("orders", 0))


def test_what_was_told_is_durable_and_known() -> None:
    machine = Machine()
    machine.offset = 5
    told: list[object] = []
    machine.writer.request(lambda error: told.append((error, machine.durable())))
    assert (told, machine.writer.is_idle) == ([], False)
    machine.scheduler.run_all()
    assert told == [(None, 5)]
    assert machine.writer.written == {("orders", 0): 5}
    assert machine.writer.is_idle


def test_requests_during_a_write_share_the_next_one() -> None:
    machine = Machine()
    told: list[tuple[str, int | None]] = []
    machine.writer.request(lambda error: told.append(("first", machine.durable())))
    renames: list[str] = []
    machine.disk.on_operation = lambda operation, path: renames.append(path) if operation == "rename" else None
    for name in ("second", "third"):
        machine.offset += 1
        machine.writer.request(lambda error, name=name: told.append((name, machine.durable())))  # type: ignore[misc]  # a default
    machine.scheduler.run_all()
    assert told == [("first", 0), ("second", 2), ("third", 2)]
    assert len(renames) == 2


def test_a_failed_write_is_told_and_the_next_one_goes_on() -> None:
    machine = Machine()
    machine.writer.write_now()
    machine.offset = 5
    machine.disk.faults.fail("write", lambda path: True, errno.EIO, times=1)
    told: list[BaseException | None] = []
    machine.writer.request(told.append)
    machine.scheduler.run_all()
    assert isinstance(told[0], OSError)
    assert machine.reports == ["checkpoint_not_written"]
    assert machine.writer.written == {("orders", 0): 0}
    assert machine.durable() == 0
    machine.writer.request(told.append)
    machine.scheduler.run_all()
    assert told[1] is None
    assert machine.durable() == 5


def test_a_request_made_in_a_callback_is_answered() -> None:
    machine = Machine()
    told: list[object] = []
    machine.writer.request(lambda error: machine.writer.request(told.append))
    machine.scheduler.run_all()
    assert told == [None]


def test_write_now_blocks_until_it_is_durable() -> None:
    machine = Machine()
    machine.offset = 9
    machine.writer.write_now()
    assert machine.durable() == 9
