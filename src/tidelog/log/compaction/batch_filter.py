"""Decides what stays of one batch: all of it, a part, an empty shell, or nothing.

A record stays when the map holds no newer one of its key and, if it is a tombstone, its horizon has not passed. Records of
aborted transactions are removed. Offsets never change: a batch keeps its base offset, its last offset delta and its records'
deltas, and with them the sequence numbers.

The horizon (KIP-534): the cleaning that first meets a tombstone, or a marker without data, stamps its batch with the time from
which it may be removed: attribute bit 6, and the time in place of the base timestamp. By then every older record of that key is
gone, because groups are cleaned from the log's start upwards and the tombstone was in the map.

Two batches stay even when none of their records do: the last one of each producer that is still known (its sequence number and
epoch live in the header), and the last one of a group, so that the cleaned segment ends where its originals ended. A control
batch is never emptied but stays whole instead.

Batches at or above ``end_offset`` are not in the map and are copied as they are, unless they were aborted.

``TransactionScan`` tells, batch by batch in log order, which data was aborted and which markers have outlived their data. An
aborted transaction is entered in the ``.txnindex`` of the segment that holds its marker. Below the first unstable offset every
transaction is decided, so the entries at hand are complete, and a transactional batch is committed when none of them covers it.
A marker must stay as long as any batch of its transaction does, even an emptied one: without it the transaction would be open
again after a recovery. "Has data" is judged by what is read, not by what is kept, so a marker is removed one cleaning after its
data at the earliest, and by then the data is certainly gone.

A batch that loses some records is rewritten (``keep_records``, ``with_horizon``) with the same offsets, sequence numbers,
producer, epoch and codec. The records that stay are copied as bytes: their deltas count from the base offset and the base
timestamp, and neither changes. Only a new delete horizon, which takes the place of the base timestamp, makes it necessary to
decode and encode them.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable

from fastcrc.crc32 import iscsi as _crc32c

from tidelog.log.compaction.key_map import DIGEST_BYTES, digest
from tidelog.log.errors import CorruptIndex
from tidelog.log.segments.indexes import AbortedTransaction
from tidelog.log.segments.segment import DECODED_BATCH_BYTES_MAX, DECODED_BATCH_RECORDS_MAX
from tidelog.log.settings import LONG_MAX
from tidelog.ports.disk import Buffer
from tidelog.records.batch import build_batch, iterate_keys, read_records
from tidelog.records.compression import CompressionType, compress, decompress
from tidelog.records.control import ControlType, read_control_type
from tidelog.records.header import BATCH_LENGTH_MIN, CHECKSUMMED_HEADER, HEADER_SIZE, NO_TIMESTAMP, PREFIX_MAGIC_CRC, BatchHeader
from tidelog.records.record import Record
from tidelog.records.varint import VARINT_BITS, VARLONG_BITS, read_zigzag


class TransactionScan:
    __slots__ = ("_by_marker", "_by_producer", "_taken_for_committed", "producers_with_data")

    def __init__(self, aborted: Iterable[AbortedTransaction], producers_with_data: Iterable[int] = ()) -> None:
        self._by_marker = {transaction.last_offset: transaction for transaction in aborted}
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in sorted(self._by_marker.values(), key=_first_offset):
            self._by_producer.setdefault(transaction.producer_id, []).append(transaction)
        self.producers_with_data = set(producers_with_data)
        self._taken_for_committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether this batch of records was aborted. Call it for each batch of records, in log order."""
        if not header.is_transactional:
            return False
        self.producers_with_data.add(header.producer_id)
        transactions = self._by_producer.get(header.producer_id, [])
        index = bisect_right(transactions, header.base_offset, key=_first_offset) - 1
        if index >= 0 and header.base_offset <= transactions[index].last_offset:
            return True
        if header.record_count:
            self._taken_for_committed.add(header.producer_id)
        return False

    def end_transaction(self, header: BatchHeader, batch: memoryview) -> tuple[bool, AbortedTransaction | None]:
        """Called for each control batch, in log order. Returns (may it be removed once its horizon has passed?, the index entry
        that must be kept with it)."""
        if not header.record_count:
            return True, None
        control_type = read_control_type(batch, 0, header)
        if control_type not in (ControlType.ABORT, ControlType.COMMIT):
            return False, None
        if header.producer_id not in self.producers_with_data:
            return True, None
        self.producers_with_data.discard(header.producer_id)
        had_committed_records = header.producer_id in self._taken_for_committed
        self._taken_for_committed.discard(header.producer_id)
        if control_type is ControlType.COMMIT:
            return False, None
        if had_committed_records:
            # Better no compaction than one that keeps aborted records instead of committed ones.
            raise CorruptIndex(
                f"producer {header.producer_id} aborted a transaction at offset {header.base_offset}, but no index lists it"
            )
        return False, self._by_marker.get(header.base_offset)


