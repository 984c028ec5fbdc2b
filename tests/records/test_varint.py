import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.strategies import without_deadline
from tidelog.records.errors import InvalidBatch
from tidelog.records.varint import SMALL_VARINTS, VARINT_BITS, VARLONG_BITS, encode_varint, read_zigzag

KNOWN = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    8191: "fe7f",
    8192: "808001",
    (1 << 31) - 1: "feffffff0f",
    -(1 << 31): "ffffffff0f",
    (1 << 63) - 1: "feffffffffffffffff01",
    -(1 << 63): "ffffffffffffffffff01",
}


def decode(encoded: bytes, bits: int) -> int:
    zigzag, position = read_zigzag(b"?" + encoded + b"?", 1, bits)
    assert position == 1 + len(encoded)
    return zigzag >> 1 ^ -(zigzag & 1)


@pytest.mark.parametrize(("value", "encoded"), KNOWN.items())
def test_known_bytes_both_ways(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert decode(bytes.fromhex(encoded), VARLONG_BITS) == value


@without_deadline
@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_varint_round_trip(value: int) -> None:
    assert decode(encode_varint(value), VARINT_BITS) == value


@without_deadline
@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varlong_round_trip(value: int) -> None:
    assert decode(encode_varint(value), VARLONG_BITS) == value


def test_ready_made_varints_are_the_encoded_ones() -> None:
    assert list(SMALL_VARINTS) == [encode_varint(value) for value in range(len(SMALL_VARINTS))]


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_more_than_64_bits_are_not_written(value: int) -> None:
    with pytest.raises(InvalidBatch, match="more than 64 bits"):
        encode_varint(value)


@pytest.mark.parametrize(
    ("encoded", "bits"),
    [("ffffffff1f", VARINT_BITS), ("8080808080", VARINT_BITS), ("ffffffffffffffffff03", VARLONG_BITS), ("80" * 11, VARLONG_BITS)],
)
def test_overflow_is_refused(encoded: str, bits: int) -> None:
    with pytest.raises(InvalidBatch, match=f"at byte 0 of the records takes more than {bits} bits"):
        read_zigzag(bytes.fromhex(encoded + "00"), 0, bits)


@pytest.mark.parametrize("length", range(5))
def test_data_that_ends_first_is_an_index_error(length: int) -> None:
    with pytest.raises(IndexError):
        read_zigzag(b"\x80" * length, 0, VARINT_BITS)
