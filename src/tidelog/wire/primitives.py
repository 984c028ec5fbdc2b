"""Kafka's primitive types, which all codecs use.

Integers are big endian. Before flexible versions (KIP-482) a string has an int16 length, bytes and arrays have an int32 length,
and -1 is null. In flexible versions lengths are unsigned varints, one more than the length, and 0 is null; every struct ends with
tagged fields: a count, then tag, size and bytes of each. A reader skips tags that it does not know.

There are two ways to read. ``Reader`` walks a frame once, from front to back, and copies nothing but strings. It checks every
read against the end, and the length of an array against the bytes that remain and against ``ELEMENTS_MAX``, so no count can make
a caller allocate more than the frame could hold. All that it raises is ``MalformedRequest``.

A call and a check per field are most of the reader's time. So the codecs of the hottest requests keep the position in a local
variable and use the functions whose names end in ``_at``, which check nothing that fails by itself: a read beyond the end raises
``IndexError`` or ``struct.error``, and a slice beyond the end leaves the position beyond it, where the next read fails, or the
codec's last comparison with the length of the frame. Every element of an array takes bytes, so no count makes a loop longer than
the frame; ``count_elements`` bounds what it may allocate. Produce and Fetch read views of the frame this way; smaller requests
are copied once and read as bytes, which is faster.

The writers are pure functions that return bytes; values out of range are mistakes of the program and raise ``struct.error``.
"""

import struct
from collections.abc import Iterator
from typing import NoReturn

from tidelog.wire.errors import MalformedRequest

# The limit of array elements in one frame, all arrays together. An element of two bytes becomes an object of some 300 when it is
# decoded, so the size of the frame alone does not bound the memory. An element is a partition or a topic: this is enough for all
# the partitions that a broker has by default (``max.partitions``), even if each belongs to a topic of its own.
ELEMENTS_MAX = 200_000
# The same for requests about partitions that are decoded and handled at once: a few microseconds each.
ELEMENTS_AT_ONCE_MAX = 10_000
# The limit of one section of tagged fields, most of which nobody reads. No message of Kafka's defines more than a handful.
TAGGED_FIELDS_MAX = 100
# An unsigned varint holds 32 bits in at most five bytes.
UNSIGNED_VARINT_BITS = 32
UUID_SIZE = 16
# The length that stands for null.
NULL = -1

INT8 = struct.Struct(">b")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
UINT16 = struct.Struct(">H")
FLOAT64 = struct.Struct(">d")

_unpack_int8 = INT8.unpack_from
_unpack_int16 = INT16.unpack_from
_unpack_int32 = INT32.unpack_from
_unpack_int64 = INT64.unpack_from
_pack_int16 = INT16.pack
_pack_int32 = INT32.pack


