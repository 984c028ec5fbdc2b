"""Checks that the bytes of a client's batch are the records that its header claims, without making an object per record.

The walk reads each number of each record and skips keys and values. A batch passes when its records fill the bytes exactly, their
offset deltas count up from 0, and every length fits into its record. Structural faults raise at once. A record that is well
formed but may not be written (no key on a compacted topic, a timestamp out of bounds) is noted in ``refused``, and the walk goes
on, because a producer is told about all of them.

Python takes half a microsecond for a record. Most batches contain long runs of records of one shape: the same sizes of all
fields, so that each field lies at a fixed distance from the same field of the record before. A run is checked a field at a time
with slices whose step is that distance, which costs 20 nanoseconds a record and checks exactly the same. The walk tries a run
whenever the next record looks like the last one, doubles it as long as it holds, and goes back to single records otherwise; so a
batch without runs costs a few percent more.

Runs do not compute the maximum timestamp; they check that no record exceeds the one in the header, and look for one that has it.
If none has (the header is wrong), the walk starts over without runs.

Small requests have one record, or a few, and then making a walk takes longer than walking. ``newest_plain_delta`` recognizes the
records that nearly all of them have: well formed, without headers, and with small numbers. What it does not recognize is walked.

A walk is resumed as often as its caller likes (``advance``), so that a batch of a million records can be checked in slices. A
record with very many headers is split too.
"""

from typing import NamedTuple

from tidelog.records.errors import InvalidBatch
from tidelog.records.record import bad_length, cut_off, trailing_bytes, wrong_offset_delta
from tidelog.records.varint import VARINT_BITS, VARLONG_BITS, encode_varint, read_zigzag

# The number of refused records that are noted; a batch with more is refused without naming any.
REFUSED_MAX = 10_000
# How many single records are walked before the next attempt at a run: few after a run, more after each failed attempt.
STRETCH_MIN = 16
STRETCH_MAX = 256
# Shorter runs are not worth their slices.
RUN_MIN = 32
# A record in a run costs about this fraction of a single one.
RUN_DISCOUNT = 16
# Records with more headers are walked a part at a time.
HEADERS_AT_ONCE_MAX = 256
# Beyond a few records a walk costs little more; and the offset delta of a plain record takes one byte.
PLAIN_RECORDS_MAX = 16
ANY_TIMESTAMP = 1 << 65

# The bytes of offset deltas in a run. The two lowest bytes of a delta's varint repeat every 8192 records, and the others do not
# change between two multiples of that.
_BLOCK = 8192
_ONE_BYTE = bytes(range(0, 0x80, 2))
_LOW = bytes([delta << 1 & 0x7F | 0x80 for delta in range(_BLOCK)])
_HIGH = bytes([delta >> 6 for delta in range(_BLOCK)])
_HIGH_CONTINUED = bytes([delta >> 6 | 0x80 for delta in range(_BLOCK)])
_EVEN = bytes(range(0, 0x80, 2))
_EVEN_CONTINUED = bytes(range(0x80, 0x100, 2))


def newest_plain_delta(data: memoryview, position: int, count: int, needs_keys: bool) -> int | None:
    """The highest timestamp delta of the ``count`` records that fill ``data`` from ``position`` to its end, if all of them are
    plain; otherwise None, and only a walk can tell."""
    if count > PLAIN_RECORDS_MAX:
        return None
    newest = 0
    size = len(data)
    try:
        for index in range(count):
            length = data[position]
            position += 1
            if length >= 0x80:
                length += (data[position] << 7) - 0x80
                position += 1
                if length >= 0x4000:
                    return None
            end = position + (length >> 1)
            delta = data[position + 1]
            if delta >= 0x80:
                position += 1
                delta += (data[position + 1] << 7) - 0x80
            key = data[position + 3]
            # Even numbers are not negative, and a key of null has 1.
            if length & 1 or delta & 1 or delta >= 0x4000 or data[position + 2] != index << 1 or key >= 0x80:
                return None
            if key & 1 and (needs_keys or key != 1):
                return None
            if delta > newest:
                newest = delta
            position += 4 + (key >> 1)
            length = data[position]
            position += 1
            if length >= 0x80:
                length += (data[position] << 7) - 0x80
                position += 1
                if length >= 0x4000:
                    return None
            position += length >> 1
            if (length & 1 and length != 1) or data[position] or position + 1 != end:
                return None
            position = end
    except IndexError:
        return None
    return newest >> 1 if position == size else None


