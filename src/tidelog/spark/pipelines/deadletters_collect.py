"""What the report needs of the letters, brought to the driver: a bounded number of rows, however many letters there are."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.deadletters_counts import ERROR, errors, slim, sums, taken, totals
from tidelog.spark.pipelines.deadletters_report import (
    AHEAD_MS_MAX,
    DAY_MS,
    DAYS_SHOWN_MAX,
    Counted,
    ErrorCount,
    Example,
    Hour,
    Named,
    Oldest,
    Totals,
)
from tidelog.spark.pipelines.deadletters_status import WAITING
from tidelog.spark.pipelines.deadletters_verdict import Facts, Version, replay_bounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

# In the place of a name where there is no story.
NO_STORY = "(no story)"


def count(letters: "DataFrame", *, top: int, now_ms: int) -> Counted:
    """Of letters with a status. ``top`` errors are told one by one."""
    from pyspark.storagelevel import StorageLevel

    # Headers are read and messages folded once, however many questions follow.
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


def _counted(found: "DataFrame", whole: "Row", frequent: Sequence["Row"], now_ms: int) -> Counted:
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
    return Counted(
        Totals(**fields),
        None if oldest is None else Oldest(*oldest),
        [_error(row, takes.get(index, 0), _hours_of(rows, index)) for index, row in enumerate(frequent)],
        sorted(Hour(row.hour_ms, row.waiting, row.settled) for row in rows if row.way == "hour" and row.hour_ms is not None),
        _named(rows, "group", "group"),
        _named(rows, "origin", "origin_topic"),
        _newest_versions(rows),
    )


def _shown(found: "DataFrame", frequent: Sequence["Row"]) -> "DataFrame":
    """Those that are told one by one, by number, with the time that their commands are about."""
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


def _named(rows: Sequence["Row"], way: str, column: str) -> list[Named]:
    found = [
        Named(NO_STORY if row[column] is None else row[column], row.waiting) for row in rows if row.way == way and row.waiting
    ]
    return sorted(found, key=lambda named: (-named.waiting, named.name))


def _newest_versions(rows: Sequence["Row"]) -> dict[str, Version]:
    """Of each topic the one that appeared last."""
    newest: dict[str, Version] = {}
    for row in rows:
        if row.way == "version" and row.application_version is not None:
            version = Version(row.application_version, row.first_ms, row.last_ms)
            if row.topic not in newest or version[1:] > newest[row.topic][1:]:
                newest[row.topic] = version
    return newest


def _error(row: "Row", taken_letters: int, hours: Mapping[int, int]) -> ErrorCount:
    example = row.example
    is_known = example.origin_topic is not None and example.origin_offset is not None
    facts = Facts(
        row.topic, row.exception_class, row.waiting, row.replayable, row.came_back, row.oldest.failed_ms, row.last_ms,
        tuple(row.versions),
    )  # fmt: skip
    shown = Example(
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
