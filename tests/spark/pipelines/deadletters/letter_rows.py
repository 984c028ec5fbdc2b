"""Rows of dead-letter topics as the source gives them, without a broker."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidelog.deadletters.letter import Headers, Letter
from tidelog.spark.pipelines.deadletters.letters import HEADERS

TOPIC = "orders.email.dlq"
IDS = {TOPIC: "vfHhHglJpXuYvX42IsJ8rA"}
SOURCE = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)


def story(**given: Any) -> Letter:
    defaults: dict[str, Any] = {
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "timestamp_ms": 1_000,
        "group": "email",
        "attempts": 6,
        "first_failure_ms": 2_000,
        "last_failure_ms": 3_000,
        "exception_class": "app.errors.OutOfStock",
        "exception_message": "no more of item 5512",
        "traceback": "Traceback ...",
        "application_version": "2.0.3",
    }
    return Letter(**{**defaults, **given})


def row(offset: int, headers: Headers, **given: Any) -> dict[str, Any]:
    return {
        "key": b"k",
        "value": b"%d" % offset,
        "topic": TOPIC,
        "partition": 0,
        "offset": offset,
        "timestamp": 4_000_000,
        "timestampType": 0,
        "headers": [{"key": name, "value": value} for name, value in headers],
        **given,
    }


def letter_row(
    offset: int, letter: Letter, headers: Headers = (("content-type", b"text/plain"),), **given: Any
) -> dict[str, Any]:
    return row(offset, letter.to_headers(headers), **given)


def batch_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SOURCE)
