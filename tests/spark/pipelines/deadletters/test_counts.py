"""Letters counted by Spark, on a small frame: errors that belong together, times, what became of them, what a command takes."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from tests.spark.pipelines.deadletters.letter_rows import IDS, TOPIC, batch_of, letter_row, row, story
from tidelog.deadletters.ledger import LedgerMark, Place
from tidelog.deadletters.letter import Letter
from tidelog.spark.pipelines.deadletters.counts import count, folded
from tidelog.spark.pipelines.deadletters.letters import LogStart, letters, with_status
from tidelog.spark.pipelines.deadletters.report import (
    HOUR_MS,
    ApplicationVersion,
    HourCount,
    LetterCounts,
    LetterTotals,
    NamedCount,
    OldestLetter,
)

NOW_MS = 1_794_821_400_000
THIS_HOUR = NOW_MS - NOW_MS % HOUR_MS
OTHER = "payments.audit.dlq"

MESSAGES = {
    "order 17 took 3.5 s": "order # took # s",
    "order 4 took 12 s": "order # took # s",
    "no row 123e4567-e89b-12d3-a456-426614174000": "no row <id>",
    "object at 0x7f3a2b": "object at <id>",
    "hash deadbeef01 of facade": "hash <id> of facade",
    "token AbCdEf0123456789GhIjKl": "token <id>",
    "at 2026-11-16T09:30:00Z": "at #-#-#T#Z",
    "two\n  lines\t": "two lines",
    "'price'": "'price'",
    "Straße 7, 訂單": "Straße #, 訂單",
    "": "",
}


def test_messages_are_folded(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(message,) for message in MESSAGES], "message string")
    found = {row.message: row.folded for row in frame.select("message", folded(F.col("message")).alias("folded")).collect()}
    assert found == MESSAGES


def failed(hours_ago: float, **given: Any) -> Letter:
    moment = int(NOW_MS - hours_ago * HOUR_MS)
    return story(first_failure_ms=moment, last_failure_ms=moment, **given)


def timeout(hours_ago: float, **given: Any) -> Letter:
    return failed(hours_ago, exception_class="TimeoutError", **given)


# Of OutOfStock: two wait (1, 2), one was replayed (3), one discarded (4), one is below the log start (0). Of TimeoutError: three
# of one message (5, 6, 7), one of another in their time (8). Somebody else's (9). A letter of a deleted topic (20).
ROWS = [
    letter_row(0, failed(200, exception_message="no more of item 1")),
    letter_row(1, failed(30, exception_message="no more of item 2", replays=1)),
    letter_row(2, failed(2, exception_message="no more of item 3"), value=b"x" * 5000),
    letter_row(3, failed(3, exception_message="no more of item 4")),
    letter_row(4, failed(4, exception_message="no more of item 5")),
    *(letter_row(5 + number, timeout(10 - number, exception_message=f"no answer in {number} s")) for number in range(3)),
    letter_row(8, failed(9, exception_message="refused", application_version="2.1.0", exception_class="db.TimeoutError")),
    row(9, [("who", b"somebody")], timestamp=(NOW_MS - 90 * 60_000) * 1000),
    letter_row(20, failed(5, topic="payments", group="audit"), topic=OTHER),
]
MARKS = [
    (Place(TOPIC, IDS[TOPIC], 0, 3), LedgerMark("replayed", 1)),
    (Place(TOPIC, IDS[TOPIC], 0, 4), LedgerMark("discarded", 1)),
    (Place(TOPIC, "another topic of that name", 0, 2), LedgerMark("discarded", 1)),
    (Place(TOPIC, IDS[TOPIC], 0, 1), LedgerMark("discarded", 1)),
    (Place(TOPIC, IDS[TOPIC], 0, 1), None),
]


def marks(spark: SparkSession) -> DataFrame:
    rows = [(place.to_key(), mark and mark.to_value(), offset) for offset, (place, mark) in enumerate(MARKS)]
    return spark.createDataFrame(rows, "key binary, value binary, offset bigint")


@pytest.fixture(scope="module")
def counted(spark: SparkSession) -> LetterCounts:
    messages = spark.createDataFrame(pa.Table.from_batches([batch_of(ROWS)]))
    found = letters(messages, {**IDS, OTHER: "gone"})
    return count(with_status(found, marks(spark), [LogStart(TOPIC, IDS[TOPIC], 0, 1)], spark), top=10, now_ms=NOW_MS)


def test_what_became_of_the_letters(counted: LetterCounts) -> None:
    assert counted.totals == LetterTotals(waiting=7, replayed=1, discarded=1, gone=2, foreign=1, errors=4)
    assert counted.oldest == OldestLetter(NOW_MS - 30 * HOUR_MS, TOPIC, 0, 1)


def test_the_same_errors_count_together(counted: LetterCounts) -> None:
    found = [(error.facts.exception_class, error.message, error.facts.waiting, error.settled) for error in counted.errors]
    assert found == [
        ("TimeoutError", "no answer in # s", 3, 0),
        ("app.errors.OutOfStock", "no more of item #", 2, 3),
        (None, "", 1, 0),
        ("db.TimeoutError", "refused", 1, 0),
    ]


def test_the_facts_of_an_error_are_of_those_that_wait(counted: LetterCounts) -> None:
    facts = counted.errors[1].facts
    assert (facts.first_failure_ms, facts.last_failure_ms) == (NOW_MS - 30 * HOUR_MS, NOW_MS - 2 * HOUR_MS)
    assert (facts.replayable, facts.came_back, facts.versions) == (2, 1, ("2.0.3",))
    assert counted.errors[2].facts.replayable == 0


def test_the_example_is_the_newest_that_waits(counted: LetterCounts) -> None:
    example = counted.errors[1].example
    assert (example.partition, example.offset, example.message) == (0, 2, "no more of item 3")
    assert (len(example.value or b""), example.value_bytes) == (2048, 5000)
    assert example.headers == (("content-type", b"text/plain"),)
    assert example.origin == "orders[3]@17"
    assert counted.errors[2].example.headers == (("who", b"somebody"),)
    assert counted.errors[2].example.origin is None


def test_what_a_command_takes(counted: LetterCounts) -> None:
    assert [error.taken for error in counted.errors] == [4, 2, 0, 1], "--error TimeoutError fits db.TimeoutError too"


def test_letters_by_hour(counted: LetterCounts) -> None:
    def at(hours_ago: float) -> int:
        return int(NOW_MS - hours_ago * HOUR_MS) // HOUR_MS * HOUR_MS

    assert counted.errors[0].by_hour == {at(10): 1, at(9): 1, at(8): 1}
    assert HourCount(at(9), 2, 0) in counted.hours
    assert HourCount(at(3), 0, 1) in counted.hours
    assert [hour.start_ms for hour in counted.hours] == sorted(hour.start_ms for hour in counted.hours)
    assert sum(hour.waiting + hour.settled for hour in counted.hours) == len(ROWS)


def test_letters_by_group_and_origin(counted: LetterCounts) -> None:
    assert counted.groups == [NamedCount("email", 6), NamedCount("(no story)", 1)]
    assert counted.origins == [NamedCount("orders", 6), NamedCount("(no story)", 1)]


def test_the_version_that_appeared_last(counted: LetterCounts) -> None:
    newest = NOW_MS - 9 * HOUR_MS
    assert counted.newest_versions[TOPIC] == ApplicationVersion("2.1.0", newest, newest)


def test_no_letters_at_all(spark: SparkSession) -> None:
    messages = spark.createDataFrame(pa.Table.from_batches([batch_of(ROWS)])).where("offset < 0")
    found = count(with_status(letters(messages, IDS), None, [], spark), top=10, now_ms=NOW_MS)
    assert found == LetterCounts(LetterTotals(), None, [], [], [], [], {})
