"""The operator's log: one event, one line, as text or as JSON.

    2026-11-16T08:30:12.345Z warning torn_tail_cut partition=orders-0 reason="the first segment is missing"
    {"time": "2026-11-16T08:30:12.345Z", "level": "warning", "event": "torn_tail_cut", "partition": "orders-0", ...}

An event has a name, which is stable and can be searched for, and facts. What this package says through ``logging`` comes out the
same way, as the event ``message``. What is below the level asked for is left out.
"""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum

from tidelog.ports.clock import Clock

# All others are warnings: the broker goes on, but somebody should know.
ERRORS = frozenset(("unexpected_error", "log_offline", "partition_offline", "partition_not_created", "stop_failed"))
NEWS = frozenset(("started", "stopped"))

_NEEDS_QUOTES = frozenset(' "=\\')


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """As ``logging`` has it."""
        return logging.getLevelNamesMapping()[self.upper()]


class EventLog:
    """``write`` takes one line with its end. Called on the loop's thread only, except for what comes through ``logging``."""

    def __init__(
        self, write: Callable[[str], object], clock: Clock, log_format: LogFormat, level_min: LogLevel = LogLevel.INFO
    ) -> None:
        self._write = write
        self._clock = clock
        self._format = log_format
        self.level_min = level_min
        self._number_min = level_min.number

    def report(self, event: str, facts: Mapping[str, object]) -> None:
        level = LogLevel.ERROR if event in ERRORS else LogLevel.INFO if event in NEWS else LogLevel.WARNING
        if level.number >= self._number_min:
            self.write(level, event, facts)

    def write(self, level: str, event: str, facts: Mapping[str, object]) -> None:
        time = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        time = time.removesuffix("+00:00") + "Z"
        if self._format is LogFormat.JSON:
            line = json.dumps({"time": time, "level": level, "event": event, **facts}, default=str)
        else:
            line = " ".join((time, level, event, *(f"{name}={_quoted(value)}" for name, value in facts.items())))
        self._write(line + "\n")


def _quoted(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not _NEEDS_QUOTES.intersection(text):
        return text
    return json.dumps(text, ensure_ascii=False)


class EventLogHandler(logging.Handler):
    """Takes what is said through ``logging``; attach it to the logger ``tidelog``, and give that the same level."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(log.level_min.number)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write(record.levelname.lower(), "message", {"logger": record.name, "text": record.getMessage()})