def _first_offset(transaction: AbortedTransaction) -> int:
    return transaction.first_offset


def keep_records(header: BatchHeader, batch: memoryview, kept: Collection[int]) -> bytes:
    """The batch with only the records at these indexes, at least one. The records have been read before, so their lengths are
    valid."""
    data = decompress(header.compression, batch[HEADER_SIZE:], DECODED_BATCH_BYTES_MAX)
    body, max_timestamp_delta = _cut_out(data, header.record_count, kept)
    if header.compression is not CompressionType.NONE:
        body = compress(header.compression, body)
    max_timestamp = header.max_timestamp if header.is_log_append_time else _bounded(header.base_timestamp + max_timestamp_delta)
    checksummed = CHECKSUMMED_HEADER.pack(
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        len(kept),
    )
    crc = _crc32c(body, _crc32c(checksummed))
    prefix = PREFIX_MAGIC_CRC.pack(header.base_offset, BATCH_LENGTH_MIN + len(body), header.leader_epoch, header.magic, crc)
    return b"".join((prefix, checksummed, body))


def _cut_out(data: bytes, count: int, kept: Collection[int]) -> tuple[bytes, int]:
    """The bytes of the records at these indexes, and the largest of their timestamp deltas."""
    parts: list[bytes] = []
    deltas: list[int] = []
    position = 0
    for index in range(count):
        length = data[position]
        if length < 0x80:
            start = position + 1
        elif (second := data[position + 1]) < 0x80:
            length += (second << 7) - 0x80
            start = position + 2
        else:
            length, start = read_zigzag(data, position, VARINT_BITS)
        end = start + (length >> 1)
        if index in kept:
            parts.append(data[position:end])
            zigzag = data[start + 1]
            if zigzag >= 0x80:
                zigzag = read_zigzag(data, start + 1, VARLONG_BITS)[0]
            deltas.append(zigzag >> 1 ^ -(zigzag & 1))
        position = end
    return b"".join(parts), max(deltas)


def with_horizon(header: BatchHeader, batch: memoryview, kept: Collection[int], horizon_ms: int) -> bytes:
    """The batch with only the records at these indexes, and this delete horizon."""
    records = read_records(batch, 0, header, size_max=DECODED_BATCH_BYTES_MAX, count_max=DECODED_BATCH_RECORDS_MAX)
    kept_records = [
        record._replace(timestamp=_bounded(record.timestamp)) for index, record in enumerate(records) if index in kept
    ]
    return _build(header, kept_records, horizon_ms)


def _bounded(timestamp: int) -> int:
    """Clamp the sum. Nobody has checked the deltas that clients send, and an overflow must not stop the log's compaction for
    good."""
    return max(NO_TIMESTAMP, min(timestamp, LONG_MAX))


def emptied(header: BatchHeader) -> bytes:
    """The batch without records. It keeps its newest timestamp, from which its producer's age is known."""
    return _build(header, [], None)


def _build(header: BatchHeader, records: list[Record], horizon_ms: int | None) -> bytes:
    return build_batch(
        records,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        compression=header.compression,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
        delete_horizon_ms=horizon_ms,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=None if records else header.max_timestamp,
    )


