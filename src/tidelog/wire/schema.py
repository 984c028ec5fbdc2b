"""Kafka's schemas as data, and the one reader and the one writer that follow them.

A ``Struct`` lists the fields of a message, a record, or a part of either, in the order of their bytes. Requests and responses
(``messages``), the coordinators' records and the records of the metadata log are all described this way. A field belongs to the
versions from ``since`` on. In flexible versions (KIP-482, see ``primitives``) a field with a tag travels among the tagged fields
at the end of its struct, and only when it differs from its default; tags that the struct does not have are skipped. A field that
a version lacks reads as its default and is not written.

``struct_reader`` and ``struct_writer`` compile a struct for one version. Everything that depends on the version, the type or the
nullability is decided there, and neighbouring fields of fixed size become one call of Python's ``struct``; what they return only
walks a list of steps. ``sliced_struct_reader`` and ``sliced_struct_writer`` do the same for large messages: they return
generators that pause after every few hundred elements, so that other work can run in between.

A struct leaves open which Python objects hold its values. ``make`` builds one from the values of all fields, in their order, and
``values_of`` takes one apart in the same way.

A reader never trusts a length: ``Reader`` checks every one of them against the bytes that are left. All it raises is
``MalformedRequest``. Writers raise ``ValueError`` or ``struct.error`` for values that do not fit the type, which is a mistake of
the program.
"""

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

from tidelog.ports.steps import Steps
from tidelog.wire.primitives import (
    COMPACT_NULL,
    NO_TAGGED_FIELDS,
    NULL_LENGTH,
    NULL_STRING,
    UUID_SIZE,
    ZERO_UUID,
    Reader,
    write_bytes_length,
    write_compact_length,
    write_unsigned_varint,
)

# This stands for a default that is not given.
UNSET: Any = object()

ReadValue = Callable[[Reader], Any]
WriteValue = Callable[[bytearray, Any], None]
ReadInSlices = Callable[["SlicedReader"], Steps[Any]]
WriteInSlices = Callable[["SlicedOutput", Any], Steps[Any]]

# A sliced reader or writer pauses after this many bytes. The smallest elements take two, so this is at most a millisecond's work.
STEP_BYTES = 1024

_pack_int16 = struct.Struct(">h").pack

# KIP-893: a struct that may be null starts with a byte that says whether it is.
_NULL_STRUCT = b"\xff"
_NOT_NULL_STRUCT = b"\x01"


@dataclass(frozen=True, slots=True, eq=False)
class FieldType:
    """A primitive type, under Kafka's name."""

    name: str
    zero: object
    """The default of a field that does not give one and cannot be null."""
    size_min: int
    compact_size_min: int
    """The minimum number of bytes of a value, before flexible versions and in them."""
    format: str = ""
    """The format character of Python's ``struct``, if the size is fixed."""


BOOL = FieldType("bool", False, 1, 1, "?")
INT8 = FieldType("int8", 0, 1, 1, "b")
INT16 = FieldType("int16", 0, 2, 2, "h")
INT32 = FieldType("int32", 0, 4, 4, "i")
INT64 = FieldType("int64", 0, 8, 8, "q")
UINT16 = FieldType("uint16", 0, 2, 2, "H")
FLOAT64 = FieldType("float64", 0.0, 8, 8, "d")
UUID_FORMAT = f"{UUID_SIZE}s"
UUID = FieldType("uuid", ZERO_UUID, UUID_SIZE, UUID_SIZE, UUID_FORMAT)
STRING = FieldType("string", "", 2, 1)
BYTES = FieldType("bytes", b"", 4, 1)
_ARRAY = FieldType("array", (), 4, 1)

