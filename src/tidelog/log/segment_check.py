"""Check one segment batch by batch and rebuild what is derived from it: indexes, producers' state, leader epochs.

A batch is sound when its structure and CRC are right and its offsets rise. The segment's ``size`` ends with its last sound batch
afterwards, so that whatever follows is out of reach.
"""

from typing import NamedTuple

from tidelog.log.batch_scan import LOOKUP_CHUNK_BYTES, scan_batches, scan_headers
from tidelog.log.errors import CorruptIndex, CorruptLog
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.producer_state import ProducerState
from tidelog.log.segment import LogSegment
from tidelog.log.settings import LogSettings
from tidelog.log.transactions import marker_of, note_batch_of_producer
from tidelog.records.errors import RecordError
from tidelog.records.header import MAGIC_POSITION, NO_LEADER_EPOCH, crc_is_valid

# The least that a disk writes as one.
SECTOR_BYTES = 512


class Damage(NamedTuple):
    segment: LogSegment
    position: int
    bytes_after: int
    offset: int
    """From here on nothing is known to be sound."""
    reason: str


class Start(NamedTuple):
    """Where a check begins: a batch boundary, and the offset below which all derived state is trusted."""

    position: int
    offset: int


def find_start(segment: LogSegment, recovery_point: int) -> Start:
    """As near to the recovery point as the segment's indexes reach; its very beginning when they cannot be trusted."""
    if recovery_point <= segment.base_offset:
        return Start(0, segment.base_offset)
    indexes = (segment.offset_index, segment.time_index, segment.transaction_index)
    try:
        for index in indexes:
            index.check()
            index.truncate_to(recovery_point)
        position = segment.offset_index.last_position
        if position == 0 or _ends_at(segment, position, segment.offset_index.last_offset):
            return Start(position, recovery_point)
    except CorruptIndex:
        pass
    return Start(0, segment.base_offset)


def _ends_at(segment: LogSegment, position: int, last_offset: int) -> bool:
    """Is there a batch at this position that ends at this offset? An index entry that says so has not gone astray."""
    try:
        for _, header in scan_headers(segment.file(), position, segment.size, LOOKUP_CHUNK_BYTES):
            return header.last_offset == last_offset
    except CorruptLog:
        pass
    return False


def _is_torn(base_offset: int, position: int, next_offset: int) -> bool:
    """Is this the next offset without the bytes that lie in the sector before? A power cut may lose that and keep the next."""
    lost_bytes = -position % SECTOR_BYTES
    return 0 < lost_bytes <= MAGIC_POSITION and base_offset == next_offset & ((1 << 8 * max(0, 8 - lost_bytes)) - 1)


class SegmentCheck:
    """Carries the state from batch to batch and segment to segment."""

    def __init__(self, settings: LogSettings, producers: ProducerState, epochs: LeaderEpochs, trusted_below: int) -> None:
        self._index_interval_bytes = settings.index_interval_bytes
        self._producers = producers
        self._epochs = epochs
        self._trusted_below = trusted_below
        self.next_offset = trusted_below

    def run(self, segment: LogSegment, position: int) -> Damage | None:
        """From ``position``, 0 unless it is the first segment. None when the segment is sound to its end."""
        end = segment.size
        if position == 0:
            # Transactions that ended where the state is trusted are not met again: their entries stay.
            segment.reset_indexes(with_transactions=segment.base_offset >= self._trusted_below)
            self.next_offset = segment.base_offset
        segment.count_bytes_below(position)
        sound_end = position
        try:
            for at, header, batch in scan_batches(segment.file(), position, end):
                base_offset = header.base_offset
                last_offset = base_offset + header.last_offset_delta
                if at == position and position:
                    self.next_offset = base_offset
                if not crc_is_valid(batch, 0, header):
                    return Damage(segment, at, end - at, self.next_offset, "a batch's CRC does not match its bytes")
                if base_offset < self.next_offset or header.last_offset_delta < 0:
                    # A base offset is outside of the CRC. Either this one is wrong, or one before it that was taken for sound.
                    is_wrong = base_offset < segment.base_offset or _is_torn(base_offset, at, self.next_offset)
                    sound_below = self.next_offset if is_wrong else min(base_offset, self.next_offset)
                    reason = f"a batch has offsets {base_offset} to {last_offset} after {self.next_offset - 1}"
                    return Damage(segment, at, end - at, sound_below, reason)
                if base_offset >= self._trusted_below:
                    if NO_LEADER_EPOCH < header.leader_epoch < self._epochs.latest_epoch:
                        # A truncation that was not synced: the end of the old history is back, behind the new one.
                        reason = f"a batch of leader epoch {header.leader_epoch} after one of {self._epochs.latest_epoch}"
                        return Damage(segment, at, end - at, self.next_offset, reason)
                    if header.leader_epoch > self._epochs.latest_epoch:
                        self._epochs.assign(header.leader_epoch, base_offset)
                    if header.producer_id >= 0:
                        marker = marker_of(batch, 0, header)
                        note_batch_of_producer(self._producers, segment, header, base_offset, marker)
                segment.note_batch(at, len(batch), last_offset, header.max_timestamp, self._index_interval_bytes)
                sound_end = at + len(batch)
                self.next_offset = last_offset + 1
        except CorruptLog as error:
            return Damage(segment, error.position, end - error.position, self.next_offset, error.reason)
        except RecordError as error:
            return Damage(segment, sound_end, end - sound_end, self.next_offset, str(error))
        finally:
            segment.count_bytes_below(sound_end)
        return None
