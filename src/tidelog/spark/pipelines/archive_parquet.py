"""An archive as plain Parquet files, by Spark's own sink: for those who want no table's log.

Its promise is Spark's: the sink's log (``_spark_metadata``) says which files count, and only Spark reads it; any other reader
sees what crashes left as well. It hangs on the checkpoint: with a new one every message would come again, and with that of
another directory batches are left out. What the numbers of the batches give away is refused: a checkpoint whose batches are not
those of the directory. Nothing is merged and nothing vacuumed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from tidelog.spark.pipelines.archive_schema import BAD
from tidelog.spark.pipelines.pipeline import Outcome
from tidelog.spark.tables.errors import WrongTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_parquet_place(place: Path, checkpoint: Path) -> None:
    if place.exists() and DeltaTable.is_deltatable(str(place)):
        raise WrongTable(f"{place} is a Delta table: leave --format parquet out, or name a new directory")
    written = last_batch(place / "_spark_metadata")
    if written > last_batch(checkpoint / "offsets"):
        raise WrongTable(
            f"{place} has files, and the checkpoint {checkpoint} does not know of them: every message would come a second time, "
            "or be left out; name the old checkpoint, or a new directory"
        )
    if written < last_batch(checkpoint / "commits"):
        raise WrongTable(
            f"the checkpoint {checkpoint} has done batches that {place} does not have: their messages would be missing; "
            "name another checkpoint, and a new directory"
        )
    if place.exists() and not (place / "_spark_metadata").exists() and any(_parquet_files(place)):
        raise WrongTable(f"{place} has Parquet files of somebody else: name a new directory")


def last_batch(log: Path) -> int:
    """The greatest number in one of Spark's logs, -1 where it has none. Several batches may be one file: ``9.compact``."""
    names = [path.name.removesuffix(".compact") for path in log.iterdir()] if log.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def parquet_outcome(spark: "SparkSession", places: Sequence[Path], rows: int, *, is_stopped: bool) -> Outcome:
    written = [place for place in places if (place / "_spark_metadata").exists()]
    bad = sum(spark.read.parquet(str(place)).where(f"{BAD} = 'true'").count() for place in written if _parquet_files(place))
    files = [file for place in written for file in _parquet_files(place)]
    figures: dict[str, int | float | str] = {
        "rows": rows,
        "bad_rows_in_all": bad,
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
    }
    stopped = "; stopped, the same command goes on from here" if is_stopped else ""
    return Outcome(f"{rows:,} messages archived as Parquet{stopped}", figures)


def _parquet_files(place: Path) -> list[Path]:
    return list(place.glob("day=*/bad=*/*.parquet"))
