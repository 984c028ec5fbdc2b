"""Aborted transactions of a segment, in its ``.txnindex`` file.

Kafka's bytes: entries of 34, each a version (i16, 0), the producer id, the transaction's first offset, its last offset (that of
the abort marker) and the last stable offset just after it was aborted (i64 each, big-endian). A transaction is entered in the
segment that holds its marker. The file exists only when there are entries. What a crash leaves: see index_file.py.

Invariant: last offsets rise strictly and last stable offsets never fall from entry to entry, both because markers are entered in
log order. So a reader may stop at the first entry whose last stable offset is at or above what it reads up to: all
later transactions began above it.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from tidelog.log.errors import CorruptIndex
from tidelog.log.index_file import SPILL_BYTES, IndexFile

_ENTRY = Struct(">hqqqq")
_VERSION = 0
_unpack_last_offset = Struct(">18xq").unpack_from


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex(IndexFile):
    __slots__ = ("last_offset",)

    ENTRY_BYTES = 34
    EMPTY_FILE_IS_WRITTEN = False

    last_offset: int

    def _restore_last(self, entry: bytes) -> None:
        self.last_offset = _unpack_last_offset(entry)[0] if entry else -1

    def append(self, transaction: AbortedTransaction) -> None:
        assert transaction.last_offset > self.last_offset, (transaction, self.last_offset)
        if self._tail is None:
            self._tail = bytearray()
        self._tail += _ENTRY.pack(_VERSION, *transaction)
        self.entry_count += 1
        self.last_offset = transaction.last_offset
        if len(self._tail) >= SPILL_BYTES:
            self._spill()

    def collect(self, first_offset: int, upper_bound_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that have records in [first_offset, upper_bound_offset), as far as this segment tells."""
        found: list[AbortedTransaction] = []
        self.collect_into(found, first_offset, upper_bound_offset)
        return found

    def collect_into(self, found: list[AbortedTransaction], first_offset: int, upper_bound_offset: int) -> bool:
        """As ``collect``, added to ``found``. True when later segments can hold none that matter, so that the search may end."""
        if self.last_offset < first_offset:
            return False
        for transaction in self.entries(from_offset=first_offset):
            if transaction.first_offset < upper_bound_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= upper_bound_offset:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose marker is at or above ``offset``."""
        if self.entry_count and self.last_offset >= offset:
            self._keep(_entries_below(self._content(), offset))

    def entries(self, from_offset: int = 0) -> Iterator[AbortedTransaction]:
        """Those whose marker is at or above ``from_offset``, in order."""
        content = self._content()
        start = _entries_below(content, from_offset) if from_offset else 0
        for _, *fields in _ENTRY.iter_unpack(memoryview(content)[start * 34 :]):
            yield AbortedTransaction(*fields)

    def check(self) -> None:
        self._check_size()
        last_offset, last_stable_offset = self.base_offset - 1, -1
        for number, (version, *fields) in enumerate(_ENTRY.iter_unpack(self._content())):
            transaction = AbortedTransaction(*fields)
            if version != _VERSION:
                raise CorruptIndex(f"{self.path}: entry {number} has version {version}, only {_VERSION} is known")
            if transaction.first_offset > transaction.last_offset:
                raise CorruptIndex(f"{self.path}: entry {number} ends before it begins: {transaction}")
            if transaction.last_offset <= last_offset or transaction.last_stable_offset < last_stable_offset:
                raise CorruptIndex(
                    f"{self.path}: entry {number} does not come after last offset {last_offset} and last stable offset "
                    f"{last_stable_offset}: {transaction}"
                )
            last_offset, last_stable_offset = transaction.last_offset, transaction.last_stable_offset


def _entries_below(content: bytes, offset: int) -> int:
    """How many transactions have a marker below ``offset``."""
    low = 0
    high = len(content) // 34
    while low < high:
        middle = (low + high) >> 1
        if _unpack_last_offset(content, middle * 34)[0] < offset:
            low = middle + 1
        else:
            high = middle
    return low
