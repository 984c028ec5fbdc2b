"""The schema engine by itself: versions, tags, nulls and the Python objects that hold the values.

That all of Kafka's types are read and written rightly is what ``test_messages`` checks against kio.
"""

from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import Reader
from tidelog.wire.schema import (
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    Field,
    Struct,
    dataclass_struct,
    struct_reader,
    struct_writer,
    tuple_struct,
)


class Point(NamedTuple):
    x: int
    y: int = 7


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    points: tuple[Point, ...] = ()
    ids: tuple[bytes, ...] | None = None
    centre: Point | None = None
    weight: int = -1
    colours: tuple[int, ...] = ()
    note: bytes = b""


POINT = tuple_struct(Point, Field("x", INT8), Field("y", INT16, since=1))
SHAPE = dataclass_struct(
    Shape,
    Field("name", STRING),
    Field("points", POINT, is_array=True),
    Field("ids", UUID, is_array=True, is_nullable=True, since=1),
    Field("centre", POINT, is_nullable=True, tag=3),
    Field("weight", INT64, tag=1),
    Field("colours", INT32, is_array=True, tag=0),
    Field("note", BYTES),
)
FULL = Shape("s", (Point(1), Point(2, 3)), (b"i" * 16,), Point(4, 5), 6, (8,), b"n")


def write(struct: Struct, version: int, is_flexible: bool, value: object) -> bytes:
    out = bytearray()
    struct_writer(struct, version, is_flexible)(out, value)
    return bytes(out)


def read(struct: Struct, version: int, is_flexible: bool, data: bytes) -> object:
    reader = Reader(memoryview(data))
    value = struct_reader(struct, version, is_flexible)(reader)
    reader.expect_end()
    return value


@pytest.mark.parametrize(
    ("version", "is_flexible", "value", "data"),
    [
        # Without flexible encoding there is no place for tagged fields.
        (0, False, Shape("s", (Point(1), Point(2)), note=b"n"), b"\0\1s" + b"\0\0\0\2\1\2" + b"\0\0\0\1n"),
        (1, False, Shape("", (), None), b"\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff" + b"\0\0\0\0"),
        (0, True, Shape("s", (Point(1),)), b"\2s" + b"\2\1\0" + b"\1" + b"\0"),
        (1, True, Shape("s", (), ()), b"\2s" + b"\1" + b"\1" + b"\1" + b"\0"),
        (
            1,
            True,
            FULL,
            b"\2s"
            + (b"\3" + b"\1\0\7\0" + b"\2\0\3\0")
            + (b"\2" + b"i" * 16)
            + b"\2n"
            # Tags rise, whatever the order of the fields.
            + (b"\3" + b"\0\5\2\0\0\0\10" + b"\1\10" + bytes(7) + b"\6" + b"\3\5\1\4\0\5\0"),
        ),
    ],
)
def test_golden_bytes_both_ways(version: int, is_flexible: bool, value: Shape, data: bytes) -> None:
    assert write(SHAPE, version, is_flexible, value) == data
    assert read(SHAPE, version, is_flexible, data) == value
    assert SHAPE.size_min(version, is_flexible) <= len(data)
    for length in range(len(data)):
        with pytest.raises(MalformedRequest):
            read(SHAPE, version, is_flexible, data[:length])


def test_a_version_writes_no_field_that_it_lacks() -> None:
    assert read(SHAPE, 0, False, write(SHAPE, 0, False, FULL)) == Shape("s", (Point(1), Point(2)), note=b"n")


def test_a_tagged_field_that_equals_its_default_is_left_out() -> None:
    assert write(SHAPE, 0, True, Shape("", weight=-1, colours=())) == b"\1\1\1\0"


def test_tags_of_no_field_and_of_later_versions_are_skipped() -> None:
    later = tuple_struct(Point, Field("x", INT8), Field("y", INT16, since=1, tag=0))
    data = b"\1" + b"\2" + b"\0\2\0\x09" + b"\x63\1z"
    assert read(later, 1, True, data) == Point(1, 9)
    assert read(later, 0, True, data) == Point(1, 7)


def test_a_struct_has_the_fields_of_its_type() -> None:
    with pytest.raises(AssertionError, match="Point"):
        tuple_struct(Point, Field("x", INT8))
    with pytest.raises(AssertionError, match="Shape"):
        dataclass_struct(Shape, Field("name", STRING))
