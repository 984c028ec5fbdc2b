"""One event, one line, whatever is in it."""

import json
import logging

import pytest

from tidelog.server.event_log import EventLog, EventLogHandler, LogFormat, LogLevel


class StoppedClock:
    def now_ms(self) -> int:
        return 1_704_067_200_042

    def monotonic_ms(self) -> int:
        return 0

    def monotonic_ns(self) -> int:
        return 0


TIME = "2024-01-01T00:00:00.042Z"


def written(log_format: LogFormat, event: str, facts: dict[str, object]) -> str:
    lines: list[str] = []
    EventLog(lines.append, StoppedClock(), log_format).report(event, facts)
    assert len(lines) == 1
    return lines[0]


def test_as_text() -> None:
    line = written(LogFormat.TEXT, "torn_tail_cut", {"partition": "orders-0", "bytes": 12, "reason": "it is torn"})
    assert line == f'{TIME} warning torn_tail_cut partition=orders-0 bytes=12 reason="it is torn"\n'


def test_as_json() -> None:
    line = written(LogFormat.JSON, "torn_tail_cut", {"bytes": 12, "path": {"of"}})
    assert json.loads(line) == {"time": TIME, "level": "warning", "event": "torn_tail_cut", "bytes": 12, "path": "{'of'}"}


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_a_value_with_line_ends_stays_on_the_line(log_format: LogFormat) -> None:
    line = written(log_format, "unexpected_error", {"error": "one\ntwo\x1b[0m", "empty": ""})
    assert line.count("\n") == 1
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("event", "level"), [("started", "info"), ("stopped", "info"), ("log_offline", "error"), ("anything_else", "warning")]
)
def test_levels(event: str, level: str) -> None:
    assert json.loads(written(LogFormat.JSON, event, {}))["level"] == level


@pytest.mark.parametrize(
    ("level_min", "expected"),
    [
        (LogLevel.DEBUG, ["started", "anything_else", "log_offline"]),
        (LogLevel.INFO, ["started", "anything_else", "log_offline"]),
        (LogLevel.WARNING, ["anything_else", "log_offline"]),
        (LogLevel.ERROR, ["log_offline"]),
    ],
)
def test_what_is_below_the_level_is_left_out(level_min: LogLevel, expected: list[str]) -> None:
    lines: list[str] = []
    log = EventLog(lines.append, StoppedClock(), LogFormat.JSON, level_min)
    for event in ("started", "anything_else", "log_offline"):
        log.report(event, {})
    assert [json.loads(line)["event"] for line in lines] == expected
    assert EventLogHandler(log).level == getattr(logging, level_min.upper())


def test_what_is_said_through_logging() -> None:
    lines: list[str] = []
    handler = EventLogHandler(EventLog(lines.append, StoppedClock(), LogFormat.TEXT))
    logger = logging.getLogger("tidelog.test_event_log")
    logger.addHandler(handler)
    try:
        logger.warning("refused %s", "10.0.0.1")
    finally:
        logger.removeHandler(handler)
    assert lines == [f'{TIME} warning message logger=tidelog.test_event_log text="refused 10.0.0.1"\n']


def test_a_log_that_nobody_reads_any_more_does_not_disturb_whoever_reports() -> None:
    lines: list[str] = []
    is_broken = True

    def write(line: str) -> None:
        if is_broken:
            raise BrokenPipeError
        lines.append(line)

    log = EventLog(write, StoppedClock(), LogFormat.TEXT)
    log.report("torn_tail_cut", {})
    log.report("torn_tail_cut", {})
    is_broken = False
    log.report("torn_tail_cut", {})
    log.report("torn_tail_cut", {})
    assert [line.split(" ", 2)[2] for line in lines] == ["torn_tail_cut\n", "log_lines_lost lines=2\n", "torn_tail_cut\n"]
