"""What the real disk tells of its syncs: the beginning of each, and its end only when it succeeded."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.ports import system
from tidelog.ports.real_disk import RealDisk, SyncKind


class Heard:
    def __init__(self) -> None:
        self.begun: list[tuple[SyncKind, str, int]] = []
        self.finished: list[tuple[SyncKind, str]] = []

    def on_sync(self, kind: SyncKind, path: str) -> Callable[[], None]:
        self.begun.append((kind, path, os.stat(path).st_size))
        return lambda: self.finished.append((kind, path))


def test_each_kind_of_sync_is_told_at_its_beginning_and_its_end(tmp_path: Path) -> None:
    heard = Heard()
    disk, path = RealDisk(heard.on_sync), str(tmp_path / "file")
    file = disk.open(path, "create")
    file.write(0, [b"four"])
    file.sync()
    disk.sync_directory(str(tmp_path))
    disk.open_filesystem(str(tmp_path)).sync()
    assert [(kind, where) for kind, where, _ in heard.begun] == heard.finished
    assert heard.finished == [("file", path), ("directory", str(tmp_path)), ("filesystem", str(tmp_path))]
    assert heard.begun[0] == ("file", path, 4)


def test_a_sync_that_fails_has_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    disk = RealDisk(heard.on_sync)
    file = disk.open(str(tmp_path / "file"), "create")

    def fail(descriptor: int) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(system, "sync_data", fail)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="input/output"):
        file.sync()
    with pytest.raises(OSError, match="input/output"):
        disk.sync_directory(str(tmp_path))
    assert [kind for kind, _, _ in heard.begun] == ["file", "directory"]
    assert not heard.finished


def test_what_cannot_be_looked_at_is_not_missing(tmp_path: Path) -> None:
    disk = RealDisk()
    assert disk.is_directory(str(tmp_path))
    assert not disk.exists(str(tmp_path / "missing"))
    assert not disk.is_directory(str(tmp_path / "missing" / "deeper"))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for look in (disk.exists, disk.is_directory):
        with pytest.raises(OSError, match="symbolic links"):
            look(str(loop))
