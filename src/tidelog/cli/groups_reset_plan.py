"""Where a reset puts each partition, by numbers alone; and the file that carries it, in the format of Kafka's own tool.

The file is CSV without a header: ``topic,partition,offset``, or with the group before them.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_facts import Partition, Span

_ISO_DURATION = re.compile(
    r"P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)
_SHORT_DURATION = re.compile(r"(?P<count>\d+)(?P<unit>[smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
# timedelta goes no further, and no log does either.
DURATION_DAYS_MAX = 100_000


class Reset(NamedTuple):
    topic: str
    partition: int
    before: int | None
    """The committed offset; None when there is none."""
    after: int
    note: str = ""
    """Why it is not what was asked for."""


def bounded(partition: Partition, before: int | None, wanted: int, span: Span) -> Reset:
    """An offset that is not there is the nearest that is."""
    after = min(max(wanted, span.start), span.end)
    note = "" if after == wanted else f"{wanted} is {'below the start' if wanted < span.start else 'beyond the end'}"
    return Reset(*partition, before, after, note)


def shifted(partition: Partition, before: int | None, by: int, span: Span) -> Reset:
    if before is None:
        raise CommandFailed(f"{partition[0]}-{partition[1]} has no committed offset to shift: give --to-earliest, say")
    return bounded(partition, before, before + by, span)


def read_duration(text: str, option: str = "--by-duration") -> timedelta:
    """ISO 8601 as ``P7D`` or ``PT1H30M``, or short as ``90m``."""
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


def read_topics(texts: Iterable[str], partition_counts: Mapping[str, int]) -> list[Partition]:
    """``orders``, or ``orders:0,2`` for some of its partitions."""
    found: dict[Partition, None] = {}
    for text in texts:
        topic, separator, indexes = text.rpartition(":")
        if not separator:
            topic, indexes = text, ""
        count = partition_counts.get(topic)
        if count is None:
            raise CommandFailed(f"there is no topic {topic}")
        for index in indexes.split(",") if separator else map(str, range(count)):
            if not (index.isascii() and index.isdigit()):
                raise CommandFailed(f"--topic {text}: expected TOPIC or TOPIC:0,1,2")
            if int(index) >= count:
                raise CommandFailed(f"{topic} has no partition {int(index)}, only 0 to {count - 1}")
            found[topic, int(index)] = None
    return sorted(found)


def read_csv(path: str, lines: Iterable[str], group_id: str) -> dict[Partition, int]:
    """What the file says of this group; what it says of others is not looked at."""
    found: dict[Partition, int] = {}
    others: set[str] = set()
    for number, fields in enumerate(csv.reader(lines), start=1):
        if not fields:
            continue
        if len(fields) not in (3, 4):
            raise CommandFailed(f"{path}, line {number}: expected topic,partition,offset")
        *group, topic, partition, offset = (field.strip() for field in fields)
        if not all(text.isascii() and text.isdigit() for text in (partition, offset)):
            raise CommandFailed(f"{path}, line {number}: expected whole numbers for partition and offset")
        if group and group[0] != group_id:
            others.add(group[0])
        elif (topic, int(partition)) in found:
            raise CommandFailed(f"{path}, line {number}: {topic}-{int(partition)} is there twice")
        else:
            found[topic, int(partition)] = int(offset)
    if not found:
        said = f", only of {', '.join(sorted(others))}" if others else ""
        raise CommandFailed(f"{path} says nothing of group {group_id}{said}")
    return found
