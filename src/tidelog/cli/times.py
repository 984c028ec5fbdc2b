"""Moments and durations on the command line: how users write them, and how commands show them."""

import math
import re
import time
from datetime import UTC, datetime, timedelta

from tidelog.cli.errors import CommandFailed

MINUTE, HOUR, DAY = 60, 3600, 86400
# The largest timestamp of the protocol.
TIMESTAMP_MAX = 2**63 - 1
# timedelta goes no further, and no log does either.
DURATION_DAYS_MAX = 100_000
UNKNOWN = "-"

_ISO_DURATION = re.compile(
    r"P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)
_SHORT_DURATION = re.compile(r"(?P<count>\d+)(?P<unit>[smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def wall_clock_ms() -> int:
    return int(time.time() * 1000)


def read_timestamp(text: str, option: str = "--timestamp") -> int:
    """Return milliseconds since 1970. A time without an offset is local time."""
    if text.isascii() and text.isdigit() and int(text) <= TIMESTAMP_MAX:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(f"{option} {text}: expected milliseconds or a time such as 2026-01-31T12:00:00Z") from None
    return int(moment.astimezone(UTC).timestamp() * 1000)


def read_duration(text: str, option: str = "--by-duration") -> timedelta:
    """Parse a duration in ISO 8601, such as ``P7D`` or ``PT1H30M``, or in short form, such as ``90m``."""
    short = _SHORT_DURATION.fullmatch(text.strip())
    iso = _ISO_DURATION.fullmatch(text.strip())
    if short is not None:
        found = {_UNITS[short["unit"]]: float(short["count"])}
    elif iso is not None and any(iso.groupdict().values()):
        found = {unit: float(count) for unit, count in iso.groupdict().items() if count is not None}
    else:
        raise CommandFailed(f"{option} {text}: expected a duration such as PT1H30M, P7D or 90m")
    try:
        duration = timedelta(**found)
    except OverflowError:
        duration = timedelta.max
    if duration.days > DURATION_DAYS_MAX:
        raise CommandFailed(f"{option} {text}: expected at most {DURATION_DAYS_MAX} days")
    return duration


def ago_ms(text: str, option: str = "--by-duration") -> int:
    """The moment that lies the duration ``text`` before now."""
    return max(0, wall_clock_ms() - int(read_duration(text, option).total_seconds() * 1000))


def duration_text(seconds: float | None) -> str:
    """Format a duration with at most two units: ``3d 4h``, ``2m 5s``, ``0.4s``."""
    if seconds is None:
        return UNKNOWN
    if math.isinf(seconds):
        return "never"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller_unit in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "m"), (MINUTE, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size}{unit} {rest}{smaller_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def time_text(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return str(timestamp_ms)


def age_text(timestamp_ms: int | None, now_ms: int) -> str:
    """How long ago it was; unknown if there is no timestamp."""
    return UNKNOWN if timestamp_ms is None or timestamp_ms < 0 else duration_text(max(0, now_ms - timestamp_ms) / 1000)
