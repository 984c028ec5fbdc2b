"""The operator's log: one event, one line, as text or as JSON.

    2026-11-16T08:30:12.345Z warning torn_tail_cut partition=orders-0 reason="the first segment is missing"
    {"time": "2026-11-16T08:30:12.345Z", "level": "warning", "event": "torn_tail_cut", "partition": "orders-0", ...}

An event has a stable name, which can be searched for, and facts. Messages that this package writes through ``logging`` appear in
the same form, as the event ``message``. Events below the configured level are left out.
"""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum

from tidelog.ports.clock import Clock

# All other events are warnings: the broker keeps running, but somebody should know.
ERRORS = frozenset(
    ("unexpected_error", "log_offline", "partition_offline", "last_replica_offline", "partition_not_created", "stop_failed")
)
INFORMATION = frozenset(("started", "stopped", "metadata_snapshot", "metadata_snapshot_installed"))

_NEEDS_QUOTES = frozenset(' "=\\')


# Takes the name of an event and its facts.
ReportEvent = Callable[[str, dict[str, object]], None]


def ignore_event(event: str, facts: dict[str, object]) -> None:
    """Takes the place of the log in a server without an operator."""


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
        """The level's number in ``logging``."""
        return logging.getLevelNamesMapping()[self.upper()]


LINES_LOST = "log_lines_lost"


class EventLog:
    """``write`` takes one line including its newline. It is called on the loop's thread only, except for messages from
    ``logging``."""

    def __init__(
        self, write: Callable[[str], object], clock: Clock, log_format: LogFormat, level_min: LogLevel = LogLevel.INFO
    ) -> None:
        self._write = write
        self._clock = clock
        self._format = log_format
        self.level_min = level_min
        self._number_min = level_min.number
        self._lost_count = 0

    def report(self, event: str, facts: Mapping[str, object]) -> None:
        level = LogLevel.ERROR if event in ERRORS else LogLevel.INFO if event in INFORMATION else LogLevel.WARNING
        if level.number >= self._number_min:
            self.write(level, event, facts)

    def write(self, level: str, event: str, facts: Mapping[str, object]) -> None:
        time = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        time = time.removesuffix("+00:00") + "Z"
        if self._format is LogFormat.JSON:
            line = json.dumps({"time": time, "level": level, "event": event, **facts}, default=str)
        else:
            line = " ".join((time, level, event, *(f"{name}={_quoted(value)}" for name, value in facts.items())))
        try:
            self._write(line + "\n")
        except (OSError, ValueError):
            # Whoever reads the log has closed it, or its disk is full. What is reported goes on, and the count is told later.
            self._lost_count += 1
            return
        if self._lost_count and event != LINES_LOST:
            lost_count, self._lost_count = self._lost_count, 0
            self.write(LogLevel.WARNING, LINES_LOST, {"lines": lost_count})


def _quoted(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not _NEEDS_QUOTES.intersection(text):
        return text
    return json.dumps(text, ensure_ascii=False)


class EventLogHandler(logging.Handler):
    """Writes what comes through ``logging``; attach it to the logger ``tidelog`` and give that logger the same level."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(log.level_min.number)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write(record.levelname.lower(), "message", {"logger": record.name, "text": record.getMessage()})