class WalkRules(NamedTuple):
    """What the topic asks of each record. Timestamps are deltas to the batch's base timestamp."""

    delta_min: int = -ANY_TIMESTAMP
    delta_max: int = ANY_TIMESTAMP
    no_timestamp_delta: int = 0
    """The delta that means that a record has no timestamp, which is always allowed."""
    newest_delta: int = ANY_TIMESTAMP
    """The delta of the maximum timestamp in the header; ANY_TIMESTAMP when the caller does not need ``newest_delta``."""
    needs_keys: bool = False


class _Shape(NamedTuple):
    """Where the fields of a record lie, counted from its first byte."""

    fixed: tuple[int, ...]
    """The bytes that all records of a run share: of the lengths and of the header count."""
    timestamp: int
    timestamp_size: int
    offset_delta: int
    offset_delta_size: int


class RecordWalk:
    __slots__ = (
        "_count",
        "_data",
        "_first_position",
        "_has_newest",
        "_header_work",
        "_headers_end",
        "_headers_left",
        "_index",
        "_last_start",
        "_newest",
        "_position",
        "_rules",
        "_skips_runs",
        "_stretch",
        "_usual_max",
        "is_complete",
        "refused",
        "refused_count",
    )

    def __init__(self, data: bytes, position: int, count: int, rules: WalkRules) -> None:
        """Walk the ``count`` records that fill ``data`` from ``position`` to its end."""
        self._data = data
        self._first_position = position
        self._count = count
        self._rules = rules
        # Timestamps up to this one, as a zigzag number, need no closer look.
        self._usual_max = rules.delta_max << 1 if rules.delta_min <= 0 else -1
        self._skips_runs = rules.newest_delta < 0
        self.is_complete = False
        self._start_over()

    def _start_over(self) -> None:
        self._position = self._last_start = self._first_position
        self._index = 0
        self._newest = -ANY_TIMESTAMP
        self._has_newest = self._rules.newest_delta == ANY_TIMESTAMP
        self._header_work = self._headers_left = self._headers_end = 0
        self._stretch = STRETCH_MIN
        self.refused: list[tuple[int, int | None]] = []
        """(index, timestamp delta) of each record that may not be written; the delta is None when it lacks a key."""
        self.refused_count = 0

    @property
    def newest_delta(self) -> int:
        """The highest timestamp delta, after the walk."""
        return max(self._newest, self._rules.newest_delta) if self._has_newest else self._newest

    def advance(self, budget: int) -> int:
        """Check more records, worth about ``budget`` single ones, and return what is left of the budget. Raises InvalidBatch."""
        count = self._count
        try:
            while not self.is_complete:
                while self._index < count or self._headers_left:
                    if budget <= 0:
                        return 0
                    budget -= self._walk_some()
                if self._position != len(self._data):
                    raise trailing_bytes(len(self._data), self._position)
                self.is_complete = self._has_newest or self._skips_runs or self._newest >= self._rules.newest_delta
                if not self.is_complete:
                    # No record has the header's maximum timestamp, and those in runs were not compared with each other.
                    self._skips_runs = True
                    self._start_over()
        except IndexError:
            raise cut_off(len(self._data)) from None
        return budget

    def _walk_some(self) -> int:
        """Walk a stretch of single records, and the run that follows it. Returns what that cost."""
        if self._headers_left:
            return self._walk_headers()
        first = self._index
        self._walk_singly(min(self._count, first + self._stretch))
        cost = self._index - first + self._header_work
        self._header_work = 0
        if not self._skips_runs and self._count - self._index >= RUN_MIN and not self._headers_left:
            run = self._walk_runs()
            cost += run // RUN_DISCOUNT + 1
            self._stretch = STRETCH_MIN if run else min(self._stretch * 2, STRETCH_MAX)
        return cost

    def _walk_singly(self, stop: int) -> None:
        """Walk up to record ``stop``, or to a record with many headers. One- and two-byte numbers are read inline."""
        data, position, index = self._data, self._position, self._index
        size, start = len(data), position
        usual_max, needs_keys, newest = self._usual_max, self._rules.needs_keys, self._newest << 1
        while index < stop:
            start = position
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
            zigzag = data[position + 1]
            if zigzag < 0x80:
                position += 2
            elif (second := data[position + 2]) < 0x80:
                zigzag += (second << 7) - 0x80
                position += 3
            else:
                zigzag, position = read_zigzag(data, position + 1, VARLONG_BITS)
            if zigzag & 1 or zigzag > usual_max:
                zigzag = self._checked_delta(index, zigzag) << 1
            if zigzag > newest:
                newest = zigzag
            zigzag = data[position]
            if zigzag < 0x80:
                position += 1
            elif (second := data[position + 1]) < 0x80:
                zigzag += (second << 7) - 0x80
                position += 2
            else:
                zigzag, position = read_zigzag(data, position, VARINT_BITS)
            if zigzag != index << 1:
                raise wrong_offset_delta(index, zigzag)
            # Every step goes forward, so the comparison with ``end`` below also finds a key or value that exceeds its record.
            length = data[position]
            if length < 0x80:
                position += 1
            else:
                length, position = read_zigzag(data, position, VARINT_BITS)
            if length & 1 and (needs_keys or length != 1):
                self._refuse_key(index, length, end - position)
            position += length >> 1
            length = data[position]
            if length < 0x80:
                position += 1
            elif (second := data[position + 1]) < 0x80:
                length += (second << 7) - 0x80
                position += 2
            else:
                length, position = read_zigzag(data, position, VARINT_BITS)
            position += length >> 1
            if length & 1 and length != 1:
                raise bad_length("value", index, length, end - position)
            index += 1
            if data[position]:
                position = self._begin_headers(position, end, index - 1)
                if self._headers_left:
                    break
            else:
                position += 1
            if position != end:
                raise InvalidBatch(f"record {index - 1} ends at byte {position} of the records, but its length says {end}")
        self._position, self._index, self._last_start, self._newest = position, index, start, newest >> 1

    def _checked_delta(self, index: int, zigzag: int) -> int:
        """The timestamp delta of a record whose timestamp is not a usual one."""
        delta = zigzag >> 1 ^ -(zigzag & 1)
        rules = self._rules
        if not rules.delta_min <= delta <= rules.delta_max and delta != rules.no_timestamp_delta:
            self._refuse(index, delta)
        return delta

    def _refuse_key(self, index: int, length: int, room: int) -> None:
        if length != 1:
            raise bad_length("key", index, length, room)
        self._refuse(index, None)

    def _refuse(self, index: int, delta: int | None) -> None:
        if self.refused and self.refused[-1][0] == index:
            return  # Like Kafka, name one fault of each record.
        self.refused_count += 1
        if self.refused_count <= REFUSED_MAX:
            self.refused.append((index, delta))

    # -- headers -------------------------------------------------------------------------------------------------------------

    def _begin_headers(self, position: int, end: int, index: int) -> int:
        """Walk the headers of a record, or, if there are many, only begin. Returns the position after what was walked."""
        zigzag, position = read_zigzag(self._data, position, VARINT_BITS)
        # A header takes two bytes at least.
        if zigzag & 1 or zigzag > end - position:
            raise InvalidBatch(f"record {index} claims {zigzag >> 1 ^ -(zigzag & 1)} headers in {end - position} bytes")
        count = zigzag >> 1
        if count > HEADERS_AT_ONCE_MAX:
            self._headers_left, self._headers_end = count, end
            return position
        self._header_work += count
        return self._after_headers(position, end, count, index)

    def _walk_headers(self) -> int:
        """Walk some more of a record with many headers; returns their number."""
        count = min(self._headers_left, HEADERS_AT_ONCE_MAX)
        index, end = self._index - 1, self._headers_end
        self._position = self._after_headers(self._position, end, count, index)
        self._headers_left -= count
        if not self._headers_left and self._position != end:
            raise InvalidBatch(f"record {index} ends at byte {self._position} of the records, but its length says {end}")
        return count

    def _after_headers(self, position: int, end: int, count: int, index: int) -> int:
        data = self._data
        for _ in range(count):
            length, position = read_zigzag(data, position, VARINT_BITS)
            position += length >> 1
            if length & 1 or position > end:
                raise bad_length("header key", index, length, end - position)
            length, position = read_zigzag(data, position, VARINT_BITS)
            position += length >> 1
            if (length & 1 and length != 1) or position > end:
                raise bad_length("header value", index, length, end - position)
        return position

    # -- runs ----------------------------------------------------------------------------------------------------------------

    def _walk_runs(self) -> int:
        """Walk the records that have the shape of the last one; returns their number."""
        data, position, start = self._data, self._position, self._last_start
        if data[position] != data[start] or data[position + 1] != data[start + 1]:
            return 0
        stride = position - start
        shape = self._shape_of(start)
        if shape is None:
            return 0
        first = self._index
        length = RUN_MIN
        while length >= RUN_MIN:
            index = self._index
            boundary = _ONE_BYTE_DELTAS if index < _ONE_BYTE_DELTAS else index - index % _BLOCK + _BLOCK
            length = min(length, self._count - index, boundary - index)
            if length >= RUN_MIN and self._is_run(shape, stride, length):
                self._index += length
                self._position += length * stride
                length *= 2
            else:
                length //= 4
        return self._index - first

    def _shape_of(self, start: int) -> _Shape | None:
        """The shape of the record at ``start``, which has been walked; None for a shape that seldom makes runs."""
        data = self._data
        record = read_zigzag(data, start, VARINT_BITS)[1] - start
        timestamp = record + 1
        offset_delta = read_zigzag(data, start + timestamp, VARLONG_BITS)[1] - start
        if offset_delta - timestamp > 2:
            return None
        key = read_zigzag(data, start + offset_delta, VARINT_BITS)[1] - start
        key_length, key_end = read_zigzag(data, start + key, VARINT_BITS)
        if key_length == 1 and self._rules.needs_keys:
            return None
        value = key_end - start + (key_length >> 1)
        value_length, value_end = read_zigzag(data, start + value, VARINT_BITS)
        headers = value_end - start + (value_length >> 1)
        if data[start + headers]:
            return None
        fixed = (*range(record), *range(key, key_end - start), *range(value, value_end - start), headers)
        return _Shape(fixed, timestamp, offset_delta - timestamp, offset_delta, key - offset_delta)

    def _is_run(self, shape: _Shape, stride: int, length: int) -> bool:
        """Whether the next ``length`` records have this shape, the right offset deltas, and usual timestamps."""
        data, position, index = self._data, self._position, self._index
        end = position + length * stride
        if end > len(data):
            return False
        start = self._last_start
        for field in shape.fixed:
            if data[position + field : end : stride] != data[start + field : start + field + 1] * length:
                return False
        for number, expected in enumerate(_offset_delta_bytes(index, length, shape.offset_delta_size)):
            if data[position + shape.offset_delta + number : end : stride] != expected:
                return False
        return self._are_usual_timestamps(position + shape.timestamp, shape.timestamp_size, end, stride)

    def _are_usual_timestamps(self, position: int, size: int, end: int, stride: int) -> bool:
        data = self._data
        newest = self._rules.newest_delta << 1
        limit = min(self._usual_max, newest)
        low = data[position:end:stride]
        base = 0
        usual = _EVEN
        if size == 2:
            high = data[position + 1 : end : stride]
            if high != high[:1] * len(high) or high[0] >= 0x80:
                return False
            base = high[0] << 7
            usual = _EVEN_CONTINUED
        # Delete the bytes of all allowed timestamps; nothing may be left.
        if low.translate(None, usual[: max(0, (limit - base >> 1) + 1)]):
            return False
        place = newest - base >> 1
        if not self._has_newest and 0 <= place < len(usual) and usual[place] in low:
            self._has_newest = True
        return True


# The deltas below this one take one byte.
_ONE_BYTE_DELTAS = len(_ONE_BYTE)


def _offset_delta_bytes(index: int, length: int, size: int) -> list[bytes]:
    """The bytes of ``length`` offset deltas from ``index`` on: all first bytes, all second bytes and so on. The deltas lie in one
    block, and their varints have one size, which must be ``size``."""
    if index < _ONE_BYTE_DELTAS:
        return [_ONE_BYTE[index : index + length]] if size == 1 else [b""]
    place = index % _BLOCK
    low = _LOW[place : place + length]
    if index < _BLOCK:
        return [low, _HIGH[place : place + length]] if size == 2 else [b""]
    rest = encode_varint(index)[2:]
    if size != 2 + len(rest):
        return [b""]
    return [low, _HIGH_CONTINUED[place : place + length], *(rest[i : i + 1] * length for i in range(len(rest)))]
