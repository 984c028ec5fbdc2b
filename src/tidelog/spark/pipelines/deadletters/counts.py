"""Counts letters in Spark and collects the counts in the driver: a bounded number of rows, however many letters there are.

An error is a topic, a class and a message in which numbers and ids are folded, so that the same error counts together.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.deadletters.letter import NAMES
from tidelog.spark.pipelines.deadletters.letters import STATUSES, TIME_MS_MAX, WAITING
from tidelog.spark.pipelines.deadletters.report import (
    AHEAD_MS_MAX,
    DAY_MS,
    DAYS_SHOWN_MAX,
    HOUR_MS,
    ApplicationVersion,
    ErrorCount,
    ErrorFacts,
    ExampleLetter,
    HourCount,
    LetterCounts,
    LetterTotals,
    NamedCount,
    OldestLetter,
    replay_bounds,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

VALUE_BYTES_MAX = 2048
HEADERS_MAX = 20
MESSAGE_CHARACTERS_MAX = 2000
FOLDED_CHARACTERS_MAX = 300

# The order matters: ids with a recognizable shape come before plain numbers.
_FOLDS = (
    (r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>"),
    (r"(?i)\b0x[0-9a-f]+\b", "<id>"),
    (r"(?i)\b(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,}\b", "<id>"),
    (r"\b(?=[A-Za-z_]*[0-9])(?=[0-9_]*[A-Za-z])[0-9A-Za-z_]{20,}\b", "<id>"),
    (r"[0-9]+(?:[.,:][0-9]+)*", "#"),
    (r"\s+", " "),
)
# The sets of columns that ``sums`` groups by.
SETS = {
    "hour": ("hour_ms",),
    "group": ("group",),
    "origin": ("origin_topic",),
    "error": ("error", "hour_ms"),
    "version": ("topic", "application_version"),
}
ROWS_PER_WAY_MAX = 10_000

ERROR = ("topic", "exception_class", "message")


def folded(message: "Column") -> "Column":
    """``order 17 took 3.5 s`` and ``order 4 took 12 s`` are one: ``order # took # s``."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    found = F.substring(message, 1, MESSAGE_CHARACTERS_MAX)
    for pattern, sign in _FOLDS:
        found = F.regexp_replace(found, pattern, sign)
    return F.substring(F.trim(found), 1, FOLDED_CHARACTERS_MAX)


def slim(letters: "DataFrame") -> "DataFrame":
    """The columns that are counted, and as much of each letter as an example shows."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    def milliseconds(*columns: str) -> "Column":
        found = F.coalesce(*(F.unix_millis(column) for column in columns), F.lit(0))
        return F.least(F.greatest(found, F.lit(0)), F.lit(TIME_MS_MAX))

    own = F.filter("headers", lambda header: ~header["key"].isin(*sorted(NAMES)))
    headers = F.transform(
        F.slice(own, 1, HEADERS_MAX),
        lambda header: F.struct(
            F.substring(header["key"], 1, MESSAGE_CHARACTERS_MAX).alias("key"),
            F.substring(header["value"], 1, VALUE_BYTES_MAX).alias("value"),
        ),
    )
    return letters.select(
        "topic", "partition", "offset", "status", "replayable", "group", "origin_topic", "origin_partition", "origin_offset",
        "exception_class", "exception_message", "traceback", "application_version", "attempts",
        F.coalesce("replays", F.lit(0)).alias("replays"),
        F.coalesce(folded(F.col("exception_message")), F.lit("")).alias("message"),
        milliseconds("last_failure", "timestamp").alias("failed_ms"),
        F.unix_millis("timestamp").alias("timestamp_ms"),
        F.substring("key", 1, VALUE_BYTES_MAX).alias("key"),
        F.substring("value", 1, VALUE_BYTES_MAX).alias("value"),
        F.coalesce(F.octet_length("value"), F.lit(0)).alias("value_bytes"),
        headers.alias("headers"),
    )  # fmt: skip


def errors(found: "DataFrame") -> "DataFrame":
    """One row for each error, even if no letter of it waits any more."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    waits = F.col("status") == WAITING
    order = F.struct("failed_ms", "partition", "offset")
    example = F.struct(
        "partition", "offset", "timestamp_ms", "key", "value", "value_bytes", "headers", "exception_message", "traceback",
        "origin_topic", "origin_partition", "origin_offset", "attempts", "group",
    )  # fmt: skip
    return found.groupBy(*ERROR).agg(
        *(F.count_if(F.col("status") == status).alias(status) for status in STATUSES),
        F.count_if(waits & F.col("replayable")).alias("replayable"),
        F.count_if(waits & (F.col("replays") > 0)).alias("came_back"),
        F.min(F.when(waits, order)).alias("oldest"),
        F.max(F.when(waits, F.col("failed_ms"))).alias("last_ms"),
        F.array_sort(F.collect_set("application_version")).alias("versions"),
        F.max_by(F.when(waits, example), F.when(waits, order)).alias("example"),
    )


