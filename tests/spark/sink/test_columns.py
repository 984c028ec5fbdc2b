"""Columns and options that make no sense are refused before anything runs."""

import pytest
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
from tidelog.spark.sink.columns import Columns, check_columns
from tidelog.spark.sink.connections import check_security
from tidelog.spark.sink.writers import batch_writer, stream_writer

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
    assert check_columns(everything, None) == Columns(1, 0, 2, 3, 4, 5)
    with_topic = schema(value=StringType(), topic=StringType())
    assert check_columns(with_topic, "t") == Columns(0, None, None, None, None, None)


TEXT = StringType()


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        (schema(key=TEXT), "t", "the column value is missing: there are key"),
        (VALUE, None, r"where to\? Give the option topic, or a column topic"),
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


def test_combinations_that_promise_what_cannot_be_kept() -> None:
    with pytest.raises(InvalidArgument, match="writeId is for batch writes"):
        stream_writer(options(writeId="x"), VALUE, False)
    with pytest.raises(InvalidArgument, match="a write at least once is not remembered"):
        batch_writer(options(writeId="x", deliveryGuarantee="at_least_once"), VALUE, False)
    for writer in (batch_writer, stream_writer):
        with pytest.raises(InvalidArgument, match="a topic cannot be overwritten"):
            writer(options(), VALUE, True)
