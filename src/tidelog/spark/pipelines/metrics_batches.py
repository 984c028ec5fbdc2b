"""What happens to the windows that a micro-batch closed: first into the table, then into the metrics topic, each exactly once.

The table's commit carries the query and the batch as its position, the topic's write carries both as its ``writeId``. A batch
that is run again after a crash finds its position taken and leaves the table alone; the topic is always written from the rows
that the table has, so that both hold the same, to the last digit of a sketch, and a second write with the same id is skipped.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelog.spark.pipelines.metrics_windows import by_topic
from tidelog.spark.pipelines.pipeline import PipelineFailed
from tidelog.spark.pipelines.positioned_sink import append_frame
from tidelog.spark.tables.lake_table import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TIME = pa.timestamp("us", "UTC")
COLUMNS = pa.schema(
    [
        ("window_start", _TIME),
        ("window_end", _TIME),
        ("topic", pa.string()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("messages_per_second", pa.float64()),
        ("bytes_per_second", pa.float64()),
        ("delay_p50_ms", pa.float64()),
        ("delay_p95_ms", pa.float64()),
        ("delay_p99_ms", pa.float64()),
        ("delay_max_ms", pa.float64()),
        ("undated", pa.int64()),
        ("keyless", pa.int64()),
        ("hot_keys", pa.list_(pa.struct([("key", pa.string()), ("messages", pa.int64())]))),
        ("partitions", pa.int32()),
        ("busiest_partition", pa.int32()),
        ("skew", pa.float64()),
        ("query_id", pa.string()),
        ("batch", pa.int64()),
    ]
)
_MESSAGE = tuple(name for name in COLUMNS.names if name not in ("query_id", "batch"))


class MetricsBatches:
    """Called by Spark in this process, one batch after the other."""

    def __init__(self, place: Path, checkpoint: Path, partitions: Mapping[str, int], sink: Mapping[str, str] | None) -> None:
        """``sink`` has the options of the metrics topic; None: there is none."""
        self.place = place
        self._checkpoint = checkpoint
        self._partitions = partitions
        self._sink = sink
        self.windows = 0
        """Rows that were added to the table."""

    def __call__(self, rows: "DataFrame", number: int) -> None:
        query_id = read_query_id(self._checkpoint)
        if query_id is None:
            raise PipelineFailed(f"the checkpoint {self._checkpoint} does not say which query it is of: begin a new one")
        written = self._into_table(rows, query_id, number)
        if written is not None and self._sink is not None:
            write_topic(messages(written), self._sink, f"{query_id}-{number}")

    def _into_table(self, rows: "DataFrame", query_id: str, number: int) -> "DataFrame | None":
        """The rows of this batch as the table has them; None where no window was closed."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

        spark = rows.sparkSession
        table = LakeTable.open(self.place)
        if table.position(query_id) > number + 1:
            raise PipelineFailed(
                f"the checkpoint {self._checkpoint} is at batch {number}, and the table {self.place} has batch "
                f"{table.position(query_id) - 1} of its query: an older copy of the checkpoint would leave windows out; "
                f"take the newest one, or a new table and a new checkpoint"
            )
        if table.position(query_id) > number:
            # The open windows are kept by running the frame, also when nobody wants its rows: Spark would miss their state.
            rows.write.format("noop").mode("overwrite").save()
            return table.frame(spark).where((F.col("query_id") == query_id) & (F.col("batch") == number))
        found = by_topic(rows, self._partitions)
        named = found.withColumns({"query_id": F.lit(query_id), "batch": F.lit(number).cast("bigint")})
        appended = append_frame(named.coalesce(1), table, {query_id: number + 1})
        self.windows += appended.rows
        if not appended.files:
            return None
        # Files of another run may be among those that are new.
        written = LakeTable.open(self.place).frame(spark, files=appended.files)
        return written.where((F.col("query_id") == query_id) & (F.col("batch") == number))


def messages(found: "DataFrame") -> "DataFrame":
    """Rows of the table as messages: the topic as key, JSON as value, in the order of time."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    columns = [_iso(F.col(name)).alias(name) if name.startswith("window_") else F.col(name) for name in _MESSAGE]
    ordered = found.coalesce(1).sortWithinPartitions("window_start", "topic")
    return ordered.select(F.col("topic").alias("key"), F.to_json(F.struct(*columns)).alias("value"))


def _iso(moment: "Column") -> "Column":
    """In UTC, whatever zone the session has."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    return F.date_format(F.to_utc_timestamp(moment, F.current_timezone()), "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def write_topic(found: "DataFrame", sink: Mapping[str, str], write_id: str) -> None:
    found.write.format("tidelog").options(**sink).option("writeId", write_id).mode("append").save()


def read_query_id(checkpoint: Path) -> str | None:
    """Of the query that the checkpoint belongs to; None before its first start."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PipelineFailed(f"the checkpoint {checkpoint} cannot be read: {error}") from error
