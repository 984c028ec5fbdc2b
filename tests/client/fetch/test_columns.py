"""Columns against the decoder of single records: same rows, and refused where that refuses."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.client.fetch.rows import Row, oracle_rows, rows_of, without_headers
from tests.records.strategies import compressions, header_keys, record_lists, timestamps
from tidelog.client.fetch import columns
from tidelog.client.fetch.columns import FetchedBatches, decoded_batches, whole_batches
from tidelog.client.fetch.errors import BrokenBatch
from tidelog.client.fetch.types import SCHEMA, SCHEMA_WITH_HEADERS, FetchRange
from tidelog.records.batch import build_batch, iterate_keys, read_records
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.errors import RecordError
from tidelog.records.header import HEADER, HEADER_SIZE, BatchHeader, iterate_headers, read_header
from tidelog.records.record import Record

GOLDEN = Path(__file__).parents[2] / "records" / "golden"
TOPIC, PARTITION = "orders", 7
PLACED = ("topic", "partition", "offset", "value")


def fetched(log: bytes, *, start: int = 0, end: int = 1 << 62, rows_max: int = 1000, headers: bool = True) -> FetchedBatches:
    view = memoryview(log)
    return FetchedBatches(FetchRange(TOPIC, PARTITION, start, end, None, rows_max, headers), view, whole_batches(view))


def decoded(log: bytes, *, checks_crcs: bool = True, **wanted: Any) -> list[Row]:
    asked = fetched(log, **wanted)
    found = list(decoded_batches([asked], checks_crcs=checks_crcs))
    for batch in found:
        assert batch.schema == (SCHEMA_WITH_HEADERS if asked.wanted.include_headers else SCHEMA)
        assert 0 < batch.num_rows <= asked.wanted.max_rows_per_batch
    return rows_of(found, TOPIC, PARTITION)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches with ascending offsets, as compaction and different producers leave them."""
    log = b""
    next_offset = 0
    for base_offset, records in draw(st.lists(record_lists(), min_size=1, max_size=4)):
        # Drawn anywhere in 63 bits: moved to where the log ends, gaps between batches included.
        shift = next_offset + base_offset % 1000 - base_offset
        moved = [record._replace(offset=record.offset + shift) for record in records]
        log += build_batch(
            moved,
            base_offset=base_offset + shift,
            compression=draw(compressions),
            log_append_time_ms=draw(st.none() | timestamps),
            delete_horizon_ms=draw(st.none() | timestamps),
            last_offset_delta=moved[-1].offset - base_offset - shift + draw(st.integers(0, 3)),
        )
        next_offset = read_header(log, len(log) - _last_size(log)).next_offset
    return log


def _last_size(log: bytes) -> int:
    return len(log) - whole_batches(memoryview(log))[-1]


@given(logs())
def test_the_same_rows_as_one_by_one(log: bytes) -> None:
    expected = oracle_rows(log)
    assert decoded(log) == expected
    assert decoded(log, headers=False) == without_headers(expected)


@given(logs(), st.data())
def test_only_the_offsets_that_are_wanted(log: bytes, data: st.DataObject) -> None:
    rows = oracle_rows(log)
    near = st.sampled_from(rows).flatmap(lambda row: st.integers(row.offset - 1, row.offset + 1))
    start, end = sorted((data.draw(near), data.draw(near)))
    rows_max = data.draw(st.integers(1, 5))
    assert decoded(log, start=start, end=end, rows_max=rows_max) == [row for row in rows if start <= row.offset < end]


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.bin")))
def test_what_real_clients_wrote(name: str) -> None:
    log = (GOLDEN / f"{name}.bin").read_bytes()
    assert decoded(log) == oracle_rows(log) != []


@pytest.mark.parametrize("sizes", [(100,), (0, 1, 60, 61, 62, 63, 64, 65, 8190, 8200, 20_000)])
@pytest.mark.parametrize("per_batch", [1, 7, 3000])
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_many_rows_of_each_size(sizes: tuple[int, ...], per_batch: int, compression: CompressionType) -> None:
    """So many that offset deltas take one, two and three bytes."""
    choose = random.Random(1)
    count = 10_000 if per_batch > 7 else 500
    log = b""
    for base in range(0, count, per_batch):
        records = [
            Record(
                offset,
                1_700_000_000_000 + choose.randrange(-5, 200),
                choose.choice((None, b"", b"key-%d" % offset)),
                choose.choice((None, b"v" * choose.choice(sizes))) if len(sizes) > 1 else b"v" * 100,
                choose.choice(((), (), (("trace", b"%d" % offset), ("none", None)))),
            )
            for offset in range(base, base + per_batch)
        ]
        log += build_batch(records, base_offset=base, compression=compression)
    assert decoded(log, rows_max=700) == oracle_rows(log)


