"""The parent's end of a child process's three pipes.

The request is one line of JSON on standard input, which then stays open: its end tells the child that the parent is gone. The
outcome is one line of JSON on standard output. Standard error is read all the time, so that a talkative child never blocks, and
only its end is kept.
"""

import os
import selectors
import subprocess
import time

# A result is a summary (file names, counts), not data. A child that sends more is broken, and must not fill our memory.
RESULT_BYTES_MAX = 16 * 1024 * 1024
# A traceback fits.
LAST_WORDS_BYTES_MAX = 4096
_READ_BYTES = 65_536


def read_outcome(process: "subprocess.Popen[bytes]", request: bytes, timeout_seconds: float | None) -> tuple[bytes, str]:
    """Send the request and read until the child closes its standard output, or until its time is over. Returns that output, and
    the last part of standard error or why there is no output."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    result = bytearray()
    last_words = bytearray()
    unsent = memoryview(request)
    with selectors.DefaultSelector() as selector:
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        open_outputs = 2
        while open_outputs:
            left_seconds = None if deadline is None else deadline - time.monotonic()
            if left_seconds is not None and left_seconds <= 0:
                return b"", f"it had no result after {timeout_seconds:.0f} s and was killed"
            for key, _ in selector.select(left_seconds):
                if key.fileobj is process.stdin:
                    unsent = unsent[_write_some(key.fd, unsent) :]
                    if not unsent:
                        selector.unregister(process.stdin)
                    continue
                data = os.read(key.fd, _READ_BYTES)
                if not data:
                    selector.unregister(key.fileobj)
                    open_outputs -= 1
                elif key.fileobj is process.stdout:
                    result += data
                else:
                    last_words = (last_words + data)[-LAST_WORDS_BYTES_MAX:]
            if len(result) > RESULT_BYTES_MAX:
                return b"", f"its result is larger than {RESULT_BYTES_MAX} bytes"
    return bytes(result), last_words.decode(errors="replace").strip()


def _write_some(descriptor: int, data: memoryview) -> int:
    """Return how many bytes are done: all of them when the child no longer reads, because its exit will say why."""
    try:
        return os.write(descriptor, data)
    except BrokenPipeError:
        return len(data)
    except BlockingIOError:
        return 0
