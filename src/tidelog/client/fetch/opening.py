"""From the records of a fetch response to opened batches: only those that a reader may see.

Under read_committed the response names the aborted transactions as (producer id, first offset). From that offset on until the
producer's abort marker, its transactional batches are left out. The response names all transactions that concern its records, so
nothing is remembered from one response to the next. Control batches are always left out.

A response may end within a batch; the next response has that batch again.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from tidelog.client.fetch.columns import OpenedBatch
from tidelog.records.compression import CompressionType, decompress
from tidelog.records.control import ControlType, read_control_type
from tidelog.records.errors import CorruptBatch
from tidelog.records.header import HEADER_SIZE, BatchHeader, crc_is_valid, iterate_headers

# The limit for one batch. A producer compresses about a megabyte at a time; a hundred times that is a bomb.
DECOMPRESSED_BYTES_MAX = 100 << 20

PlacedHeader = tuple[int, BatchHeader]


class AbortedFilter:
    """Decides which batches belong to aborted transactions. It must see the batches in the order of their offsets."""

    __slots__ = ("_active", "_waiting")

    def __init__(self, aborted: Sequence[tuple[int, int]] | None) -> None:
        self._waiting = deque(sorted(aborted or (), key=lambda transaction: transaction[1]))
        self._active: set[int] = set()

    def is_aborted(self, records: memoryview, position: int, header: BatchHeader) -> bool:
        while self._waiting and self._waiting[0][1] <= header.last_offset:
            self._active.add(self._waiting.popleft()[0])
        if header.is_control:
            if header.producer_id in self._active and read_control_type(records, position, header) is ControlType.ABORT:
                self._active.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._active


def whole_batches(records: memoryview) -> list[PlacedHeader]:
    return list(iterate_headers(records))


def opened_batches(
    records: memoryview,
    placed: Sequence[PlacedHeader],
    aborted: Sequence[tuple[int, int]] | None,
    start: int,
    end: int,
    *,
    checks_crcs: bool,
) -> Iterator[OpenedBatch]:
    """The batches with offsets between ``start`` and ``end``. Each is decompressed only when the caller reaches it."""
    is_hidden = AbortedFilter(aborted).is_aborted
    for position, header in placed:
        if checks_crcs and not crc_is_valid(records, position, header):
            raise CorruptBatch(f"the batch at offset {header.base_offset} fails its checksum")
        if is_hidden(records, position, header) or header.is_control:
            continue
        if header.last_offset < start or header.base_offset >= end or not header.record_count:
            continue
        body = records[position + HEADER_SIZE : position + header.size]
        if header.compression is not CompressionType.NONE:
            yield OpenedBatch(header, decompress(header.compression, body, DECOMPRESSED_BYTES_MAX))
        else:
            yield OpenedBatch(header, body)