class Reader:
    """A position in a frame. It is public so that a codec can read several fixed fields with one ``unpack_from``."""

    __slots__ = ("elements_left", "end", "position", "view")

    def __init__(self, view: memoryview, position: int = 0, elements_max: int = ELEMENTS_MAX) -> None:
        self.view = view
        self.position = position
        self.end = len(view)
        self.elements_left = elements_max

    def nested(self, view: memoryview) -> "Reader":
        """Return a reader of a part of the frame, with the same budget of array elements. Hand the budget back with ``leave``."""
        return Reader(view, 0, self.elements_left)

    def leave(self, nested: "Reader") -> None:
        self.elements_left = nested.elements_left

    def remaining(self) -> int:
        return self.end - self.position

    def take(self, length: int) -> int:
        """Advance by ``length`` bytes and return where they start."""
        position = self.position
        if length > self.end - position:
            self._fail_short(length)
        self.position = position + length
        return position

    def expect_end(self) -> None:
        if self.position != self.end:
            raise MalformedRequest(f"{self.end - self.position} bytes are left over at byte {self.position}")

    # Fixed sizes.

    def int8(self) -> int:
        value: int = _unpack_int8(self.view, self.take(1))[0]
        return value

    def boolean(self) -> bool:
        """Any byte but 0 is true, as in Kafka."""
        return self.view[self.take(1)] != 0

    def int16(self) -> int:
        position = self.position
        if position + 2 > self.end:
            self._fail_short(2)
        self.position = position + 2
        value: int = _unpack_int16(self.view, position)[0]
        return value

    def int32(self) -> int:
        position = self.position
        if position + 4 > self.end:
            self._fail_short(4)
        self.position = position + 4
        value: int = _unpack_int32(self.view, position)[0]
        return value

    def int64(self) -> int:
        value: int = _unpack_int64(self.view, self.take(8))[0]
        return value

    def uint16(self) -> int:
        value: int = UINT16.unpack_from(self.view, self.take(2))[0]
        return value

    def float64(self) -> float:
        value: float = FLOAT64.unpack_from(self.view, self.take(8))[0]
        return value

    def uuid(self) -> bytes:
        """The 16 bytes of an id; all zeros mean no id."""
        position = self.take(UUID_SIZE)
        return bytes(self.view[position : position + UUID_SIZE])

    def unsigned_varint(self) -> int:
        view = self.view
        position = self.position
        try:
            byte = view[position]
            if byte < 0x80:
                self.position = position + 1
                return byte
            value = byte & 0x7F
            for shift in range(7, UNSIGNED_VARINT_BITS, 7):
                position += 1
                byte = view[position]
                if byte < 0x80:
                    value |= byte << shift
                    if value >> UNSIGNED_VARINT_BITS:
                        break
                    self.position = position + 1
                    return value
                value |= (byte & 0x7F) << shift
        except IndexError:
            self._fail_short(position - self.position + 1)
        raise MalformedRequest(f"the varint at byte {self.position} takes more than {UNSIGNED_VARINT_BITS} bits")

    # Strings. A length of -1, or of 0 in the compact form, is null.

    def nullable_string(self) -> str | None:
        length = self.int16()
        if length >= 0:
            return self._text(length)
        if length != NULL:
            self._fail_length(length)
        return None

    def string(self) -> str:
        length = self.int16()
        if length < 0:
            self._fail_null(length)
        return self._text(length)

    def compact_nullable_string(self) -> str | None:
        length = self.unsigned_varint()
        return self._text(length - 1) if length else None

    def compact_string(self) -> str:
        length = self.unsigned_varint()
        if not length:
            self._fail_null()
        return self._text(length - 1)

    def _text(self, length: int) -> str:
        start = self.position
        end = start + length
        if end > self.end:
            self._fail_short(length)
        self.position = end
        try:
            return str(self.view[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"the string at byte {start} is not UTF-8") from error

    # Bytes, as views of the frame: valid as long as the frame is.

    def _slice(self, length: int) -> memoryview:
        start = self.position
        end = start + length
        if end > self.end:
            self._fail_short(length)
        self.position = end
        return self.view[start:end]

    def nullable_bytes(self) -> memoryview | None:
        length = self.int32()
        if length >= 0:
            return self._slice(length)
        if length != NULL:
            self._fail_length(length)
        return None

    def bytes_(self) -> memoryview:
        length = self.int32()
        if length < 0:
            self._fail_null(length)
        return self._slice(length)

    def compact_nullable_bytes(self) -> memoryview | None:
        length = self.unsigned_varint()
        return self._slice(length - 1) if length else None

    def compact_bytes(self) -> memoryview:
        length = self.unsigned_varint()
        if not length:
            self._fail_null()
        return self._slice(length - 1)

    # Array lengths. ``element_size_min`` is the fewest bytes that one element takes.

    def _bounded(self, count: int, element_size_min: int) -> int:
        if count * element_size_min > self.end - self.position:
            raise MalformedRequest(f"an array of {count} elements at byte {self.position} in a frame of {self.end} bytes")
        self.elements_left -= count
        if self.elements_left < 0:
            raise MalformedRequest(f"too many array elements in one frame, the last {count} at byte {self.position}")
        return count

    def nullable_array_length(self, element_size_min: int = 1) -> int | None:
        length = self.int32()
        if length >= 0:
            return self._bounded(length, element_size_min)
        if length != NULL:
            self._fail_length(length)
        return None

    def array_length(self, element_size_min: int = 1) -> int:
        length = self.int32()
        if length < 0:
            self._fail_null(length)
        return self._bounded(length, element_size_min)

    def compact_nullable_array_length(self, element_size_min: int = 1) -> int | None:
        length = self.unsigned_varint()
        return self._bounded(length - 1, element_size_min) if length else None

    def compact_array_length(self, element_size_min: int = 1) -> int:
        length = self.unsigned_varint()
        if not length:
            self._fail_null()
        return self._bounded(length - 1, element_size_min)

    # Tagged fields.

    def skip_tagged_fields(self) -> None:
        # Nearly always there are no tagged fields.
        position = self.position
        if position < self.end and not self.view[position]:
            self.position = position + 1
            return
        for _ in self.tagged_fields():
            pass

    def tagged_fields(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the tag and bytes of each field. Tags must ascend, so that no field occurs twice and a struct has only one
        encoding."""
        count = self.unsigned_varint()
        if count > TAGGED_FIELDS_MAX:
            raise MalformedRequest(f"{count} tagged fields at byte {self.position}, and at most {TAGGED_FIELDS_MAX} are allowed")
        # Tag and size take at least a byte each.
        self._bounded(count, 2)
        previous = -1
        for _ in range(count):
            tag = self.unsigned_varint()
            if tag <= previous:
                raise MalformedRequest(f"tag {tag} after tag {previous} at byte {self.position}")
            previous = tag
            yield tag, self._slice(self.unsigned_varint())

    def _fail_short(self, length: int) -> NoReturn:
        raise MalformedRequest(f"{length} bytes wanted at byte {self.position}, {self.end - self.position} left")

    def _fail_length(self, length: int) -> NoReturn:
        raise MalformedRequest(f"a length of {length} before byte {self.position}")

    def _fail_null(self, length: int = NULL) -> NoReturn:
        if length != NULL:
            self._fail_length(length)
        raise MalformedRequest(f"null before byte {self.position}, where null is not allowed")


# Reading by position.


def unsigned_varint_at(view: memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint, and the position after it."""
    value = view[position]
    if value < 0x80:
        return value, position + 1
    following = view[position + 1]
    if following < 0x80:
        return value & 0x7F | following << 7, position + 2
    reader = Reader(view, position)
    value = reader.unsigned_varint()
    return value, reader.position


def string_at(data: bytes, position: int) -> tuple[str | None, int]:
    """Return a string with an int16 length, or null, and the position after it."""
    (length,) = _unpack_int16(data, position)
    position += 2
    if length < 0:
        if length != -1:
            refuse_null()
        return None, position
    end = position + length
    return data[position:end].decode(), end


def compact_string_at(data: bytes, position: int) -> tuple[str | None, int]:
    """Return a compact string, or null, and the position after it."""
    length = data[position]
    position += 1
    if length >= 0x80:
        length, position = unsigned_varint_at(memoryview(data), position - 1)
    elif length <= 1:
        return ("" if length else None), position
    end = position + length - 1
    return data[position:end].decode(), end


def compact_array_length_at(data: bytes, position: int) -> tuple[int, int]:
    """Return the length of a compact array, and the position after it."""
    count = data[position]
    if count < 0x80:
        return count - 1, position + 1
    count, position = unsigned_varint_at(memoryview(data), position)
    return count - 1, position


def skip_tagged_fields_at(view: memoryview, position: int) -> int:
    """Return the position after a section of tagged fields."""
    reader = Reader(view, position)
    reader.skip_tagged_fields()
    return reader.position


def count_elements(elements_left: int, count: int) -> int:
    """Return how many elements the frame may still have after an array of ``count``."""
    if count < 0:
        refuse_null()
    elements_left -= count
    if elements_left < 0:
        raise MalformedRequest("more array elements than a frame of this size may have")
    return elements_left


def refuse_null() -> None:
    raise MalformedRequest("null or a negative length where neither is allowed")


# Writing.


def _encode_unsigned_varint(value: int) -> bytes:
    if value < 0 or value >> UNSIGNED_VARINT_BITS:
        raise struct.error(f"{value} does not fit into an unsigned varint of {UNSIGNED_VARINT_BITS} bits")
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# Nearly all lengths, counts and tags are among these.
SMALL_UNSIGNED_VARINTS = tuple(_encode_unsigned_varint(value) for value in range(1024))

NO_TAGGED_FIELDS = b"\0"
NULL_STRING = b"\xff\xff"
NULL_LENGTH = b"\xff\xff\xff\xff"
COMPACT_NULL = b"\0"
ZERO_UUID = bytes(UUID_SIZE)


def write_unsigned_varint(value: int) -> bytes:
    return SMALL_UNSIGNED_VARINTS[value] if 0 <= value < 1024 else _encode_unsigned_varint(value)


def write_string(value: str) -> bytes:
    encoded = value.encode()
    return _pack_int16(len(encoded)) + encoded


def write_nullable_string(value: str | None) -> bytes:
    return NULL_STRING if value is None else write_string(value)


def write_compact_string(value: str) -> bytes:
    encoded = value.encode()
    size = len(encoded) + 1
    return (SMALL_UNSIGNED_VARINTS[size] if size < 1024 else _encode_unsigned_varint(size)) + encoded


def write_compact_nullable_string(value: str | None) -> bytes:
    return COMPACT_NULL if value is None else write_compact_string(value)


def write_bytes_length(length: int) -> bytes:
    """The length of bytes, which a scatter list carries uncopied, or of an array."""
    return _pack_int32(length)


def write_compact_length(length: int) -> bytes:
    """The length of compact bytes or of a compact array."""
    return SMALL_UNSIGNED_VARINTS[length + 1] if -1 <= length < 1023 else _encode_unsigned_varint(length + 1)


def write_tagged_field(tag: int, value: bytes | bytearray) -> bytes:
    return write_unsigned_varint(tag) + write_unsigned_varint(len(value)) + value
