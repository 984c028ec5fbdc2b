"""Columns become the very batches that the encoder of single records makes of the same messages."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.fetch.types import HEADERS_TYPE
from tidelog.client.partitioners import murmur2
from tidelog.client.produce.encoding import MessageColumns, ProducerIdentity, build, encode, murmur2_of
from tidelog.records.batch import build_batch, read_records
from tidelog.records.compression import CompressionType
from tidelog.records.header import crc_is_valid, read_header
from tidelog.records.record import Record

PRODUCER = ProducerIdentity(77, 3, True)
texts = st.none() | st.binary(max_size=5) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 9_000])
headers = st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=70)), max_size=3)
messages = st.tuples(texts, texts, st.integers(0, 1 << 50) | st.just(1_700_000_000_000), headers, st.integers(0, 2))
Message = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None, int]


def columns_of(given: list[Message], *, has_keys: bool = True, has_headers: bool = True) -> MessageColumns:
    pairs = [None if each[3] is None else [{"key": key, "value": value} for key, value in each[3]] for each in given]
    return MessageColumns(
        pa.array([each[0] for each in given], pa.binary()) if has_keys else None,
        pa.array([each[1] for each in given], pa.binary()),
        np.array([each[2] for each in given], np.int64),
        pa.array(pairs, HEADERS_TYPE) if has_headers else None,
    )


def encoded(columns: MessageColumns, places: list[int], limit: int = 1 << 20) -> list[tuple[int, bytes]]:
    bodies = encode(columns, np.array(places, np.int64), np.full(3, limit))
    return [(body.place, build(body, PRODUCER, 5, CompressionType.NONE)) for body in bodies]


def expected(given: list[Message], place: int, *, has_keys: bool = True, has_headers: bool = True) -> list[Record]:
    return [
        Record(offset, each[2], each[0] if has_keys else None, each[1], tuple((each[3] or ()) if has_headers else ()))
        for offset, each in enumerate([each for each in given if each[4] == place])
    ]


@settings(max_examples=60)
@given(st.lists(messages, max_size=20), st.booleans(), st.booleans())
def test_the_bytes_are_those_of_records_one_by_one(given: list[Message], has_keys: bool, has_headers: bool) -> None:
    kinds = {"has_keys": has_keys, "has_headers": has_headers}
    found = dict(encoded(columns_of(given, **kinds), [each[4] for each in given]))
    for place in {each[4] for each in given}:
        records = expected(given, place, **kinds)
        assert found.pop(place) == build_batch(
            records, producer_id=77, producer_epoch=3, base_sequence=5, transactional=True, leader_epoch=-1
        )
    assert not found


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=40), st.data())
def test_batches_stay_within_the_limit_and_keep_the_order(sizes: list[int], data: st.DataObject) -> None:
    limit = 4_000
    given: list[Message] = [(None, b"v" * size, 5, None, data.draw(st.integers(0, 2))) for size in sizes]
    found: dict[int, list[int]] = {}
    for place, batch in encoded(columns_of(given, has_keys=False, has_headers=False), [each[4] for each in given], limit):
        assert len(batch) <= limit
        records = read_records(batch, 0, read_header(batch), size_max=1 << 20, count_max=1 << 20)
        found.setdefault(place, []).extend(len(record.value or b"") for record in records)
    assert found == {place: [len(each[1] or b"") for each in given if each[4] == place] for place in {e[4] for e in given}}


@pytest.mark.parametrize("kind", list(CompressionType))
def test_every_compression(kind: CompressionType) -> None:
    given: list[Message] = [(b"k", b"value" * 50, number, [("h", b"x")], 0) for number in range(300)]
    (body,) = encode(columns_of(given), np.zeros(300, np.int64), np.array([1 << 20]))
    batch = build(body, PRODUCER, 0, kind)
    header = read_header(batch)
    assert crc_is_valid(batch, 0, header)
    assert (header.compression, header.is_transactional, header.max_timestamp) == (kind, True, 299)
    assert list(read_records(batch, 0, header, size_max=1 << 20, count_max=1 << 20)) == expected(given, 0)


def test_slices_of_columns() -> None:
    given: list[Message] = [(b"k%d" % number, b"v%d" % number, 5, [("h", b"%d" % number)], 0) for number in range(9)]
    whole = columns_of(given)
    assert whole.keys is not None
    assert whole.headers is not None
    part = MessageColumns(whole.keys.slice(2, 4), whole.values.slice(2, 4), whole.timestamps_ms[2:6], whole.headers.slice(2, 4))
    assert encoded(part, [0] * 4) == encoded(columns_of(given[2:6]), [0] * 4)
    assert murmur2_of(part.keys if part.keys is not None else pa.nulls(0)).tolist() == [
        murmur2(each[0] or b"") & 0x7FFFFFFF for each in given[2:6]
    ]


@settings(max_examples=60)
@given(st.lists(st.none() | st.binary(max_size=40), max_size=30))
def test_keys_go_where_java_sends_them(keys: list[Any]) -> None:
    found = murmur2_of(pa.array(keys, pa.binary())).tolist()
    assert found == [0 if key is None else murmur2(key) & 0x7FFFFFFF for key in keys]