class BatchFilter:
    __slots__ = (
        "_active_producers",
        "_end_offset",
        "_new_horizon_ms",
        "_now_ms",
        "_offsets",
        "_transactions",
        "horizon_ms",
        "records_kept",
        "records_read",
    )

    def __init__(
        self,
        offsets: dict[bytes, int],
        end_offset: int,
        transactions: TransactionScan,
        active_producers: dict[int, tuple[int, int]],
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        """``active_producers``: producer id to (epoch, last data offset or -1)."""
        self._offsets = offsets
        self._end_offset = end_offset
        self._transactions = transactions
        self._active_producers = active_producers
        self._now_ms = now_ms
        self._new_horizon_ms = min(now_ms + delete_retention_ms, LONG_MAX)
        self.horizon_ms: int | None = None
        self.records_read = 0
        self.records_kept = 0

    # -- control batches -----------------------------------------------------------------------------------------------------

    def filter_control(
        self, header: BatchHeader, batch: memoryview, is_last: bool
    ) -> tuple[Buffer | None, AbortedTransaction | None]:
        """Return what stays of a control batch, and the entry for the transaction index that belongs to it."""
        self.records_read += header.record_count
        may_go, aborted = self._transactions.end_transaction(header, batch)
        kept: Buffer | None = batch
        if may_go and header.base_offset < self._end_offset:
            horizon_ms = header.delete_horizon_ms
            if horizon_ms is None and header.record_count:
                self._note_horizon(self._new_horizon_ms)
                kept = with_horizon(header, batch, range(header.record_count), self._new_horizon_ms)
            elif horizon_ms is not None and horizon_ms > self._now_ms:
                self._note_horizon(horizon_ms)
            elif not is_last and not self._is_last_marker_of_producer(header):
                kept = None
        if kept is not None:
            self.records_kept += header.record_count
        return kept, aborted

    def _is_last_marker_of_producer(self, header: BatchHeader) -> bool:
        """A producer without data in its epoch is known only by its markers, and any marker of that epoch may be the last."""
        return self._active_producers.get(header.producer_id) == (header.producer_epoch, -1)

    # -- batches of records ----------------------------------------------------------------------------------------------------

    def filter_records(self, header: BatchHeader, batch: memoryview, is_last: bool) -> Buffer | None:
        self.records_read += header.record_count
        if self._transactions.is_aborted(header):
            return self._emptied(header, is_last)
        if header.base_offset >= self._end_offset:
            self.records_kept += header.record_count
            return batch
        kept, has_tombstone = self._kept_records(header, batch)
        if not kept:
            return self._emptied(header, is_last)
        self.records_kept += len(kept)
        horizon_ms = header.delete_horizon_ms
        if has_tombstone:
            self._note_horizon(self._new_horizon_ms if horizon_ms is None else horizon_ms)
            if horizon_ms is None:
                return with_horizon(header, batch, frozenset(kept), self._new_horizon_ms)
        if len(kept) == header.record_count:
            return batch
        return keep_records(header, batch, frozenset(kept))

    def _kept_records(self, header: BatchHeader, batch: memoryview) -> tuple[list[int], bool]:
        """The indexes of the records that stay, and whether a tombstone is among them."""
        newest_offset = self._offsets.get
        base_offset = header.base_offset
        horizon_ms = header.delete_horizon_ms
        tombstones_stay = horizon_ms is None or horizon_ms > self._now_ms
        has_tombstone = False
        kept: list[int] = []
        keys = iterate_keys(batch, 0, header, size_max=DECODED_BATCH_BYTES_MAX, count_max=DECODED_BATCH_RECORDS_MAX)
        for index, (delta, key, is_tombstone) in enumerate(keys):
            if key is None or newest_offset(key if len(key) < DIGEST_BYTES else digest(key), -1) > base_offset + delta:
                continue
            if is_tombstone:
                if not tombstones_stay:
                    continue
                has_tombstone = True
            kept.append(index)
        return kept, has_tombstone

    def _emptied(self, header: BatchHeader, is_last: bool) -> Buffer | None:
        if not is_last and not self._is_last_data_of_producer(header):
            return None
        return emptied(header)

    def _is_last_data_of_producer(self, header: BatchHeader) -> bool:
        producer = self._active_producers.get(header.producer_id)
        return producer is not None and producer[1] == header.last_offset

    # -- both ------------------------------------------------------------------------------------------------------------------

    def _note_horizon(self, horizon_ms: int) -> None:
        if self.horizon_ms is None or horizon_ms < self.horizon_ms:
            self.horizon_ms = horizon_ms
