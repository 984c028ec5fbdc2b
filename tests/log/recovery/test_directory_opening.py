"""Whose directory it is: locks, identities, and directories that cannot be one. On the real disk where only that can tell."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.randomness import SimulatedRandomness
from tests.log.disks import simulated_disk, write_file
from tests.log.harness import PATH, Store, append, batch, end_transaction, log_headers, read_offsets
from tidelog.log import names
from tidelog.log.errors import CorruptCheckpoint, DirectoryLocked, DirectoryUnusable
from tidelog.log.recovery.directory_opening import NO_TOPIC_ID, take_over
from tidelog.ports.real_disk import RealDisk
from tidelog.records.control import ControlType
from tidelog.records.header import HEADER_SIZE

HOLD_LOCK = """
import sys
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.log.recovery.directory_opening import take_over
held = take_over(RealDisk(), RealRandomness(), sys.argv[1], "cluster", 1)
print("held", flush=True)
sys.stdin.read()
"""


def take_over_real(path: Path) -> None:
    lock, _ = take_over(RealDisk(), SimulatedRandomness(1), str(path), "cluster", 1)
    lock.release()


def test_a_directory_that_another_process_uses_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD_LOCK, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(DirectoryLocked, match="is used by another process"):
            take_over_real(tmp_path / "data")
        other.kill()
        other.wait()
        # A killed process holds no lock, whatever file it left.
        take_over_real(tmp_path / "data")


def test_the_lock_is_given_back(tmp_path: Path) -> None:
    take_over_real(tmp_path)
    take_over_real(tmp_path)


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(DirectoryUnusable, match="cannot be used as a data directory"):
        take_over_real(tmp_path / "data")
    assert (tmp_path / "data").read_text() == "a file"


def test_a_directory_whose_parent_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DirectoryUnusable, match="No such file or directory"):
        take_over_real(tmp_path / "missing" / "data")


@pytest.mark.parametrize("struck", [names.LOCK_FILE, names.META_PROPERTIES])
def test_a_read_only_directory_is_refused(struck: str) -> None:
    disk = simulated_disk()
    disk.faults.fail("names", lambda path: struck in path, errno.EROFS)
    with pytest.raises(DirectoryUnusable, match="Read-only file system"):
        take_over(disk, SimulatedRandomness(1), PATH, "cluster", 1)


def test_an_identity_is_given_once_and_kept() -> None:
    disk = simulated_disk()
    lock, first = take_over(disk, SimulatedRandomness(1), PATH, "cluster", 1)
    lock.release()
    image = disk.crash_image(keep="none")
    _, second = take_over(image, SimulatedRandomness(2), PATH, "cluster", 1)
    assert first == second
    assert (first.cluster_id, first.node_id) == ("cluster", 1)


@pytest.mark.parametrize(("cluster_id", "node_id"), [("other", 1), ("cluster", 2)])
def test_another_brokers_directory_is_refused_and_unlocked(cluster_id: str, node_id: int) -> None:
    disk = simulated_disk()
    take_over(disk, SimulatedRandomness(1), PATH, "cluster", 1)[0].release()
    with pytest.raises(DirectoryUnusable, match="belongs to"):
        take_over(disk, SimulatedRandomness(1), PATH, cluster_id, node_id)
    take_over(disk, SimulatedRandomness(1), PATH, "cluster", 1)


def test_a_damaged_identity_is_not_replaced() -> None:
    disk = simulated_disk()
    write_file(disk, f"{PATH}/{names.META_PROPERTIES}", b"nonsense")
    with pytest.raises(CorruptCheckpoint):
        take_over(disk, SimulatedRandomness(1), PATH, "cluster", 1)


def test_the_directorys_own_name_is_durable() -> None:
    store = Store()
    append(store.create())
    store.commit()
    store.crash()
    assert read_offsets(store.log()) == [0]


def test_a_parent_that_may_not_be_read_is_no_obstacle_once_the_directory_is_there() -> None:
    disk = simulated_disk()
    disk.faults.fail("open", lambda path: path == "/", errno.EACCES)
    take_over(disk, SimulatedRandomness(1), PATH, "cluster", 1)
    with pytest.raises(DirectoryUnusable):
        take_over(disk, SimulatedRandomness(1), "/another", "cluster", 1)


def test_what_is_no_partition_is_left_alone() -> None:
    store = Store()
    append(store.create())
    store.commit()
    store.close()
    for name in ("lost+found", "no-number-x", "orders-01"):
        store.disk.make_directory(f"{PATH}/{name}")
    write_file(store.disk, f"{PATH}/orders-7", b"a file that looks like a partition")
    stray = f"{PATH}/orders-3.0123456789abcdef0123456789abcdef-stray"
    store.disk.make_directory(stray)
    store.open()
    assert list(store.directory.logs) == [("orders", 0)]
    assert store.directory.offline == {}
    assert store.disk.exists(stray)
    assert store.disk.exists(f"{PATH}/orders-7")


@pytest.mark.parametrize("content", [None, b"", b"torn"])
def test_a_partition_without_its_metadata_opens_with_no_topic_id(content: bytes | None) -> None:
    """The file is synced with the first record: a log without it has none to lose."""
    store = Store()
    store.create()
    store.commit()
    store.close()
    path = f"{PATH}/orders-0/{names.PARTITION_METADATA}"
    store.disk.remove(path)
    if content is not None:
        write_file(store.disk, path, content)
    store.open()
    assert store.log().topic_id == NO_TOPIC_ID


def test_damage_of_one_partition_that_no_check_foresaw_leaves_the_others_open() -> None:
    store = Store()
    log, other = store.create(), store.create("other")
    log.append_as_leader(batch(producer_id=5, transactional=True), 0)
    end_transaction(log, 5, ControlType.COMMIT)
    append(log)
    append(other)
    store.commit()
    store.checkpoint(log)
    for path in store.paths(".snapshot"):
        store.disk.remove(path)
    key_of_marker = log_headers(log)[0].size + HEADER_SIZE + 8
    store.disk.flip_bit(log.segments.active.path, key_of_marker, 1)
    store.crash("all")
    assert list(store.directory.offline) == [("orders", 0)]
    assert read_offsets(store.log("other")) == [0]


def test_a_deleted_directory_that_cannot_be_removed_does_not_stop_the_start() -> None:
    store = Store()
    log = store.create()
    append(store.create("other"))
    store.commit()
    assert store.wait(lambda done: store.directory.delete(log, done)) is None
    store.lose_power()
    store.disk.faults.fail("names", lambda path: "-delete/" in path)
    store.open()
    assert store.facts("deletion_failed")
    assert read_offsets(store.log("other")) == [0]
