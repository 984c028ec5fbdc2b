"""Records inside a batch: the only place where single records are encoded and decoded.

A record, after its own length as a varint::

    attributes i8 (unused) | timestamp delta varlong | offset delta varint | key length varint, key | value length varint, value
    header count varint | each header: key length varint, key (UTF-8), value length varint, value

A length of -1 is null. Deltas count from the batch's base offset and base timestamp.

The decoders work on one ``bytes`` object with plain index arithmetic. They trust nothing: each length is checked against its
record's end, each record's end against the data's, and a read past the data's end (IndexError) is caught once, outside the loop.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.records.errors import InvalidBatch
from tidelog.records.varint import SMALL_VARINTS, SMALL_VARINTS_COUNT, VARINT_BITS, VARLONG_BITS, encode_varint, read_zigzag

RecordHeaders = tuple[tuple[str, bytes | None], ...]

_NULL = b"\x01"
_NO_HEADERS = b"\x00"
OFFSET_DELTA_MAX = (1 << 31) - 1

_new_tuple = tuple.__new__


class Record(NamedTuple):
    """One record. Header keys that are not UTF-8 are kept as surrogate escapes, so that compaction writes back what it read."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()


# The first byte of a varint says that more bytes follow (bit 7), or that the number is negative (bit 0): a null, or damage.
_LONG_OR_NEGATIVE = 0x81


def encode_records(records: Iterable[Record], base_offset: int, base_timestamp: int) -> bytes:
    """The records' bytes, one after the other."""
    parts: list[bytes] = []
    join = b"".join
    small = SMALL_VARINTS
    small_count = SMALL_VARINTS_COUNT
    previous_delta = -1
    for offset, timestamp, key, value, headers in records:
        offset_delta = offset - base_offset
        if not previous_delta < offset_delta <= OFFSET_DELTA_MAX:
            raise InvalidBatch(
                f"offset {offset} cannot follow offset {base_offset + previous_delta} in a batch from {base_offset}"
            )
        previous_delta = offset_delta
        timestamp_delta = timestamp - base_timestamp
        if key is None:
            key_length, key = _NULL, b""
        else:
            length = len(key)
            key_length = small[length] if length < small_count else encode_varint(length)
        if value is None:
            value_length, value = _NULL, b""
        else:
            length = len(value)
            value_length = small[length] if length < small_count else encode_varint(length)
        body = join(
            (
                b"\x00",
                small[timestamp_delta] if 0 <= timestamp_delta < small_count else encode_varint(timestamp_delta),
                small[offset_delta] if offset_delta < small_count else encode_varint(offset_delta),
                key_length,
                key,
                value_length,
                value,
                _encode_headers(headers) if headers else _NO_HEADERS,
            )
        )
        length = len(body)
        parts.append(small[length] if length < small_count else encode_varint(length))
        parts.append(body)
    return join(parts)


def encode_pairs(pairs: Iterable[tuple[bytes, bytes | None]]) -> bytes:
    """Records without headers, all with the batch's base timestamp, with consecutive offsets from its base offset on: a
    coordinator writes no others, one or two at a time."""
    parts: list[bytes] = []
    small = SMALL_VARINTS
    small_count = SMALL_VARINTS_COUNT
    for delta, (key, value) in enumerate(pairs):
        length = len(key)
        key_length = small[length] if length < small_count else encode_varint(length)
        if value is None:
            value_length, value = _NULL, b""
        else:
            length = len(value)
            value_length = small[length] if length < small_count else encode_varint(length)
        offset_delta = small[delta] if delta < small_count else encode_varint(delta)
        # Attributes, timestamp delta and number of headers are a byte each.
        length = 3 + len(offset_delta) + len(key_length) + len(key) + len(value_length) + len(value)
        parts += (
            small[length] if length < small_count else encode_varint(length),
            b"\x00\x00",
            offset_delta,
            key_length,
            key,
            value_length,
            value,
            _NO_HEADERS,
        )
    return b"".join(parts)


def _encode_headers(headers: RecordHeaders) -> bytes:
    parts = [encode_varint(len(headers))]
    for key, value in headers:
        encoded_key = key.encode("utf-8", "surrogateescape")
        parts.append(encode_varint(len(encoded_key)))
        parts.append(encoded_key)
        if value is None:
            parts.append(_NULL)
        else:
            parts.append(encode_varint(len(value)))
            parts.append(value)
    return b"".join(parts)


def decode_records(
    data: bytes, count: int, base_offset: int, last_offset_delta: int, base_timestamp: int, append_timestamp: int | None
) -> Iterator[Record]:
    """``count`` records that fill ``data`` exactly; all have ``append_timestamp`` when it is given.

    One-byte numbers are read inline: a coordinator loads a hundred thousand records this way."""
    size = len(data)
    position = 0
    previous_delta = -1
    try:
        for index in range(count):
            length = data[position]
            if length < 0x80:
                position += 1
            else:
                length, position = read_zigzag(data, position, VARINT_BITS)
            end = position + (length >> 1)
            if length & 1 or end > size:
                raise bad_length("record", index, length, size - position)

            position += 1
            zigzag = data[position]
            if zigzag < 0x80:
                position += 1
            else:
                zigzag, position = read_zigzag(data, position, VARLONG_BITS)
            timestamp = base_timestamp + (zigzag >> 1 ^ -(zigzag & 1)) if append_timestamp is None else append_timestamp

            zigzag = data[position]
            if zigzag < 0x80:
                position += 1
            else:
                zigzag, position = read_zigzag(data, position, VARINT_BITS)
            delta = zigzag >> 1
            if zigzag & 1 or not previous_delta < delta <= last_offset_delta:
                raise _bad_delta(index, zigzag, previous_delta, last_offset_delta)
            previous_delta = delta

            length = data[position]
            key_end = position + 1 + (length >> 1)
            if length & _LONG_OR_NEGATIVE or key_end > end:
                key, position = _read_nullable(data, position, end, index, "key")
            else:
                key, position = data[position + 1 : key_end], key_end

            length = data[position]
            value_end = position + 1 + (length >> 1)
            if length & _LONG_OR_NEGATIVE or value_end > end:
                value, position = _read_nullable(data, position, end, index, "value")
            else:
                value, position = data[position + 1 : value_end], value_end

            headers: RecordHeaders = ()
            if data[position]:
                headers, position = _read_headers(data, position, end, index)
            else:
                position += 1
            if position != end:
                raise InvalidBatch(f"record {index} ends at byte {position} of the records, but its length says {end}")
            yield _new_tuple(Record, (base_offset + delta, timestamp, key, value, headers))
    except IndexError:
        raise cut_off(size) from None
    if position != size:
        raise trailing_bytes(size, position)


