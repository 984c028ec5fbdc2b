"""Appending, against ``os.write`` of the same buffers. The difference pays for checks, CRC, offsets and index entries.

The bytes come as a broker has them: just copied into a receive buffer that is used again and again, so that they are in the
processor's cache. That copy is not timed, for either. Into the page cache both are processor work only and are measured so; with
a sync at the end, by the clock on the wall.
"""

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time

from bench.batches import LARGE_BATCH_BYTES, MEDIUM_BATCH_BYTES, different_batches
from bench.measure import Comparison, Row, Target, alternate
from bench.workspace import Workspace, running_broker
from tidelog.log.settings import LogSettings
from tidelog.ports.real_disk import RealDisk

MEGABYTE = 1_000_000
ROUNDS = 15
SETTINGS = LogSettings()


class _Received:
    """A reused buffer of a megabyte, and the batches in it as they arrive."""

    def __init__(self, size_bytes: int, total_bytes: int) -> None:
        batches = different_batches(size_bytes)
        at_once = max(1, LARGE_BATCH_BYTES // size_bytes)
        self._arrivals = [b"".join(batches[first : first + at_once]) for first in range(0, len(batches), at_once)]
        self._buffer = bytearray(len(self._arrivals[0]))
        view = memoryview(self._buffer)
        step = len(batches[0])
        self._batches = [view[position : position + step] for position in range(0, len(view), step)]
        self._count = max(1, total_bytes // len(self._buffer))
        self.megabytes = self._count * len(self._buffer) / MEGABYTE

    def seconds(self, handle: Callable[[memoryview], object], end: Callable[[], None], clock: Callable[[], float]) -> float:
        """How long ``handle`` takes for all batches, and ``end`` after them."""
        spent = 0.0
        batches = self._batches
        for number in range(self._count):
            self._buffer[:] = self._arrivals[number % len(self._arrivals)]
            start = clock()
            for batch in batches:
                handle(batch)
            spent += clock() - start
        start = clock()
        end()
        return spent + clock() - start


class _Round:
    """One size of batches, appended by us and written raw, each time to a new file on a settled disk."""

    def __init__(self, path: Path, received: _Received, with_sync: bool) -> None:
        self._path = path
        self._received = received
        self._with_sync = with_sync
        self._clock = perf_counter if with_sync else thread_time
        self._number = 0
        self._file_system = RealDisk().open_filesystem(os.fspath(path))

    def ours(self) -> float:
        """Megabytes per second."""
        self._number += 1
        path = self._path / f"ours-{self._number}"
        path.mkdir()
        with running_broker(path, SETTINGS) as broker:
            log = broker.create("orders", 0, SETTINGS)
            broker.commit()
            # What earlier rounds left in the page cache goes to the disk now, not during the round.
            self._file_system.sync()
            append = log.append_as_leader
            end = broker.commit if self._with_sync else _nothing
            return self._received.megabytes / self._received.seconds(lambda batch: append(batch, 0), end, self._clock)

    def raw(self) -> float:
        self._number += 1
        path = self._path / f"raw-{self._number}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self._file_system.sync()
        write, sync = os.write, os.fdatasync
        end = (lambda: sync(descriptor)) if self._with_sync else _nothing
        try:
            return self._received.megabytes / self._received.seconds(lambda batch: write(descriptor, batch), end, self._clock)
        finally:
            os.close(descriptor)
            path.unlink()


def _nothing() -> None:
    pass


def run(workspace: Workspace) -> list[Row]:
    rows = []
    for label, size_bytes, ratio_min, total_bytes in (
        ("1 MB", LARGE_BATCH_BYTES, 0.85, 64 << 20),
        ("16 KB", MEDIUM_BATCH_BYTES, 0.4, 32 << 20),
    ):
        received = _Received(size_bytes, workspace.scaled(total_bytes, LARGE_BATCH_BYTES))
        for with_sync in (False, True):
            compared = _compare(workspace, received, with_sync)
            end = ", then one sync" if with_sync else " to the page cache"
            target = None if with_sync else Target(">=", ratio_min)
            rows.append(Row.of_comparison(f"append {label} batches{end}", compared, "MB/s", target))
    return rows


def _compare(workspace: Workspace, received: _Received, with_sync: bool) -> Comparison:
    with workspace.directory("append") as path:
        one = _Round(path, received, with_sync)
        return alternate(workspace.rounds(ROUNDS), one.ours, one.raw)
