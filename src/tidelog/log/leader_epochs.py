"""Records which leader epoch wrote which offsets.

Entries are (epoch, start offset): the epoch's first batch is at or after its start offset, and the epoch ends where the next one
starts. Followers and consumers use them to find where their history diverges from the leader's (OffsetForLeaderEpoch).

File ``leader-epoch-checkpoint``, as Kafka writes it: "0", the number of entries, then ``<epoch> <start offset>`` per line. It
is replaced whole, so a crash leaves the old or the new one. It may be behind the log (recovery assigns again from the batches'
own epochs) or ahead of it (recovery truncates it to the log end).

Invariant: epochs and start offsets both rise strictly from entry to entry.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from tidelog.log.durability.checkpoints import StagedFile, format_checkpoint, parse_number, read_checkpoint_rows
from tidelog.log.errors import CorruptCheckpoint
from tidelog.ports.disk import Disk

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1

_EPOCH_MAX = 2**31 - 1
_OFFSET_MAX = 2**63 - 1
_epoch_of = itemgetter(0)
_start_of = itemgetter(1)


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochs:
    __slots__ = ("_disk", "_entries", "dirty", "latest_epoch", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        # A tuple that is replaced on every change: there are few entries, changes are rare, and all empty tuples are the same
        # object.
        self._entries: tuple[EpochEntry, ...] = ()
        self.path = path
        # The last entry's epoch, or -1. Every append compares its epoch with it.
        self.latest_epoch = UNDEFINED_EPOCH
        # Changed since the last flush.
        self.dirty = False

    @property
    def entries(self) -> Sequence[EpochEntry]:
        return self._entries

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that ``epoch`` begins at ``start_offset``. Returns False when that was known already.

        Entries that contradict the new one (a later epoch, or a start at or above the new start) are dropped: they belong to
        batches that are no longer in the log.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"a leader epoch and its start offset cannot be negative: {epoch}, {start_offset}")
        kept = self._entries
        if kept and epoch == kept[-1].epoch and start_offset >= kept[-1].start_offset:
            return False
        while kept and (kept[-1].epoch >= epoch or kept[-1].start_offset >= start_offset):
            kept = kept[:-1]
        self._change((*kept, EpochEntry(epoch, start_offset)))
        return True

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote ``offset``; -1 when it lies before the first known epoch."""
        count = bisect_right(self._entries, offset, key=_start_of)
        return self._entries[count - 1].epoch if count else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int, leader_epoch: int = UNDEFINED_EPOCH) -> tuple[int, int]:
        """Return (epoch, end offset) of the greatest known epoch at or below ``epoch``, as OffsetForLeaderEpoch answers.

        (-1, -1) for an epoch above all known ones. An epoch below all known ones ends where the first known one starts. The
        current ``leader_epoch`` is known before its first append: it starts at the log end until then.
        """
        entries = self._entries
        current = max(self.latest_epoch, leader_epoch)
        if epoch < 0 or epoch > current:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if epoch == current:
            return epoch, log_end_offset
        above = bisect_right(entries, epoch, key=_epoch_of)
        return (
            entries[above - 1].epoch if above else epoch,
            entries[above].start_offset if above < len(entries) else log_end_offset,
        )

    def truncate_from_end(self, offset: int) -> None:
        """Called when the log now ends at ``offset``: forget epochs that start there or above."""
        kept = self._entries
        while kept and kept[-1].start_offset >= offset:
            kept = kept[:-1]
        if len(kept) != len(self._entries):
            self._change(kept)

    def truncate_from_start(self, offset: int) -> None:
        """Called when the log now starts at ``offset``: forget the epochs that end there or below, and let the one that covers it
        start there."""
        count = bisect_right(self._entries, offset, key=_start_of)
        if not count:
            return
        entries = (EpochEntry(self._entries[count - 1].epoch, offset), *self._entries[count:])
        if entries != self._entries:
            self._change(entries)

    def clear(self) -> None:
        if self._entries:
            self._change(())

    def _change(self, entries: tuple[EpochEntry, ...]) -> None:
        self._entries = entries
        self.latest_epoch = entries[-1].epoch if entries else UNDEFINED_EPOCH
        self.dirty = True

    def load(self) -> None:
        """Load the entries from the file, if there is one. Raises CorruptCheckpoint when the file breaks its format."""
        entries: list[EpochEntry] = []
        for line, (epoch_text, start_text) in read_checkpoint_rows(self._disk, self.path, ("epoch", "start-offset")):
            epoch = parse_number(self.path, line, "epoch", epoch_text, _EPOCH_MAX)
            start_offset = parse_number(self.path, line, "start offset", start_text, _OFFSET_MAX)
            if entries and (epoch <= entries[-1].epoch or start_offset <= entries[-1].start_offset):
                raise CorruptCheckpoint(
                    f"{self.path}: line {line}: epoch {epoch} at {start_offset} does not come after epoch {entries[-1].epoch} at "
                    f"{entries[-1].start_offset}"
                )
            entries.append(EpochEntry(epoch, start_offset))
        self._change(tuple(entries))
        self.dirty = False

    def to_bytes(self) -> bytes:
        return _format(self._entries)

    def begin_flush(self) -> StagedFile:
        """Take the entries as they are now. Whoever cannot make the file durable calls ``note_flush_failed``."""
        self.dirty = False
        return StagedFile(self._disk, self.path, _format(self._entries))

    def note_flush_failed(self) -> None:
        self.dirty = True


def _format(entries: Iterable[EpochEntry]) -> bytes:
    rows = [f"{epoch} {start_offset}" for epoch, start_offset in entries]
    return format_checkpoint(rows, len(rows))