FIELD_TYPES = {kind.name: kind for kind in (BOOL, INT8, INT16, INT32, INT64, UINT16, FLOAT64, UUID, STRING, BYTES)}


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    name: str
    type: "FieldType | Struct"
    """The type of one element, if the field is an array."""
    is_array: bool = False
    is_nullable: bool = False
    since: int = 0
    tag: int | None = None
    default: Any = UNSET
    """If this is not given, the default is null if the field may be null, else the zero of its type."""

    def with_default(self, default: Any = UNSET) -> "Field":
        """Return the same field with ``default``, or else the default of its type, if it has none of its own."""
        if self.default is not UNSET:
            return self
        if default is UNSET:
            default = None
            if not self.is_nullable:
                kind = _ARRAY if self.is_array else self.type
                default = kind.zero if isinstance(kind, FieldType) else None
        return dataclasses.replace(self, default=default)

    def is_in(self, version: int, is_flexible: bool) -> bool:
        return version >= self.since and (self.tag is None or is_flexible)


class Struct:
    """Fields, and the Python objects that hold them: see the module."""

    __slots__ = ("fields", "make", "name", "values_of")

    def __init__(
        self,
        name: str,
        fields: Sequence[Field],
        make: Callable[[list[Any]], Any],
        values_of: Callable[[Any], Sequence[Any]] | None = None,
    ) -> None:
        """Without ``values_of`` the value itself is the sequence."""
        self.name = name
        self.fields = tuple(fields)
        self.make = make
        self.values_of = values_of

    def size_min(self, version: int, is_flexible: bool) -> int:
        """The minimum number of bytes of a value."""
        size = len(NO_TAGGED_FIELDS) if is_flexible else 0
        for field in self.fields:
            if field.tag is None and field.since <= version:
                size += _size_min(field, version, is_flexible)
        return size


def tuple_struct(tuple_type: type[Any], *fields: Field) -> Struct:
    """A struct whose values are named tuples with the same fields."""
    defaults = tuple_type._field_defaults
    _expect_same_names(tuple_type, fields, tuple_type._fields)
    return Struct(tuple_type.__name__, _with_defaults(fields, defaults), partial(tuple.__new__, tuple_type))


def dataclass_struct(dataclass_type: type[Any], *fields: Field) -> Struct:
    """A struct whose values are instances of a dataclass with the same fields."""
    known = dataclasses.fields(dataclass_type)
    names = tuple(field.name for field in known)
    _expect_same_names(dataclass_type, fields, names)
    values_of: Callable[[Any], Sequence[Any]]
    if len(names) > 1:
        values_of = attrgetter(*names)
    else:

        def values_of(value: Any) -> Sequence[Any]:
            return [getattr(value, name) for name in names]

    return Struct(
        dataclass_type.__name__,
        _with_defaults(fields, {field.name: UNSET if field.default is MISSING else field.default for field in known}),
        lambda values: dataclass_type(*values),
        values_of,
    )


def _expect_same_names(value_type: type, fields: Sequence[Field], names: Sequence[str]) -> None:
    assert [field.name for field in fields] == list(names), f"{value_type.__name__}: its schema has other fields"


def _with_defaults(fields: Sequence[Field], defaults: Mapping[str, Any]) -> list[Field]:
    return [field.with_default(defaults.get(field.name, UNSET)) for field in fields]


def _size_min(field: Field, version: int, is_flexible: bool) -> int:
    if field.is_array:
        return _ARRAY.compact_size_min if is_flexible else _ARRAY.size_min
    if isinstance(field.type, Struct) and field.is_nullable:
        return len(_NULL_STRUCT)
    return _element_size_min(field.type, version, is_flexible)


def _element_size_min(kind: FieldType | Struct, version: int, is_flexible: bool) -> int:
    if isinstance(kind, Struct):
        return kind.size_min(version, is_flexible)
    return kind.compact_size_min if is_flexible else kind.size_min


# Reading.


class SlicedReader(Reader):
    """A reader that knows where to pause next."""

    __slots__ = ("_pause_at",)

    def __init__(self, view: memoryview, position: int, elements_max: int) -> None:
        super().__init__(view, position, elements_max)
        self._pause_at = position + STEP_BYTES

    def is_pause_due(self) -> bool:
        if self.position < self._pause_at:
            return False
        self._pause_at = self.position + STEP_BYTES
        return True


