"""What is left of one batch: all of it, a part, an empty shell, or nothing.

A record stays when no newer one of its key is in the map, and, if it is a tombstone, its horizon has not passed. Records of
aborted transactions go. Offsets never change: a batch keeps its base offset, its last offset delta and its records' deltas,
and with them the sequence numbers.

The horizon (KIP-534): the cleaning that first meets a tombstone, or a marker without data, stamps its batch with the time
from which on it may go: attribute bit 6, and the time in place of the base timestamp. By then every older record of that key
is gone, because groups are cleaned from the log's start upwards and the tombstone was in the map.

Two batches stay even when nothing of them is left, emptied: the last one of each producer that is still known (its sequence
number and epoch live in the header), and the last one of a group, so that the cleaned segment ends where its originals ended.
A control batch is never emptied but stays whole instead.

Batches at or above ``end_offset`` are not in the map and are copied as they are, unless they were aborted.
"""

from tidelog.log.compaction.key_map import DIGEST_BYTES, digest
from tidelog.log.compaction.transaction_scan import TransactionScan
from tidelog.log.segment import DECODED_BATCH_BYTES_MAX, DECODED_BATCH_RECORDS_MAX
from tidelog.log.settings import LONG_MAX
from tidelog.log.transaction_index import AbortedTransaction
from tidelog.ports.disk import Buffer
from tidelog.records.batch import build_batch, iterate_keys, read_records
from tidelog.records.header import BatchHeader
from tidelog.records.record import Record


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
        """What is left of a control batch, and the entry for the transaction index that goes with it."""
        self.records_read += header.record_count
        may_go, aborted = self._transactions.end_transaction(header, batch)
        kept: Buffer | None = batch
        if may_go and header.base_offset < self._end_offset:
            horizon_ms = header.delete_horizon_ms
            if horizon_ms is None and header.record_count:
                self._note_horizon(self._new_horizon_ms)
                kept = self._rebuild(header, _records(header, batch), self._new_horizon_ms)
            elif horizon_ms is not None and horizon_ms > self._now_ms:
                self._note_horizon(horizon_ms)
            elif not is_last and not self._is_last_marker_of_producer(header):
                kept = None
        if kept is not None:
            self.records_kept += header.record_count
        return kept, aborted

    def _is_last_marker_of_producer(self, header: BatchHeader) -> bool:
        """A producer without data in its epoch is known by its markers alone; any of that epoch may be the last."""
        return self._active_producers.get(header.producer_id) == (header.producer_epoch, -1)

    # -- batches of records ----------------------------------------------------------------------------------------------------

    def filter_records(self, header: BatchHeader, batch: memoryview, is_last: bool) -> Buffer | None:
        self.records_read += header.record_count
        if self._transactions.is_aborted(header):
            return self._emptied(header, is_last)
        if header.base_offset >= self._end_offset:
            self.records_kept += header.record_count
            return batch
        kept_deltas, has_tombstone = self._kept_deltas(header, batch)
        if not kept_deltas:
            return self._emptied(header, is_last)
        self.records_kept += len(kept_deltas)
        horizon_ms = header.delete_horizon_ms
        must_set_horizon = has_tombstone and horizon_ms is None
        if must_set_horizon:
            horizon_ms = self._new_horizon_ms
        if has_tombstone and horizon_ms is not None:
            self._note_horizon(horizon_ms)
        if len(kept_deltas) == header.record_count and not must_set_horizon:
            return batch
        kept = frozenset(kept_deltas)
        base_offset = header.base_offset
        records = [record for record in _records(header, batch) if record.offset - base_offset in kept]
        return self._rebuild(header, records, horizon_ms)

    def _kept_deltas(self, header: BatchHeader, batch: memoryview) -> tuple[list[int], bool]:
        """The offset deltas of the records that stay, and whether a tombstone is among them."""
        newest_offset = self._offsets.get
        base_offset = header.base_offset
        horizon_ms = header.delete_horizon_ms
        tombstones_stay = horizon_ms is None or horizon_ms > self._now_ms
        has_tombstone = False
        kept: list[int] = []
        for delta, key, is_tombstone in iterate_keys(
            batch, 0, header, size_max=DECODED_BATCH_BYTES_MAX, count_max=DECODED_BATCH_RECORDS_MAX
        ):
            if key is None or newest_offset(key if len(key) < DIGEST_BYTES else digest(key), -1) > base_offset + delta:
                continue
            if is_tombstone:
                if not tombstones_stay:
                    continue
                has_tombstone = True
            kept.append(delta)
        return kept, has_tombstone

    def _emptied(self, header: BatchHeader, is_last: bool) -> Buffer | None:
        if not is_last and not self._is_last_data_of_producer(header):
            return None
        return self._rebuild(header, [], None)

    def _is_last_data_of_producer(self, header: BatchHeader) -> bool:
        producer = self._active_producers.get(header.producer_id)
        return producer is not None and producer[1] == header.last_offset

    # -- both ------------------------------------------------------------------------------------------------------------------

    def _note_horizon(self, horizon_ms: int) -> None:
        if self.horizon_ms is None or horizon_ms < self.horizon_ms:
            self.horizon_ms = horizon_ms

    def _rebuild(self, header: BatchHeader, records: list[Record], horizon_ms: int | None) -> bytes:
        """The same batch with these records, and a base timestamp that is the horizon's when there is one."""
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


def _records(header: BatchHeader, batch: memoryview) -> list[Record]:
    return list(read_records(batch, 0, header, size_max=DECODED_BATCH_BYTES_MAX, count_max=DECODED_BATCH_RECORDS_MAX))
