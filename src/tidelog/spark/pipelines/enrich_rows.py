"""Events with the rows of a table beside them, and events of a key as sessions. Pure: DataFrame in, DataFrame out.

Events have a column ``timestamp``, which is their time, and fields by name. All of it works on streams and on batches.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

STARTED, ENDED, EVENTS = "started", "ended", "events"
TIME = "timestamp"
IS_MATCHED = "_is_matched"
_JSON = {"timeZone": "UTC", "ignoreNullFields": "false"}


def join_with_table(events: DataFrame, table: DataFrame, on: str, take: Sequence[str]) -> DataFrame:
    """Each event with the columns ``take`` of the row whose key is the text of its field ``on``.

    An event without such a row stays, and has null there. ``_is_matched`` says whether there was one.
    """
    rows = table.select(F.col("key").cast("string").alias("_key"), *take, F.lit(True).alias(IS_MATCHED))
    joined = events.join(rows, F.col(on).cast("string") == F.col("_key"), "left").drop("_key")
    return joined.withColumn(IS_MATCHED, F.coalesce(IS_MATCHED, F.lit(False)))


def sessions(events: DataFrame, by: str, gap: str, watermark: str, sums: Sequence[str] = ()) -> DataFrame:
    """One row for each run of events of a key with at most ``gap`` between one and the next.

    In a stream a session comes when the watermark, the latest time seen less ``watermark``, is past its last event by ``gap``: it
    is final then, and events of it that come still are left out.
    """
    window = F.session_window(TIME, gap)
    totals = [F.sum(name).alias(f"sum_{name}") for name in sums]
    grouped = events.withWatermark(TIME, watermark).groupBy(window, by)
    found = grouped.agg(F.min(TIME).alias(STARTED), F.max(TIME).alias(ENDED), F.count(F.lit(1)).alias(EVENTS), *totals)
    return found.select(by, STARTED, ENDED, EVENTS, *[f"sum_{name}" for name in sums])


def event_messages(joined: DataFrame, fields: Sequence[str]) -> DataFrame:
    """As a topic takes them: under the key of the event, at its time, with its headers."""
    value = F.to_json(F.struct(*fields), _JSON)
    return joined.select("key", value.alias("value"), "headers", F.col(TIME).alias("timestamp"))


def session_messages(joined: DataFrame, by: str, fields: Sequence[str]) -> DataFrame:
    """Under the key of the session, at the time of its last event."""
    value = F.to_json(F.struct(*fields), _JSON)
    return joined.select(F.col(by).cast("string").alias("key"), value.alias("value"), F.col(ENDED).alias("timestamp"))