class _ReadPlan:
    """How to read one version of a struct: its steps in their order, and its tagged fields."""

    __slots__ = ("_tagged", "defaults", "make", "steps")

    def __init__(self, schema: Struct, version: int, is_flexible: bool) -> None:
        self.defaults = [field.default for field in schema.fields]
        self._tagged: dict[int, tuple[int, ReadValue]] = {}
        self.make = schema.make
        self.steps: list[tuple[int | slice, int, Callable[..., Any]]] = []
        for start, end in _runs(schema, version, is_flexible, _is_fixed):
            field = schema.fields[start]
            if field.tag is not None:
                self._tagged[field.tag] = start, _value_reader(field, version, is_flexible)
            elif end - start > 1:
                fixed = struct.Struct(_format(schema.fields[start:end]))
                self.steps.append((slice(start, end), fixed.size, fixed.unpack_from))
            else:
                self.steps.append((start, 0, _value_reader(field, version, is_flexible)))

    def read_tagged_fields(self, reader: Reader, values: list[Any]) -> None:
        for tag, view in reader.tagged_fields():
            if tag in self._tagged:
                index, read_value = self._tagged[tag]
                field_reader = reader.nested(view)
                values[index] = read_value(field_reader)
                field_reader.expect_end()
                reader.leave(field_reader)


@cache
def struct_reader(schema: Struct, version: int, is_flexible: bool) -> ReadValue:
    """Return a function that reads one value of the struct in this version."""
    plan = _ReadPlan(schema, version, is_flexible)
    defaults, steps, read_tagged_fields, make = plan.defaults, plan.steps, plan.read_tagged_fields, plan.make

    def read(reader: Reader) -> Any:
        values = defaults.copy()
        for where, fixed_size, read_step in steps:
            values[where] = read_step(reader.view, reader.take(fixed_size)) if fixed_size else read_step(reader)
        if is_flexible:
            position = reader.position
            if position < reader.end and not reader.view[position]:
                reader.position = position + 1  # There are no tagged fields, as nearly always.
            else:
                read_tagged_fields(reader, values)
        return make(values)

    return read


@cache
def sliced_struct_reader(schema: Struct, version: int, is_flexible: bool) -> ReadInSlices:
    """Return a function that reads one value of the struct in this version, in slices."""
    plan = _ReadPlan(schema, version, is_flexible)
    steps = [(*step, _sliced_array_reader(schema, step[0], version, is_flexible)) for step in plan.steps]

    def read(reader: SlicedReader) -> Steps[Any]:
        values = plan.defaults.copy()
        for where, fixed_size, read_step, read_array in steps:
            if read_array is not None:
                values[where] = yield from read_array(reader)
            else:
                values[where] = read_step(reader.view, reader.take(fixed_size)) if fixed_size else read_step(reader)
        if is_flexible:
            plan.read_tagged_fields(reader, values)
        return plan.make(values)

    return read


def _sliced_array_reader(schema: Struct, where: int | slice, version: int, is_flexible: bool) -> ReadInSlices | None:
    """None for a field that is read in one step: a single value, or an array of numbers."""
    if isinstance(where, slice):
        return None
    field = schema.fields[where]
    kind = field.type
    if not field.is_array or (isinstance(kind, FieldType) and kind.format):
        return None
    read_length = _length_reader(field, is_flexible)
    size_min = _element_size_min(kind, version, is_flexible)
    if isinstance(kind, Struct):
        read_element, read_in_slices = struct_reader(kind, version, is_flexible), None
        if any(part.is_array for part in kind.fields):
            read_in_slices = sliced_struct_reader(kind, version, is_flexible)
    else:
        read_element, read_in_slices = _primitive_reader(kind, is_flexible, is_nullable=False), None

    def read(reader: SlicedReader) -> Steps[Any]:
        count = read_length(reader, size_min)
        if count is None:
            return None
        elements = []
        for _ in range(count):
            elements.append(read_element(reader) if read_in_slices is None else (yield from read_in_slices(reader)))
            if reader.is_pause_due():
                yield
        return tuple(elements)

    return read


def _is_fixed(field: Field) -> bool:
    return isinstance(field.type, FieldType) and bool(field.type.format) and not field.is_array and field.tag is None


def _format(fields: Sequence[Field]) -> str:
    return ">" + "".join([field.type.format for field in fields if isinstance(field.type, FieldType)])


