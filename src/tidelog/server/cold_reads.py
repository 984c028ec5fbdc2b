"""Is a range of a file in the page cache, and getting it there without holding up the loop.

``sendfile`` of a range that is not cached blocks until the disk has delivered it. So the range is probed first: a one-byte
read that is not allowed to wait (RWF_NOWAIT), every ``PROBE_STEP_BYTES`` and at the end; the kernel reads ahead at least so
much at once, and what it evicts it evicts in order, so holes between two probes are rare and small. A file system that cannot
be asked (tmpfs, which is all memory) counts as cached.

What is cold is read by a helper thread, into a buffer that nobody looks at; the pages stay behind in the cache.
"""

import errno
import os
import threading

from tidelog.ports.disk import DiskFile

PROBE_STEP_BYTES = 128 * 1024
# What one trip to a helper thread fetches: milliseconds of the disk's time.
READ_AHEAD_BYTES = 2 * 1024 * 1024
_SCRATCH_BYTES = 256 * 1024

_probe_buffers = [bytearray(1)]
_scratch = threading.local()


def is_cached(descriptor: int, position: int, length: int) -> bool:
    preadv = os.preadv
    buffers = _probe_buffers
    try:
        preadv(descriptor, buffers, position, os.RWF_NOWAIT)
        if length > 1:
            for offset in range(PROBE_STEP_BYTES, length, PROBE_STEP_BYTES):
                preadv(descriptor, buffers, position + offset, os.RWF_NOWAIT)
            preadv(descriptor, buffers, position + length - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    return True


def read_ahead(file: DiskFile, position: int, length: int) -> None:
    """Blocks until the range is in the page cache; belongs in a helper thread. Holds the file, so it stays open."""
    buffer = getattr(_scratch, "buffer", None)
    if buffer is None:
        buffer = _scratch.buffer = bytearray(_SCRATCH_BYTES)
    descriptor = file.descriptor()
    # Twice as far: the disk goes on with the next range while this one is being sent.
    os.posix_fadvise(descriptor, position, 2 * length, os.POSIX_FADV_WILLNEED)
    end = position + length
    while position < end:
        count = os.preadv(descriptor, [memoryview(buffer)[: end - position]], position)
        if not count:
            return
        position += count
