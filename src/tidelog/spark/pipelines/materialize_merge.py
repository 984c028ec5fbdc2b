"""A batch's newest rows into the table: one merge, one commit, with the positions in it.

The rows come as Parquet files that executors wrote, and are streamed into the merge: Spark's driver holds none of them. The table
is cut into buckets by key, and the merge rewrites those files only in which it has something to change.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError

from tidelog.spark.pipelines.materialize_rows import BUCKET
from tidelog.spark.tables.errors import TableUnwritable
from tidelog.spark.tables.lake_table import LakeTable, commit_properties

# Of two rows of one key in the same partition the one in the batch is newer: what is older was left out by its offset.
_IS_NEWER = (
    "(s.partition = t.partition OR s.timestamp > t.timestamp OR (s.timestamp = t.timestamp AND s.partition > t.partition))"
)
_FILES = WriterProperties(compression="ZSTD", compression_level=1)


class Merged(NamedTuple):
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def merge(table: LakeTable, newest: Path, positions: Mapping[str, int]) -> Merged:
    """``newest`` has at most one row for a key; without a value it is a tombstone. TableConflict when another run was faster."""
    rows = ds.dataset(newest, format="parquet", schema=_schema_in(table.columns, newest))
    buckets = _buckets_in(rows)
    if not buckets:
        table.append([], positions)
        return Merged()
    columns = {f"`{name}`": f"s.`{name}`" if name in rows.schema.names else "NULL" for name in table.columns.names}
    try:
        found = (
            table.delta.merge(
                rows.scanner().to_reader(),
                f"t.{BUCKET} = s.{BUCKET} AND t.key = s.key AND t.{BUCKET} IN ({', '.join(str(each) for each in buckets)})",
                source_alias="s",
                target_alias="t",
                commit_properties=commit_properties(positions),
                writer_properties=_FILES,
            )
            .when_matched_delete(f"s.value IS NULL AND {_IS_NEWER}")
            .when_matched_update(columns, predicate=_IS_NEWER)
            .when_not_matched_insert(columns, predicate="s.value IS NOT NULL")
            .execute()
        )
    except CommitFailedError as error:
        raise table.conflict(error) from error
    except (DeltaError, OSError) as error:
        raise TableUnwritable(f"nothing can be merged into the table {table.place}: {error}") from error
    return Merged(found["num_target_rows_inserted"], found["num_target_rows_updated"], found["num_target_rows_deleted"])


def _schema_in(columns: pa.Schema, newest: Path) -> pa.Schema:
    """By the table's types: Spark's files have the same columns, and lists with names of their own."""
    written = ds.dataset(newest, format="parquet").schema.names
    return pa.schema([field for field in columns if field.name in written])


def _buckets_in(rows: ds.Dataset) -> Sequence[int]:
    found: set[int] = set()
    for batch in rows.to_batches(columns=[BUCKET]):
        found.update(pc.unique(batch.column(BUCKET)).to_pylist())
    return sorted(found)
