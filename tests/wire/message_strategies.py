"""What messages are made of."""

from hypothesis import strategies as st

from tests.wire.kio_oracle import KIO_ERROR_CODES
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import NodeEndpoint

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
duration_ms = st.integers(0, 2**31 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
nullable_text = st.none() | text
topic_ids = st.binary(min_size=16, max_size=16)
errors = st.sampled_from([error for error in ErrorCode if int(error) in KIO_ERROR_CODES])
# (-1, -1) is the default, which is written as nothing.
leaders = st.none() | st.tuples(st.integers(0, 2**31 - 1), int32)
# Lengths around the steps of a varint's size.
_records = st.binary(max_size=64) | st.sampled_from([126, 127, 128, 16_383, 16_384]).map(bytes)
record_views = _records.map(lambda data: memoryview(data))
node_endpoints = st.lists(st.builds(NodeEndpoint, int32, text, int32, nullable_text), max_size=2)
