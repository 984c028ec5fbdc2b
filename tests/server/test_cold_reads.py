import os
from pathlib import Path

import pytest

from tidelog.ports.disk import DiskFile
from tidelog.ports.real_disk import RealDisk
from tidelog.server.cold_reads import PROBE_STEP_BYTES, is_cached, read_ahead

SIZE = 8 * PROBE_STEP_BYTES


@pytest.fixture
def file(tmp_path: Path) -> DiskFile:
    path = tmp_path / "segment.log"
    path.write_bytes(bytes(SIZE))
    opened = RealDisk().open(str(path), "read")
    os.fsync(opened.descriptor())
    return opened


def drop(file: DiskFile) -> None:
    """A page that somebody else is looking at stays, so the kernel is asked again. Only one is probed: a probe may make the
    kernel read ahead."""
    os.posix_fadvise(file.descriptor(), 0, 0, os.POSIX_FADV_RANDOM)
    for _ in range(100):
        RealDisk().drop_cache(file.path)
        if not is_cached(file.descriptor(), SIZE // 2, 1):
            RealDisk().drop_cache(file.path)
            return
    pytest.skip("this file system keeps its pages, or cannot be asked about them")


def test_what_was_written_is_cached_and_what_was_dropped_is_not(file: DiskFile) -> None:
    assert is_cached(file.descriptor(), 0, SIZE)
    drop(file)
    assert not is_cached(file.descriptor(), 0, SIZE)
    assert not is_cached(file.descriptor(), SIZE - 1, 1)


def test_reading_ahead_brings_a_range_into_the_cache(file: DiskFile) -> None:
    drop(file)
    read_ahead(file, 100, SIZE - 100)
    assert is_cached(file.descriptor(), 100, SIZE - 100)


@pytest.mark.parametrize("cold", [range(1), range(SIZE - 1, SIZE), range(PROBE_STEP_BYTES, 2 * PROBE_STEP_BYTES)])
def test_a_range_with_a_cold_part_is_cold(cold: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's answers are played: what else it keeps or drops is its own business."""

    def probe(descriptor: int, buffers: object, position: int, flags: int) -> int:
        assert (descriptor, flags) == (5, os.RWF_NOWAIT)
        if position in cold:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(os, "preadv", probe)
    assert not is_cached(5, 0, SIZE)
    assert is_cached(5, cold.stop, 1)
    if cold.start:
        assert is_cached(5, 0, cold.start)


def test_reading_ahead_ends_with_the_file(file: DiskFile) -> None:
    read_ahead(file, SIZE - 10, 1000)
    read_ahead(file, SIZE + 10, 1000)


def test_an_error_of_the_file_is_not_taken_for_an_answer() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        is_cached(-1, 0, 1)


def test_a_file_system_that_cannot_be_asked_counts_as_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    assert is_cached(0, 0, 1)
