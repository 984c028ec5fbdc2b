"""The errors that a record batch can have.

Whatever the bytes are, the decoders raise only these: a caller that catches ``RecordError`` has caught everything that bad input
can do. The message says what was wrong, with the numbers.
"""


class RecordError(Exception):
    """Base class of all errors about the bytes of a batch."""


class CorruptBatch(RecordError):
    """The bytes are not what was written: cut off, impossible lengths, a wrong CRC, a broken compressed stream."""


class UnsupportedMagic(RecordError):
    """The batch has another format than v2."""


class InvalidBatch(RecordError):
    """The bytes may be what was written, but they make no sense: counts, deltas, key and value lengths."""


class DecompressionLimitExceeded(RecordError):
    """The records would take more memory than the caller allows."""


class UnsupportedCompression(RecordError):
    """Kafka does not define this compression type."""