def test_parts_are_about_equal() -> None:
    log = build_batch([Record(offset, 0, None, b"") for offset in range(2100)])
    batches = list(decoded_batches([fetched(log)], checks_crcs=True))
    assert [batch.num_rows for batch in batches] == [700, 700, 700]


@given(st.lists(st.tuples(header_keys, st.none() | st.binary(max_size=3)), min_size=60, max_size=70))
def test_a_record_with_very_many_headers(headers: list[tuple[str, bytes | None]]) -> None:
    many = Record(1, 5, b"k", b"v", tuple(headers))
    records = [Record(0, 5, b"k", b"v", (("a", b"b"),)), many, Record(2, 5, b"k", b"v")]
    log = build_batch(records)
    assert decoded(log) == oracle_rows(log)


def test_header_keys_that_are_not_text_become_text_as_kafkas_client_makes_it() -> None:
    log = build_batch([Record(0, 5, None, b"v", (("a\udcff", b"1"), ("b", None)))])
    assert decoded(log)[0].headers == (("a\ufffd", b"1"), ("b", None))


def test_nothing_at_all() -> None:
    assert decoded(b"") == []
    assert list(decoded_batches([], checks_crcs=True)) == []
    assert decoded(build_batch([], base_offset=5, last_offset_delta=3)) == []
    assert decoded(build_batch([Record(5, 0, None, None)], base_offset=5), start=6) == []


@settings(max_examples=50)
@given(logs(), st.lists(st.sampled_from(SCHEMA_WITH_HEADERS.names), min_size=1, unique=True))
def test_only_the_columns_that_are_wanted(log: bytes, names: list[str]) -> None:
    asked = fetched(log)
    pruned = asked._replace(wanted=asked.wanted._replace(columns=tuple(names)))
    every, some = (pa.Table.from_batches(decoded_batches([each], checks_crcs=True)) for each in (asked, pruned))
    assert some.equals(every.select(names))


@settings(max_examples=50)
@given(st.lists(logs(), min_size=1, max_size=4), st.data())
def test_many_partitions_at_once(many: list[bytes], data: st.DataObject) -> None:
    """Rows of several partitions, and of several topics, in one Arrow batch: each with its own place and range."""
    asked, expected = [], []
    for number, log in enumerate(many):
        rows = without_headers(oracle_rows(log))
        start = data.draw(st.sampled_from(rows)).offset
        wanted = FetchRange(f"topic-{number % 2}", number, start, rows[-1].offset, None, 1000, False)
        asked.append(fetched(log)._replace(wanted=wanted))
        expected += [(wanted.topic, number, row.offset, row.value) for row in rows if start <= row.offset < wanted.end]
    batches = list(decoded_batches(asked, checks_crcs=True))
    columns = [pa.chunked_array([batch.column(name) for batch in batches], SCHEMA.field(name).type) for name in PLACED]
    assert list(zip(*[column.to_pylist() for column in columns], strict=True)) == expected
    assert len(batches) <= 1


# -- what is broken -------------------------------------------------------------------------------------------------------


def refuses(header: BatchHeader, data: bytes) -> tuple[bool, bool]:
    """With headers, and without."""
    log = HEADER.pack(*header) + data
    answers = []
    for headers in (True, False):
        try:
            decoded(log, checks_crcs=False, end=(1 << 63) - 1, headers=headers)
            answers.append(False)
        except BrokenBatch:
            answers.append(True)
    return answers[0], answers[1]


def oracle_refuses(header: BatchHeader, log: bytes) -> tuple[bool, bool]:
    """``iterate_keys`` does not look at headers, either."""
    answers = []
    for read in (read_records, iterate_keys):
        try:
            for _ in read(log, 0, header, size_max=1 << 20, count_max=1 << 20):
                pass
            answers.append(False)
        except RecordError:
            answers.append(True)
    return answers[0], answers[1]


