"""Which keys of one partition have letters that wait in retry topics, for ``order="key"``.

Keeps for each key the offsets (in the source) of its letters that wait, sorted, and where each waits: its level and when it is
due. The order of a key is the order of those offsets. A message whose key has a lower one waiting must not be begun: it is
written behind the lowest one, into the same retry topic and with the same due time, so that it comes up right after it.
A letter leaves the table when it is due and read; from then on its lane in memory keeps the order.

The table holds no bytes but keys. It is lost in a crash and built again by a scan of the retry partitions.
"""

from bisect import bisect_left, insort
from typing import NamedTuple


class Place(NamedTuple):
    level: int
    due_ms: int


class _Waiting:
    __slots__ = ("offsets", "places")

    def __init__(self) -> None:
        # Sorted; the same one twice when there are two copies.
        self.offsets: list[int] = []
        self.places: dict[int, Place] = {}


class BlockedKeys:
    __slots__ = ("_by_key", "_count")

    def __init__(self) -> None:
        self._by_key: dict[bytes, _Waiting] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many letters wait."""
        return self._count

    def add(self, key: bytes, offset: int, place: Place) -> None:
        """A letter was written there."""
        waiting = self._by_key.get(key)
        if waiting is None:
            waiting = self._by_key[key] = _Waiting()
        if not waiting.offsets or offset >= waiting.offsets[-1]:
            waiting.offsets.append(offset)
        else:
            insort(waiting.offsets, offset)
        waiting.places[offset] = place
        self._count += 1

    def remove(self, key: bytes, offset: int) -> bool:
        """A letter was read and is due. False when it was not known: somebody else wrote it."""
        waiting = self._by_key.get(key)
        if waiting is None or offset not in waiting.places:
            return False
        index = bisect_left(waiting.offsets, offset)
        del waiting.offsets[index]
        self._count -= 1
        if index == len(waiting.offsets) or waiting.offsets[index] != offset:
            del waiting.places[offset]
        if not waiting.offsets:
            del self._by_key[key]
        return True

    def has(self, key: bytes, offset: int) -> bool:
        """Whether a letter of this very message waits."""
        waiting = self._by_key.get(key)
        return waiting is not None and offset in waiting.places

    def lowest(self, key: bytes) -> int | None:
        """The offset of the first letter of the key that waits; None when none does."""
        waiting = self._by_key.get(key)
        return None if waiting is None else waiting.offsets[0]

    def blocker(self, key: bytes, offset: int) -> Place | None:
        """Where the first letter waits that must be handled before this one; None when it may be begun."""
        waiting = self._by_key.get(key)
        if waiting is None or waiting.offsets[0] >= offset:
            return None
        return waiting.places[waiting.offsets[0]]
