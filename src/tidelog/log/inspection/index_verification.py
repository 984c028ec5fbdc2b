"""A segment's indexes held against its batches.

Each check goes through its index file in step with the batches, both in order, so that neither is in memory. It stops at the
first fault: behind one wrong entry nothing can be said of the others.

    offset index       an entry (offset, position): a batch begins at this position, and it, or a later one of the same append,
                       ends at this offset
    time index         an entry (timestamp, offset): the batch that holds this offset carries this timestamp, and no earlier
                       batch a later one
    transaction index  an entry is the abort marker at its last offset; every marker that aborted records still in the log has one
"""

from collections.abc import Iterator

from tidelog.log import names
from tidelog.log.inspection.index_entries import (
    ENTRY_BY_KIND,
    Fault,
    IndexEntry,
    read_entries,
)
from tidelog.log.time_index import NO_TIMESTAMP
from tidelog.ports.disk import Disk, DiskFile
from tidelog.records.header import BatchHeader


class IndexCheck:
    """``fault`` is the first thing that is wrong."""

    KIND: str

    def __init__(self, file: DiskFile | None, base_offset: int) -> None:
        self.base_offset = base_offset
        self.is_missing = file is None
        self.fault: Fault | None = None
        self._entries: Iterator[IndexEntry | Fault] = iter(()) if file is None else read_entries(file, ENTRY_BY_KIND[self.KIND])
        self._next: IndexEntry | None = None
        self._advance()

    @classmethod
    def open(cls, disk: Disk, path: str, base_offset: int) -> "IndexCheck":
        try:
            return cls(disk.open(path, "read"), base_offset)
        except FileNotFoundError:
            return cls(None, base_offset)

    def _advance(self) -> None:
        before, self._next = self._next, None
        found = next(self._entries, None)
        if isinstance(found, Fault):
            self.fault = found
        elif found is not None:
            if before is not None and not self._comes_after(before.fields, found.fields):
                self._fail(found, "it does not come after the entry before it")
            else:
                self._next = found

    def _fail(self, entry: IndexEntry, reason: str) -> None:
        self.fault = Fault(
            entry.position, self._offset(entry.fields), f"entry {entry.number} ({self._text(entry.fields)}): {reason}"
        )
        self._next = None

    def finish(self) -> None:
        """The segment has ended: no entry may be left."""
        if self.fault is None and self._next is not None:
            self._fail(self._next, "it points beyond the end of the segment")

    def _comes_after(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        raise NotImplementedError

    def _offset(self, fields: tuple[int, ...]) -> int:
        raise NotImplementedError

    def _text(self, fields: tuple[int, ...]) -> str:
        raise NotImplementedError

    def on_batch(self, position: int, header: BatchHeader, /) -> None:
        raise NotImplementedError


class OffsetIndexCheck(IndexCheck):
    KIND = names.INDEX_SUFFIX

    def __init__(self, file: DiskFile | None, base_offset: int) -> None:
        # An entry whose batch was not the last one of its append: the batch that ends at its offset must follow.
        self._open: IndexEntry | None = None
        super().__init__(file, base_offset)

    def on_batch(self, position: int, header: BatchHeader, /) -> None:
        if self._open is not None:
            self._close(self._open, header)
        entry = self._next
        if entry is None or entry.fields[1] > position:
            return
        offset = self._offset(entry.fields)
        if entry.fields[1] < position:
            self._fail(entry, "no batch begins at this position")
        elif offset < header.last_offset:
            self._fail(entry, f"the batch at this position has offsets {header.base_offset} to {header.last_offset}")
        else:
            if offset > header.last_offset:
                self._open = entry
            self._advance()

    def _close(self, entry: IndexEntry, header: BatchHeader) -> None:
        offset = self._offset(entry.fields)
        if header.last_offset >= offset:
            self._open = None
            if header.last_offset > offset:
                self._fail(entry, "no batch ends at this offset")

    def finish(self) -> None:
        super().finish()
        if self.fault is None and self._open is not None:
            self._fail(self._open, "no batch ends at this offset")

    def _comes_after(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return after[0] > before[0] and after[1] > before[1]

    def _offset(self, fields: tuple[int, ...]) -> int:
        return self.base_offset + fields[0]

    def _text(self, fields: tuple[int, ...]) -> str:
        return f"offset {self._offset(fields)}, position {fields[1]}"


class TimeIndexCheck(IndexCheck):
    KIND = names.TIME_INDEX_SUFFIX

    def __init__(self, file: DiskFile | None, base_offset: int) -> None:
        self._max_timestamp = NO_TIMESTAMP
        super().__init__(file, base_offset)

    def on_batch(self, _: int, header: BatchHeader, /) -> None:
        while (entry := self._next) is not None and (offset := self._offset(entry.fields)) <= header.last_offset:
            timestamp = entry.fields[0]
            if offset < header.base_offset:
                self._fail(entry, "no batch holds this offset")
            elif timestamp < self._max_timestamp:
                self._fail(entry, f"an earlier batch has timestamp {self._max_timestamp}")
            # Older Kafkas name the record that carries the timestamp, not the end of its batch.
            elif timestamp > header.max_timestamp or (offset == header.last_offset and timestamp != header.max_timestamp):
                self._fail(entry, f"the batch of this offset has timestamp {header.max_timestamp}")
            else:
                self._advance()
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)

    def _comes_after(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return after[0] > before[0] and after[1] >= before[1]

    def _offset(self, fields: tuple[int, ...]) -> int:
        return self.base_offset + fields[1]

    def _text(self, fields: tuple[int, ...]) -> str:
        return f"timestamp {fields[0]}, offset {self._offset(fields)}"


class TransactionIndexCheck(IndexCheck):
    KIND = names.TRANSACTION_INDEX_SUFFIX

    def on_batch(self, _: int, header: BatchHeader, /) -> None:
        entry = self._next
        if entry is not None and self._offset(entry.fields) <= header.last_offset:
            self._fail(entry, "there is no abort marker at its last offset")

    def on_abort(self, header: BatchHeader, first_offset: int | None, expected: tuple[int, int] | None) -> None:
        """An abort marker. ``first_offset``: of the first record in the log that it aborts; None when there is none left.
        ``expected``: exactly what the entry's first offset and last stable offset are, if that is known."""
        entry = self._next
        offset = header.base_offset
        if entry is not None and self._offset(entry.fields) < offset:
            self._fail(entry, "there is no abort marker at its last offset")
        elif entry is not None and self._offset(entry.fields) == offset:
            version, producer_id, entry_first_offset, _, last_stable_offset = entry.fields
            if version != 0:
                self._fail(entry, f"its version is {version}, and only 0 is known")
            elif producer_id != header.producer_id:
                self._fail(entry, f"the marker at its last offset is of producer {header.producer_id}")
            elif entry_first_offset > (offset if first_offset is None else first_offset):
                self._fail(entry, f"the transaction begins at offset {first_offset} already")
            elif expected is not None and expected != (entry_first_offset, last_stable_offset):
                said = f"{entry_first_offset} and {last_stable_offset}"
                self._fail(
                    entry, f"first offset and last stable offset are {said}, and should be {expected[0]} and {expected[1]}"
                )
            else:
                self._advance()
        elif self.fault is None and first_offset is not None:
            reason = f"the transaction of producer {header.producer_id} aborted at offset {offset} has no entry"
            self.fault = Fault(0 if entry is None else entry.position, offset, reason)

    def _comes_after(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return after[3] > before[3] and after[4] >= before[4]

    def _offset(self, fields: tuple[int, ...]) -> int:
        return fields[3]

    def _text(self, fields: tuple[int, ...]) -> str:
        return f"producer {fields[1]}, offsets {fields[2]} to {fields[3]}"
