"""What the tests of records draw from: records as clients may send them, and bytes as nobody should."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st

from tidelog.records.compression import CompressionType
from tidelog.records.record import Record

# A busy machine must not fail a test: how long an example takes says nothing about its outcome.
without_deadline = settings(deadline=None)

BASE_OFFSET_MAX = (1 << 63) - (1 << 32)
# Sums with a delta of the same size stay within 64 bits.
TIMESTAMP_MAX = (1 << 62) - 1

payloads = st.none() | st.binary(max_size=40) | st.integers(60, 9000).map(lambda size: b"v" * size)
header_keys = st.text(st.characters(codec="utf-8"), max_size=10)
headers = st.lists(st.tuples(header_keys, st.none() | st.binary(max_size=20)), max_size=4).map(tuple)
timestamps = st.integers(-TIMESTAMP_MAX, TIMESTAMP_MAX) | st.integers(1_700_000_000_000, 1_700_000_100_000)
compressions = st.sampled_from(CompressionType)


@st.composite
def record_lists(draw: st.DrawFn, min_size: int = 1) -> tuple[int, Sequence[Record]]:
    """A base offset and records with ascending offsets from it on, gaps and a missing first record included."""
    base_offset = draw(st.integers(0, BASE_OFFSET_MAX))
    gaps = draw(st.lists(st.just(1) | st.integers(1, 100_000), min_size=min_size, max_size=8))
    offset = base_offset - 1
    records = []
    for gap in gaps:
        offset += gap
        records.append(Record(offset, draw(timestamps), draw(payloads), draw(payloads), draw(headers)))
    return base_offset, records
