"""Checks batches before they are appended. A batch that is refused leaves nothing behind: all checks come before the first byte
is written.

A client's batch is validated completely, as Kafka's LogValidator does: the header, the CRC, and the structure of every record
(``RecordWalk``), for which a compressed batch is decompressed. What a follower gets from its leader, and what the broker writes
itself, is only checked by header and CRC.

Small requests have a few plain records, which ``begin_validation`` checks at once. A large batch takes too long for that, so
``BatchValidation`` is resumable. Each ``advance`` walks some records. Codecs run in C and free the GIL, so what they do to a
large batch is handed out (``work``) to be done in a helper thread. Both are bounded: a batch may not claim more records than its
bytes can hold, nor decompress to more than ``decoded_bytes_max``.

The header's maximum timestamp is replaced if it is not that of the records, and a batch is compressed again if the topic asks for
another codec (``compression.type``), in both cases as in Kafka.
"""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple

from tidelog.log.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    MissingKey,
    RecordsRefused,
    RecordTooLarge,
    UnsupportedRecordFormat,
)
from tidelog.log.settings import LogSettings
from tidelog.records.batch import rebuild_batch
from tidelog.records.compression import CompressionType, compress, compression_type, decompress
from tidelog.records.errors import DecompressionLimitExceeded, RecordError
from tidelog.records.header import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_MASK,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    TRANSACTIONAL_MASK,
    BatchHeader,
    crc_is_valid,
    read_header,
)
from tidelog.records.record_walk import REFUSED_MAX, RecordWalk, WalkRules, newest_plain_delta

COMPRESSION_CODE_MAX = int(max(CompressionType))
# Length, attributes, two deltas, two lengths and the number of headers: a byte each.
RECORD_BYTES_MIN = 7
# Compressed records grow by decoding, but a few kilobytes must not become gigabytes. The second limit is for topics that allow
# huge batches: their records cannot shrink as much in good faith.
DECODED_BYTES_PER_MESSAGE_BYTE_MAX = 64
DECODED_BYTES_MAX = 128 * 1024 * 1024
DECODED_BYTES_PER_MESSAGE_BYTE_MIN = 4
# A queue looks into each record of a batch before it hands any of them out, and it must be able to: a batch whose times it could
# not read would be handed out too early. No client makes batches of this size unless it is told to.
QUEUE_BATCH_RECORDS_MAX = 20_000
# The expansion to expect of a codec before its output is known.
EXPANSION_GUESS = 8
_TIMESTAMP_MIN, _TIMESTAMP_MAX = -(2**63), 2**63 - 1
# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and every request makes one.
_new_tuple = tuple.__new__


class AppendOrigin(Enum):
    """The writer of the batch. A client may not write control batches, and sequence numbers are checked only for clients."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


_REPLICATION = AppendOrigin.REPLICATION


class ValidatedBatch(NamedTuple):
    """A client's batch that may be written under these settings."""

    view: "memoryview"  # Quoted, because mypyc looks for its name in this module.
    header: BatchHeader
    settings: LogSettings


class WorkBudget:
    """How much work may be done at once: records to walk, and bytes for codecs to write."""

    __slots__ = ("codec_bytes", "records")

    def __init__(self, records: int, codec_bytes: int) -> None:
        self.records = records
        self.codec_bytes = codec_bytes

    def spend_codec_bytes(self, count: int) -> None:
        self.codec_bytes -= count

    def keep_records(self, count: int) -> None:
        self.records = count


_UNLIMITED = 2**62


def begin_validation(view: memoryview, settings: LogSettings, now_ms: int) -> "ValidatedBatch | BatchValidation":
    """Check the header of a client's batch, and the records too if they are few and plain; then the batch is validated. Any other
    batch needs a ``BatchValidation``."""
    header = _checked_header(view, 0, len(view))
    _check_client_header(header, len(view), settings)
    if _is_plain(view, header, settings, now_ms):
        return _new_tuple(ValidatedBatch, (view, header, settings))
    return BatchValidation(view, header, settings, now_ms)


def _is_plain(view: memoryview, header: BatchHeader, settings: LogSettings, now_ms: int) -> bool:
    """Whether the records are valid beyond doubt and can be written as they are. False says nothing."""
    base, newest = header[7], header[8]
    return (
        not header[5] & COMPRESSION_MASK
        and not settings.compression
        and not settings.log_append_time
        and now_ms - settings.timestamp_before_max_ms <= base
        and newest <= now_ms + settings.timestamp_after_max_ms
        and newest_plain_delta(view, HEADER_SIZE, header[12], settings.compact) == newest - base
    )


