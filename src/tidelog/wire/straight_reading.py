"""Reading by position in straight code, for the decoders of what clients send all the time.

``Reader`` pays a call and a check per field, which is most of its time. Here a decoder keeps the position in a local variable and
checks nothing that fails by itself: a read beyond the end raises ``IndexError`` or ``struct.error``, and a slice beyond the end
leaves the position beyond it, where the next read fails, or the decoder's last comparison with the length of the frame. Every
element of an array takes bytes, so no count makes a loop longer than the frame; ``elements_left`` bounds what it may allocate.

Produce and Fetch read views of the frame; smaller requests are copied once and read as bytes, which is faster.
"""

import struct

from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import ELEMENTS_MAX, Reader

__all__ = [
    "ELEMENTS_MAX",
    "compact_text_at",
    "count_at",
    "count_elements",
    "refuse_null",
    "skip_tagged_fields_at",
    "text_at",
    "varint_at",
]

_unpack_int16 = struct.Struct(">h").unpack_from


def varint_at(view: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint, and the position behind it."""
    value = view[position]
    if value < 0x80:
        return value, position + 1
    following = view[position + 1]
    if following < 0x80:
        return value & 0x7F | following << 7, position + 2
    reader = Reader(view, position)
    value = reader.unsigned_varint()
    return value, reader.position


def text_at(data: bytes, position: int) -> tuple[str | None, int]:
    """A string with an int16 length, or null, and the position behind it."""
    (length,) = _unpack_int16(data, position)
    position += 2
    if length < 0:
        if length != -1:
            refuse_null()
        return None, position
    end = position + length
    return data[position:end].decode(), end


def compact_text_at(data: bytes, position: int) -> tuple[str | None, int]:
    """A string whose length is a varint, one more than it says, or null, and the position behind it."""
    length = data[position]
    position += 1
    if length >= 0x80:
        length, position = varint_at(memoryview(data), position - 1)
    elif length <= 1:
        return ("" if length else None), position
    end = position + length - 1
    return data[position:end].decode(), end


def count_at(data: bytes, position: int) -> tuple[int, int]:
    """The length of a compact array, and the position behind it."""
    count = data[position]
    if count < 0x80:
        return count - 1, position + 1
    count, position = varint_at(memoryview(data), position)
    return count - 1, position


def skip_tagged_fields_at(view: memoryview, position: int) -> int:
    """The position behind a section of tagged fields."""
    reader = Reader(view, position)
    reader.skip_tagged_fields()
    return reader.position


def count_elements(elements_left: int, count: int) -> int:
    """What is left of the elements that one frame may have after an array of ``count`` more."""
    if count < 0:
        refuse_null()
    elements_left -= count
    if elements_left < 0:
        raise MalformedRequest(f"more than {ELEMENTS_MAX} array elements in one frame")
    return elements_left


def refuse_null() -> None:
    raise MalformedRequest("null or a negative length where neither is allowed")
