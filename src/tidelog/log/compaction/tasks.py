"""What goes to the child process and comes back: plain JSON values with names.

A cleaning is one ``map_keys`` and then one ``clean`` for each group of segments that becomes one. What a group must know of
the groups before it (which producers have data without a marker so far) goes through the loop; the key map goes through a
file.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

TaskValue = TypeVar("TaskValue", "MapKeysArguments", "MapKeysResult", "CleanArguments", "CleanResult")


@dataclass(frozen=True, slots=True)
class MapKeysArguments:
    directory: str
    base_offsets: list[int]
    """Of every segment from the log's start up to ``upper_offset``."""
    first_dirty_offset: int
    upper_offset: int
    """Where the last of these segments ends."""
    aborted: list[list[int]]
    """Aborted transactions that began below ``upper_offset`` and whose marker lies above, where only the loop may look."""
    key_map_bytes_max: int
    segment_bytes: int
    segment_index_bytes: int


@dataclass(frozen=True, slots=True)
class MapKeysResult:
    end_offset: int
    """The map covers [first dirty, end offset). Below the upper offset when there were more keys than fit."""
    keys: int
    groups: list[list[int]]
    """Base offsets of the segments that are to become one, group by group."""
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class CleanArguments:
    directory: str
    group: list[int]
    end_offset: int
    upper_offset: int
    aborted: list[list[int]]
    producers_with_data: list[int]
    """Those with transactional data in the groups before this one, and no marker after it yet."""
    active_producers: list[list[int]]
    """Producer id, epoch, last data offset (-1: none in this epoch)."""
    delete_retention_ms: int
    index_interval_bytes: int


@dataclass(frozen=True, slots=True)
class CleanResult:
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    producers_with_data: list[int]
    horizon_ms: int | None
    """From when on the first of the tombstones and markers that were kept may go."""


def to_json(value: TaskValue) -> dict[str, Any]:
    return asdict(value)


def from_json(kind: type[TaskValue], values: Mapping[str, Any]) -> TaskValue:
    return kind(**values)
