"""Trace context in headers: the W3C ``traceparent``, through producer, worker, retries and dead letters.

``00-<trace id, 32 hex digits>-<parent span id, 16>-<flags, 2>``. The trace id stays the same over all hops; each hop that sends
uses its own span id. The current traceparent is a context variable, so that it follows threads and asyncio tasks alike. An
invalid traceparent in a header is left alone and ignored: somebody else's mistake must not fail a message.
"""

import contextvars
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

TRACEPARENT = "traceparent"

_FORMAT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
_SAMPLED = "01"

_current: contextvars.ContextVar[str | None] = contextvars.ContextVar("tidelog_traceparent", default=None)

# The bare lookup, for the producer, which does it for every message.
get_current = _current.get


def current_traceparent() -> str | None:
    """The current trace context; None if there is no trace."""
    return _current.get()


@contextmanager
def with_traceparent(traceparent: str | None) -> Iterator[None]:
    """Make this the current trace context within the block. An invalid traceparent counts as None."""
    token = _current.set(traceparent if traceparent is not None and is_valid(traceparent) else None)
    try:
        yield
    finally:
        _current.reset(token)


def new_traceparent() -> str:
    """The traceparent of a new trace."""
    return f"00-{_hexadecimal(16)}-{_hexadecimal(8)}-{_SAMPLED}"


def child_traceparent(traceparent: str) -> str:
    """The same trace with a new span id, which a hop passes on."""
    found = _FORMAT.fullmatch(traceparent)
    if found is None:
        return traceparent
    return f"00-{found['trace']}-{_hexadecimal(8)}-{found['flags']}"


def is_valid(traceparent: str) -> bool:
    """Version 00 must match exactly, later versions may be longer. Ids of zeros and the version ff are invalid."""
    found = _FORMAT.fullmatch(traceparent)
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["rest"]):
        return False
    return bool(found["trace"].strip("0") and found["span"].strip("0"))


def extract(headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] | None) -> str | None:
    """The valid traceparent in a message's headers; the last one if there are several."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    data = None
    for name, value in pairs:
        if name == TRACEPARENT:
            data = value
    if data is None:
        return None
    text = data.decode("ascii", "replace")
    return text if is_valid(text) else None


def inject(headers: list[tuple[str, bytes | None]], traceparent: str) -> None:
    """Add a child of ``traceparent``, unless the application has put one into the headers itself."""
    if all(name != TRACEPARENT for name, _ in headers):
        headers.append((TRACEPARENT, child_traceparent(traceparent).encode("ascii")))


def _hexadecimal(length: int) -> str:
    """Return random digits, but never all zeros, which would be an invalid id."""
    while not any(data := os.urandom(length)):
        pass
    return data.hex()