def validate_batch(view: memoryview, settings: LogSettings, now_ms: int) -> ValidatedBatch:
    """Validate a client's batch at once, however long that takes."""
    begun = begin_validation(view, settings, now_ms)
    if type(begun) is ValidatedBatch:
        return begun
    assert isinstance(begun, BatchValidation)
    begun.advance(WorkBudget(_UNLIMITED, _UNLIMITED))
    return begun.result


def decoded_bytes_max(settings: LogSettings) -> int:
    """How many bytes the records of one batch may take when they are decompressed."""
    size_max = settings.message_bytes_max
    return max(
        DECODED_BYTES_PER_MESSAGE_BYTE_MIN * size_max, min(DECODED_BYTES_PER_MESSAGE_BYTE_MAX * size_max, DECODED_BYTES_MAX)
    )


class BatchValidation:
    """The validation of a client's batch whose header has been checked. ``view`` must stay as it is until the validation is
    complete or ``keep`` was called.

    It raises from whichever method finds a fault."""

    __slots__ = ("_body", "_header", "_is_kept", "_now_ms", "_settings", "_validated", "_view", "_walk")

    def __init__(self, view: memoryview, header: BatchHeader, settings: LogSettings, now_ms: int) -> None:
        self._view = view
        self._is_kept = False
        self._header = header
        self._settings = settings
        self._now_ms = now_ms
        self._body: bytes | None = None
        self._walk: RecordWalk | None = None
        self._validated: ValidatedBatch | None = None

    @property
    def is_complete(self) -> bool:
        return self._validated is not None

    @property
    def result(self) -> ValidatedBatch:
        assert self._validated is not None, "the validation is complete"
        return self._validated

    def keep(self) -> None:
        """Copy what still lies in the caller's buffer, because the buffer will be overwritten."""
        if not self._is_kept:
            self._view = memoryview(bytes(self._view))
            self._is_kept = True
            if self._validated is not None:
                self._validated = self._validated._replace(view=self._view)

    def advance(self, budget: WorkBudget) -> None:
        """Validate as much as the budget allows. If the validation is not complete then, do its ``work``, or advance again."""
        walk = self._walk
        if walk is None:
            walk = self._open(budget)
            if walk is None:
                return
        try:
            budget.keep_records(walk.advance(budget.records))
        except RecordError as error:
            raise _unreadable(error) from error
        if walk.is_complete:
            if walk.refused_count:
                raise self._refusal(walk)
            self._finish(walk, budget)

    # -- codecs --------------------------------------------------------------------------------------------------------------

    @property
    def work(self) -> Callable[[], bytes] | None:
        """What a codec has to do before the validation can go on, if a codec is next. It runs in any thread, on ``keep``-ed
        bytes, and its result or its error is for ``finish_work``."""
        if self._validated is not None:
            return None
        if self._walk is None:
            return self._decompress(decoded_bytes_max(self._settings))
        return self._recompress() if self._walk.is_complete else None

    def finish_work(self, result: bytes | None, error: BaseException | None) -> None:
        if error is not None:
            raise _unreadable(error) if isinstance(error, RecordError) else error
        assert result is not None, "work returns bytes or raises"
        if self._walk is None:
            self._begin_walk(result)
        else:
            self._take_recompressed(result)

    def _decompress(self, size_max: int) -> Callable[[], bytes]:
        kind = compression_type(self._header.attributes & COMPRESSION_MASK)
        return partial(decompress, kind, self._view[HEADER_SIZE:], size_max)

    def _open(self, budget: WorkBudget) -> RecordWalk | None:
        """Begin to walk; None if the batch must be decompressed and the budget does not allow that."""
        view = self._view
        if not self._header.attributes & COMPRESSION_MASK:
            if not self._is_kept:
                self._view = view = memoryview(bytes(view))
                self._is_kept = True
            data = view.obj
            assert isinstance(data, bytes)
            self._walk = RecordWalk(data, HEADER_SIZE, self._header.record_count, self._rules())
            return self._walk
        limit = decoded_bytes_max(self._settings)
        size_max = min(limit, budget.codec_bytes)
        if min(len(view) * EXPANSION_GUESS, limit) > size_max:
            return None
        try:
            body = self._decompress(size_max)()
        except DecompressionLimitExceeded as error:
            if size_max < limit:
                return None
            raise _unreadable(error) from error
        except RecordError as error:
            raise _unreadable(error) from error
        budget.spend_codec_bytes(len(body))
        return self._begin_walk(body)

    def _begin_walk(self, body: bytes) -> RecordWalk:
        self._body = body
        count = self._header.record_count
        if count * RECORD_BYTES_MIN > len(body):
            raise InvalidRecord(f"a batch claims {count} records in {len(body)} bytes")
        self._walk = RecordWalk(body, 0, count, self._rules())
        return self._walk

    def _finish(self, walk: RecordWalk, budget: WorkBudget) -> None:
        header = self._header
        newest = header.base_timestamp + walk.newest_delta
        is_renewed = not self._settings.log_append_time and newest != header.max_timestamp
        if is_renewed:
            self._header = header = header._replace(max_timestamp=newest)
        target = self._settings.compression
        if target is not None and target != header.attributes & COMPRESSION_MASK:
            if len(self._records()) <= budget.codec_bytes:
                budget.spend_codec_bytes(len(self._records()))
                self._take_recompressed(self._recompress()())
            return
        if is_renewed:
            self._view = memoryview(rebuild_batch(header, self._view[HEADER_SIZE:]))
            self._is_kept = True
            header = read_header(self._view)
        self._body = None
        self._validated = ValidatedBatch(self._view, header, self._settings)

    def _records(self) -> bytes | memoryview:
        """The records, decompressed."""
        return self._view[HEADER_SIZE:] if self._body is None else self._body

    def _recompress(self) -> Callable[[], bytes]:
        target = self._settings.compression
        assert target is not None, "only a topic with a codec of its own compresses"
        header = self._header._replace(attributes=self._header.attributes & ~COMPRESSION_MASK | target)
        return partial(_recompressed, header, self._records(), target, self._settings.compression_level)

    def _take_recompressed(self, data: bytes) -> None:
        settings = self._settings
        if len(data) > settings.message_bytes_max:
            raise RecordTooLarge(
                f"a batch of {len(self._view)} bytes takes {len(data)} bytes after compression.type of the topic was applied, "
                f"more than max.message.bytes={settings.message_bytes_max}"
            )
        self._view = memoryview(data)
        self._is_kept = True
        self._body = None
        self._validated = ValidatedBatch(self._view, read_header(data), settings)

    # -- rules ---------------------------------------------------------------------------------------------------------------

    def _rules(self) -> WalkRules:
        settings, header = self._settings, self._header
        if settings.log_append_time:
            return WalkRules(needs_keys=settings.compact)
        base = header.base_timestamp
        earliest, latest = self._timestamp_bounds()
        return WalkRules(earliest - base, latest - base, NO_TIMESTAMP - base, header.max_timestamp - base, settings.compact)

    def _timestamp_bounds(self) -> tuple[int, int]:
        settings, now_ms = self._settings, self._now_ms
        earliest, latest = now_ms - settings.timestamp_before_max_ms, now_ms + settings.timestamp_after_max_ms
        return max(earliest, _TIMESTAMP_MIN), min(latest, _TIMESTAMP_MAX)

    def _refusal(self, walk: RecordWalk) -> RecordsRefused:
        """Like Kafka, the first refused record decides about the error of the batch."""
        errors = [(index, self._refusal_reason(delta)) for index, delta in walk.refused]
        index, delta = walk.refused[0]
        message = f"record {index} of the batch {errors[0][1]}"
        if walk.refused_count > 1:
            message += f", and {walk.refused_count - 1} more records cannot be written either"
        if walk.refused_count > REFUSED_MAX:
            errors = []
        return MissingKey(message, errors) if delta is None else InvalidTimestamp(message, errors)

    def _refusal_reason(self, delta: int | None) -> str:
        if delta is None:
            return "has no key, and the topic is compacted"
        settings = self._settings
        timestamp = self._header.base_timestamp + delta
        distance = timestamp - self._now_ms
        if distance > 0:
            return (
                f"has timestamp {timestamp}, {distance} ms after the broker's clock; "
                f"message.timestamp.after.max.ms={settings.timestamp_after_max_ms}"
            )
        return (
            f"has timestamp {timestamp}, {-distance} ms before the broker's clock; "
            f"message.timestamp.before.max.ms={settings.timestamp_before_max_ms}"
        )


