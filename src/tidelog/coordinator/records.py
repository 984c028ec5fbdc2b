"""The layout of a coordinator's records in its internal topic.

A key is the kind of record (int16) and the key's strings; it is never flexible. A value is its version (int16) and the fields of
that version, by a ``wire.schema.Struct``. Every version up to ``version_max`` is read and one is written.
"""

from dataclasses import dataclass, field
from typing import Any

from tidelog.coordinator.errors import UnreadableShard
from tidelog.wire.primitives import INT16, Reader, write_string
from tidelog.wire.schema import ReadValue, Struct, WriteValue, struct_reader, struct_writer


@dataclass(frozen=True, slots=True, eq=False)
class RecordSchema:
    """One kind of record. Its type is a named tuple: the strings of the key, then the value, which is None in a tombstone."""

    kind: int
    record_type: type[Any]
    value: Struct
    version_max: int = 0
    version_written: int = 0
    flexible_since: int = 0
    _key_strings: int = field(init=False)
    _readers: list[ReadValue] = field(init=False)
    _writer: WriteValue = field(init=False)

    def __post_init__(self) -> None:
        versions = range(self.version_max + 1)
        readers = [struct_reader(self.value, version, version >= self.flexible_since) for version in versions]
        writer = struct_writer(self.value, self.version_written, self.version_written >= self.flexible_since)
        object.__setattr__(self, "_key_strings", self.record_type._fields.index("value"))
        object.__setattr__(self, "_readers", readers)
        object.__setattr__(self, "_writer", writer)

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        strings = record[: self._key_strings]
        key = INT16.pack(self.kind) + b"".join([write_string(text) for text in strings])
        value = record[self._key_strings]
        if value is None:
            return key, None
        out = bytearray(INT16.pack(self.version_written))
        self._writer(out, value)
        return key, bytes(out)

    def decode(self, key: bytes, value: bytes | None) -> Any:
        """Raises MalformedRequest when the bytes do not match the schema."""
        reader = Reader(memoryview(key), INT16.size)
        strings = [reader.string() for _ in range(self._key_strings)]
        reader.expect_end()
        return self.record_type(*strings, None if value is None else self._decode_value(value))

    def _decode_value(self, value: bytes) -> Any:
        # A coordinator wrote the record, not a client, so its size alone bounds the number of its elements.
        reader = Reader(memoryview(value), elements_max=len(value))
        version = reader.int16()
        if not 0 <= version <= self.version_max:
            name = self.record_type.__name__
            raise UnreadableShard(f"{name} has version {version}; this release reads versions 0 to {self.version_max}")
        decoded = self._readers[version](reader)
        reader.expect_end()
        return decoded
