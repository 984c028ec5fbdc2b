"""From Arrow columns to calls of produce, and which rows are refused."""

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from tidelog.spark.sink.columns import Columns
from tidelog.spark.sink.errors import RowRefused
from tidelog.spark.sink.rows import RECORD_OVERHEAD_BYTES, Rows

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "value": pa.binary(),
    "key": pa.string(),
    "headers": HEADERS,
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "topic": pa.string(),
}
NAMES = tuple(TYPES)


def rows_of(option: str | None = None, /, *, first_row: Any = 0, types: Any = None, **columns: Any) -> Rows:
    wanted = {**TYPES, **(types or {})}
    batch = pa.record_batch([pa.array(values, wanted[name]) for name, values in columns.items()], names=list(columns))
    places = {name: list(columns).index(name) if name in columns else None for name in NAMES}
    return Rows(batch, Columns(**places), option, 7, first_row)  # type: ignore[arg-type]  # the value is always there


def sent(rows: Rows) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    rows.send(lambda *given, **named: calls.append((*given, named) if named else given), lambda: None)
    return calls


def test_values_keys_and_nulls() -> None:
    assert sent(rows_of("t", value=[b"a", None, b"", b"\xff"])) == [("t", b"a"), ("t", None), ("t", b""), ("t", b"\xff")]
    assert sent(rows_of("t", value=[b"a", b"b"], key=["é", None])) == [("t", b"a", "é".encode()), ("t", b"b", None)]
    assert sent(rows_of("t", value=[None, None])) == [("t", None), ("t", None)]
    assert sent(rows_of("t", value=[])) == []


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_every_type_of_text(kind: pa.DataType) -> None:
    values = ["a", None, "bcd", ""] if "string" in str(kind) else [b"a", None, b"bcd", b""]
    assert sent(rows_of("t", value=values, types={"value": kind})) == [("t", b"a"), ("t", None), ("t", b"bcd"), ("t", b"")]


def test_a_slice_of_a_batch() -> None:
    batch = pa.record_batch([pa.array([b"one", b"two", None, b"four", b"five"], pa.binary())], names=["value"]).slice(1, 3)
    rows = Rows(batch, Columns(0, None, None, None, None, None), "t", 0, 0)
    rows.check(lambda topic: 1000)
    assert sent(rows) == [("t", b"two"), ("t", None), ("t", b"four")]


def test_everything_that_a_row_may_have() -> None:
    rows = rows_of(
        value=[b"a", b"b"],
        topic=["x", "y"],
        partition=[3, None],
        timestamp=[1_700_000_000_123_456, None],
        headers=[[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
    )
    rows.check(lambda topic: 1000)
    named = {"partition": 3, "timestamp": 1_700_000_000_123, "headers": [("h", b"1"), ("h", None)]}
    assert sent(rows) == [("x", b"a", named), ("y", b"b")]


def test_a_full_queue_is_waited_for_and_no_row_is_lost_or_twice() -> None:
    taken: list[bytes] = []
    waits = 0

    def produce(_: str, value: bytes) -> None:
        if len(taken) == 2 * waits + 2:
            raise BufferError
        taken.append(value)

    def wait() -> None:
        nonlocal waits
        waits += 1

    values = [str(number).encode() for number in range(9)]
    rows_of("t", value=values).send(produce, wait)
    assert (taken, waits) == (values, 4)


def test_what_the_producer_refuses_is_the_row_s_fault() -> None:
    def produce(_: str, value: bytes) -> None:
        if value == b"bad":
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    with pytest.raises(RowRefused, match=r"row 101 of task 7: .*[Uu]nknown partition"):
        rows_of("t", first_row=100, value=[b"good", b"bad"]).send(produce, lambda: None)


def test_a_null_topic() -> None:
    with pytest.raises(RowRefused, match=r"row 12 of task 7 \(key b'k2'\): the topic is null"):
        rows_of(first_row=10, value=[b"a"] * 3, key=["k0", "k1", "k2"], topic=["x", "y", None]).check(lambda topic: 1000)


def test_a_topic_that_is_not_there() -> None:
    def limit_of(topic: str) -> int:
        if topic == "y":
            raise RowRefused("there is no topic y")
        return 1000

    with pytest.raises(RowRefused, match="row 2 of task 7: there is no topic y"):
        rows_of(value=[b"a"] * 3, topic=["x", "x", "y"]).check(limit_of)


def test_too_many_bytes() -> None:
    limit = 10 + RECORD_OVERHEAD_BYTES
    rows_of("t", value=[b"1234567890", None]).check(lambda topic: limit)
    with pytest.raises(RowRefused, match=rf"row 1 of task 7: 11 bytes are too many: topic t takes messages of up to {limit}"):
        rows_of("t", value=[b"1", b"12345678901"]).check(lambda topic: limit)
    with pytest.raises(RowRefused, match=r"row 1 of task 7 \(key b'789012'\): 11 bytes"):
        rows_of("t", value=[b"1", b"12345"], key=["1", "789012"]).check(lambda topic: limit)
    headers = [None, [{"key": "123", "value": b"456"}, {"key": "7", "value": b"8901"}]]
    with pytest.raises(RowRefused, match="row 1 of task 7: 12 bytes"):
        rows_of("t", value=[b"1", b"1"], headers=headers).check(lambda topic: limit)


def test_each_topic_has_its_own_limit() -> None:
    limits = {"small": 5 + RECORD_OVERHEAD_BYTES, "large": 50 + RECORD_OVERHEAD_BYTES}
    rows_of(value=[b"1" * 50, b"1" * 5], topic=["large", "small"]).check(limits.__getitem__)
    with pytest.raises(RowRefused, match=r"row 2 of task 7: 6 bytes .* topic small"):
        rows_of(value=[b"1" * 50, b"1", b"1" * 6], topic=["large", "small", "small"]).check(limits.__getitem__)


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("partition", [0, None, -1], "the partition is below 0"),
        ("timestamp", [0, None, -5_000], "the timestamp is below 0"),
        ("headers", [None, [], [{"key": None, "value": b"x"}]], "a header has no name"),
    ],
)
def test_fields_out_of_range(column: str, values: list[Any], reason: str) -> None:
    with pytest.raises(RowRefused, match=f"row 2 of task 7: {reason}"):
        rows_of("t", value=[b"x"] * 3, **{column: values}).check(lambda topic: 1000)
