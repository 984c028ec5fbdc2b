"""Trace context in headers: the W3C ``traceparent``, through producer, worker, retries and dead letters.

``00-<trace id, 32 hex digits>-<parent span id, 16>-<flags, 2>``. The trace id stays the same over all hops; each hop that sends
uses its own span id. The current traceparent is a context variable, so that it follows threads and asyncio tasks alike. An
invalid traceparent in a header is left alone and ignored: somebody else's mistake must not fail a message.

Where the program uses OpenTelemetry, ``MessagingSpans`` records spans of the same trace.
"""

import contextvars
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

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


# -- OpenTelemetry -----------------------------------------------------------------------------------------------------------

# A poll's span names at most as many of the traces that it received; OpenTelemetry's own limit is the same.
LINKS_MAX = 128


def messaging_spans() -> "MessagingSpans | None":
    """Spans, if the program has imported ``opentelemetry``; None otherwise.

    A program that exports spans has imported it, and a program that has not pays nothing: neither the import nor the spans.
    """
    api = sys.modules.get("opentelemetry.trace")
    return None if api is None else MessagingSpans(api)


class MessagingSpans:
    """OpenTelemetry's spans of messages, named and described by its semantic conventions for messaging.

    ``send <topic>`` for each message that is handed to the buffer, ``poll <topic>`` for what a consumer received, with links to
    the messages' traces, and ``process <topic>`` for each attempt to handle a message, as a child of the span that sent it. All
    attempts, the letters and their replays are therefore in one trace. While no SDK is set up nothing is recorded, and headers
    are what they would be without OpenTelemetry.
    """

    __slots__ = ("_api", "_tracer")

    def __init__(self, api: Any) -> None:
        """``api`` is the module ``opentelemetry.trace``."""
        self._api = api
        self._tracer = api.get_tracer("tidelog")

    def sent(self, topic: str, headers: list[tuple[str, Any]], partition: int | None = None) -> None:
        """Record that a message goes to ``topic``, and put the span into its headers unless they have a trace already."""
        carried = extract(_with_bytes(headers))
        attributes: dict[str, Any] = _attributes("send", topic)
        if partition is not None and partition >= 0:
            attributes["messaging.destination.partition.id"] = str(partition)
        kind = self._api.SpanKind.PRODUCER
        parent = self._parent(carried)
        span = self._tracer.start_span(f"send {topic}", parent, kind=kind, attributes=attributes)
        span.end()
        traceparent = _traceparent_of(span)
        if traceparent is None:
            return
        if span.get_span_context() == self._api.get_current_span(parent).get_span_context():
            # Without an SDK the span that was begun is its own parent, and we count as the program in between.
            inject(headers, traceparent)
        elif all(name != TRACEPARENT for name, _ in headers):
            headers.append((TRACEPARENT, traceparent.encode("ascii")))

    def received(self, topics: Sequence[str], traceparents: Iterable[str | None], count: int, group: str | None) -> None:
        """Record that a poll received ``count`` messages of these topics."""
        contexts = [self._remote(each) for each in traceparents if each is not None][:LINKS_MAX]
        topic = topics[0] if len(topics) == 1 else None
        attributes = {**_attributes("poll", topic, "receive"), "messaging.batch.message_count": count}
        if group is not None:
            attributes["messaging.consumer.group.name"] = group
        links = [self._api.Link(context) for context in contexts]
        name = "poll" if topic is None else f"poll {topic}"
        self._tracer.start_span(name, kind=self._api.SpanKind.CLIENT, attributes=attributes, links=links).end()

    @contextmanager
    def processing(self, place: "ProcessedPlace", traceparent: str | None) -> Iterator[Any]:
        """Make the span of one attempt current within the block, for OpenTelemetry and for our own producers."""
        attributes = {
            **_attributes("process", place.topic),
            "messaging.consumer.group.name": place.group,
            "messaging.destination.partition.id": str(place.partition),
            "messaging.kafka.offset": place.offset,
            "tidelog.attempt": place.attempt,
        }
        kind = self._api.SpanKind.CONSUMER
        name = f"process {place.topic}"
        span = self._tracer.start_span(name, self._parent(traceparent), kind=kind, attributes=attributes)
        with self._api.use_span(span, end_on_exit=True), with_traceparent(_traceparent_of(span) or traceparent):
            yield span

    def failed(self, span: Any, error: BaseException) -> None:
        """Record why the attempt failed."""
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, str(error)))

    def _parent(self, carried: str | None) -> Any:
        """The context to begin a span in: the message's own trace, then the current span, then the current traceparent."""
        if carried is None and not self._api.get_current_span().get_span_context().is_valid:
            carried = get_current()
        if carried is None:
            return None
        return self._api.set_span_in_context(self._api.NonRecordingSpan(self._remote(carried)))

    def _remote(self, traceparent: str) -> Any:
        _, trace, span, flags = traceparent.split("-")[:4]
        return self._api.SpanContext(
            int(trace, 16), int(span, 16), is_remote=True, trace_flags=self._api.TraceFlags(int(flags, 16))
        )


class ProcessedPlace(NamedTuple):
    """Where a message that is being handled was read, by which group, and which attempt it is."""

    topic: str
    partition: int
    offset: int
    group: str
    attempt: int


def _attributes(operation: str, topic: str | None, kind: str | None = None) -> dict[str, Any]:
    attributes = {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind or operation,
    }
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    return attributes


def _traceparent_of(span: Any) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _with_bytes(headers: Iterable[tuple[str, Any]]) -> list[tuple[str, bytes | None]]:
    """An application may give the values of headers as text."""
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers if name == TRACEPARENT]
