"""The batches of a fetch, decoded and their checksums checked; one that is cut off at the end is left for the next fetch."""

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.records.batch import read_records
from tidelog.records.errors import RecordError
from tidelog.records.header import HEADER_SIZE, BatchHeader, crc_is_valid, read_header
from tidelog.records.record import Record

RECORDS_BYTES_MAX = 1 << 20


class FetchedBatch(NamedTuple):
    header: BatchHeader
    records: list[Record]

    def values(self) -> list[tuple[int, str]]:
        """(offset, value without its filler) of each record."""
        return [(record.offset, (record.value or b"").partition(b" ")[0].decode()) for record in self.records]


def fetched_batches(data: memoryview | None) -> Iterator[FetchedBatch]:
    """RecordError when there is something that is no batch."""
    position = 0
    while data is not None and len(data) - position >= HEADER_SIZE:
        header = read_header(data, position)
        if len(data) - position < header.size:
            return
        if not crc_is_valid(data, position, header):
            raise RecordError(f"the batch at offset {header.base_offset} fails its checksum")
        records = read_records(data, position, header, size_max=RECORDS_BYTES_MAX, count_max=RECORDS_BYTES_MAX)
        yield FetchedBatch(header, list(records))
        position += header.size
