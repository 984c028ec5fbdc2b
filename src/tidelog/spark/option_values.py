"""From the texts that Spark hands over as options to values: whoever wrote one is told what it should have been.

Spark takes option names in any case and gives them in lower case, so that names are compared that way and shown as they are
written in the documentation. A name that is not known is refused, with the nearest one that is: an option with a typing error
that is ignored reads from the wrong place, and nobody is told.
"""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from tidelog.client.errors import InvalidArgument
from tidelog.client.topic_partition import Partition

KAFKA_PREFIX = "kafka."
LATEST, EARLIEST = -1, -2
"""Of a partition, in offsets that are given as JSON."""

_BOOLEANS = {"true": True, "false": False}
_DURATION = re.compile(r"(\d{1,9})\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?|d|days?)?")
_UNIT_MS = {"m": 60_000, "s": 1_000, "h": 3_600_000, "d": 86_400_000}


def check_names(given: Mapping[str, str], known: Sequence[str], refused: Mapping[str, str], what: str) -> None:
    """``refused`` has names that others know, each with what to do instead. Whatever begins with kafka. is a setting."""
    by_lower = {name.lower(): name for name in known}
    reasons = {name.lower(): (name, reason) for name, reason in refused.items()}
    for name in given:
        lower = name.lower()
        if lower in reasons:
            shown, reason = reasons[lower]
            raise InvalidArgument(f"option {shown}: {reason}")
        if lower not in by_lower and not lower.startswith(KAFKA_PREFIX):
            nearest = get_close_matches(lower, by_lower, n=1, cutoff=0.5)
            hint = f": did you mean {by_lower[nearest[0]]}?" if nearest else f"; there are {', '.join(sorted(known))}, kafka.*"
            raise InvalidArgument(f"the {what} has no option {name}{hint}")


def boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in _BOOLEANS:
        raise InvalidArgument(f"option {name} is true or false: not {text!r}")
    return _BOOLEANS[text.strip().lower()]


def number(name: str, text: str, least: int, greatest: int) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit() and len(stripped) <= 19 and least <= int(stripped) <= greatest):
        raise InvalidArgument(f"option {name} is a number from {least} to {greatest}: not {text!r}")
    return int(stripped)


def choice(name: str, text: str, choices: Sequence[str]) -> str:
    chosen = text.strip().lower().replace("-", "_")
    if chosen not in choices:
        raise InvalidArgument(f"option {name} is {' or '.join(choices)}: not {text!r}")
    return chosen


def duration_ms(name: str, text: str) -> int:
    """As Spark writes them: 15m, 30s, 500ms; a number alone is milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidArgument(f"option {name} is a time such as 15m, 30s or 500ms: not {text!r}")
    unit = found[2] or "ms"
    is_milliseconds = unit.startswith(("ms", "milli"))
    return int(found[1]) * (1 if is_milliseconds else _UNIT_MS[unit[0]])


def topic_names(name: str, text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InvalidArgument(f"option {name} is names of topics with commas between them: not {text!r}")
    return tuple(dict.fromkeys(names))


def pattern(name: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise InvalidArgument(f"option {name} is a regular expression: {text!r} is none: {error}") from error


def partitions(name: str, text: str) -> tuple[Partition, ...]:
    """{"orders": [0, 1]}"""
    found = []
    for topic, numbers in _object(name, text, '{"orders": [0, 1]}').items():
        if not isinstance(numbers, list) or not numbers or not all(_is_number(each) and each >= 0 for each in numbers):
            raise InvalidArgument(f'option {name} is JSON such as {{"orders": [0, 1]}}: {topic!r} has no list of partitions')
        found += [Partition(topic, each) for each in numbers]
    if not found:
        raise InvalidArgument(f"option {name} names no partition")
    return tuple(dict.fromkeys(found))


def numbers_by_partition(name: str, text: str, least: int) -> dict[Partition, int]:
    """{"orders": {"0": 23, "1": -2}}"""
    example = '{"orders": {"0": 23, "1": 0}}'
    found = {}
    for topic, by_partition in _object(name, text, example).items():
        if not isinstance(by_partition, dict):
            raise InvalidArgument(f"option {name} is JSON such as {example}: {topic!r} has no numbers by partition")
        for partition, value in by_partition.items():
            if not (partition.isascii() and partition.isdigit()) or not _is_number(value) or value < least:
                raise InvalidArgument(f"option {name}: {topic}[{partition}] has {value!r}, which is no number from {least} on")
            found[Partition(topic, int(partition))] = value
    if not found:
        raise InvalidArgument(f"option {name} names no partition")
    return found


def ranges_by_partition(name: str, text: str) -> dict[Partition, tuple[tuple[int, int], ...]]:
    """{"orders": {"0": [[0, 100], [500, 600]]}}; ends are not in the ranges."""
    example = '{"orders": {"0": [[0, 100], [500, 600]]}}'
    found = {}
    for topic, by_partition in _object(name, text, example).items():
        if not isinstance(by_partition, dict):
            raise InvalidArgument(f"option {name} is JSON such as {example}: {topic!r} has no ranges by partition")
        for partition, ranges in by_partition.items():
            if not (partition.isascii() and partition.isdigit() and isinstance(ranges, list) and all(map(_is_range, ranges))):
                raise InvalidArgument(
                    f"option {name}: {topic}[{partition}] has {ranges!r}, which is no list of ranges of offsets"
                )
            found[Partition(topic, int(partition))] = tuple((start, end) for start, end in ranges)
    return found


def _is_range(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)) and 0 <= value[0] <= value[1]


def _object(name: str, text: str, example: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"option {name} is JSON such as {example}: {text!r} is none: {error}") from error
    if not isinstance(value, dict):
        raise InvalidArgument(f"option {name} is JSON such as {example}: not {text!r}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