@settings(max_examples=500)
@given(record_lists(), st.data())
def test_bytes_that_were_changed_are_refused_where_one_by_one_refuses(
    drawn: tuple[int, Sequence[Record]], data: st.DataObject
) -> None:
    base_offset, records = drawn
    log = bytearray(build_batch([record._replace(offset=record.offset - base_offset) for record in records]))
    size = len(log) - HEADER_SIZE
    # Most bytes are a payload's, where nothing can go wrong: the first ones are fields.
    place = data.draw(st.integers(0, min(size - 1, 30)) | st.integers(0, size - 1))
    log[HEADER_SIZE + place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        log = log[: HEADER_SIZE + data.draw(st.integers(0, size))]
    header = read_header(log)._replace(batch_length=len(log) - 12)
    if data.draw(st.booleans()):
        header = header._replace(record_count=data.draw(st.integers(-1, 10)))
    if not header.record_count:
        return
    assert refuses(header, bytes(log[HEADER_SIZE:])) == oracle_refuses(header, bytes(log))


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(1, 5), st.integers(0, 10))
@example(b"\x0c\x00\x00\x00\x01\x01\x00", 1, 0)
@example(b"\x0e\x00\x00\x00\x03X\x01\x00", 1, 0)
@example(b"\x0e\x00\x00\x00\x01\x03X\x00", 1, 0)
@example(b"\x0e\x00\x00\x00\x01\x01\x00\x00", 1, 0)
@example(b"\x0c\x00\x00\x00\x01\x02\x00", 1, 0)
@example(b"\x0c\x00\x00\x00\x01\x04\x00\x0c\x00\x00\x02\x01\x01\x00", 2, 1)
@example(b"\x0c\x00\x00\x00\x03\x01\x00", 1, 0)
@example(b"\x0c\x00\x00\x00\x01\x03\x00", 1, 0)
@example(b"\x0c\x00\x00\x01\x01\x01\x00", 1, 0)
@example(b"\x0c\x00\x00\x02\x01\x01\x00", 1, 0)
@example(b"\x0c\x00\x00\x00\x01\x01\x02", 1, 0)
@example(2 * b"\x0c\x00\x00\x00\x01\x01\x00", 2, 5)
@example(b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1, 0)
@example(b"\x10\x00\x00\x00\x01\x01\x02\x00\x03", 1, 0)
@example(b"\x10\x00\x00\x00\x01\x01\x02\x00\x01", 1, 0)
def test_arbitrary_bytes_are_refused_where_one_by_one_refuses(data: bytes, count: int, last_offset_delta: int) -> None:
    whole = build_batch([Record(0, 0, None, None)])
    header = read_header(whole)._replace(
        batch_length=HEADER_SIZE - 12 + len(data), record_count=count, last_offset_delta=last_offset_delta
    )
    assert refuses(header, data) == oracle_refuses(header, whole[:HEADER_SIZE] + data)


def test_batches_that_overlap_are_refused() -> None:
    log = build_batch([Record(offset, 0, None, b"v") for offset in range(5)])
    with pytest.raises(BrokenBatch, match="ascend"):
        decoded(log + build_batch([Record(4, 0, None, b"v")], base_offset=4))


@pytest.mark.parametrize("count", [1, 3])
def test_the_broken_one_of_many_batches_is_named(count: int) -> None:
    """Batches of one record are found without a search; they are checked all the same."""
    lying = bytearray(data(4, count=count))
    lying[61] += 2
    with pytest.raises(BrokenBatch, match=r"orders\[7\] at offset 4: "):
        decoded(data(0, count=1) + data(1, count=3) + bytes(lying), checks_crcs=False)


Aborted = Sequence[tuple[int, int]] | None


def data(base_offset: int, producer_id: int = -1, count: int = 2, *, transactional: bool = False) -> bytes:
    records = [Record(base_offset + index, 0, None, b"%d" % producer_id) for index in range(count)]
    return build_batch(records, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, transactional=transactional)


def marker(base_offset: int, producer_id: int, kind: ControlType) -> bytes:
    end = EndTransactionMarker(kind, 0)
    return build_end_transaction_marker(end, producer_id=producer_id, producer_epoch=0, timestamp=0, base_offset=base_offset)


