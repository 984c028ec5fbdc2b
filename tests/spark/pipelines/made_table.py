"""A materialized table of customers that no topic was read for: rows straight into a merge."""

import datetime
import zlib
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from tidelog.spark.pipelines.materialize.batches import merge
from tidelog.spark.pipelines.materialize.pipeline import table_columns
from tidelog.spark.tables.lake_table import LakeTable

BUCKETS = 4
NOON = datetime.datetime(2026, 3, 2, 12, tzinfo=datetime.UTC)


def put_customers(place: Path, cities: Mapping[str, str | None]) -> LakeTable:
    """City by customer; None deletes one."""
    columns = table_columns(StructType().add("city", "string"))
    identity = {"kind": "materialize", "topic": "customers", "buckets": str(BUCKETS)}
    table = LakeTable.ensure(place, columns, partition_by=("bucket",), identity=identity)
    first = table.position("customers/0")
    rows = []
    for offset, (customer, city) in enumerate(cities.items(), first):
        key = customer.encode()
        message = {"key": key, "value": None if city is None else b"{}", "headers": None, "topic": "customers"}
        place_of_it = {"partition": 0, "offset": offset, "timestamp": NOON, "timestampType": 0, "error": None, "bad": False}
        rows.append({**message, **place_of_it, "city": city, "bucket": zlib.crc32(key) % BUCKETS})
    staged = place.parent / "made.parquet"
    pq.write_table(pa.Table.from_pylist(rows, columns), staged)
    merge(table, staged, {"customers/0": first + len(rows)})
    staged.unlink()
    return LakeTable.open(place)
