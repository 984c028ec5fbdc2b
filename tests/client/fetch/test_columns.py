"""Columns against the decoder of single records: same rows, and refused where that refuses."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.client.fetch.rows import Row, oracle_rows, rows_of, without_headers
from tests.records.strategies import compressions, header_keys, record_lists, timestamps
from tidelog.client.fetch import columns
from tidelog.client.fetch.columns import ConstantColumns, OpenedBatch, lay_out, opened_batches, record_batches, whole_batches
from tidelog.client.fetch.types import SCHEMA, SCHEMA_WITH_HEADERS, FetchRange
from tidelog.records.batch import build_batch, iterate_keys, read_records
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.errors import CorruptBatch, DecompressionLimitExceeded, InvalidBatch, RecordError
from tidelog.records.header import HEADER_SIZE, read_header
from tidelog.records.record import Record

EVERYTHING = (0, 1 << 63)
GOLDEN = Path(__file__).parents[2] / "records" / "golden"


def opened(log: bytes) -> list[OpenedBatch]:
    view = memoryview(log)
    return list(opened_batches(view, whole_batches(view), None, *EVERYTHING, checks_crcs=True))


def decoded(
    batches: Sequence[OpenedBatch], *, start: int = 0, end: int = 1 << 62, rows_max: int = 1000, headers: bool = True
) -> list[Row]:
    found = list(
        record_batches(
            batches, ConstantColumns("orders", 7, rows_max), FetchRange("orders", 7, start, end, None, rows_max, headers)
        )
    )
    for batch in found:
        assert batch.schema == (SCHEMA_WITH_HEADERS if headers else SCHEMA)
        assert 0 < batch.num_rows <= rows_max
    return rows_of(found, "orders", 7)


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
    return whole_batches(memoryview(log))[-1][1].size


@given(logs())
def test_the_same_rows_as_one_by_one(log: bytes) -> None:
    expected = oracle_rows(log)
    assert decoded(opened(log)) == expected
    assert decoded(opened(log), headers=False) == without_headers(expected)


@given(logs(), st.data())
def test_only_the_offsets_that_are_wanted(log: bytes, data: st.DataObject) -> None:
    rows = oracle_rows(log)
    near = st.sampled_from(rows).flatmap(lambda row: st.integers(row.offset - 1, row.offset + 1))
    start, end = sorted((data.draw(near), data.draw(near)))
    rows_max = data.draw(st.integers(1, 5))
    assert decoded(opened(log), start=start, end=end, rows_max=rows_max) == [row for row in rows if start <= row.offset < end]


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.bin")))
def test_what_real_clients_wrote(name: str) -> None:
    log = (GOLDEN / f"{name}.bin").read_bytes()
    assert decoded(opened(log)) == oracle_rows(log) != []


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
    assert decoded(opened(log), rows_max=700) == oracle_rows(log)


def test_parts_are_about_equal() -> None:
    log = build_batch([Record(offset, 0, None, b"") for offset in range(2100)])
    batches = list(record_batches(opened(log), ConstantColumns("t", 0, 1000), FetchRange("t", 0, 0, 1 << 62, None, 1000, False)))
    assert [batch.num_rows for batch in batches] == [700, 700, 700]


@given(st.lists(st.tuples(header_keys, st.none() | st.binary(max_size=3)), min_size=60, max_size=70))
def test_a_record_with_very_many_headers(headers: list[tuple[str, bytes | None]]) -> None:
    many = Record(1, 5, b"k", b"v", tuple(headers))
    records = [Record(0, 5, b"k", b"v", (("a", b"b"),)), many, Record(2, 5, b"k", b"v")]
    log = build_batch(records)
    assert decoded(opened(log)) == oracle_rows(log)


def test_header_keys_that_are_not_text_become_text_as_kafkas_client_makes_it() -> None:
    log = build_batch([Record(0, 5, None, b"v", (("a\udcff", b"1"), ("b", None)))])
    assert decoded(opened(log))[0].headers == (("a\ufffd", b"1"), ("b", None))


def test_nothing_at_all() -> None:
    assert decoded([]) == []
    empty = build_batch([], base_offset=5, last_offset_delta=3)
    assert decoded([OpenedBatch(read_header(empty), b"")]) == []
    assert decoded(opened(build_batch([Record(5, 0, None, None)], base_offset=5)), start=6) == []


# -- what is broken -------------------------------------------------------------------------------------------------------


def refuses(batch: OpenedBatch) -> tuple[bool, bool]:
    """With headers, and without."""
    answers = []
    for headers in (True, False):
        try:
            decoded([batch], end=1 << 63, headers=headers)
            answers.append(False)
        except InvalidBatch:
            answers.append(True)
    return answers[0], answers[1]


def oracle_refuses(batch: OpenedBatch, log: bytes) -> tuple[bool, bool]:
    """``iterate_keys`` does not look at headers, either."""
    answers = []
    for read in (read_records, iterate_keys):
        try:
            for _ in read(log, 0, batch.header, size_max=1 << 20, count_max=1 << 20):
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
    batch = OpenedBatch(header, bytes(log[HEADER_SIZE:]))
    assert refuses(batch) == oracle_refuses(batch, bytes(log))


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
    batch = OpenedBatch(header, data)
    assert refuses(batch) == oracle_refuses(batch, whole[:HEADER_SIZE] + data)


def test_batches_that_overlap_are_refused() -> None:
    one = opened(build_batch([Record(offset, 0, None, b"v") for offset in range(5)]))
    other = opened(build_batch([Record(4, 0, None, b"v")], base_offset=4))
    assert len(lay_out([*one, *other]).positions) == 6
    with pytest.raises(InvalidBatch, match="ascend"):
        decoded([*one, *other])


Aborted = Sequence[tuple[int, int]] | None


def data(base_offset: int, producer_id: int = -1, count: int = 2, *, transactional: bool = False) -> bytes:
    records = [Record(base_offset + index, 0, None, b"%d" % producer_id) for index in range(count)]
    return build_batch(records, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, transactional=transactional)


def marker(base_offset: int, producer_id: int, kind: ControlType) -> bytes:
    end = EndTransactionMarker(kind, 0)
    return build_end_transaction_marker(end, producer_id=producer_id, producer_epoch=0, timestamp=0, base_offset=base_offset)


def seen(log: bytes, aborted: Aborted = None, start: int = 0, end: int = 1 << 62, *, checks_crcs: bool = True) -> list[int]:
    """The base offsets of the batches."""
    view = memoryview(log)
    opened = opened_batches(view, whole_batches(view), aborted, start, end, checks_crcs=checks_crcs)
    return [batch.header.base_offset for batch in opened]


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
    with pytest.raises(CorruptBatch, match="offset 2 fails its checksum"):
        seen(bytes(log))
    assert seen(bytes(log), checks_crcs=False) == [0, 2]


@pytest.mark.parametrize("compression", [kind for kind in CompressionType if kind is not CompressionType.NONE])
def test_a_bomb_is_not_opened(compression: CompressionType, monkeypatch: pytest.MonkeyPatch) -> None:
    log = build_batch([Record(0, 0, None, bytes(100_000))], compression=compression)
    assert seen(log) == [0]
    monkeypatch.setattr(columns, "DECOMPRESSED_BYTES_MAX", 100_000)
    with pytest.raises(DecompressionLimitExceeded):
        seen(log)