def totals(counted: "DataFrame") -> "DataFrame":
    """One row over all errors."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    oldest = F.struct("oldest.failed_ms", "topic", "oldest.partition", "oldest.offset")
    return counted.agg(
        *(F.coalesce(F.sum(status), F.lit(0)).alias(status) for status in STATUSES),
        F.coalesce(F.sum(F.when(F.col("exception_class").isNull(), F.col(WAITING))), F.lit(0)).alias("foreign"),
        F.count_if(F.col(WAITING) > 0).alias("errors"),
        F.min(F.when(F.col(WAITING) > 0, oldest)).alias("oldest"),
    )


def sums(found: "DataFrame", since_ms: int, until_ms: int) -> "DataFrame":
    """Sum letters with an ``error`` (the number of one that is shown, or null) in each of the ways in SETS; ``way`` says which.

    Each way has at most ROWS_PER_WAY_MAX rows, the greatest first. Counts by hour cover the letters that failed within the time,
    as the applications recorded it.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    is_in_time = F.col("failed_ms").between(since_ms, until_ms)
    hour = F.when(is_in_time, F.col("failed_ms") - F.col("failed_ms") % HOUR_MS)
    waits = F.col("status") == WAITING
    columns = ("error", "hour_ms", "group", "origin_topic", "topic", "application_version")
    summed = found.withColumn("hour_ms", hour).groupingSets([list(SETS[way]) for way in SETS], *columns)
    counted = summed.agg(
        F.grouping_id(*columns).alias("ways"),
        F.count_if(waits).alias("waiting"),
        F.count_if(~waits).alias("settled"),
        F.min("failed_ms").alias("first_ms"),
        F.max("failed_ms").alias("last_ms"),
    )
    ways = {
        sum(1 << index for index, name in enumerate(reversed(columns)) if name not in kept): way for way, kept in SETS.items()
    }
    named = F.create_map(*(part for number, way in ways.items() for part in (F.lit(number), F.lit(way))))
    order = Window.partitionBy("ways").orderBy(F.desc("waiting"), F.desc("last_ms"), *columns)
    bounded = counted.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= ROWS_PER_WAY_MAX)
    return bounded.withColumn("way", named[F.col("ways").cast("int")])


