"""The story of a message that failed, in headers that follow its own.

A letter on a retry or dead-letter topic is the message itself: key, value and headers as they came, byte for byte. The story is
in additional headers under ``tidelog.``. Numbers are decimal text and words are UTF-8, so that any tool can read them; times are
milliseconds since 1970. Nothing is pickled, and nothing of it is ever executed.

A letter that fails again gets a new story instead of a second one: only the headers named here are removed. All others keep their
order, even those that merely begin with ``tidelog.``. The unbounded parts of an exception are cut: the message keeps its
beginning, the traceback its end, where the cause is. Together they stay far below ``HEADERS_BYTES_MAX``, by which the limits of
the topics of failures exceed that of the source.
"""

import traceback as tracebacks
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from tidelog.client.message import ATTEMPTS_HEADER

Headers = Sequence[tuple[str, bytes | None]]

MESSAGE_BYTES_MAX = 1024
TRACEBACK_BYTES_MAX = 4096
WORD_BYTES_MAX = 256
TRACEBACK_FRAMES_MAX = 40
HEADERS_BYTES_MAX = 16 * 1024
# Enough for any 64-bit number; a longer text was not written by us.
_DIGITS_MAX = 20
_CUT = "..."

ORIGIN_TOPIC = "tidelog.origin.topic"
ORIGIN_PARTITION = "tidelog.origin.partition"
ORIGIN_OFFSET = "tidelog.origin.offset"
ORIGIN_TIMESTAMP = "tidelog.origin.timestamp"
GROUP = "tidelog.group"
ATTEMPTS = ATTEMPTS_HEADER
FIRST_FAILURE = "tidelog.failure.first"
LAST_FAILURE = "tidelog.failure.last"
EXCEPTION_CLASS = "tidelog.exception.class"
EXCEPTION_MESSAGE = "tidelog.exception.message"
TRACEBACK = "tidelog.exception.traceback"
APPLICATION_VERSION = "tidelog.application.version"
REPLAYS = "tidelog.replays"
LEVEL = "tidelog.retry.level"
DUE = "tidelog.retry.due"

NAMES = frozenset(
    {
        ORIGIN_TOPIC,
        ORIGIN_PARTITION,
        ORIGIN_OFFSET,
        ORIGIN_TIMESTAMP,
        GROUP,
        ATTEMPTS,
        FIRST_FAILURE,
        LAST_FAILURE,
        EXCEPTION_CLASS,
        EXCEPTION_MESSAGE,
        TRACEBACK,
        APPLICATION_VERSION,
        REPLAYS,
        LEVEL,
        DUE,
    }
)


