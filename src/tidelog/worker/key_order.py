"""The order of keys, for ``order="key"``: which keys have letters in retry topics, and which messages wait in memory for them.
Pure.

``BlockedKeys`` keeps for each key the source offsets of its letters that wait, sorted, and for each the level and the time when
it is due. The order of a key is the order of those offsets. A message whose key has a lower one waiting must not be begun: it is
parked in memory, or written behind the lowest letter, into the same retry topic and with the same due time, so that it comes up
right after it. A letter leaves the table when it is due and read; from then on its lane in memory keeps the order. The table
holds no bytes but keys. A crash loses it, and a scan of the retry partitions builds it again.

``ParkedMessages`` keeps most of the messages that wait: read, not begun, not finished. Nothing is written for them, and after a
crash they are read again. Their number is bounded by what may be read ahead.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from tidelog.worker.failures import ScheduledRetry

if TYPE_CHECKING:
    from tidelog.worker.partitions import WorkItem

_source_offset = attrgetter("source_offset")


@dataclass(slots=True)
class _WaitingLetters:
    offsets: list[int] = field(default_factory=list)
    """The offsets in order. An offset occurs twice when there are two copies."""
    retries: dict[int, ScheduledRetry] = field(default_factory=dict)


class BlockedKeys:
    __slots__ = ("_by_key", "_count")

    def __init__(self) -> None:
        self._by_key: dict[bytes, _WaitingLetters] = {}
        self._count = 0

    def __len__(self) -> int:
        """The number of letters that wait."""
        return self._count

    def add(self, key: bytes, offset: int, retry: ScheduledRetry) -> None:
        """Note that a letter was written to the retry topic."""
        waiting = self._by_key.get(key)
        if waiting is None:
            waiting = self._by_key[key] = _WaitingLetters()
        if not waiting.offsets or offset >= waiting.offsets[-1]:
            waiting.offsets.append(offset)
        else:
            insort(waiting.offsets, offset)
        waiting.retries[offset] = retry
        self._count += 1

    def remove(self, key: bytes, offset: int) -> bool:
        """Note that a letter was read and is due. Returns False if it was not known, because somebody else wrote it."""
        waiting = self._by_key.get(key)
        if waiting is None or offset not in waiting.retries:
            return False
        index = bisect_left(waiting.offsets, offset)
        del waiting.offsets[index]
        self._count -= 1
        if index == len(waiting.offsets) or waiting.offsets[index] != offset:
            del waiting.retries[offset]
        if not waiting.offsets:
            del self._by_key[key]
        return True

    def has(self, key: bytes, offset: int) -> bool:
        """Whether a letter of this very message waits."""
        waiting = self._by_key.get(key)
        return waiting is not None and offset in waiting.retries

    def lowest(self, key: bytes) -> int | None:
        """The source offset of the key's first letter that waits; None if no letter waits."""
        waiting = self._by_key.get(key)
        return None if waiting is None else waiting.offsets[0]

    def blocker(self, key: bytes, offset: int) -> ScheduledRetry | None:
        """Where the first letter waits that must be handled before this message; None if the message may be begun."""
        waiting = self._by_key.get(key)
        if waiting is None or waiting.offsets[0] >= offset:
            return None
        return waiting.retries[waiting.offsets[0]]


class ParkedMessages:
    """The parked messages by key, in the order of their source offsets."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[bytes, list[WorkItem]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def has(self, key: bytes, offset: int) -> bool:
        """Whether this very message is parked."""
        waiting = self._by_key.get(key, [])
        index = bisect_left(waiting, offset, key=_source_offset)
        return index < len(waiting) and waiting[index].source_offset == offset

    def add(self, key: bytes, item: "WorkItem") -> None:
        waiting = self._by_key.setdefault(key, [])
        if not waiting or item.source_offset >= waiting[-1].source_offset:
            waiting.append(item)
        else:
            insort(waiting, item, key=_source_offset)

    def take(self, key: bytes, up_to: int | None) -> "list[WorkItem]":
        """Remove and return those of the key up to this source offset (None: all), in order."""
        waiting = self._by_key.get(key)
        if waiting is None:
            return []
        count = len(waiting) if up_to is None else bisect_right(waiting, up_to, key=_source_offset)
        taken = waiting[:count]
        del waiting[:count]
        if not waiting:
            del self._by_key[key]
        return taken