def _runs(schema: Struct, version: int, is_flexible: bool, is_fixed: Callable[[Field], bool]) -> list[tuple[int, int]]:
    """Group the fields of the version by position: adjacent fields of fixed size together, the others one by one."""
    runs: list[tuple[int, int]] = []
    for index, field in enumerate(schema.fields):
        if not field.is_in(version, is_flexible):
            continue
        if runs and runs[-1][1] == index and is_fixed(field) and is_fixed(schema.fields[index - 1]):
            runs[-1] = runs[-1][0], index + 1
        else:
            runs.append((index, index + 1))
    return runs


def _value_reader(field: Field, version: int, is_flexible: bool) -> ReadValue:
    if field.is_array:
        return _array_reader(field, version, is_flexible)
    if isinstance(field.type, Struct):
        read_struct = struct_reader(field.type, version, is_flexible)
        return _nullable_struct_reader(read_struct) if field.is_nullable else read_struct
    return _primitive_reader(field.type, is_flexible, field.is_nullable)


def _primitive_reader(kind: FieldType, is_flexible: bool, is_nullable: bool) -> ReadValue:
    if kind is STRING:
        if is_flexible:
            return Reader.compact_nullable_string if is_nullable else Reader.compact_string
        return Reader.nullable_string if is_nullable else Reader.string
    if kind is BYTES:
        if is_flexible:
            return _copying(Reader.compact_nullable_bytes if is_nullable else Reader.compact_bytes)
        return _copying(Reader.nullable_bytes if is_nullable else Reader.bytes_)
    return _FIXED_READERS[kind]


_FIXED_READERS: dict[FieldType, ReadValue] = {
    BOOL: Reader.boolean,
    INT8: Reader.int8,
    INT16: Reader.int16,
    INT32: Reader.int32,
    INT64: Reader.int64,
    UINT16: Reader.uint16,
    FLOAT64: Reader.float64,
    UUID: Reader.uuid,
}


def _nullable_struct_reader(read_struct: ReadValue) -> ReadValue:
    def read(reader: Reader) -> Any:
        return None if reader.int8() < 0 else read_struct(reader)

    return read


def _copying(read_view: Callable[[Reader], memoryview | None]) -> ReadValue:
    """Copy the value, because it outlives the frame, whose buffer is reused."""

    def read(reader: Reader) -> bytes | None:
        view = read_view(reader)
        return None if view is None else bytes(view)

    return read


def _length_reader(field: Field, is_flexible: bool) -> Callable[[Reader, int], int | None]:
    if field.is_nullable:
        return Reader.compact_nullable_array_length if is_flexible else Reader.nullable_array_length
    return Reader.compact_array_length if is_flexible else Reader.array_length


def _array_reader(field: Field, version: int, is_flexible: bool) -> ReadValue:
    kind = field.type
    size_min = _element_size_min(kind, version, is_flexible)
    read_length = _length_reader(field, is_flexible)

    if kind is UUID:
        read_ids = struct.Struct(UUID_FORMAT).iter_unpack

        def read_uuids(reader: Reader) -> tuple[bytes, ...] | None:
            count = read_length(reader, UUID_SIZE)
            if not count:
                return None if count is None else ()
            start = reader.take(UUID_SIZE * count)
            return tuple([value for (value,) in read_ids(reader.view[start : start + UUID_SIZE * count])])

        return read_uuids

    if isinstance(kind, FieldType) and kind.format:
        number_format = kind.format

        def read_numbers(reader: Reader) -> tuple[Any, ...] | None:
            count = read_length(reader, size_min)
            if not count:
                return None if count is None else ()
            return struct.unpack_from(f">{count}{number_format}", reader.view, reader.take(size_min * count))

        return read_numbers

    if isinstance(kind, Struct):
        read_element = struct_reader(kind, version, is_flexible)
    else:
        read_element = _primitive_reader(kind, is_flexible, is_nullable=False)

    def read(reader: Reader) -> tuple[Any, ...] | None:
        count = read_length(reader, size_min)
        return None if count is None else tuple([read_element(reader) for _ in range(count)])

    return read