def taken(found: "DataFrame", shown: "DataFrame") -> "DataFrame":
    """The number of letters that the replay command of each of ``shown`` takes, by the rules of its filters: a class matches by
    its last parts too."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    waiting = found.where((F.col("status") == WAITING) & F.col("replayable")).alias("letters")
    fits = F.expr(
        "letters.topic = shown.topic AND letters.failed_ms >= shown.since_ms AND letters.failed_ms < shown.until_ms AND "
        "(letters.exception_class = shown.exception_class OR endswith(letters.exception_class, '.' || shown.exception_class))"
    )
    return waiting.join(F.broadcast(shown).alias("shown"), fits).groupBy("shown.error").agg(F.count("*").alias("taken"))


# -- to the driver ------------------------------------------------------------------------------------------------------------


# Stands in for a name if there is no story.
NO_STORY = "(no story)"


def count(letters: "DataFrame", *, top: int, now_ms: int) -> LetterCounts:
    """Count letters that have a status. ``top`` errors are reported one by one."""
    from pyspark.storagelevel import StorageLevel

    # Headers are read and messages folded once, however many counts follow.
    found = slim(letters).persist(StorageLevel.MEMORY_AND_DISK)
    counted = errors(found).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        (whole,) = totals(counted).collect()
        waiting = counted.where(f"{WAITING} > 0").orderBy(WAITING, *ERROR, ascending=[False, True, True, True])
        frequent = waiting.limit(top).collect()
        return _counted(found, whole, frequent, now_ms)
    finally:
        counted.unpersist()
        found.unpersist()


def _counted(found: "DataFrame", whole: "Row", frequent: Sequence["Row"], now_ms: int) -> LetterCounts:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    fields = whole.asDict()
    oldest = fields.pop("oldest")
    shown = _shown(found, frequent)
    numbered = found.join(
        F.broadcast(shown.select("error", *(F.col(name).alias(f"shown_{name}") for name in ERROR))),
        F.expr(" AND ".join(f"{name} <=> shown_{name}" for name in ERROR)),
        "left",
    )
    rows = sums(numbered, now_ms - DAYS_SHOWN_MAX * DAY_MS, now_ms + AHEAD_MS_MAX).collect()
    takes = {row.error: row.taken for row in taken(found, shown).collect()} if frequent else {}
    return LetterCounts(
        LetterTotals(**fields),
        None if oldest is None else OldestLetter(*oldest),
        [_error(row, takes.get(index, 0), _hours_of(rows, index)) for index, row in enumerate(frequent)],
        sorted(HourCount(row.hour_ms, row.waiting, row.settled) for row in rows if row.way == "hour" and row.hour_ms is not None),
        _named(rows, "group", "group"),
        _named(rows, "origin", "origin_topic"),
        _newest_versions(rows),
    )


def _shown(found: "DataFrame", frequent: Sequence["Row"]) -> "DataFrame":
    """The errors that are reported one by one, numbered, with the time range of their commands."""
    rows = [
        (index, row.topic, row.exception_class, row.message, *replay_bounds(row.oldest.failed_ms, row.last_ms))
        for index, row in enumerate(frequent)
    ]
    kinds = "error int, topic string, exception_class string, message string, since_ms bigint, until_ms bigint"
    return found.sparkSession.createDataFrame(rows, kinds)


def _hours_of(rows: Sequence["Row"], error: int) -> Mapping[int, int]:
    return {
        row.hour_ms: row.waiting
        for row in rows
        if row.way == "error" and row.error == error and row.hour_ms is not None and row.waiting
    }


def _named(rows: Sequence["Row"], way: str, column: str) -> list[NamedCount]:
    found = [
        NamedCount(NO_STORY if row[column] is None else row[column], row.waiting)
        for row in rows
        if row.way == way and row.waiting
    ]
    return sorted(found, key=lambda named: (-named.waiting, named.name))


def _newest_versions(rows: Sequence["Row"]) -> dict[str, ApplicationVersion]:
    """The version that appeared last, for each topic."""
    newest: dict[str, ApplicationVersion] = {}
    for row in rows:
        if row.way == "version" and row.application_version is not None:
            version = ApplicationVersion(row.application_version, row.first_ms, row.last_ms)
            if row.topic not in newest or version[1:] > newest[row.topic][1:]:
                newest[row.topic] = version
    return newest


def _error(row: "Row", taken_letters: int, hours: Mapping[int, int]) -> ErrorCount:
    example = row.example
    is_known = example.origin_topic is not None and example.origin_offset is not None
    facts = ErrorFacts(
        row.topic, row.exception_class, row.waiting, row.replayable, row.came_back, row.oldest.failed_ms, row.last_ms,
        tuple(row.versions),
    )  # fmt: skip
    shown = ExampleLetter(
        partition=example.partition,
        offset=example.offset,
        timestamp_ms=example.timestamp_ms,
        key=_bytes(example.key),
        value=_bytes(example.value),
        value_bytes=example.value_bytes,
        headers=tuple((header.key, _bytes(header.value)) for header in example.headers or ()),
        message=example.exception_message or "",
        traceback=example.traceback or "",
        origin=f"{example.origin_topic}[{example.origin_partition}]@{example.origin_offset}" if is_known else None,
        attempts=example.attempts,
    )
    settled = row.replayed + row.discarded + row.gone
    return ErrorCount(facts, example.group, row.message, settled, shown, taken_letters, hours)


def _bytes(content: bytes | bytearray | None) -> bytes | None:
    return None if content is None else bytes(content)