def _recompressed(header: BatchHeader, records: bytes | memoryview, kind: CompressionType, level: int | None) -> bytes:
    return rebuild_batch(header, compress(kind, records, level))


def _unreadable(error: RecordError) -> InvalidRecord | RecordTooLarge:
    if isinstance(error, DecompressionLimitExceeded):
        # A producer that splits batches that are too large can do that here as well.
        return RecordTooLarge(f"the records of the batch are too large: {error}; send smaller batches")
    return InvalidRecord(f"the records of the batch cannot be read: {error}")


def checked_batches(view: memoryview, origin: AppendOrigin) -> list[tuple[int, BatchHeader]]:
    """(position, header) of each batch that the broker itself or the leader has written. Raises a typed error that says what is
    wrong unless all of them are valid."""
    end = len(view)
    position = 0
    batches = []
    while position < end:
        header = _checked_header(view, position, end)
        if origin is not _REPLICATION:
            _check_header(header)
        batches.append((position, header))
        position += header[1] + LOG_OVERHEAD
    if not batches:
        raise InvalidRecord("no record batch to append")
    return batches


def _checked_header(view: memoryview, position: int, end: int) -> BatchHeader:
    """The header of a batch, after checking that the batch is complete and its CRC is right."""
    remaining = end - position
    if remaining < HEADER_SIZE:
        if not remaining:
            raise InvalidRecord("no record batch to append")
        if remaining > MAGIC_POSITION and view[position + MAGIC_POSITION] != MAGIC:
            raise _unsupported(view[position + MAGIC_POSITION])
        raise CorruptRecord(f"{remaining} bytes at position {position} are too few for a record batch")
    header = read_header(view, position)
    size = header[1] + LOG_OVERHEAD
    if header[3] != MAGIC:
        raise _unsupported(header.magic)
    if not HEADER_SIZE <= size <= remaining:
        raise CorruptRecord(f"the header says that the batch has {size} bytes, but only {remaining} were sent")
    if not crc_is_valid(view, position, header):
        raise CorruptRecord(f"the CRC of the batch at position {position} does not match its {size} bytes")
    return header


