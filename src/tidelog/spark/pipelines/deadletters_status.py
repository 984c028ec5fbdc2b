"""What became of each letter: it waits, was replayed or discarded, or is no longer in its topic.

The ledger beside a dead-letter topic has a mark for each letter that somebody replayed or discarded (``deadletters.ledger``). A
letter below its topic's log start, or of a topic that was deleted, is gone: retention took it, and with it, in time, its mark.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tidelog.deadletters.ledger import DISCARDED, REPLAYED, Mark, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAITING, GONE = "waiting", "gone"
STATUSES = (WAITING, REPLAYED, DISCARDED, GONE)

_PLACE = ("topic", "topic_id", "partition", "offset")
_MARK = [
    ("topic", pa.string()),
    ("topic_id", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("mark", pa.string()),
]

_AS_IN_TABLES = str.maketrans("+/", "-_")


class LogStart(NamedTuple):
    """Of a partition that is there now."""

    topic: str
    topic_id: str
    partition: int
    log_start: int


def with_status(found: "DataFrame", marks: "DataFrame | None", starts: Sequence[LogStart], spark: "SparkSession") -> "DataFrame":
    """The letters with a column ``status``. ``marks`` are messages of ledgers; None where there are none."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    kinds = "topic string, topic_id string, partition int, log_start bigint"
    known = F.broadcast(spark.createDataFrame([tuple(start) for start in starts], kinds))
    joined = found.join(known, ["topic", "topic_id", "partition"], "left")
    if marks is None:
        joined = joined.withColumn("mark", F.lit(None).cast("string"))
    else:
        joined = joined.join(last_marks(marks), list(_PLACE), "left")
    is_there = F.col("log_start").isNotNull() & (F.col("offset") >= F.col("log_start"))
    status = F.coalesce("mark", F.when(is_there, WAITING).otherwise(GONE))
    return joined.withColumn("status", status).drop("mark", "log_start")


def last_marks(messages: "DataFrame") -> "DataFrame":
    """Of each letter the mark that was written last; a tombstone takes it away."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_schema

    read = arrow_udf(read_marks, from_arrow_schema(pa.schema(_MARK)))  # type: ignore[call-overload]  # its overloads want the kind, which the hints tell
    marks = messages.select(F.col("offset").alias("marked_at"), read("key", "value").alias("read"))
    last = marks.where("read IS NOT NULL").select("marked_at", "read.*").groupBy(*_PLACE)
    return last.agg(F.max_by("mark", "marked_at").alias("mark")).where("mark IS NOT NULL")


def read_marks(keys: pa.Array, values: pa.Array) -> pa.Array:
    """Messages of ledgers as marks, null for what is none; a tombstone is a place without a mark."""
    found = [_read_mark(key, value) for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True)]
    return pa.array(found, pa.struct(_MARK))


def _read_mark(key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    place = Place.from_key(key)
    if place is None or place.partition >= 1 << 31 or place.offset >= 1 << 63:
        return None
    mark = Mark.from_value(value)
    # librdkafka, by which ledgers are written, spells a topic's id in the other alphabet of base64.
    topic_id = place.topic_id.translate(_AS_IN_TABLES)
    return {**place._replace(topic_id=topic_id)._asdict(), "mark": mark.kind if mark else None}
