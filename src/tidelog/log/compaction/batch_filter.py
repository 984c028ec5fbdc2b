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
from tidelog.log.compaction.rebuild import emptied, keep_records, with_horizon
from tidelog.log.compaction.transaction_scan import TransactionScan
from tidelog.log.segment import DECODED_BATCH_BYTES_MAX, DECODED_BATCH_RECORDS_MAX
from tidelog.log.settings import LONG_MAX
from tidelog.log.transaction_index import AbortedTransaction
from tidelog.ports.disk import Buffer
from tidelog.records.batch import iterate_keys
from tidelog.records.header import BatchHeader


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
                kept = with_horizon(header, batch, range(header.record_count), self._new_horizon_ms)
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
        """Which records stay, by their place in the batch, and whether a tombstone is among them."""
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
