"""Headers become columns as ``tidelog dlq`` reads them; whatever is in them, a row comes out."""

import base64
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.pipelines.deadletters.letter_rows import IDS, TOPIC, batch_of, letter_row, row, story
from tidelog.deadletters.ledger import REPLAYED, LedgerMark, Place
from tidelog.deadletters.letter import EXCEPTION_MESSAGE, LAST_FAILURE, ORIGIN_OFFSET, ORIGIN_PARTITION, REPLAYS
from tidelog.spark.pipelines.deadletters.letters import read_marks, stories
from tidelog.spark.pipelines.topics import id_text


def convert(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    batch = batch_of(rows)
    made = stories(batch.column("topic"), batch.column("headers"), IDS)
    return list(made.to_pylist())


def replaced(name: str, value: bytes | None) -> list[tuple[str, bytes | None]]:
    return [(each, value if each == name else content) for each, content in story(replays=1).to_headers()]


def test_a_letter_with_its_story() -> None:
    (found,) = convert(letter_row(5, story(replays=2)))
    assert found["topic_id"] == IDS[TOPIC]
    assert (found["origin_topic"], found["origin_partition"], found["origin_offset"]) == ("orders", 3, 17)
    assert (found["group"], found["attempts"], found["replays"], found["replayable"]) == ("email", 6, 2, True)
    assert (found["exception_class"], found["exception_message"]) == ("app.errors.OutOfStock", "no more of item 5512")
    assert (found["application_version"], found["traceback"]) == ("2.0.3", "Traceback ...")
    assert [found[name].timestamp() for name in ("origin_timestamp", "first_failure", "last_failure")] == [1, 2, 3]


def test_a_message_without_a_story() -> None:
    (found, null) = convert(row(5, [("content-type", b"x")]), {**row(6, []), "headers": None})
    assert {found[name] for name in ("origin_topic", "group", "exception_class", "last_failure", "replays")} == {None}
    assert found["replayable"] is False
    assert null == found


def test_a_story_of_another_topic_is_not_replayable() -> None:
    (found,) = convert(letter_row(5, story(topic="payments")))
    assert found["origin_topic"] == "payments"
    assert found["replayable"] is False


@pytest.mark.parametrize(
    ("name", "column"),
    [
        (ORIGIN_PARTITION, "origin_partition"),
        (ORIGIN_OFFSET, "origin_offset"),
        (LAST_FAILURE, "last_failure"),
        (REPLAYS, "replays"),
    ],
)
@pytest.mark.parametrize("number", [b"99999999999999999999", b"-7"])
def test_numbers_that_no_log_has_are_null(name: str, column: str, number: bytes) -> None:
    (found,) = convert(row(5, replaced(name, number)))
    assert found[column] is None
    assert found["group"] == "email"


def test_what_is_no_utf8_is_replaced() -> None:
    (found,) = convert(row(5, replaced(EXCEPTION_MESSAGE, b"a\xff\x00b")))
    assert found["exception_message"] == "a\N{REPLACEMENT CHARACTER}\x00b"


def test_marks_of_a_ledger() -> None:
    place = Place(TOPIC, IDS[TOPIC], 0, 5)
    rows = [
        (place.to_key(), LedgerMark("replayed", 1, target="orders").to_value()),
        (place.to_key(), None),
        (b"no key of ours", LedgerMark("discarded", 1).to_value()),
        (None, None),
        (Place(TOPIC, "", 1 << 40, 5).to_key(), LedgerMark("discarded", 1).to_value()),
        (place._replace(offset=1 << 70).to_key(), None),
    ]
    found = read_marks(pa.array([key for key, _ in rows]), pa.array([value for _, value in rows])).to_pylist()
    assert [mark and (mark["offset"], mark["mark"]) for mark in found] == [(5, "replayed"), (5, None), None, None, None, None]


def test_a_topic_has_the_same_id_in_ledger_and_table() -> None:
    """Ledgers have it as librdkafka spells it, tables as Kafka does; every second id has a letter by which they differ."""
    topic_id = bytes.fromhex("913efffb1f4ef0cdbee6a5b1e7adb5a9")
    key = Place("orders.email.dlq", base64.b64encode(topic_id).decode().rstrip("="), 0, 5).to_key()
    (found,) = read_marks(pa.array([key]), pa.array([LedgerMark(REPLAYED, 1).to_value()])).to_pylist()
    assert found["topic_id"] == id_text(topic_id)
