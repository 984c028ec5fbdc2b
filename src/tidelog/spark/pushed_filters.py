"""Turns the filters of a batch into seeks: a query that wants little reads little.

Spark hands over what it filters by (``pushFilters``), if ``spark.sql.python.filterPushdown.enabled`` is set; ``session()`` sets
it. A filter only narrows what is fetched, and Spark applies all of them to the rows again, so a filter that is not understood
costs time and nothing else. Three columns say where a row is:

- ``partition``: other partitions are not read.
- ``offset``: reading begins and ends there.
- ``timestamp``: reading begins at the first message of that time or later. There is no such end: a producer may write any time,
  so a message of an earlier time may follow (``endingTimestamp`` ends at the first later message in spite of that).

Spark refuses a reader that has ``pushFilters`` while the switch is off, and does not tell a reader whether it is on.
``are_wanted`` knows by the program that Spark runs for this, and for nothing else.
"""

import datetime
import sys
from collections.abc import Sequence

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tidelog.spark.options import OFFSETS_MAX
from tidelog.spark.planning import OffsetLookup, OffsetSpan, partition_of

_PROGRAM = "pyspark.sql.worker.data_source_pushdown_filters"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)

_Range = tuple[int, int]


def are_wanted() -> bool:
    """Whether this process asks a reader for its filters. Spark's daemon imports the program; without a daemon it is the main
    module."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PROGRAM in sys.modules or (main is not None and main.name == _PROGRAM)


def narrowed(client: OffsetLookup, spans: Sequence[OffsetSpan], filters: Sequence[Filter]) -> list[OffsetSpan]:
    """The parts of the spans that can have rows that pass. The ends of the spans must have been looked up before this call: then
    a partition without a message of the wanted time has none within its span either."""
    for ranges in _ranges_of_column(filters, "partition"):
        spans = [span for span in spans if any(least <= span.partition <= most for least, most in ranges)]
    for ranges in _ranges_of_column(filters, "offset"):
        least, most = min(range_[0] for range_ in ranges), max(range_[1] for range_ in ranges)
        spans = [span._replace(start=max(span.start, least), end=min(span.end, most + 1)) for span in spans]
    spans = [span for span in spans if span.size > 0]
    time_ms = _first_time_ms(filters)
    if time_ms is None or not spans:
        return list(spans)
    first = client.offsets(sorted({partition_of(span) for span in spans}), time_ms)
    return [span._replace(start=max(span.start, first.get(partition_of(span), span.end))) for span in spans]


def _ranges_of_column(filters: Sequence[Filter], column: str) -> list[list[_Range]]:
    """For each filter on the column, the numbers that pass: one of the ranges, both ends included."""
    found = [_ranges(each) for each in filters if getattr(each, "attribute", None) == (column,)]
    return [ranges for ranges in found if ranges]


def _ranges(pushed: Filter) -> list[_Range]:
    """Nothing for a filter that says nothing about numbers."""
    values = pushed.value if isinstance(pushed, In) else (getattr(pushed, "value", None),)
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if not numbers or len(numbers) < len([value for value in values if value is not None]):
        return []
    if isinstance(pushed, EqualTo | EqualNullSafe | In):
        return [(number, number) for number in numbers]
    (number,) = numbers
    if isinstance(pushed, GreaterThan | GreaterThanOrEqual):
        return [(number + isinstance(pushed, GreaterThan), OFFSETS_MAX)]
    if isinstance(pushed, LessThan | LessThanOrEqual):
        return [(0, number - isinstance(pushed, LessThan))]
    return []


def _first_time_ms(filters: Sequence[Filter]) -> int | None:
    """The least time that passes all filters, in whole milliseconds, as messages have it."""
    wanted = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual
    times = [each.value for each in filters if isinstance(each, wanted) and each.attribute == ("timestamp",)]
    # A time without a zone is not one of a message. Negative numbers mean something else to a broker.
    found = [-((_EPOCH - time) // _MILLISECOND) for time in times if isinstance(time, datetime.datetime) and time.tzinfo]
    return max((time_ms for time_ms in found if time_ms > 0), default=None)
