"""What flows through topics, by windows of time: pure transformations, the same for a stream and for a batch.

``events`` finds the time of each message, ``windows`` counts by window, topic and partition (the part that has state),
``by_topic`` makes one row of the partitions of a window. All of these close together, when the watermark passes the window's end.

**Times.** A message's event time is the field of its JSON value that was named, else the record's timestamp. Times that cannot be
(no time, before 1970, further ahead of now than AHEAD_SECONDS: one wrong clock would close all windows at once) are not believed:
the record's timestamp stands in, then the time of reading. Such messages are counted as ``undated``.

**Delay** is arrival minus event time: with a field, the record's timestamp minus the field; without one, the time of reading
minus the record's timestamp.

What cannot be counted exactly in bounded memory is a sketch: hot keys by ``approx_top_k``, percentiles by KLL.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AHEAD_SECONDS = 300
HOT_KEYS = 5
# Of each partition: a key that is dealt out to several may be the hottest of all, and of none.
HOT_KEYS_PER_PARTITION = 20
KEYS_TRACKED = 1000
KEY_CHARACTERS_MAX = 200

# Seconds, milliseconds, microseconds: by size, as the years from 1973 to 5138 have them.
_MILLISECONDS_FROM, _MICROSECONDS_FROM, _NANOSECONDS_FROM = 1e11, 1e14, 1e17


def events(messages: "DataFrame", event_time: str | None = None) -> "DataFrame":
    """Of each message what is counted. ``event_time`` is a field, ``sent_at`` or ``meta.sent_at``."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    now = F.current_timestamp()
    recorded = F.when(_is_believed(F.col("timestamp")), F.col("timestamp"))
    told = F.lit(None).cast("timestamp") if event_time is None else field_time(F.col("value").cast("string"), event_time)
    wanted = recorded if event_time is None else F.when(_is_believed(told), told)
    arrived, happened = (now, recorded) if event_time is None else (recorded, wanted)
    delay_ms = F.unix_millis(arrived) - F.unix_millis(happened)
    key = F.col("key").cast("string")
    return messages.select(
        "topic",
        "partition",
        F.substring(
            F.when(F.is_valid_utf8(key), key).otherwise(F.concat(F.lit("0x"), F.hex("key"))), 1, KEY_CHARACTERS_MAX
        ).alias("key"),
        (F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0)))
        .cast("bigint")
        .alias("bytes"),
        F.coalesce(wanted, recorded, now).alias("event_time"),
        wanted.isNull().alias("undated"),
        # Of null and 0, the greatest would be 0.
        F.when(delay_ms.isNotNull(), F.greatest(delay_ms, F.lit(0))).cast("double").alias("delay_ms"),
    )


def field_time(text: "Column", field: str) -> "Column":
    """Of a JSON value: ISO 8601, or seconds, milliseconds, microseconds or nanoseconds since 1970. Null for anything else."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    path = "$" + "".join(f"['{part}']" for part in field.split("."))
    found = F.get_json_object(text, path)
    number = found.try_cast("double")
    seconds = (
        F.when(number >= _NANOSECONDS_FROM, number / 1e9)
        .when(number >= _MICROSECONDS_FROM, number / 1e6)
        .when(number >= _MILLISECONDS_FROM, number / 1e3)
        .otherwise(number)
    )
    # A number that is too large for a time is none, not an error.
    since_1970 = F.when(seconds.between(0, 253_402_300_799), F.timestamp_micros((seconds * 1_000_000).cast("bigint")))
    return F.when(number.isNotNull(), since_1970).otherwise(found.try_cast("timestamp"))


def _is_believed(moment: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    ahead = F.current_timestamp() + F.make_dt_interval(secs=F.lit(AHEAD_SECONDS))
    return moment.between(F.timestamp_seconds(F.lit(0)), ahead)


def windows(found: "DataFrame", window_seconds: float, watermark_seconds: float) -> "DataFrame":
    """Events by window, topic and partition. Of a stream a window comes once, when nothing of it is waited for any more."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    watermarked = found.withWatermark("event_time", interval(watermark_seconds))
    return watermarked.groupBy(F.window("event_time", interval(window_seconds)), "topic", "partition").agg(
        F.count("*").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.count_if(F.col("key").isNull()).alias("keyless"),
        F.count_if("undated").alias("undated"),
        F.count("delay_ms").alias("delays"),
        F.max("delay_ms").alias("delay_max_ms"),
        F.expr("kll_sketch_agg_double(delay_ms)").alias("delay_sketch"),
        F.expr(f"approx_top_k(key, {HOT_KEYS_PER_PARTITION}, {KEYS_TRACKED}) FILTER (WHERE key IS NOT NULL)").alias("hot_keys"),
    )


def by_topic(found: "DataFrame", partitions: Mapping[str, int]) -> "DataFrame":
    """Windows of partitions as one row for each window and topic. ``partitions`` is how many a topic has, as far as is known."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    summed = found.groupBy("window", "topic").agg(
        *(F.sum(name).alias(name) for name in ("messages", "bytes", "keyless", "undated", "delays")),
        F.max("delay_max_ms").alias("delay_max_ms"),
        F.expr("kll_merge_agg_double(delay_sketch)").alias("delay_sketch"),
        F.flatten(F.collect_list("hot_keys")).alias("keys"),
        # Of two that are as busy, the first one.
        F.max(F.struct("messages", (-F.col("partition")).alias("partition"))).alias("busiest"),
        (F.max("partition") + 1).alias("partitions_seen"),
    )
    known = F.coalesce(*(F.when(F.col("topic") == topic, F.lit(count)) for topic, count in sorted(partitions.items())), F.lit(0))
    seconds = (F.unix_micros("window.end") - F.unix_micros("window.start")) / 1_000_000
    delay = F.when(F.col("delays") > 0, F.expr("kll_sketch_get_quantile_double(delay_sketch, array(0.5D, 0.95D, 0.99D))"))
    counted = summed.withColumns({"partitions": F.greatest(known, "partitions_seen"), "delay": delay})
    return counted.select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "topic",
        "messages",
        "bytes",
        (F.col("messages") / seconds).alias("messages_per_second"),
        (F.col("bytes") / seconds).alias("bytes_per_second"),
        *(F.get("delay", F.lit(at)).alias(f"delay_p{name}_ms") for at, name in enumerate((50, 95, 99))),
        "delay_max_ms",
        "undated",
        "keyless",
        hot_keys(F.col("keys")).alias("hot_keys"),
        "partitions",
        (-F.col("busiest.partition")).alias("busiest_partition"),
        skew(F.col("busiest.messages"), F.col("messages"), F.col("partitions")).alias("skew"),
    )


def skew(busiest: "Column", messages: "Column", partitions: "Column") -> "Column":
    """How many times its fair share the busiest partition got: 1 is even, the number of partitions the worst."""
    return busiest * partitions / messages


def hot_keys(found: "Column") -> "Column":
    """The hottest of those of all partitions; a key that several partitions name is one."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    def total(key: "Column") -> "Column":
        of_it = F.filter(found, lambda each: each["item"] == key)
        return F.aggregate(of_it, F.lit(0).cast("bigint"), lambda sum_, each: sum_ + each["count"])

    keys = F.array_distinct(F.transform(found, lambda each: each["item"]))
    ordered = F.array_sort(F.transform(keys, lambda key: F.struct((-total(key)).alias("less"), key.alias("key"))))
    return F.transform(
        F.slice(ordered, 1, HOT_KEYS), lambda each: F.struct(each["key"].alias("key"), (-each["less"]).alias("messages"))
    )


def interval(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"
