"""Batches as producers send them: records of bytes that do not compress."""

import random
import time

from tidelog.records.batch import build_batch
from tidelog.records.record import Record

# A batch of "1 MB" is as large as max.message.bytes lets it be by default.
LARGE_BATCH_BYTES = 1_048_588
MEDIUM_BATCH_BYTES = 16 * 1024
SMALL_BATCH_BYTES = 1024
ONE_RECORD_VALUE_BYTES = 100
RECEIVED_BYTES = 2 << 20


def batch_of(size_bytes: int, seed: int = 0) -> bytes:
    """A batch of at most ``size_bytes``, with records of about 1 KB."""
    source = random.Random(seed)
    now_ms = time.time_ns() // 1_000_000
    count = max(1, (size_bytes - 61) // 1024)
    value_bytes = (size_bytes - 61) // count - 13
    return build_batch([Record(offset, now_ms, None, source.randbytes(value_bytes), ()) for offset in range(count)])


def one_record_batch(seed: int = 0) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    return build_batch([Record(0, now_ms, None, random.Random(seed).randbytes(ONE_RECORD_VALUE_BYTES), ())])


def different_batches(size_bytes: int) -> list[bytes]:
    """Two megabytes of them: as near to the processor as bytes that the kernel has just put into a reused receive buffer."""
    return [batch_of(size_bytes, seed) for seed in range(max(2, min(64, RECEIVED_BYTES // size_bytes)))]


def joined(batches: list[bytes], bytes_max: int) -> bytes:
    """Repeated up to ``bytes_max``: one large append that holds many batches."""
    one_round = b"".join(batches)
    return one_round * max(1, bytes_max // len(one_round))
