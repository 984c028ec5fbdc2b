"""What a killed driver leaves beside a table is removed by a later run, when nobody can be reading it any more."""

import time
from pathlib import Path

from tidelog.spark.pipelines.materialize_batches import STAGED_HOURS_MAX, remove_leftovers


def test_old_batches_go_and_the_checkpoint_stays(tmp_path: Path) -> None:
    for name in ("batch-1234", "checkpoint"):
        (tmp_path / "_tidelog" / name / "files").mkdir(parents=True)
    remove_leftovers(tmp_path, time.time())
    assert (tmp_path / "_tidelog" / "batch-1234").exists(), "it may be of a run that goes on"
    remove_leftovers(tmp_path, time.time() + STAGED_HOURS_MAX * 3600 + 1)
    assert [path.name for path in (tmp_path / "_tidelog").iterdir()] == ["checkpoint"]
    remove_leftovers(tmp_path / "none", time.time())
