"""What a run says that it brought, of a table on disk."""

from pathlib import Path

from tidelog.spark.pipelines.archive_outcome import added_by
from tidelog.spark.pipelines.archive_schema import PARTITION_BY, archive_columns
from tidelog.spark.pipelines.cluster_options import Topic
from tidelog.spark.tables.lake_table import LakeTable


def test_the_commits_of_another_run_are_not_its_own(tmp_path: Path) -> None:
    LakeTable.ensure(tmp_path / "table", archive_columns(None), partition_by=PARTITION_BY, identity={"kind": "archive"})
    version = 0
    for number, (run, rows) in enumerate([(7, 100), (7, 5), (8, 20), (7, 6)]):
        LakeTable.open(tmp_path / "table").append([], {"t/0": number}, notes={"rows": rows, "badRows": 1, "run": run})
        version = version or LakeTable.open(tmp_path / "table").version
    topic = Topic("t", "", 1)
    found = {run: added_by(run, tmp_path / "table", version, topic) for run in (7, 8, 9)}
    assert {run: (added.rows, added.bad_rows) for run, added in found.items()} == {7: (11, 2), 8: (20, 1), 9: (0, 0)}
    assert found[9].positions == {0: 3}