class Letter(NamedTuple):
    """The story of a message: where it came from, for which group it failed, how often, and why. Immutable; ``_replace`` makes
    the next one."""

    topic: str
    """The topic from which it was first read; never a retry topic."""
    partition: int
    offset: int
    timestamp_ms: int | None
    group: str
    attempts: int
    """The number of times that the handler was tried since the message was first read, or since it was last replayed."""
    first_failure_ms: int
    last_failure_ms: int
    exception_class: str
    exception_message: str = ""
    traceback: str = ""
    application_version: str | None = None
    replays: int = 0
    """The number of times that somebody replayed it from the dead letters."""
    level: int | None = None
    """The backoff level, if the letter is on a retry topic."""
    due_ms: int | None = None
    """The time before which a letter on a retry topic must not be tried."""
    is_from_broker: bool = False
    """Whether a broker wrote it for a share group, which has no retry topics."""

    def to_headers(self, original_headers: Iterable[tuple[str, bytes | None]] | None = None) -> list[tuple[str, bytes | None]]:
        """The headers of the message followed by this story, which replaces an earlier one."""
        headers = origin_headers(original_headers)
        story: dict[str, str | int | None] = {
            ORIGIN_TOPIC: self.topic,
            ORIGIN_PARTITION: self.partition,
            ORIGIN_OFFSET: self.offset,
            ORIGIN_TIMESTAMP: self.timestamp_ms,
            GROUP: self.group,
            ATTEMPTS: self.attempts,
            FIRST_FAILURE: self.first_failure_ms,
            LAST_FAILURE: self.last_failure_ms,
            EXCEPTION_CLASS: cut_end(self.exception_class, WORD_BYTES_MAX),
            EXCEPTION_MESSAGE: cut_end(self.exception_message, MESSAGE_BYTES_MAX),
            TRACEBACK: cut_beginning(self.traceback, TRACEBACK_BYTES_MAX) or None,
            APPLICATION_VERSION: None if self.application_version is None else cut_end(self.application_version, WORD_BYTES_MAX),
            REPLAYS: self.replays or None,
            LEVEL: self.level,
            DUE: self.due_ms,
        }
        headers += [(name, str(value).encode("utf-8", "replace")) for name, value in story.items() if value is not None]
        return headers

    @classmethod
    def from_headers(cls, headers: Iterable[tuple[str, bytes | None]] | None) -> Self | None:
        """Return the story among the headers; None if there is no story, or if it is not valid."""
        found = {name: value for name, value in headers or () if name in NAMES and value is not None}
        try:
            return cls(
                topic=_text(found, ORIGIN_TOPIC),
                partition=_number(found, ORIGIN_PARTITION),
                offset=_number(found, ORIGIN_OFFSET),
                timestamp_ms=_optional_number(found, ORIGIN_TIMESTAMP),
                group=cut_end(_text(found, GROUP), WORD_BYTES_MAX),
                attempts=_number(found, ATTEMPTS),
                first_failure_ms=_number(found, FIRST_FAILURE),
                last_failure_ms=_number(found, LAST_FAILURE),
                exception_class=cut_end(_text(found, EXCEPTION_CLASS), WORD_BYTES_MAX),
                exception_message=_text(found, EXCEPTION_MESSAGE) if EXCEPTION_MESSAGE in found else "",
                traceback=_text(found, TRACEBACK) if TRACEBACK in found else "",
                application_version=_text(found, APPLICATION_VERSION) if APPLICATION_VERSION in found else None,
                replays=_optional_number(found, REPLAYS) or 0,
                level=_optional_number(found, LEVEL),
                due_ms=_optional_number(found, DUE),
            )
        except (KeyError, ValueError):
            return None


def origin_headers(headers: Iterable[tuple[str, bytes | None]] | None) -> list[tuple[str, bytes | None]]:
    """The headers without the story: those with which the message came, in their order."""
    return [(name, value) for name, value in headers or () if name not in NAMES]


class ExceptionStory(NamedTuple):
    """The parts of an exception that a letter keeps, cut to their limits."""

    exception_class: str
    exception_message: str
    traceback: str


def describe_exception(error: BaseException) -> ExceptionStory:
    """The class (with its module, as ``app.errors.OutOfStock``; without it for built-in ones), the message and the traceback."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception as failure:  # A failing __str__ of the application's exception must not hide the exception.
        message = f"(its message is not available: {type(failure).__qualname__})"
    try:
        text = "".join(tracebacks.format_exception(error, limit=-TRACEBACK_FRAMES_MAX))
    except Exception:  # as above
        text = ""
    return ExceptionStory(
        cut_end(name, WORD_BYTES_MAX), cut_end(message, MESSAGE_BYTES_MAX), cut_beginning(text, TRACEBACK_BYTES_MAX)
    )


def cut_end(text: str, bytes_max: int) -> str:
    """The beginning of the text, in whole characters, within ``bytes_max`` bytes of UTF-8."""
    encoded = text[: bytes_max + 1].encode("utf-8", "replace")
    if len(encoded) <= bytes_max:
        return text
    return encoded[: bytes_max - len(_CUT)].decode("utf-8", "ignore") + _CUT


def cut_beginning(text: str, bytes_max: int) -> str:
    """The end of the text, in whole characters, within ``bytes_max`` bytes of UTF-8."""
    encoded = text[-bytes_max - 1 :].encode("utf-8", "replace")
    if len(encoded) <= bytes_max:
        return text
    return _CUT + encoded[len(encoded) - bytes_max + len(_CUT) :].decode("utf-8", "ignore")


def _text(found: Mapping[str, bytes], name: str) -> str:
    return found[name].decode("utf-8", "replace")


def _number(found: Mapping[str, bytes], name: str) -> int:
    content = found[name]
    if len(content) > _DIGITS_MAX:
        raise ValueError(f"{name} is not a number")
    return int(content)


def _optional_number(found: Mapping[str, bytes], name: str) -> int | None:
    return _number(found, name) if name in found else None
