"""Merging and vacuum on real tables, without Spark except where its tasks merge."""

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.compatibility.apache_kafka import wait_until
from tests.spark.reading import SECONDS_MAX
from tests.spark.tables.test_lake_table import BY, COLUMNS, append, ensure, rows
from tidelog.client.errors import InvalidArgument
from tidelog.spark.tables import upkeep
from tidelog.spark.tables.data_files import DataFile, write_files
from tidelog.spark.tables.errors import TableConflict
from tidelog.spark.tables.lake_table import LakeTable, StoredFile
from tidelog.spark.tables.upkeep import MergeBin, merge_small_files, merged, pack, remove_orphans, rewritten_here, vacuumed

BATCHES = 120
FILES_MAX = 16
DAY_SECONDS = 86_400


def offsets(place: Path) -> list[int]:
    """By the files that the table says it has, read by nobody's Delta."""
    found = [
        pq.read_table(place / file.path, partitioning=None).column("offset").to_pylist() for file in LakeTable.open(place).files()
    ]
    return sorted(offset for each in found for offset in each)


def fill(place: Path, batches: int) -> None:
    for number in range(batches):
        append(ensure(place), rows(number * 10, 10), (number + 1) * 10)


def test_many_small_batches_leave_few_files(tmp_path: Path) -> None:
    most = 0
    for number in range(BATCHES):
        append(ensure(tmp_path), rows(number * 10, 10), (number + 1) * 10)
        merge_small_files(tmp_path, files_max=FILES_MAX)
        most = max(most, len(LakeTable.open(tmp_path).files()))
    # Two partitions: good and bad.
    assert most < 2 * FILES_MAX
    table = LakeTable.open(tmp_path)
    assert table.position("orders/0") == BATCHES * 10
    assert offsets(tmp_path) == list(range(BATCHES * 10))
    assert sum(file.rows for file in table.files()) == BATCHES * 10


def test_large_files_are_left_alone_and_small_ones_become_large(tmp_path: Path) -> None:
    fill(tmp_path, 20)
    sizes = [file.size for file in LakeTable.open(tmp_path).files() if file.partition_values["bad"] == "false"]
    merged = merge_small_files(tmp_path, small_bytes=3 * max(sizes), files_max=2)
    assert merged.files_before == 40
    assert merged.files_after < 20
    large = {file.path for file in LakeTable.open(tmp_path).files() if file.size >= max(sizes)}
    append(ensure(tmp_path), rows(200, 10), 210)
    merge_small_files(tmp_path, small_bytes=max(sizes), files_max=2)
    assert large <= {file.path for file in LakeTable.open(tmp_path).files()}
    assert offsets(tmp_path) == list(range(210))


def test_large_files_do_not_count(tmp_path: Path) -> None:
    for first, count in ((0, 5000), (5000, 5000), (10_000, 10), (10_010, 10)):
        append(ensure(tmp_path), rows(first, count), first + count)
    sizes = sorted(file.size for file in LakeTable.open(tmp_path).files())
    assert merge_small_files(tmp_path, small_bytes=sizes[4], files_max=3) == (0, 0)
    assert merge_small_files(tmp_path, small_bytes=sizes[4], files_max=2) == (4, 2)


def test_files_are_packed_in_their_order() -> None:
    files = [StoredFile(str(number), size, 1, {}) for number, size in enumerate([4, 4, 4, 1, 1, 4, 2])]
    assert [[file.size for file in each] for each in pack(files, 10)] == [[4, 4], [4, 1, 1, 4], [2]]
    assert pack([], 10) == []


def test_files_of_before_a_column_was_added(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    wider = COLUMNS.append(pa.field("city", pa.string()))
    table = ensure(tmp_path, wider)
    with_city = pa.record_batch([*rows(30, 10).columns, pa.array(["Ulm"] * 10)], schema=wider)
    table.append(write_files([with_city], tmp_path, BY, ("offset",)), {"orders/0": 40})
    assert merge_small_files(tmp_path, files_max=2) == (8, 2)
    cities = LakeTable.open(tmp_path).delta.to_pyarrow_table(columns=["offset", "city"]).to_pylist()
    assert {row["offset"]: row["city"] for row in cities} == {offset: "Ulm" if offset >= 30 else None for offset in range(40)}


def test_of_two_merges_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 4)
    before = LakeTable.open(tmp_path)
    assert merge_small_files(tmp_path, files_max=2) == (8, 2)
    monkeypatch.setattr(LakeTable, "open", lambda place: before)
    with pytest.raises(TableConflict):
        merge_small_files(tmp_path, files_max=2)
    monkeypatch.undo()
    assert offsets(tmp_path) == list(range(40))
    assert merge_small_files(tmp_path, files_max=2) == (0, 0)