def seen(log: bytes, aborted: Aborted = None, start: int = 0, end: int = 1 << 62, *, checks_crcs: bool = True) -> list[int]:
    """The base offsets of the batches whose rows are read."""
    asked = fetched(log, start=start, end=end, headers=False)._replace(aborted=aborted)
    rows = rows_of(decoded_batches([asked], checks_crcs=checks_crcs), TOPIC, PARTITION)
    bases = [header.base_offset for _, header in iterate_headers(log)]
    return list(dict.fromkeys(max(base for base in bases if base <= row.offset) for row in rows))


def test_an_aborted_transaction_is_left_out_up_to_its_marker() -> None:
    log = data(0, 1, transactional=True) + data(2, 2, transactional=True) + data(4) + marker(6, 1, ControlType.ABORT)
    log += data(7, 1, transactional=True) + marker(9, 1, ControlType.COMMIT) + marker(10, 2, ControlType.COMMIT)
    assert seen(log, [(1, 0)]) == [2, 4, 7]
    assert seen(log, None) == [0, 2, 4, 7]
    assert seen(log, []) == [0, 2, 4, 7]


def test_two_aborted_transactions_of_one_producer() -> None:
    log = data(0, 1, transactional=True) + marker(2, 1, ControlType.ABORT) + data(3, 1, transactional=True)
    log += marker(5, 1, ControlType.COMMIT) + data(6, 1, transactional=True) + marker(8, 1, ControlType.ABORT)
    assert seen(log, [(1, 6), (1, 0)]) == [3]


def test_messages_of_the_same_producer_outside_of_transactions_are_seen() -> None:
    assert seen(data(0, 1, transactional=True) + data(2, 1), [(1, 0)]) == [2]


def test_an_aborted_transaction_that_began_before_the_response() -> None:
    log = data(10, 1, transactional=True) + marker(12, 1, ControlType.ABORT) + data(13, 1, transactional=True)
    assert seen(log, [(1, 3)]) == [13]


producers = st.integers(1, 3)
steps = st.lists(st.tuples(producers, st.sampled_from(["send", "plain", "commit", "abort"])), max_size=30)


@given(steps)
def test_whatever_producers_do(moves: list[tuple[int, str]]) -> None:
    """Against what each batch became in the end; open transactions lie past the last stable offset and are not sent."""
    log, offset = b"", 0
    open_batches: dict[int, list[int]] = {}
    visible: list[int] = []
    aborted: list[tuple[int, int]] = []
    for producer, move in [*moves, *[(producer, "commit") for producer in (1, 2, 3)]]:
        if move in ("send", "plain"):
            is_open = move == "send"
            log += data(offset, producer, transactional=is_open)
            (open_batches.setdefault(producer, []) if is_open else visible).append(offset)
            offset += 2
        elif batches := open_batches.pop(producer, []):
            log += marker(offset, producer, ControlType.COMMIT if move == "commit" else ControlType.ABORT)
            offset += 1
            if move == "commit":
                visible += batches
            else:
                aborted.append((producer, batches[0]))
    assert seen(log, aborted) == sorted(visible)


def test_a_batch_that_is_cut_off_is_not_there_yet() -> None:
    log = data(0) + data(2)
    for size in range(len(data(0)), len(log)):
        assert seen(log[:size]) == [0]


def test_only_the_range() -> None:
    log = data(0) + data(2) + data(4) + data(6)
    assert seen(log, None, 3, 5) == [2, 4]
    assert seen(log, None, 2, 4) == [2]


def test_batches_that_compaction_emptied_are_nothing() -> None:
    assert seen(data(0) + build_batch([], base_offset=2, last_offset_delta=5) + data(8)) == [0, 8]


def test_the_checksum() -> None:
    log = bytearray(data(0) + data(2))
    log[-1] ^= 1
    with pytest.raises(BrokenBatch, match="offset 2 fails its checksum"):
        seen(bytes(log))
    assert seen(bytes(log), checks_crcs=False) == [0, 2]


@pytest.mark.parametrize("compression", [kind for kind in CompressionType if kind is not CompressionType.NONE])
def test_a_bomb_is_not_opened(compression: CompressionType, monkeypatch: pytest.MonkeyPatch) -> None:
    log = build_batch([Record(0, 0, None, bytes(100_000))], compression=compression)
    assert seen(log) == [0]
    monkeypatch.setattr(columns, "DECOMPRESSED_BYTES_MAX", 100_000)
    with pytest.raises(BrokenBatch, match="100000 bytes"):
        seen(log)