# Writing.


class SlicedOutput(bytearray):
    """The bytes of a message that is written in slices. It knows where to pause next."""

    __slots__ = ("_pause_at",)

    def __init__(self) -> None:
        super().__init__()
        self._pause_at = STEP_BYTES

    def is_pause_due(self) -> bool:
        if len(self) < self._pause_at:
            return False
        self._pause_at = len(self) + STEP_BYTES
        return True


class _WritePlan:
    """How to write one version of a struct: its steps in their order, and its tagged fields."""

    __slots__ = ("steps", "tagged", "values_of")

    def __init__(self, schema: Struct, version: int, is_flexible: bool) -> None:
        self.values_of = schema.values_of
        self.steps: list[tuple[int | slice, Callable[..., bytes] | None, WriteValue]] = []
        tags: dict[int, _TaggedWriter] = {}
        for start, end in _runs(schema, version, is_flexible, _is_number):
            field = schema.fields[start]
            if field.tag is not None:
                tags[field.tag] = _tagged_writer(field, start, version)
            elif _is_number(field):
                pack = struct.Struct(_format(schema.fields[start:end])).pack
                self.steps.append((slice(start, end), pack, _write_nothing))
            else:
                self.steps.append((start, None, _value_writer(field, version, is_flexible)))
        # A reader refuses tags that do not ascend.
        self.tagged = [tags[tag] for tag in sorted(tags)]

    def write_tagged_fields(self, out: bytearray, values: Sequence[Any]) -> None:
        written: list[bytes | bytearray] = []
        for tag, index, write_value, default, encoded_default in self.tagged:
            value = values[index]
            if value is None or value is default:
                continue
            encoded = bytearray()
            write_value(encoded, value)
            if encoded != encoded_default:
                written += (tag, write_unsigned_varint(len(encoded)), encoded)
        out += write_unsigned_varint(len(written) // 3)
        for part in written:
            out += part


@cache
def struct_writer(schema: Struct, version: int, is_flexible: bool) -> WriteValue:
    """Return a function that appends one value of the struct in this version."""
    plan = _WritePlan(schema, version, is_flexible)
    steps, values_of, write_tagged_fields = plan.steps, plan.values_of, plan.write_tagged_fields
    has_tags = bool(plan.tagged)

    def write(out: bytearray, value: Any) -> None:
        values = value if values_of is None else values_of(value)
        for where, pack, write_step in steps:
            if pack is None:
                write_step(out, values[where])
            else:
                out += pack(*values[where])
        if has_tags:
            write_tagged_fields(out, values)
        elif is_flexible:
            out += NO_TAGGED_FIELDS

    return write


@cache
def sliced_struct_writer(schema: Struct, version: int, is_flexible: bool) -> WriteInSlices:
    """Return a function that appends one value of the struct in this version, in slices."""
    plan = _WritePlan(schema, version, is_flexible)
    steps = [(*step, _sliced_array_writer(schema, step[0], version, is_flexible)) for step in plan.steps]

    def write(out: SlicedOutput, value: Any) -> Steps[Any]:
        values = value if plan.values_of is None else plan.values_of(value)
        for where, pack, write_step, write_array in steps:
            if write_array is not None and values[where] is not None:
                yield from write_array(out, values[where])
            elif pack is None:
                write_step(out, values[where])
            else:
                out += pack(*values[where])
        if is_flexible:
            plan.write_tagged_fields(out, values)

    return write


def _sliced_array_writer(schema: Struct, where: int | slice, version: int, is_flexible: bool) -> WriteInSlices | None:
    """None for a field that is written in one step."""
    if isinstance(where, slice) or not schema.fields[where].is_array:
        return None
    kind = schema.fields[where].type
    if not isinstance(kind, Struct):
        return None
    write_length = write_compact_length if is_flexible else write_bytes_length
    write_element, write_in_slices = struct_writer(kind, version, is_flexible), None
    if any(part.is_array for part in kind.fields):
        write_in_slices = sliced_struct_writer(kind, version, is_flexible)

    def write(out: SlicedOutput, elements: Sequence[Any]) -> Steps[Any]:
        out += write_length(len(elements))
        for element in elements:
            if write_in_slices is None:
                write_element(out, element)
            else:
                yield from write_in_slices(out, element)
            if out.is_pause_due():
                yield

    return write


def _write_nothing(out: bytearray, value: Any) -> None:
    """Takes the place of a writer where a run of numbers is packed."""


class _TaggedWriter(NamedTuple):
    tag: bytes
    position: int
    write: WriteValue
    default: Any
    encoded_default: bytes


def _tagged_writer(field: Field, index: int, version: int) -> _TaggedWriter:
    assert field.tag is not None
    write_value = _value_writer(field, version, is_flexible=True)
    encoded_default = bytearray()
    if field.default is not None:
        write_value(encoded_default, field.default)
    return _TaggedWriter(write_unsigned_varint(field.tag), index, write_value, field.default, bytes(encoded_default))


def _is_number(field: Field) -> bool:
    """``struct`` would pad or cut an id of the wrong length, so ids are written one by one."""
    return _is_fixed(field) and field.type is not UUID


def _value_writer(field: Field, version: int, is_flexible: bool) -> WriteValue:
    kind = field.type
    if field.is_array:
        null = COMPACT_NULL if is_flexible else NULL_LENGTH
        write_value = _array_writer(kind, version, is_flexible)
    elif isinstance(kind, Struct):
        null = _NULL_STRUCT
        write_value = struct_writer(kind, version, is_flexible)
        if field.is_nullable:
            write_value = _marked(write_value)
    else:
        null = COMPACT_NULL if is_flexible else NULL_STRING if kind is STRING else NULL_LENGTH
        write_value = _primitive_writer(kind, is_flexible)
    return _or_null(write_value, null) if field.is_nullable else write_value


def _primitive_writer(kind: FieldType, is_flexible: bool) -> WriteValue:
    if kind is STRING:
        return _write_compact_string if is_flexible else _write_string
    if kind is BYTES:
        return _bytes_writer(is_flexible)
    return _write_uuid if kind is UUID else _appending(struct.Struct(">" + kind.format).pack)


def _or_null(write_value: WriteValue, null: bytes) -> WriteValue:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out += null
        else:
            write_value(out, value)

    return write


def _marked(write_struct: WriteValue) -> WriteValue:
    def write(out: bytearray, value: Any) -> None:
        out += _NOT_NULL_STRUCT
        write_struct(out, value)

    return write


def _appending(encode: Callable[[Any], bytes]) -> WriteValue:
    def write(out: bytearray, value: Any) -> None:
        out += encode(value)

    return write


def _write_string(out: bytearray, value: str) -> None:
    encoded = value.encode()
    out += _pack_int16(len(encoded))
    out += encoded


def _write_compact_string(out: bytearray, value: str) -> None:
    encoded = value.encode()
    out += write_unsigned_varint(len(encoded) + 1)
    out += encoded


def _write_uuid(out: bytearray, value: bytes) -> None:
    if len(value) != UUID_SIZE:
        raise ValueError(f"an id has {UUID_SIZE} bytes, not {len(value)}")
    out += value


def _bytes_writer(is_flexible: bool) -> WriteValue:
    write_length = write_compact_length if is_flexible else write_bytes_length

    def write(out: bytearray, value: bytes) -> None:
        out += write_length(len(value))
        out += value

    return write


def _array_writer(kind: FieldType | Struct, version: int, is_flexible: bool) -> WriteValue:
    write_length = write_compact_length if is_flexible else write_bytes_length
    number_format = kind.format if isinstance(kind, FieldType) and kind is not UUID else ""
    if isinstance(kind, Struct):
        write_element = struct_writer(kind, version, is_flexible)
    else:
        write_element = _primitive_writer(kind, is_flexible)

    def write(out: bytearray, elements: Sequence[Any]) -> None:
        out += write_length(len(elements))
        for element in elements:
            write_element(out, element)

    def write_numbers(out: bytearray, numbers: Sequence[Any]) -> None:
        out += write_length(len(numbers))
        out += struct.pack(f">{len(numbers)}{number_format}", *numbers)

    return write_numbers if number_format else write
