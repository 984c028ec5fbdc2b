"""The states of the offsets in a share partition's window: consecutive ranges, each with one state, without holes between them.

A range is a row of five parallel columns, 23 bytes in all. A row's range ends where the next one begins, so only first offsets
are stored. A range is split only where a state changes inside of it, and equal neighbours are merged again. So the size follows
the number of places where the state changes, never the number of offsets: ten million acknowledged records behind one that is
stuck are two rows. Final states count as equal whatever their delivery count, and an acknowledged and an archived neighbour
become one range as well, because nothing is ever decided on the difference.

The search for the next available range is one search for a byte, which runs at memory speed.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import sub

from tidelog.queues.states import FINAL_STATES, RecordState

NO_OWNER = 0
NO_DEADLINE_MS = 0
# Rows are deleted one by one up to this number.
FEW_ROWS = 8
_IS_FINAL = bytes([state in FINAL_STATES for state in range(256)])
_IS_DUE = bytes([state not in FINAL_STATES and state != RecordState.DELAYED for state in range(256)])


class OffsetRanges:
    __slots__ = (
        "_counts",
        "_deadlines_ms",
        "_firsts",
        "_owners",
        "_states",
        "acquired",
        "delayed",
        "end_offset",
        "final",
        "redelivered",
        "start_offset",
    )

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        """The first offset after the window."""
        self.acquired = 0
        """Offsets that are acquired."""
        self.final = 0
        """Offsets that are acknowledged or archived."""
        self.delayed = 0
        """Offsets that are not due yet."""
        self.redelivered = 0
        """Offsets that are not final, and whose first delivery has ended without settling them."""
        self._firsts = array("q")
        self._states = bytearray()
        self._counts = array("H")
        self._owners = array("i")
        self._deadlines_ms = array("q")

    def __len__(self) -> int:
        return len(self._firsts)

    # -- reading -------------------------------------------------------------------------------------------------------------

    def index_of(self, offset: int) -> int:
        """The row of an offset in the window; the number of rows for one behind it."""
        return len(self._firsts) if offset >= self.end_offset else bisect_right(self._firsts, offset) - 1

    def first_with(self, state: RecordState, index: int = 0) -> int:
        """The first row from ``index`` on that has the state; -1 if there is none."""
        return self._states.find(state, index)

    def first_beside_final(self) -> int:
        """The first available row that begins the window or follows on final offsets, so that settling what it begins with leaves
        no more rows than there were; -1 if there is none."""
        index = self._states.find(RecordState.AVAILABLE)
        while index > 0 and self._states[index - 1] not in FINAL_STATES:
            index = self._states.find(RecordState.AVAILABLE, index + 1)
        return index

    def first_due(self) -> int:
        """The first offset that is neither final nor delayed; the end of the window if there is none."""
        index = self._states.translate(_IS_DUE).find(1)
        return self.end_offset if index < 0 else self._firsts[index]

    def bounds(self, index: int) -> tuple[int, int]:
        """The first and the last offset of a row."""
        return self._firsts[index], self._end_of(index) - 1

    def _end_of(self, index: int) -> int:
        return self._firsts[index + 1] if index + 1 < len(self._firsts) else self.end_offset

    def state(self, index: int) -> int:
        return self._states[index]

    def count(self, index: int) -> int:
        return self._counts[index]

    def owner(self, index: int) -> int:
        return self._owners[index]

    def deadline_ms(self, index: int) -> int:
        return self._deadlines_ms[index]

    def rows_between(self, first: int, last: int) -> Iterator[int]:
        """The rows that overlap the offsets, within the window. The rows may be changed meanwhile, but not split or merged."""
        first = max(first, self.start_offset)
        if first < self.end_offset:
            yield from range(self.index_of(first), self.index_of(min(last, self.end_offset - 1)) + 1)

    def final_below(self, offset: int) -> int:
        """How many offsets below ``offset`` are final. This goes through the rows below it, at some ten nanoseconds each."""
        if offset <= self.start_offset:
            return 0
        if offset >= self.end_offset:
            return self.final
        index = self.index_of(offset)
        firsts = self._firsts[: index + 1]
        below: int = sum(compress(map(sub, firsts[1:], firsts), self._states[:index].translate(_IS_FINAL)))
        return below + (offset - firsts[index] if self._states[index] in FINAL_STATES else 0)

    # -- changing ------------------------------------------------------------------------------------------------------------

    def extend(self, last: int, state: RecordState, count: int = 0) -> None:
        """Move the end of the window: its new offsets get the state."""
        if last < self.end_offset:
            return
        first, self.end_offset = self.end_offset, last + 1
        self._firsts.append(first)
        self._states.append(state)
        self._counts.append(count)
        self._owners.append(NO_OWNER)
        self._deadlines_ms.append(NO_DEADLINE_MS)
        self._tally(state, count, last - first + 1)

    def isolate(self, first: int, last: int) -> range:
        """Split so that ranges begin at ``first`` and end at ``last``, which are in the window. Returns the rows in between."""
        begin = self._split(first)
        return range(begin, self._split(last + 1))

    def _split(self, offset: int) -> int:
        """Return the row that begins at ``offset``."""
        if offset >= self.end_offset:
            return len(self._firsts)
        index = self.index_of(offset)
        if self._firsts[index] == offset:
            return index
        self._firsts.insert(index + 1, offset)
        self._states.insert(index + 1, self._states[index])
        for column in (self._counts, self._owners, self._deadlines_ms):
            column.insert(index + 1, column[index])
        return index + 1

    def set(self, index: int, state: RecordState, count: int, owner: int = NO_OWNER, deadline_ms: int = NO_DEADLINE_MS) -> None:
        length = self._end_of(index) - self._firsts[index]
        self._tally(self._states[index], self._counts[index], -length)
        self._tally(state, count, length)
        self._states[index] = state
        self._counts[index] = count
        self._owners[index] = owner
        self._deadlines_ms[index] = deadline_ms

    def _tally(self, state: int, count: int, offsets: int) -> None:
        """So many more offsets have the state, or fewer if the number is negative."""
        if state in FINAL_STATES:
            self.final += offsets
            return
        if state == RecordState.ACQUIRED:
            self.acquired += offsets
            count -= 1
        elif state == RecordState.DELAYED:
            self.delayed += offsets
        if count > 0:
            self.redelivered += offsets

    def merge(self, rows: range) -> None:
        """Merge equal neighbours among these rows and with the rows next to them."""
        begin, end = max(rows.start - 1, 0), min(rows.stop, len(self._firsts) - 1)
        merged = [index for index in range(begin + 1, end + 1) if self._are_equal(index - 1, index)]
        if len(merged) <= FEW_ROWS:
            for index in reversed(merged):
                self._delete(index, index + 1)
        else:
            self._delete_many(merged)

    def _are_equal(self, left: int, right: int) -> bool:
        state = self._states[left]
        if state in FINAL_STATES:
            return self._states[right] in FINAL_STATES
        return (
            state == self._states[right]
            and self._counts[left] == self._counts[right]
            and self._owners[left] == self._owners[right]
            and self._deadlines_ms[left] == self._deadlines_ms[right]
        )

    def _delete_many(self, rows: Sequence[int]) -> None:
        """Delete rows in ascending order in one pass: each deletion by itself moves everything behind it."""
        begin, end = rows[0], rows[-1] + 1
        gone = set(rows)
        kept = [index for index in range(begin, end) if index not in gone]
        self._states[begin:end] = bytes([self._states[index] for index in kept])
        for column in (self._firsts, self._counts, self._owners, self._deadlines_ms):
            column[begin:end] = array(column.typecode, [column[index] for index in kept])

    def _delete(self, begin: int, end: int) -> None:
        del self._firsts[begin:end], self._states[begin:end], self._counts[begin:end]
        del self._owners[begin:end], self._deadlines_ms[begin:end]

    def move_start(self, offset: int) -> None:
        """Forget everything below ``offset``. Beyond its end, the window is empty."""
        if offset <= self.start_offset:
            return
        keep = self._split(offset)
        for index in range(keep):
            self._tally(self._states[index], self._counts[index], self._firsts[index] - self._end_of(index))
        self._delete(0, keep)
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)