def test_who_appends_meanwhile_is_not_disturbed(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    appending = ensure(tmp_path)
    merge_small_files(tmp_path, files_max=2)
    append(appending, rows(40, 10), 50)
    assert offsets(tmp_path) == list(range(50))
    assert LakeTable.open(tmp_path).position("orders/0") == 50


def test_rows_that_come_while_files_are_rewritten_stay(tmp_path: Path) -> None:
    """As when tasks merge beside the batches of a stream."""
    fill(tmp_path, 4)

    def rewrite(bins: Sequence[MergeBin]) -> list[DataFile]:
        append(ensure(tmp_path), rows(40, 10), 50)
        return rewritten_here(bins)

    assert merge_small_files(tmp_path, files_max=2, rewrite=rewrite) == (8, 2)
    assert offsets(tmp_path) == list(range(50))
    assert LakeTable.open(tmp_path).position("orders/0") == 50


def test_a_merge_is_bounded_and_the_next_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 20)
    size = max(file.size for file in LakeTable.open(tmp_path).files())
    monkeypatch.setattr(upkeep, "MERGE_BYTES_MAX", 5 * size)
    found = [merge_small_files(tmp_path, small_bytes=2 * size, files_max=10) for _ in range(3)]
    assert all(0 < each.files_before <= 8 for each in found)
    assert offsets(tmp_path) == list(range(200))


def test_tasks_of_spark_merge_beside_the_batches(spark: SparkSession, tmp_path: Path) -> None:
    def most() -> int:
        return len(LakeTable.open(tmp_path).files())

    with merged(spark, [tmp_path], files_max=FILES_MAX, every_seconds=0.01):
        fill(tmp_path, 40)
        wait_until(lambda: most() < 40, "small files are merged while the run goes on", SECONDS_MAX)
        append(ensure(tmp_path), rows(400, 10), 410)
    assert most() < 2 * FILES_MAX
    assert offsets(tmp_path) == list(range(410))
    assert LakeTable.open(tmp_path).position("orders/0") == 410


def test_a_merge_that_fails_is_told_and_fails_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 4)
    (tmp_path / LakeTable.open(tmp_path).files()[0].path).write_bytes(b"not Parquet")
    before = set(tmp_path.rglob("*.parquet"))
    with caplog.at_level(logging.WARNING):
        upkeep.merge_after_commit(tmp_path, files_max=2)
    assert "are not merged" in caplog.text
    assert set(tmp_path.rglob("*.parquet")) == before


def age(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(path, (moment, moment))


def test_old_orphans_are_removed_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    partition = tmp_path / LakeTable.open(tmp_path).files()[0].path
    old, young = partition.with_name("part-old.zstd.parquet"), partition.with_name("part-young.zstd.parquet")
    own = tmp_path / "_tidelog" / "checkpoint" / "offsets" / "0"
    own.parent.mkdir(parents=True)
    for path in (old, young, own):
        path.write_bytes(b"")
    for path in [*tmp_path.rglob("*.parquet"), own]:
        if path != young:
            age(path, 8 * DAY_SECONDS)
    assert remove_orphans(tmp_path) == 1
    assert not old.exists()
    assert young.exists(), "a task may be writing it"
    assert own.exists()
    assert offsets(tmp_path) == list(range(40))
    version = LakeTable.open(tmp_path).version
    assert remove_orphans(tmp_path) == 0
    assert LakeTable.open(tmp_path).version == version, "nothing to do is no commit"


def test_merged_files_stay_for_those_who_read_them(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    merge_small_files(tmp_path, files_max=2)
    assert remove_orphans(tmp_path, retention_hours=24) == 0
    assert len(list(tmp_path.rglob("*.parquet"))) == 10
    with pytest.raises(InvalidArgument, match="24 hours at least"):
        remove_orphans(tmp_path, retention_hours=23)


def test_a_long_run_is_vacuumed_now_and_then_and_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    twice = threading.Event()

    def note(place: Path, *, retention_hours: int) -> int:
        calls.append(place)
        if len(calls) == 2:
            twice.set()
        raise OSError("nobody stops for that")

    monkeypatch.setattr(upkeep, "remove_orphans", note)
    with vacuumed([tmp_path], retention_hours=24, every_hours=1e-6):
        assert twice.wait(60)
    during = len(calls)
    with vacuumed([tmp_path], retention_hours=24):
        pass
    assert len(calls) == during + 1


def test_the_log_is_short_to_open(tmp_path: Path) -> None:
    fill(tmp_path, 60)
    since = [int(path.name[:20]) for path in (tmp_path / "_delta_log").glob("*.checkpoint.parquet")]
    assert LakeTable.open(tmp_path).version - max(since) < 25
