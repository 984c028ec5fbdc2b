"""The errors of a log: one exception type per cause.

Every message says what is wrong, with numbers. Exceptions become error codes of the protocol at one boundary elsewhere; a type
exists here when some caller treats its cause differently.
"""


class LogError(Exception):
    """Base class of all errors of a log."""


class OffsetOutOfRange(LogError):
    """A read below the log start offset or above the end that the reader may see."""

    def __init__(self, requested: int, start: int, end: int) -> None:
        super().__init__(f"offset {requested} is out of range: the log has offsets from {start} up to, not including, {end}")
        self.requested = requested
        self.start = start
        self.end = end


class CorruptRecord(LogError):
    """A batch that should be written is damaged: its CRC or its sizes are wrong."""


class UnsupportedRecordFormat(LogError):
    """A batch has a magic or a compression type that is not supported."""


class InvalidRecord(LogError):
    """A batch is complete but makes no sense: counts, deltas or attributes contradict each other."""


class RecordTooLarge(LogError):
    """One batch is larger than ``max.message.bytes``."""


class RecordsRefused(LogError):
    """Some records of a batch may not be written, so the whole batch is refused."""

    def __init__(self, message: str, record_errors: list[tuple[int, str]] | None = None) -> None:
        super().__init__(message)
        self.record_errors = record_errors if record_errors is not None else []
        """The refused records as (index in the batch, reason); empty when there are too many to list."""


class InvalidTimestamp(RecordsRefused):
    """A timestamp is further from now than ``message.timestamp.before.max.ms`` or ``after.max.ms`` allow."""


class MissingKey(RecordsRefused):
    """A record for a compacted topic has no key."""


class OutOfOrderSequence(LogError):
    """A producer's batch does not follow its previous one."""


class InvalidProducerEpoch(LogError):
    """A newer instance of this producer has written already."""


class UnknownProducer(LogError):
    """The request needs a known producer, and nothing is known about this one."""


class InvalidTransactionState(LogError):
    """A write does not fit the producer's transaction: it is outside of an open one, or belongs to no transaction."""


class TransactionCoordinatorFenced(LogError):
    """A transaction marker came from a coordinator that has been replaced."""


class StaleLeaderEpoch(LogError):
    """A batch has an older leader epoch than the log has seen."""


class StorageError(LogError):
    """The disk is full or has a similar temporary problem: nothing was written, and the caller may retry."""


class StillBeingDeleted(StorageError):
    """An earlier partition of the same name has not left the disk yet, so this one does not exist here yet."""


class LogOffline(LogError):
    """The log cannot be used until the broker is started again or the log is repaired."""

    def __init__(self, partition: str, reason: str) -> None:
        super().__init__(f"{partition} is offline: {reason}")
        self.partition = partition
        self.reason = reason


class CorruptLog(LogError):
    """A segment is damaged below the offset that is known to be durable: this is never cut, only reported."""

    def __init__(self, path: str, position: int, offset: int | None, reason: str) -> None:
        near = "" if offset is None else f", near offset {offset}"
        super().__init__(f"{path} is corrupt at byte {position}{near}: {reason}")
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason


class CorruptIndex(LogError):
    """An index contradicts itself; it can be rebuilt from its segment."""


class CorruptSnapshot(LogError):
    """A producer snapshot cannot be trusted; the state can be rebuilt from an older one and the log."""


class CorruptCheckpoint(LogError):
    """A text file of the data directory cannot be read; the message names the line."""


class DirectoryLocked(LogError):
    """Another process uses this data directory."""


class DirectoryUnusable(LogError):
    """The data directory is missing, read-only, or belongs to another broker or cluster."""