def _unsupported(magic: int) -> UnsupportedRecordFormat:
    return UnsupportedRecordFormat(
        f"record format {magic} is not supported: send record batches of version 2 (Kafka 0.11 or newer)"
    )


def _check_header(header: BatchHeader) -> None:
    # Unpacked once: a field of the named tuple costs more than a local, and its properties are calls.
    _, batch_length, _, _, _, attributes, last_offset_delta, _, _, producer_id, _, _, count = header
    if count <= 0 or last_offset_delta != count - 1:
        raise InvalidRecord(f"a batch with {count} records has a last offset delta of {last_offset_delta}")
    codec = attributes & COMPRESSION_MASK
    if codec > COMPRESSION_CODE_MAX:
        raise UnsupportedRecordFormat(f"compression type {codec} is not known")
    if not codec and count * RECORD_BYTES_MIN > batch_length + LOG_OVERHEAD - HEADER_SIZE:
        # Otherwise a few bytes could use up billions of offsets, and consumers would get a batch that none of them can read.
        raise InvalidRecord(f"a batch claims {count} records in {batch_length + LOG_OVERHEAD - HEADER_SIZE} bytes")
    if producer_id < 0 and attributes & TRANSACTIONAL_MASK:
        raise InvalidRecord("a transactional batch has no producer id")


def _check_client_header(header: BatchHeader, size: int, settings: LogSettings) -> None:
    if header[1] + LOG_OVERHEAD != size:
        raise InvalidRecord("a produce request has exactly one record batch per partition")
    if size > settings.message_bytes_max:
        raise RecordTooLarge(f"a batch of {size} bytes is larger than max.message.bytes={settings.message_bytes_max}")
    if settings.is_queue and header[12] > QUEUE_BATCH_RECORDS_MAX:
        raise RecordTooLarge(
            f"a batch of {header[12]} records is larger than a queue takes ({QUEUE_BATCH_RECORDS_MAX}); send smaller batches"
        )
    attributes = header[5]
    if attributes & CONTROL_MASK:
        raise InvalidRecord("clients may not write control batches")
    _check_header(header)
    if attributes & COMPRESSION_MASK and header[12] * RECORD_BYTES_MIN > decoded_bytes_max(settings):
        raise InvalidRecord(f"a batch claims {header[12]} records, more than {decoded_bytes_max(settings)} bytes can hold")
    if header[9] >= 0 and header[11] < 0:
        # The offsets that a coordinator writes as part of a producer's transaction have no sequence number.
        raise InvalidRecord(f"producer {header[9]} sent a batch without a sequence number")
    if attributes & LOG_APPEND_TIME_MASK and not settings.log_append_time:
        raise InvalidTimestamp("the batch says LogAppendTime, but the topic keeps the producer's time (CreateTime)")


def whole_batches_bytes(view: memoryview) -> int:
    """The number of leading bytes of ``view`` that are complete batches: a fetch may return an incomplete last batch."""
    end = len(view)
    position = 0
    while position + LOG_OVERHEAD <= end:
        batch_length = int.from_bytes(view[position + 8 : position + LOG_OVERHEAD], "big", signed=True)
        size = batch_length + LOG_OVERHEAD
        if batch_length < 0 or position + size > end:
            break
        position += size
    return position
