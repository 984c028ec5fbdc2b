"""The part of ``make bench-pipelines`` that needs no Spark, small."""

from pathlib import Path

from bench.pipelines import small_batches
from tidelog.spark.tables.upkeep import FILES_MAX

BATCHES = 40


def test_small_batches_leave_few_files(tmp_path: Path) -> None:
    found = small_batches.run(tmp_path / "table", BATCHES)
    assert found.files_written == BATCHES * small_batches.TASKS
    assert found.files_left <= found.files_most < FILES_MAX
    assert found.rows == found.files_written * small_batches.ROWS_PER_TASK
