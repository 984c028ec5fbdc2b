import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import readers as kio_readers

from tidelog.wire import primitives
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import (
    Reader,
    write_bytes_length,
    write_compact_length,
    write_compact_nullable_string,
    write_compact_string,
    write_nullable_string,
    write_string,
    write_tagged_field,
    write_unsigned_varint,
)


def reader_of(data: bytes, position: int = 0, **options: int) -> Reader:
    return Reader(memoryview(data), position, **options)


# What is read, from which bytes, and what comes out.
VECTORS: list[tuple[Callable[[Reader], Any], bytes, Any]] = [
    (Reader.int8, b"\xff", -1),
    (Reader.int16, b"\x80\x00", -32768),
    (Reader.uint16, b"\xff\xfe", 65534),
    (Reader.int32, b"\x7f\xff\xff\xff", 2**31 - 1),
    (Reader.int64, b"\xff" * 8, -1),
    (Reader.float64, b"\x3f\xf8" + bytes(6), 1.5),
    (Reader.boolean, b"\0", False),
    (Reader.boolean, b"\1", True),
    (Reader.boolean, b"\2", True),
    (Reader.uuid, bytes(range(16)), bytes(range(16))),
    (Reader.unsigned_varint, b"\0", 0),
    (Reader.unsigned_varint, b"\x7f", 127),
    (Reader.unsigned_varint, b"\x80\x01", 128),
    (Reader.unsigned_varint, b"\xff\xff\xff\xff\x0f", 2**32 - 1),
    (Reader.string, b"\0\2hi", "hi"),
    (Reader.string, b"\0\0", ""),
    (Reader.nullable_string, b"\xff\xff", None),
    (Reader.nullable_string, b"\0\3\xe2\x82\xac", "€"),
    (Reader.compact_string, b"\3hi", "hi"),
    (Reader.compact_string, b"\1", ""),
    (Reader.compact_nullable_string, b"\0", None),
    (Reader.compact_nullable_string, b"\4\xe2\x82\xac", "€"),
    (Reader.bytes_, b"\0\0\0\2hi", b"hi"),
    (Reader.nullable_bytes, b"\xff\xff\xff\xff", None),
    (Reader.nullable_bytes, b"\0\0\0\0", b""),
    (Reader.compact_bytes, b"\3hi", b"hi"),
    (Reader.compact_nullable_bytes, b"\0", None),
    (Reader.compact_nullable_bytes, b"\1", b""),
    (Reader.nullable_array_length, b"\xff\xff\xff\xff", None),
    (Reader.array_length, b"\0\0\0\0", 0),
    (Reader.compact_nullable_array_length, b"\0", None),
    (Reader.compact_array_length, b"\1", 0),
    (Reader.skip_tagged_fields, b"\0", None),
    (Reader.skip_tagged_fields, b"\1\5\2hi", None),
    (lambda reader: list(reader.tagged_fields()), b"\2\0\1a\x80\x01\2bc", [(0, b"a"), (128, b"bc")]),
]


@pytest.mark.parametrize(("read", "data", "value"), VECTORS)
def test_reading_alone_between_other_bytes_and_cut_anywhere(read: Callable[[Reader], Any], data: bytes, value: Any) -> None:
    reader = reader_of(data)
    assert read(reader) == value
    reader.expect_end()
    reader = reader_of(b"\xff\xff" + data + b"\xff\xff", 2)
    assert read(reader) == value
    assert reader.remaining() == 2
    for length in range(len(data)):
        with pytest.raises(MalformedRequest):
            read(reader_of(data[:length]))


class TestRefused:
    @pytest.mark.parametrize(
        ("read", "data"),
        [
            (Reader.string, b"\xff\xff"),
            (Reader.compact_string, b"\0"),
            (Reader.bytes_, b"\xff\xff\xff\xff"),
            (Reader.compact_bytes, b"\0"),
            (Reader.array_length, b"\xff\xff\xff\xff"),
            (Reader.compact_array_length, b"\0"),
        ],
    )
    def test_null(self, read: Callable[[Reader], Any], data: bytes) -> None:
        with pytest.raises(MalformedRequest, match="null is not allowed"):
            read(reader_of(data))

    @pytest.mark.parametrize("read", [Reader.string, Reader.nullable_string])
    def test_a_negative_length(self, read: Callable[[Reader], Any]) -> None:
        with pytest.raises(MalformedRequest, match="a length of -2"):
            read(reader_of(b"\xff\xfe" + b"x" * 10))

    @pytest.mark.parametrize("read", [Reader.bytes_, Reader.nullable_bytes, Reader.array_length, Reader.nullable_array_length])
    def test_a_negative_long_length(self, read: Callable[[Reader], Any]) -> None:
        with pytest.raises(MalformedRequest, match="a length of -2"):
            read(reader_of(b"\xff\xff\xff\xfe" + b"x" * 10))

    @pytest.mark.parametrize("read", [Reader.string, Reader.compact_string])
    def test_a_string_that_is_not_utf8(self, read: Callable[[Reader], Any]) -> None:
        data = b"\0\2\xff\xfe" if read is Reader.string else b"\3\xff\xfe"
        with pytest.raises(MalformedRequest, match="not UTF-8"):
            read(reader_of(data))

    @pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x00", b"\xff" * 10])
    def test_a_varint_that_is_too_long(self, data: bytes) -> None:
        with pytest.raises(MalformedRequest, match="more than 32 bits"):
            reader_of(data).unsigned_varint()

    @pytest.mark.parametrize("data", [b"\2\1\0\1\0", b"\2\1\0\0\0"])
    def test_tags_that_do_not_rise(self, data: bytes) -> None:
        with pytest.raises(MalformedRequest, match="after tag 1"):
            reader_of(data).skip_tagged_fields()

    def test_bytes_that_are_left_over(self) -> None:
        with pytest.raises(MalformedRequest, match="3 bytes are left over at byte 1"):
            reader_of(b"abcd", 1).expect_end()


