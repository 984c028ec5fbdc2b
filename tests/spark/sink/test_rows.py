"""Columns and options that make no sense are refused before anything runs.

From Arrow columns to calls of produce, and which rows are refused.
"""

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.client.errors import InvalidArgument
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink.connections import check_security
from tidelog.spark.sink.rows import RECORD_OVERHEAD_BYTES, RowRefused, SinkColumns, SinkRows, check_columns
from tidelog.spark.sink.writers import batch_writer, stream_writer

# -- columns ------------------------------------------------------------------------------------------------------------------


HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TEXT_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", StringType())]))


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


VALUE = schema(value=StringType())


def options(**given: str) -> SinkOptions:
    return SinkOptions.parse({"bootstrap": "127.0.0.1:1", "topic": "t", **{n.replace("__", "."): v for n, v in given.items()}})


def test_where_each_column_is() -> None:
    everything = schema(
        key=BinaryType(),
        VALUE=BinaryType(),
        headers=HEADERS,
        partition=IntegerType(),
        timestamp=TimestampType(),
        topic=StringType(),
    )
    assert check_columns(everything, None) == SinkColumns(1, 0, 2, 3, 4, 5)
    with_topic = schema(value=StringType(), topic=StringType())
    assert check_columns(with_topic, "t") == SinkColumns(0, None, None, None, None, None)


TEXT = StringType()


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        (schema(key=TEXT), "t", "the column value is missing: there are key"),
        (VALUE, None, "the destination is missing: give the option topic, or a column topic"),
        (schema(value=IntegerType()), "t", "the column value is string or binary: not int"),
        (schema(value=TEXT, key=LongType()), "t", "the column key is string or binary: not bigint"),
        (schema(value=TEXT, partition=LongType()), "t", "the column partition is int: not bigint"),
        (schema(value=TEXT, topic=BinaryType()), None, "the column topic is string: not binary"),
        (schema(value=TEXT, timestamp=LongType()), "t", "the column timestamp is timestamp: not bigint"),
        (schema(value=TEXT, headers=TEXT_HEADERS), "t", "the column headers is array<struct"),
        (schema(value=TEXT, headers=MapType(TEXT, BinaryType())), "t", "the column headers is array<struct"),
        (schema(value=TEXT, amount=LongType()), "t", "the sink has no column amount: select those of key, value"),
    ],
)
def test_columns_that_make_no_sense(columns: StructType, topic: str | None, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_columns(columns, topic)


@pytest.mark.parametrize(
    "given",
    [
        {"kafka__security__protocol": "SSL"},
        {"kafka__security__protocol": "sasl_plaintext"},
        {"kafka__sasl__username": "me"},
        {"kafka__ssl__ca__location": "ca.pem"},
    ],
)
def test_where_security_is_beyond_our_calls_exactly_once_does_not_start(given: dict[str, str]) -> None:
    for writer in (batch_writer, stream_writer):
        with pytest.raises(InvalidArgument, match=r"option kafka\.s.*: exactly-once needs calls.*at_least_once"):
            writer(options(**given), VALUE, False)
    check_security(options(deliveryGuarantee="at_least_once", **given))
    check_security(options(kafka__security__protocol="plaintext", kafka__linger__ms="5"))


def test_a_setting_that_nobody_knows_is_refused_before_anything_runs() -> None:
    for writer in (batch_writer, stream_writer):
        for guarantee in ("exactly_once", "at_least_once"):
            with pytest.raises(InvalidArgument, match=r"No such configuration property: \"lingr\.ms\""):
                writer(options(kafka__lingr__ms="5", deliveryGuarantee=guarantee), VALUE, False)


def test_combinations_that_promise_what_cannot_be_kept() -> None:
    with pytest.raises(InvalidArgument, match="writeId is for batch writes"):
        stream_writer(options(writeId="x"), VALUE, False)
    with pytest.raises(InvalidArgument, match="an at-least-once write is not remembered"):
        batch_writer(options(writeId="x", deliveryGuarantee="at_least_once"), VALUE, False)
    for writer in (batch_writer, stream_writer):
        with pytest.raises(InvalidArgument, match="a topic cannot be overwritten"):
            writer(options(), VALUE, True)


# -- rows ---------------------------------------------------------------------------------------------------------------------


ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "value": pa.binary(),
    "key": pa.string(),
    "headers": ARROW_HEADERS,
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "topic": pa.string(),
}
NAMES = tuple(TYPES)


def rows_of(option: str | None = None, /, *, first_row: Any = 0, types: Any = None, **columns: Any) -> SinkRows:
    wanted = {**TYPES, **(types or {})}
    batch = pa.record_batch([pa.array(values, wanted[name]) for name, values in columns.items()], names=list(columns))
    places = {name: list(columns).index(name) if name in columns else None for name in NAMES}
    return SinkRows(batch, SinkColumns(**places), option, 7, first_row)  # type: ignore[arg-type]  # the value is always there


def sent(rows: SinkRows) -> list[tuple[Any, ...]]:
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
    rows = SinkRows(batch, SinkColumns(0, None, None, None, None, None), "t", 0, 0)
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
