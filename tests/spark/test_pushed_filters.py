"""Filters become seeks: what can pass is fetched, and little else.

Without Spark's switch, and with other filters, no row is lost.
"""

import datetime
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tests.client.producing import new_topic
from tests.spark.fakes import FakeCluster
from tests.spark.reading import SECONDS_MAX, Source, places, producer
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.planning import OffsetSpan
from tidelog.spark.pushed_filters import narrowed

SWITCH = "spark.sql.python.filterPushdown.enabled"
ENDS = (40, 0, 25)
TIMES_MS = tuple(1_000 * (offset + (7 if offset % 5 == 0 else 0)) for offset in range(max(ENDS)))
"""Nearly in order: some messages are of a later time than the next ones."""


def at_ms(time_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time_ms / 1_000, datetime.UTC)


def cluster() -> tuple[FakeCluster, list[OffsetSpan]]:
    found = FakeCluster()
    found.add("a", *ENDS)
    for number, end in enumerate(ENDS):
        found.times[TopicPartition("a", number)] = [(TIMES_MS[offset], offset) for offset in range(end)]
    return found, [OffsetSpan("a", found.ids["a"], number, 0, end) for number, end in enumerate(ENDS)]


COMPARED: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    In: lambda mine, values: mine in values,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def passes(pushed: Filter, row: dict[str, Any]) -> bool:
    """What Spark finds when it applies the filter to a row."""
    if isinstance(pushed, IsNotNull):
        return True
    if isinstance(pushed, Not):
        return not passes(pushed.child, row)
    assert isinstance(pushed, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | In | LessThan | LessThanOrEqual)
    value: Any = pushed.value
    return bool(COMPARED[type(pushed)](row[pushed.attribute[0]], value))


US = datetime.timedelta(microseconds=1)
COMPARISONS = st.sampled_from([EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
TIME = st.integers(-2_000, 50_000_000).map(lambda us: datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + us * US)


def filters_on(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    compared = st.builds(lambda kind, value: kind((column,), value), COMPARISONS, values)
    listed = st.lists(values, min_size=1, max_size=3).map(lambda several: In((column,), tuple(several)))
    some = compared | listed
    return some | some.map(Not) | st.just(IsNotNull((column,)))


@given(
    filters=st.lists(
        filters_on("partition", st.integers(-1, 4)) | filters_on("offset", st.integers(-5, 50)) | filters_on("timestamp", TIME),
        max_size=4,
    )
)
def test_what_passes_is_never_left_out(filters: list[Filter]) -> None:
    client, spans = cluster()
    kept = {(span.partition, offset) for span in narrowed(client, spans, filters) for offset in range(span.start, span.end)}
    rows = [
        {"partition": number, "offset": offset, "timestamp": at_ms(TIMES_MS[offset])}
        for number, end in enumerate(ENDS)
        for offset in range(end)
    ]
    wanted = {(row["partition"], row["offset"]) for row in rows if all(passes(each, row) for each in filters)}
    assert wanted <= kept <= {(row["partition"], row["offset"]) for row in rows}


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ([], [(0, 0, 40), (2, 0, 25)]),
        ([IsNotNull(("partition",)), EqualTo(("partition",), 2)], [(2, 0, 25)]),
        ([In(("partition",), (1, 2, None))], [(2, 0, 25)]),
        ([GreaterThan(("offset",), 9), LessThanOrEqual(("offset",), 29)], [(0, 10, 30), (2, 10, 25)]),
        ([EqualTo(("offset",), 30)], [(0, 30, 31)]),
        ([GreaterThanOrEqual(("timestamp",), at_ms(38_001))], [(0, 35, 40)]),
        ([GreaterThan(("timestamp",), at_ms(90_000))], []),
        ([LessThan(("timestamp",), at_ms(1))], [(0, 0, 40), (2, 0, 25)]),
        ([Not(EqualTo(("partition",), 2)), EqualTo(("key",), b"k")], [(0, 0, 40), (2, 0, 25)]),
        ([GreaterThan(("timestamp",), datetime.datetime(2030, 1, 1))], [(0, 0, 40), (2, 0, 25)]),
    ],
)
def test_where_reading_begins_and_ends(filters: list[Filter], kept: list[tuple[int, int, int]]) -> None:
    client, spans = cluster()
    found = [span for span in narrowed(client, spans, filters) if span.size > 0]
    assert [(span.partition, span.start, span.end) for span in found] == kept


def fetched(rows: DataFrame) -> int:
    """The rows that the source has handed to Spark for this frame."""
    leaves = rows._jdf.queryExecution().executedPlan().collectLeaves()
    return sum(leaves.apply(number).metrics().apply("numOutputRows").value() for number in range(leaves.size()))


FIRST_MS = 1_700_000_000_000
PER_PARTITION = 500


@pytest.mark.parametrize("switch", ["true", "false"])
def test_a_filter_decides_what_is_fetched(spark: SparkSession, kafka: ToolkitBroker, switch: str) -> None:
    """Without the switch, which is Spark's default, all of it is fetched, and the rows are the same."""
    source = Source(spark, kafka.bootstrap, new_topic(kafka, partitions=2, config={"retention.ms": "-1"}))
    sender = producer(kafka.bootstrap)
    for number in range(2 * PER_PARTITION):
        sender.produce(source.topic, value=b"%d" % number, partition=number % 2, timestamp=FIRST_MS + number // 2)
    assert sender.flush(SECONDS_MAX) == 0
    late = datetime.datetime.fromtimestamp((FIRST_MS + 490) / 1_000, datetime.UTC).isoformat(timespec="milliseconds")
    before = spark.conf.get(SWITCH)
    spark.conf.set(SWITCH, switch)
    try:
        for condition, wanted in (
            (f"timestamp >= timestamp '{late}'", [(number, offset) for number in range(2) for offset in range(490, 500)]),
            ("partition = 1 and offset between 100 and 119", [(1, offset) for offset in range(100, 120)]),
            ("partition in (0, 7) and offset < 5", [(0, offset) for offset in range(5)]),
            ("offset > 100000", []),
        ):
            rows = source.batch().where(condition).select("partition", "offset")
            found = sorted((row.partition, row.offset) for row in rows.collect())
            assert found == wanted
            assert fetched(rows) == (len(wanted) if switch == "true" else 2 * PER_PARTITION), condition
        assert len(places(source.batch())) == 2 * PER_PARTITION
    finally:
        spark.conf.set(SWITCH, before or "true")
