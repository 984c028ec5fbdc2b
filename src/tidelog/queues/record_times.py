"""When the records of a queue topic may be handed out: not before they are due, and not after they have expired.

Two headers say so, each in milliseconds since 1970 (UTC) as decimal digits: ``tidelog.due`` and ``tidelog.expires``. A queue may
have a time to live for all of its messages as well; it counts from a record's timestamp, or from when it is due if that is later,
and the earlier end holds. A header that is no such number says nothing, because a message that nobody could ever receive would be
lost without a word.

Most batches have neither header. In a batch that is not compressed, a search for their common prefix finds that out at the speed
of memory, and no record is decoded.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.log.append_check import DECODED_BYTES_MAX
from tidelog.ports.disk import Buffer
from tidelog.records.batch import read_records
from tidelog.records.compression import CompressionType
from tidelog.records.header import BatchHeader
from tidelog.records.record import RecordHeaders

DUE_HEADER = "tidelog.due"
EXPIRES_HEADER = "tidelog.expires"
PREFIX = b"tidelog."
NO_TIME = 0
NO_TTL = -1
# 4000 years; a number of more digits is a mistake.
DIGITS_MAX = 15
# A queue accepts nothing larger, and fewer records in a batch; the batches of a topic that was adopted may have more. A damaged
# one must not exhaust the memory.
BATCH_BYTES_MAX = DECODED_BYTES_MAX
BATCH_RECORDS_MAX = 1_000_000


class DeliveryTimes(NamedTuple):
    """The times of one record; ``NO_TIME`` where it has none."""

    offset: int
    due_ms: int
    expires_ms: int


def read_times(data: Buffer, position: int, header: BatchHeader, ttl_ms: int) -> Iterator[DeliveryTimes | None]:
    """For each record of the batch at ``position`` its times, or None; nothing for a batch that cannot have any. ``ttl_ms``
    is the queue's own time to live, or ``NO_TTL``. Raises RecordError for a batch that cannot be read."""
    if ttl_ms < 0 and header.compression is CompressionType.NONE:
        body = bytes(memoryview(data)[position : position + header.size])
        if PREFIX not in body:
            return
    for record in read_records(data, position, header, size_max=BATCH_BYTES_MAX, count_max=BATCH_RECORDS_MAX):
        due_ms, expires_ms = _times_in(record.headers)
        if ttl_ms >= 0 and record.timestamp >= 0:
            end_ms = max(record.timestamp, due_ms) + ttl_ms
            expires_ms = min(expires_ms, end_ms) if expires_ms else end_ms
        yield DeliveryTimes(record.offset, due_ms, expires_ms) if due_ms or expires_ms else None


def _times_in(headers: RecordHeaders) -> tuple[int, int]:
    due_ms = expires_ms = NO_TIME
    for name, value in headers:
        if name == DUE_HEADER:
            due_ms = _milliseconds(value)
        elif name == EXPIRES_HEADER:
            expires_ms = _milliseconds(value)
    return due_ms, expires_ms


def _milliseconds(text: bytes | None) -> int:
    if text is None or not text.isdigit() or len(text) > DIGITS_MAX:
        return NO_TIME
    return int(text)
