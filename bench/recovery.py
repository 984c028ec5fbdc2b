"""Recovery of one partition after a kill, from the page cache: all batches checked, indexes rebuilt. Raw: reading the file."""

import os
from pathlib import Path

from bench.batches import MEDIUM_BATCH_BYTES
from bench.child import run_task
from bench.measure import Row, Target, alternate, seconds_of
from bench.workspace import Workspace

MEGABYTE = 1_000_000
ROUNDS = 5
READ_BYTES = 1 << 20


def _read_raw(path: Path) -> float:
    """Megabytes per second."""
    files = sorted(path.glob("*/*.log"))
    size = sum(file.stat().st_size for file in files)

    def work() -> None:
        for file in files:
            descriptor = os.open(file, os.O_RDONLY)
            try:
                while os.read(descriptor, READ_BYTES):
                    pass
            finally:
                os.close(descriptor)

    return size / MEGABYTE / seconds_of(work)


def run(workspace: Workspace) -> list[Row]:
    return [
        _row(workspace, "16 KB batches", MEDIUM_BATCH_BYTES, 1 << 30, 300.0),
        _row(workspace, "one-record batches", 0, 1 << 27, 40.0),
    ]


def _row(workspace: Workspace, label: str, batch_bytes: int, total_bytes: int, rate_min: float) -> Row:
    with workspace.directory("recovery") as path:
        filled = run_task("fill", path, batch_bytes=batch_bytes, total_bytes=workspace.scaled(total_bytes))

        def recover() -> float:
            answer = run_task("recover", path)
            assert answer["offsets"] == filled["offsets"], (answer, filled)
            return filled["bytes"] / MEGABYTE / answer["seconds"]

        compared = alternate(workspace.rounds(ROUNDS), recover, lambda: _read_raw(path))
    return Row.of_comparison(f"recovery, {label}", compared, "MB/s", Target(">=", rate_min), "ours")
