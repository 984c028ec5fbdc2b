"""Messages of blocked keys that wait in memory, for ``order="key"``: read, not begun, not finished.

Most messages that wait behind a failed one of their key wait here: nothing is written for them, and after a crash they are read
again. Their number is bounded by what may be read ahead; beyond that they are written behind the letter that they wait for.
Kept per key in the order of their offsets in the source. Pure.
"""

from bisect import bisect_left, bisect_right, insort
from operator import attrgetter

from tidelog.worker.job import Job

_origin = attrgetter("origin")


class Parking:
    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[bytes, list[Job]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def has(self, key: bytes, offset: int) -> bool:
        """Whether this very message waits here."""
        waiting = self._by_key.get(key, [])
        index = bisect_left(waiting, offset, key=_origin)
        return index < len(waiting) and waiting[index].origin == offset

    def add(self, key: bytes, job: Job) -> None:
        waiting = self._by_key.setdefault(key, [])
        if not waiting or job.origin >= waiting[-1].origin:
            waiting.append(job)
        else:
            insort(waiting, job, key=_origin)

    def take(self, key: bytes, up_to: int | None) -> list[Job]:
        """Those of the key up to this offset in the source (None: all), in order."""
        waiting = self._by_key.get(key)
        if waiting is None:
            return []
        count = len(waiting) if up_to is None else bisect_right(waiting, up_to, key=_origin)
        taken = waiting[:count]
        del waiting[:count]
        if not waiting:
            del self._by_key[key]
        return taken
