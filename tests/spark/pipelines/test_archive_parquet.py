"""Which checkpoint is that of a directory of Parquet files, by the names in Spark's logs alone."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tidelog.spark.pipelines.archive_parquet import check_parquet_place
from tidelog.spark.tables.errors import WrongTable


def check(root: Path, *, written: Sequence[str], offsets: Sequence[str], commits: Sequence[str]) -> None:
    place, checkpoint = root / "files", root / "checkpoint"
    for log, names in (
        (place / "_spark_metadata", written),
        (checkpoint / "offsets", offsets),
        (checkpoint / "commits", commits),
    ):
        if names:
            log.mkdir(parents=True)
        for name in names:
            (log / name).write_text("")
    check_parquet_place(place, checkpoint)


@pytest.mark.parametrize(
    ("written", "offsets", "commits"),
    [
        ([], [], []),
        ([], ["0"], []),
        (["0"], ["0"], []),
        (["0"], ["0"], ["0"]),
        (["8", "9.compact", ".10.crc"], ["9", "10"], ["8", "9"]),
        (["9.compact", "10"], ["9", "10"], ["8", "9"]),
    ],
)
def test_whatever_a_crash_leaves_goes_on(tmp_path: Path, written: list[str], offsets: list[str], commits: list[str]) -> None:
    check(tmp_path, written=written, offsets=offsets, commits=commits)


@pytest.mark.parametrize(
    ("written", "offsets", "commits", "problem"),
    [
        (["0"], [], [], "does not know of them"),
        (["9.compact"], ["8"], ["8"], "does not know of them"),
        (["9.compact", "10"], ["0"], [], "does not know of them"),
        ([], ["3"], ["3"], "their messages would be missing"),
        (["2"], ["4"], ["3"], "their messages would be missing"),
    ],
)
def test_another_checkpoint_is_refused(
    tmp_path: Path, written: list[str], offsets: list[str], commits: list[str], problem: str
) -> None:
    with pytest.raises(WrongTable, match=problem):
        check(tmp_path, written=written, offsets=offsets, commits=commits)
