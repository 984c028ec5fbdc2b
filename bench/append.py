"""Appending, against ``os.write`` of the same buffers. The difference pays for checks, CRC, offsets and index entries."""

import os
from pathlib import Path

from bench.batches import LARGE_BATCH_BYTES, MEDIUM_BATCH_BYTES, different_batches
from bench.measure import Comparison, Row, Target, alternate, seconds_of
from bench.workspace import Workspace, running_broker
from tidelog.log.settings import LogSettings
from tidelog.ports.real_disk import RealDisk

MEGABYTE = 1_000_000


class _Round:
    """One size of batches, appended by us and written raw, each time to a new file."""

    def __init__(self, path: Path, size_bytes: int, total_bytes: int) -> None:
        self._path = path
        self._batches = different_batches(size_bytes, total_bytes)
        self._repeats = max(1, total_bytes // sum(map(len, self._batches)))
        self._megabytes = self._repeats * sum(map(len, self._batches)) / MEGABYTE
        self._number = 0
        self._file_system = RealDisk().open_filesystem(os.fspath(path))

    def _settle(self) -> None:
        """What earlier rounds left in the page cache goes to the disk now, not during the round."""
        self._file_system.sync()

    def ours(self, with_sync: bool) -> float:
        """Megabytes per second."""
        self._number += 1
        path = self._path / f"ours-{self._number}"
        path.mkdir()
        settings = LogSettings()
        with running_broker(path, settings) as broker:
            log = broker.create("orders", 0, settings)
            broker.commit()
            self._settle()

            def work() -> None:
                append = log.append_as_leader
                for _ in range(self._repeats):
                    for batch in self._batches:
                        append(batch, 0)
                if with_sync:
                    broker.commit()

            return self._megabytes / seconds_of(work)

    def raw(self, with_sync: bool) -> float:
        self._number += 1
        path = self._path / f"raw-{self._number}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self._settle()
        try:

            def work() -> None:
                write = os.write
                for _ in range(self._repeats):
                    for batch in self._batches:
                        write(descriptor, batch)
                if with_sync:
                    os.fdatasync(descriptor)

            return self._megabytes / seconds_of(work)
        finally:
            os.close(descriptor)
            path.unlink()


def run(workspace: Workspace) -> list[Row]:
    rows = []
    sizes = (("1 MB", LARGE_BATCH_BYTES, 0.85, 15, 64 << 20), ("16 KB", MEDIUM_BATCH_BYTES, 0.4, 15, 32 << 20))
    for label, size_bytes, ratio_min, rounds, total_bytes in sizes:
        for with_sync in (False, True):
            compared = _measure(workspace, size_bytes, total_bytes, rounds, with_sync)
            end = " and one sync at the end" if with_sync else ""
            target = None if with_sync else Target(">=", ratio_min)
            rows.append(Row.of_comparison(f"append {label} batches{end}", compared, "MB/s", target))
    return rows


def _measure(workspace: Workspace, size_bytes: int, total_bytes: int, rounds: int, with_sync: bool) -> Comparison:
    with workspace.directory("append") as path:
        one = _Round(path, size_bytes, workspace.scaled(total_bytes, size_bytes))
        return alternate(workspace.rounds(rounds), lambda: one.ours(with_sync), lambda: one.raw(with_sync))
