"""Converts messages of dead-letter topics to rows of a table: their stories as columns, and the status of each.

**Stories.** Arrow in, Arrow out; ``deadletters.letter`` reads the headers. Every message becomes a row, whatever its headers
hold: a story that cannot be read leaves its columns null, and so do numbers that no log can have.

**Status.** A letter waits, was replayed or discarded, or is no longer in its topic. The ledger of a dead-letter topic has a mark
for each letter that somebody replayed or discarded (``deadletters.ledger``). A letter below its topic's log start, or of a
deleted topic, is gone: retention deleted it and, in time, its mark.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tidelog.deadletters.ledger import DISCARDED, REPLAYED, LedgerMark, Place
from tidelog.deadletters.letter import Letter
from tidelog.deadletters.topics import DEAD_LETTER_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIME = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# The end of the year 9999: clocks and calendars disagree about what comes after it.
TIME_MS_MAX = 253_402_300_799_000
_INT32_MAX, _INT64_MAX = (1 << 31) - 1, (1 << 63) - 1

_MESSAGE = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", HEADERS),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", TIME),
    ("timestampType", pa.int32()),
]
_STORY = [
    ("topic_id", pa.string()),
    ("replayable", pa.bool_()),
    ("origin_topic", pa.string()),
    ("origin_partition", pa.int32()),
    ("origin_offset", pa.int64()),
    ("origin_timestamp", TIME),
    ("group", pa.string()),
    ("attempts", pa.int64()),
    ("first_failure", TIME),
    ("last_failure", TIME),
    ("exception_class", pa.string()),
    ("exception_message", pa.string()),
    ("traceback", pa.string()),
    ("application_version", pa.string()),
    ("replays", pa.int64()),
]
COLUMNS = pa.schema(_MESSAGE + _STORY)
"""The table's columns. ``replayable`` says whether the story belongs to the letter's topic."""


def letters(messages: "DataFrame", topic_ids: Mapping[str, str]) -> "DataFrame":
    """Rows of the source with headers, as rows of the table."""
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_schema

    ids = dict(topic_ids)

    def story(topics: pa.Array, headers: pa.Array) -> pa.Array:
        return stories(topics, headers, ids)

    read = arrow_udf(story, from_arrow_schema(pa.schema(_STORY)))  # type: ignore[call-overload]  # its overloads want the kind, which the hints tell
    told = messages.withColumn("story", read("topic", "headers"))
    return told.select(*(name for name, _ in _MESSAGE), "story.*")


def stories(topics: pa.Array, headers: pa.Array, topic_ids: Mapping[str, str]) -> pa.Array:
    """One struct for each message."""
    found = [_story(topic, given or (), topic_ids) for topic, given in zip(topics.to_pylist(), headers.to_pylist(), strict=True)]
    return pa.array(found, pa.struct(_STORY))


def _story(topic: str, headers: Any, topic_ids: Mapping[str, str]) -> dict[str, Any]:
    letter = Letter.from_headers([(header["key"], header["value"]) for header in headers])
    found: dict[str, Any] = {"topic_id": topic_ids.get(topic, ""), "replayable": False}
    if letter is None:
        return found
    return found | {
        "replayable": f"{letter.topic}.{letter.group}{DEAD_LETTER_SUFFIX}" == topic,
        "origin_topic": letter.topic,
        "origin_partition": _within(letter.partition, _INT32_MAX),
        "origin_offset": _within(letter.offset, _INT64_MAX),
        "origin_timestamp": _time(letter.timestamp_ms),
        "group": letter.group,
        "attempts": _within(letter.attempts, _INT64_MAX),
        "first_failure": _time(letter.first_failure_ms),
        "last_failure": _time(letter.last_failure_ms),
        "exception_class": letter.exception_class,
        "exception_message": letter.exception_message,
        "traceback": letter.traceback,
        "application_version": letter.application_version,
        "replays": _within(letter.replays, _INT64_MAX),
    }


def _within(number: int | None, greatest: int) -> int | None:
    return number if number is not None and 0 <= number <= greatest else None


def _time(milliseconds: int | None) -> int | None:
    found = _within(milliseconds, TIME_MS_MAX)
    return None if found is None else found * 1000


# -- status -------------------------------------------------------------------------------------------------------------------


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
    """The log start of a partition that exists now."""

    topic: str
    topic_id: str
    partition: int
    log_start: int


def with_status(found: "DataFrame", marks: "DataFrame | None", starts: Sequence[LogStart], spark: "SparkSession") -> "DataFrame":
    """The letters with a column ``status``. ``marks`` are messages of ledgers; None if there are no ledgers."""
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
    """The mark that was written last for each letter; a tombstone removes it."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_schema

    read = arrow_udf(read_marks, from_arrow_schema(pa.schema(_MARK)))  # type: ignore[call-overload]  # its overloads want the kind, which the hints tell
    marks = messages.select(F.col("offset").alias("marked_at"), read("key", "value").alias("read"))
    last = marks.where("read IS NOT NULL").select("marked_at", "read.*").groupBy(*_PLACE)
    return last.agg(F.max_by("mark", "marked_at").alias("mark")).where("mark IS NOT NULL")


def read_marks(keys: pa.Array, values: pa.Array) -> pa.Array:
    """Messages of ledgers as marks; null for other messages. A tombstone is a place without a mark."""
    found = [_read_mark(key, value) for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True)]
    return pa.array(found, pa.struct(_MARK))


def _read_mark(key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    place = Place.from_key(key)
    if place is None or place.partition >= 1 << 31 or place.offset >= 1 << 63:
        return None
    mark = LedgerMark.from_value(value)
    # librdkafka, by which ledgers are written, spells a topic's id in the other alphabet of base64.
    topic_id = place.topic_id.translate(_AS_IN_TABLES)
    return {**place._replace(topic_id=topic_id)._asdict(), "mark": mark.kind if mark else None}