class TestArrays:
    @pytest.mark.parametrize("length", [3, 2**31 - 1])
    def test_more_elements_than_bytes(self, length: int) -> None:
        with pytest.raises(MalformedRequest, match=f"an array of {length} elements"):
            reader_of(struct.pack(">i", length) + b"xx").array_length()
        with pytest.raises(MalformedRequest, match=f"an array of {length} elements"):
            reader_of(write_unsigned_varint(length + 1) + b"xx").compact_array_length()

    def test_the_size_of_an_element_counts(self) -> None:
        data = b"\0\0\0\2" + bytes(8)
        assert reader_of(data).array_length(4) == 2
        with pytest.raises(MalformedRequest, match="an array of 2 elements"):
            reader_of(data).array_length(5)
        assert reader_of(b"\3" + bytes(8)).compact_nullable_array_length(4) == 2
        with pytest.raises(MalformedRequest, match="an array of 2 elements"):
            reader_of(b"\3" + bytes(8)).compact_nullable_array_length(5)

    def test_elements_of_all_arrays_are_counted(self) -> None:
        reader = reader_of(b"\0\0\0\2\0\0\0\2\0\0\0\1" + bytes(8), elements_max=4)
        assert [reader.array_length(), reader.array_length()] == [2, 2]
        with pytest.raises(MalformedRequest, match="too many array elements"):
            reader.array_length()

    def test_many_tagged_fields_are_counted_too(self) -> None:
        with pytest.raises(MalformedRequest, match="an array of 90 elements"):
            reader_of(write_unsigned_varint(90) + bytes(179)).skip_tagged_fields()
        with pytest.raises(MalformedRequest, match="300 tagged fields"):
            reader_of(write_unsigned_varint(300) + bytes(600)).skip_tagged_fields()


class TestWriting:
    @given(st.integers(0, 2**32 - 1))
    def test_unsigned_varint(self, value: int) -> None:
        encoded = write_unsigned_varint(value)
        assert kio_readers.read_unsigned_varint(encoded, 0)[0] == value
        assert reader_of(encoded).unsigned_varint() == value

    @pytest.mark.parametrize("value", [-1, 2**32])
    def test_an_unsigned_varint_out_of_range(self, value: int) -> None:
        with pytest.raises(struct.error):
            write_unsigned_varint(value)

    @given(st.text(max_size=300))
    def test_strings(self, value: str) -> None:
        assert kio_readers.read_legacy_string(write_string(value), 0)[0] == value
        assert kio_readers.read_compact_string(write_compact_string(value), 0)[0] == value
        assert write_nullable_string(value) == write_string(value)
        assert write_compact_nullable_string(value) == write_compact_string(value)
        assert reader_of(write_string(value)).string() == value
        assert reader_of(write_compact_string(value)).compact_string() == value

    def test_a_string_that_is_too_long(self) -> None:
        with pytest.raises(struct.error):
            write_string("x" * 32768)

    def test_null(self) -> None:
        assert reader_of(write_nullable_string(None)).nullable_string() is None
        assert reader_of(write_compact_nullable_string(None)).compact_nullable_string() is None
        assert reader_of(primitives.NULL_LENGTH).nullable_bytes() is None
        assert reader_of(primitives.COMPACT_NULL).compact_nullable_bytes() is None

    def test_lengths(self) -> None:
        assert bytes(reader_of(write_bytes_length(2) + b"ab").bytes_()) == b"ab"
        assert bytes(reader_of(write_compact_length(2000) + b"a" * 2000).compact_bytes()) == b"a" * 2000

    def test_tagged_field(self) -> None:
        encoded = b"\1" + write_tagged_field(300, b"value")
        assert [(tag, bytes(value)) for tag, value in reader_of(encoded).tagged_fields()] == [(300, b"value")]
