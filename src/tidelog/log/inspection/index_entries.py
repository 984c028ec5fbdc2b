"""The entries of an index file one after the other, in bounded memory.

Kafka preallocates an index with zeros and cuts them when it closes the segment: zeros up to the end are padding (index_file.py
says why no entry is lost by that). Zeros with an entry behind them are a hole that no writer leaves, unless they are the first
entry.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from tidelog.log import names
from tidelog.ports.disk import DiskFile

OFFSET_ENTRY = Struct(">II")
TIME_ENTRY = Struct(">qI")
TRANSACTION_ENTRY = Struct(">hqqqq")
ENTRY_BY_KIND = {
    names.INDEX_SUFFIX: OFFSET_ENTRY,
    names.TIME_INDEX_SUFFIX: TIME_ENTRY,
    names.TRANSACTION_INDEX_SUFFIX: TRANSACTION_ENTRY,
}
_ENTRIES_PER_READ = 4096


class Fault(NamedTuple):
    """The first thing that is wrong with a file."""

    position: int
    offset: int | None
    reason: str


class IndexEntry(NamedTuple):
    number: int
    position: int
    fields: tuple[int, ...]


def read_entries(file: DiskFile, entry: Struct) -> Iterator[IndexEntry | Fault]:
    """Every entry before the padding; a Fault ends it."""
    size = file.size()
    entry_bytes = entry.size
    zeros_from: int | None = None
    for chunk_start in range(0, size - size % entry_bytes, entry_bytes * _ENTRIES_PER_READ):
        chunk = file.read(chunk_start, entry_bytes * _ENTRIES_PER_READ)
        chunk = chunk[: len(chunk) - len(chunk) % entry_bytes]
        for at, fields in zip(range(0, len(chunk), entry_bytes), entry.iter_unpack(chunk), strict=True):
            position = chunk_start + at
            number = position // entry_bytes
            if not any(chunk[at : at + entry_bytes]):
                zeros_from = position if zeros_from is None else zeros_from
                continue
            if zeros_from is not None:
                if zeros_from or number > 1:
                    yield Fault(zeros_from, None, f"{position - zeros_from} zero bytes with an entry behind them")
                    return
                yield IndexEntry(0, 0, (0,) * len(fields))
                zeros_from = None
            yield IndexEntry(number, position, fields)
    if size % entry_bytes:
        yield Fault(size - size % entry_bytes, None, f"{size} bytes are no whole number of entries of {entry_bytes} bytes")