def _read_nullable(data: bytes, position: int, end: int, index: int, what: str) -> tuple[bytes | None, int]:
    length, position = read_zigzag(data, position, VARINT_BITS)
    if length & 1:
        if length != 1:
            raise bad_length(what, index, length, end - position)
        return None, position
    value_end = position + (length >> 1)
    if value_end > end:
        raise bad_length(what, index, length, end - position)
    return data[position:value_end], value_end


def _read_headers(data: bytes, position: int, end: int, index: int) -> tuple[RecordHeaders, int]:
    count, position = read_zigzag(data, position, VARINT_BITS)
    # A header takes two bytes at least.
    if count & 1 or count > end - position:
        raise InvalidBatch(f"record {index} claims {count >> 1 ^ -(count & 1)} headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count >> 1):
        key, position = _read_nullable(data, position, end, index, "header key")
        if key is None:
            raise InvalidBatch(f"record {index} has a header without a key")
        value, position = _read_nullable(data, position, end, index, "header value")
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def decode_keys(data: bytes, count: int, last_offset_delta: int) -> Iterator[tuple[int, bytes | None, bool]]:
    """(offset delta, key, value is null) of ``count`` records that fill ``data`` exactly. Headers are not looked at.

    Numbers of one and two bytes are read inline, twice as fast as calls: this runs over everything that compaction reads."""
    size = len(data)
    position = 0
    previous_delta = -1
    try:
        for index in range(count):
            length = data[position]
            if length < 0x80:
                position += 1
            elif (second := data[position + 1]) < 0x80:
                length += (second << 7) - 0x80
                position += 2
            else:
                length, position = read_zigzag(data, position, VARINT_BITS)
            end = position + (length >> 1)
            if length & 1 or end > size:
                raise bad_length("record", index, length, size - position)

            position += 1
            if data[position] < 0x80:
                position += 1
            else:
                position = read_zigzag(data, position, VARLONG_BITS)[1]

            zigzag = data[position]
            if zigzag < 0x80:
                position += 1
            elif (second := data[position + 1]) < 0x80:
                zigzag += (second << 7) - 0x80
                position += 2
            else:
                zigzag, position = read_zigzag(data, position, VARINT_BITS)
            delta = zigzag >> 1
            if zigzag & 1 or not previous_delta < delta <= last_offset_delta:
                raise _bad_delta(index, zigzag, previous_delta, last_offset_delta)
            previous_delta = delta

            length = data[position]
            if length < 0x80:
                position += 1
            else:
                length, position = read_zigzag(data, position, VARINT_BITS)
            key = None
            if length != 1:
                key_end = position + (length >> 1)
                if length & 1 or key_end > end:
                    raise bad_length("key", index, length, end - position)
                key = data[position:key_end]
                position = key_end

            length = data[position]
            if length < 0x80:
                position += 1
            elif (second := data[position + 1]) < 0x80:
                length += (second << 7) - 0x80
                position += 2
            else:
                length, position = read_zigzag(data, position, VARINT_BITS)
            # One byte at least must be left for the header count.
            if (length & 1 and length != 1) or position + (length >> 1) >= end:
                raise bad_length("value", index, length, end - position)
            position = end
            yield delta, key, length == 1
    except IndexError:
        raise cut_off(size) from None
    if position != size:
        raise trailing_bytes(size, position)


def bad_length(what: str, index: int, zigzag: int, room: int) -> InvalidBatch:
    length = zigzag >> 1 ^ -(zigzag & 1)
    return InvalidBatch(f"the {what} of record {index} claims {length} bytes, but only {room} are left")


def _bad_delta(index: int, zigzag: int, previous_delta: int, last_offset_delta: int) -> InvalidBatch:
    offset_delta = zigzag >> 1 ^ -(zigzag & 1)
    return InvalidBatch(
        f"record {index} has offset delta {offset_delta}, which must be above {previous_delta} and at most {last_offset_delta}"
    )


def wrong_offset_delta(index: int, zigzag: int) -> InvalidBatch:
    offset_delta = zigzag >> 1 ^ -(zigzag & 1)
    return InvalidBatch(f"record {index} has offset delta {offset_delta}, but the records of a new batch count up from 0")


def cut_off(size: int) -> InvalidBatch:
    return InvalidBatch(f"the records are cut off after {size} bytes")


def trailing_bytes(size: int, position: int) -> InvalidBatch:
    return InvalidBatch(f"the records take {position} bytes, but {size - position} more follow")
