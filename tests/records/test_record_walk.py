"""The walk accepts exactly what the decoder of records accepts and a new batch may have, whatever shape the records have."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.records.batch import build_batch
from tidelog.records.errors import InvalidBatch
from tidelog.records.header import HEADER_SIZE, read_header
from tidelog.records.record import Record, RecordHeaders, decode_records, encode_records
from tidelog.records.record_walk import HEADERS_AT_ONCE_MAX, PLAIN_RECORDS_MAX, RecordWalk, WalkRules, newest_plain_delta

BASE = 1_704_067_200_000


def encoded(records: list[Record]) -> bytes:
    return encode_records(records, 0, BASE)


def walked(body: bytes, count: int, rules: WalkRules | None = None, budget: int = 1 << 40, prefix: int = 0) -> RecordWalk:
    """A whole walk, in as many steps as the budget of each needs."""
    walk = RecordWalk(bytes(prefix) + body, prefix, count, rules if rules is not None else WalkRules())
    while not walk.is_complete:
        walk.advance(budget)
    return walk


def decodes(body: bytes, count: int) -> bool:
    """Whether a consumer gets ``count`` records with consecutive offsets."""
    try:
        records = list(decode_records(body, count, 0, count - 1, BASE, None))
    except InvalidBatch:
        return False
    return [record.offset for record in records] == list(range(count))


def accepts(body: bytes, count: int, budget: int = 1 << 40) -> bool:
    try:
        walked(body, count, budget=budget)
    except InvalidBatch:
        return False
    return True


def shaped(count: int, delta: Callable[[int], int] = lambda number: 0, size: Callable[[int], int] = lambda number: 100) -> bytes:
    return encoded([Record(number, BASE + delta(number), None, b"v" * size(number)) for number in range(count)])


# Each has runs, and something that ends them: sizes of fields, of deltas, headers.
SHAPES = {
    "one size": shaped(300),
    "every size of offset delta": encoded([Record(number, BASE, b"", b"") for number in range(8192 * 2 + 300)]),
    "time goes on": shaped(600, lambda number: number // 3),
    "time goes on faster": shaped(300, lambda number: number * 100),
    "time goes back": shaped(300, lambda number: -number),
    "sizes vary": shaped(300, size=lambda number: number * 7 % 200),
    "sizes vary in stretches": shaped(600, size=lambda number: 50 + number // 100),
    "keys": encoded([Record(number, BASE, b"key-%03d" % number, b"value") for number in range(300)]),
    "nulls": encoded([Record(number, BASE, None, None) for number in range(300)]),
    "headers": encoded([Record(number, BASE, b"k", b"v", (("h", b"1"), ("i", None))) for number in range(100)]),
    "headers now and then": encoded(
        [Record(number, BASE, b"k", b"v", (("h", b"1"),) if number % 70 == 69 else ()) for number in range(300)]
    ),
}


def count_of(body: bytes) -> int:
    count = 0
    position = 0
    while position < len(body):
        shift = length = 0
        while True:
            byte = body[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        position += length >> 1
        count += 1
    return count


@pytest.mark.parametrize("name", SHAPES)
def test_records_of_every_shape_are_accepted_in_steps_of_any_size(name: str) -> None:
    body = SHAPES[name]
    count = count_of(body)
    assert decodes(body, count)
    for budget in (1, 17, 1 << 40):
        walked(body, count, budget=budget, prefix=HEADER_SIZE)
    assert not accepts(body, count - 1)
    assert not accepts(body, count + 1)
    assert not accepts(body[:-1], count)


@pytest.mark.parametrize("name", [name for name in SHAPES if len(SHAPES[name]) < 70_000])
@given(data=st.data())
def test_a_changed_byte_is_judged_as_the_decoder_does(name: str, data: st.DataObject) -> None:
    """The first bytes of each record are its numbers, so most changes hit one of them."""
    body = bytearray(SHAPES[name])
    count = count_of(bytes(body))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position] = data.draw(st.integers(0, 255))
    assert accepts(bytes(body), count) == decodes(bytes(body), count)


def test_every_byte_of_a_run_counts() -> None:
    """Every byte of the numbers of one record in the middle of a run, changed to every value."""
    body = shaped(200)
    stride = 108
    start = len(body) - 50 * stride
    for field in (0, 1, 2, 3, 4, 5, 6, 7, 8, stride - 1):
        for value in range(256):
            changed = bytearray(body)
            changed[start + field] = value
            assert accepts(bytes(changed), 200) == decodes(bytes(changed), 200), (field, value)


record_lists = st.lists(
    st.tuples(
        st.integers(-(10**12), 10**12) | st.integers(0, 3),
        st.none() | st.binary(max_size=70),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    max_size=40,
)


@given(record_lists, st.integers(1, 60))
def test_what_is_encoded_is_accepted_and_its_newest_timestamp_found(
    fields: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], repeat: int
) -> None:
    fields = fields * repeat
    records = [
        Record(number, BASE + delta, key, value, tuple(headers)) for number, (delta, key, value, headers) in enumerate(fields)
    ]
    newest = max((delta for delta, *_ in fields), default=0)
    for claimed in (newest, newest - 1, newest + 1):
        walk = walked(encoded(records), len(records), WalkRules(newest_delta=claimed))
        assert not records or walk.newest_delta == newest


@given(st.binary(max_size=400), st.integers(0, 50))
@example(b"\x0e\0\0\0\1\1\0\0", 1)
def test_garbage_is_judged_as_the_decoder_does(body: bytes, count: int) -> None:
    assert accepts(body, count) == decodes(body, count)


@pytest.mark.parametrize(
    "deltas", [[0, 5, 10], [0] * 500 + [11], [1] * 500 + [-3] + [1] * 500, [64 + n // 9 for n in range(900)]]
)
def test_timestamps_out_of_bounds_and_missing_keys_are_noted(deltas: list[int]) -> None:
    for bounds in (0, 10), (-2, 64), (2, 3), (-5, -1), (100, 128):
        rules = WalkRules(*bounds, no_timestamp_delta=5, newest_delta=max(deltas), needs_keys=False)
        walk = walked(shaped(len(deltas), lambda number: deltas[number]), len(deltas), rules)
        wrong = [(number, delta) for number, delta in enumerate(deltas) if not bounds[0] <= delta <= bounds[1] and delta != 5]
        assert (walk.refused, walk.refused_count) == (wrong, len(wrong))
    keys = [b"k", None, *([b"k"] * 300), None, *([None] * 50)]
    body = encoded([Record(number, BASE, key, b"v") for number, key in enumerate(keys)])
    walk = walked(body, len(keys), WalkRules(needs_keys=True))
    assert walk.refused == [(number, None) for number, key in enumerate(keys) if key is None]
    assert not walked(body, len(keys)).refused


def test_very_many_headers_are_walked_in_parts() -> None:
    headers: RecordHeaders = tuple((f"h{number}", b"") for number in range(HEADERS_AT_ONCE_MAX * 4))
    records = [Record(number, BASE, b"k", b"v", headers) for number in range(3)]
    walk = RecordWalk(encoded(records), 0, 3, WalkRules())
    steps = 0
    while not walk.is_complete:
        walk.advance(1)
        steps += 1
    assert steps > 3 * 4
    body = bytearray(encoded(records))
    body[-1] = 5
    assert not accepts(bytes(body), 3)


def test_the_newest_timestamp_of_a_real_batch() -> None:
    batch = build_batch([Record(number, BASE + number // 50, None, b"v" * 100) for number in range(10_000)])
    header = read_header(batch)
    rules = WalkRules(newest_delta=header.max_timestamp - header.base_timestamp)
    walk = RecordWalk(batch, HEADER_SIZE, header.record_count, rules)
    assert walk.advance(10_000) > 8_000, "a run costs a sixteenth of what single records cost"
    assert walk.is_complete
    assert walk.newest_delta == 199


PLAIN = {
    "one": [Record(0, BASE, None, b"v" * 100)],
    "a key": [Record(0, BASE, b"key", b"")],
    "a tombstone": [Record(0, BASE, b"key", None)],
    "two bytes": [Record(0, BASE, b"k" * 63, b"v" * 5000), Record(1, BASE + 8000, b"k", b"v")],
    "time goes back": [Record(0, BASE + 90, b"k", b"v"), Record(1, BASE + 20, b"k", b"v")],
    "many": [Record(number, BASE + number, b"k", b"v" * number) for number in range(PLAIN_RECORDS_MAX)],
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_records_are_recognized(name: str) -> None:
    records = PLAIN[name]
    body = memoryview(bytes(5) + encoded(records))
    newest = max(record.timestamp for record in records) - BASE
    assert newest_plain_delta(body, 5, len(records), needs_keys=False) == newest
    has_keys = all(record.key is not None for record in records)
    assert newest_plain_delta(body, 5, len(records), needs_keys=True) == (newest if has_keys else None)
    # Every other number of records, and every other number of bytes, is not.
    assert newest_plain_delta(body, 5, len(records) + 1, needs_keys=False) is None
    assert newest_plain_delta(body, 5, len(records) - 1, needs_keys=False) is None
    assert newest_plain_delta(body[:-1], 5, len(records), needs_keys=False) is None
    assert newest_plain_delta(memoryview(bytes(body) + b"\0"), 5, len(records), needs_keys=False) is None
    # The last record claims a header, and there is none.
    assert newest_plain_delta(memoryview(bytes(body[:-1]) + b"\2"), 5, len(records), needs_keys=False) is None


@pytest.mark.parametrize(
    "record",
    [
        Record(0, BASE, None, b"v", (("header", b"value"),)),
        Record(0, BASE - 1, None, b"v"),
        Record(0, BASE + 8192, None, b"v"),
        Record(0, BASE, b"k" * 64, b"v"),
        Record(0, BASE, None, b"v" * 8192),
        Record(1, BASE, None, b"v"),
    ],
    ids=["headers", "a negative delta", "a long delta", "a long key", "a long value", "another offset"],
)
def test_what_is_not_plain_is_left_to_the_walk(record: Record) -> None:
    assert newest_plain_delta(memoryview(encoded([record])), 0, 1, needs_keys=False) is None


@pytest.mark.parametrize("name", PLAIN)
@given(data=st.data())
def test_plain_records_with_a_changed_byte_are_valid_or_not_recognized(name: str, data: st.DataObject) -> None:
    """What is recognized is written without a walk, so a walk must come to the same conclusion."""
    records = PLAIN[name]
    body = bytearray(encoded(records))
    position = data.draw(st.integers(0, min(len(body), 200) - 1))
    body[position] = data.draw(st.integers(0, 255))
    newest = newest_plain_delta(memoryview(body), 0, len(records), needs_keys=False)
    if newest is not None:
        assert decodes(bytes(body), len(records))
        assert walked(bytes(body), len(records), WalkRules(newest_delta=newest)).newest_delta == newest
