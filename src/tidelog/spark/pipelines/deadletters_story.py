"""Messages of dead-letter topics with their stories as columns. Pure: Arrow in, Arrow out; ``deadletters.letter`` reads headers.

Whatever is in the headers, a row comes out: a story that is none leaves its columns null, and numbers that no log has are null.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelog.deadletters.letter import Letter
from tidelog.deadletters.names import DEAD_LETTER_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIME = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# The end of the year 9999: what comes after it, clocks and calendars disagree about.
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
"""Of the table. ``replayable``: whether the story belongs to the topic that the letter lies in."""


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
