"""The cut itself, on small files: what was synced stays, and what was not may go."""

import os
from pathlib import Path
from random import Random

import pytest

from tests.faults.power_cut import PowerCutPlace, SyncJournal, cut
from tidelog.ports.real_disk import RealDisk


class NeverTears(Random):
    """Everything that may go, goes."""

    def random(self) -> float:
        return 0.99


class KeepsNames(Random):
    """Un-synced names stay; the size of a file has reached the disk and its bytes have not."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return b


class Disk:
    def __init__(self, base: Path) -> None:
        self.place = PowerCutPlace(base)
        self.place.prepare()
        self.journal = SyncJournal(self.place)
        self.disk = RealDisk(self.journal.begin)
        self.data = str(self.place.data)

    def write(self, name: str, data: bytes, position: int = 0, is_synced: bool = True) -> None:
        file = self.disk.open(f"{self.data}/{name}", "create")
        file.write(position, [data])
        if is_synced:
            file.sync()

    def sync(self, directory: str = "") -> None:
        self.disk.sync_directory(f"{self.data}{directory}")

    def after_cut(self, random: Random) -> dict[str, bytes]:
        cut(self.place, random)
        files = (path for path in self.place.data.rglob("*") if path.is_file())
        return {str(path.relative_to(self.place.data)): path.read_bytes() for path in files}


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "disk")


def test_bytes_behind_the_last_sync_go(disk: Disk) -> None:
    disk.write("a", b"synced")
    disk.write("a", b"lost", position=6, is_synced=False)
    disk.sync()
    assert disk.after_cut(NeverTears()) == {"a": b"synced"}


def test_bytes_behind_the_last_sync_may_be_torn(disk: Disk) -> None:
    disk.write("a", b"synced")
    disk.write("a", bytes([1]) * 100_000, position=6, is_synced=False)
    disk.sync()
    data = disk.after_cut(KeepsNames())["a"]
    assert data.startswith(b"synced")
    assert data[6:] == bytes(100_000)


def test_a_name_that_was_not_synced_goes_even_if_its_file_was(disk: Disk) -> None:
    disk.write("a", b"synced")
    disk.sync()
    disk.write("b", b"synced")
    assert disk.after_cut(NeverTears()) == {"a": b"synced"}


def test_a_name_that_was_not_synced_may_stay(disk: Disk) -> None:
    disk.write("a", b"synced")
    assert disk.after_cut(KeepsNames()) == {"a": b"synced"}


def test_renames_and_removals_that_were_not_synced_are_undone(disk: Disk) -> None:
    disk.write("old", b"old")
    disk.write("gone", b"gone")
    disk.sync()
    disk.write("new", b"new")
    disk.disk.rename(f"{disk.data}/new", f"{disk.data}/old")
    disk.disk.remove(f"{disk.data}/gone")
    assert disk.after_cut(NeverTears()) == {"old": b"old", "gone": b"gone"}


def test_renames_that_were_synced_stay(disk: Disk) -> None:
    disk.write("old", b"old")
    disk.sync()
    disk.write("new", b"new")
    disk.disk.rename(f"{disk.data}/new", f"{disk.data}/old")
    disk.sync()
    assert disk.after_cut(NeverTears()) == {"old": b"new"}


def test_names_in_a_directory_need_a_sync_of_their_own(disk: Disk) -> None:
    disk.disk.make_directory(f"{disk.data}/inner")
    disk.write("inner/a", b"synced")
    disk.sync()
    assert disk.after_cut(NeverTears()) == {}
    assert (disk.place.data / "inner").is_dir()


def test_a_sync_of_the_file_system_covers_everything(disk: Disk) -> None:
    disk.disk.make_directory(f"{disk.data}/inner")
    disk.write("inner/a", b"written", is_synced=False)
    disk.disk.open_filesystem(disk.data).sync()
    assert disk.after_cut(NeverTears()) == {"inner/a": b"written"}


def test_a_second_cut_starts_from_what_the_first_left(disk: Disk) -> None:
    disk.write("a", b"synced")
    disk.sync()
    assert disk.after_cut(NeverTears()) == {"a": b"synced"}
    assert disk.after_cut(NeverTears()) == {"a": b"synced"}


def test_only_what_was_there_when_a_sync_began_is_covered(disk: Disk) -> None:
    disk.write("a", b"before", is_synced=False)
    disk.sync()
    finished = disk.journal.begin("file", f"{disk.data}/a")
    disk.write("a", b"meanwhile", position=6, is_synced=False)
    finished()
    assert disk.after_cut(NeverTears()) == {"a": b"before"}


def test_a_report_that_the_kill_cut_short_counts_for_nothing(disk: Disk) -> None:
    disk.write("a", b"synced")
    disk.sync()
    before = disk.place.journal.stat().st_size
    disk.write("a", b"more", position=6)
    os.truncate(disk.place.journal, before + 3)
    assert disk.after_cut(NeverTears()) == {"a": b"synced"}
