"""What can go wrong in a log, one type per cause.

Every message says what was wrong, with numbers. Becoming an error code of the protocol happens elsewhere, at one boundary; here a
type is a cause that some caller treats differently from the others.
"""

from collections.abc import Callable


class LogError(Exception):
    """Base of everything a log refuses or fails at."""


class OffsetOutOfRange(LogError):
    """A read below the log start offset or above the end that the reader may see."""

    def __init__(self, requested: int, start: int, end: int) -> None:
        super().__init__(f"offset {requested} is out of range: the log has offsets from {start} up to, not including, {end}")
        self.requested = requested
        self.start = start
        self.end = end


class CorruptRecord(LogError):
    """A batch that was handed in to be written is damaged: its CRC or its sizes are wrong."""


class UnsupportedRecordFormat(LogError):
    """A batch of a magic or compression that is not written here."""


class InvalidRecord(LogError):
    """A batch that is whole but makes no sense: counts, deltas, attributes."""


class RecordTooLarge(LogError):
    """One batch is larger than ``max.message.bytes``."""


class RecordsRefused(LogError):
    """Some records of a batch may not be written, and so none is."""

    def __init__(self, message: str, find: Callable[[int], list[tuple[int, str]]] | None = None) -> None:
        """``find`` looks for them, in a batch with at most so many records; it reads the buffer that the batch came in."""
        super().__init__(message)
        self._find = find

    def record_errors(self, records_max: int) -> list[tuple[int, str]]:
        """Which: (index in the batch, why), as long as the batch's buffer is there. All records have to be looked at for that, so
        none is named of a batch with more than ``records_max``."""
        return [] if self._find is None else self._find(records_max)


class InvalidTimestamp(RecordsRefused):
    """A timestamp is further from now than ``message.timestamp.before.max.ms`` or ``after.max.ms`` allow."""


class MissingKey(RecordsRefused):
    """A record without a key, on a compacted topic."""


class OutOfOrderSequence(LogError):
    """A producer's batch does not follow its previous one."""


class DuplicateSequence(LogError):
    """A producer's batch was written so long ago that its offset is no longer known."""


class InvalidProducerEpoch(LogError):
    """A newer instance of this producer has written already."""


class UnknownProducer(LogError):
    """Nothing is known of this producer, and the request needs it to be known."""


class InvalidTransactionState(LogError):
    """A write that does not fit the producer's transaction: outside it while one is open, or in none."""


class TransactionCoordinatorFenced(LogError):
    """A transaction marker from a coordinator that has been replaced."""


class StaleLeaderEpoch(LogError):
    """A batch of an older leader epoch than the log has seen."""


class StorageError(LogError):
    """The disk is full or the like: nothing was written, the log is as it was, and the caller may try again."""


class LogOffline(LogError):
    """The log cannot be used until the broker is started again or the log is repaired."""

    def __init__(self, partition: str, reason: str) -> None:
        super().__init__(f"{partition} is offline: {reason}")
        self.partition = partition
        self.reason = reason


class CorruptLog(LogError):
    """Damage in a segment below what is known to be durable: never cut, only reported."""

    def __init__(self, path: str, position: int, offset: int | None, reason: str) -> None:
        near = "" if offset is None else f", near offset {offset}"
        super().__init__(f"{path} is corrupt at byte {position}{near}: {reason}")
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason


class CorruptIndex(LogError):
    """An index that contradicts itself; it can be rebuilt from its segment."""


class CorruptSnapshot(LogError):
    """A producer snapshot that cannot be trusted; the state can be rebuilt from an older one and the log."""


class CorruptCheckpoint(LogError):
    """A text file of the data directory that cannot be read; the message names the line."""


class DirectoryLocked(LogError):
    """Another process uses this data directory."""


class DirectoryUnusable(LogError):
    """The data directory is missing, read-only, or belongs to another broker or cluster."""
