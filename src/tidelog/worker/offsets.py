"""Which offsets of one partition are finished, and what may be committed: nothing above the first that is not.

Keeps the offsets that were begun, in order, from the first unfinished one on, and which of them are finished. Offsets may have
gaps (compaction, markers of transactions), so "all below are done" means all that were read, not all numbers. What a run before
this one had finished above its commit is restored from the commit's metadata: those offsets are skipped when they are read again,
and until then stay part of what is committed next.

Invariants: ``position`` never falls; no unfinished offset is below it; every run of ``finished_runs`` is above it.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from tidelog.worker.run_lengths import Run


class PartitionOffsets:
    __slots__ = ("_committed", "_done", "_in_flight", "_next", "_restored")

    def __init__(self, committed: int | None = None, restored: Iterable[Run] = ()) -> None:
        """``committed``: what the group has committed, None when nothing. ``restored``: what it had finished above that."""
        self._committed = committed
        self._restored = deque(restored)
        self._in_flight: deque[int] = deque()
        self._done: set[int] = set()
        self._next = committed

    def __len__(self) -> int:
        """How many are kept: begun, and not below ``position``."""
        return len(self._in_flight)

    @property
    def position(self) -> int | None:
        """What to commit: the first unfinished offset, or the one after the last begun. None before anything was begun."""
        if self._in_flight:
            return self._in_flight[0]
        following = self._next
        if following is not None and self._restored and self._restored[0][0] <= following < self._restored[0][1]:
            return self._restored[0][1]
        return following

    @property
    def has_restored(self) -> bool:
        return bool(self._restored)

    def is_finished_before(self, offset: int) -> bool:
        """Whether a run before this one had finished it. Ask in ascending order, and before it is begun."""
        restored = self._restored
        if not restored:
            return False
        if self._committed is None or offset < self._committed:
            # The log is not the one that the commit was about: it was made anew, or lost its end.
            restored.clear()
            return False
        while restored and restored[0][1] <= offset:
            restored.popleft()
        return bool(restored) and restored[0][0] <= offset

    def begin(self, offsets: Sequence[int]) -> None:
        """In ascending order; each is above all before."""
        self._in_flight.extend(offsets)
        self._next = offsets[-1] + 1

    def finish(self, offsets: Iterable[int]) -> None:
        """In any order; each was begun and is finished once."""
        done, in_flight = self._done, self._in_flight
        done.update(offsets)
        if len(done) == len(in_flight):
            done.clear()
            in_flight.clear()
            return
        while in_flight and in_flight[0] in done:
            done.remove(in_flight.popleft())

    def finished_runs(self) -> list[Run]:
        """What is finished above ``position``, as ascending runs that do not touch. A gap behind a finished offset counts as
        finished: there is nothing in it that could be read again."""
        runs: list[Run] = []
        start: int | None = None
        if self._done:
            for offset in self._in_flight:
                if offset in self._done:
                    start = offset if start is None else start
                elif start is not None:
                    runs.append((start, offset))
                    start = None
        end = self._next
        if start is not None and end is not None:
            runs.append((start, end))
        position = self.position
        for first, last in self._restored:
            begun = first if end is None else max(first, end)
            if begun >= last or (position is not None and begun < position):
                continue
            if runs and runs[-1][1] == begun:
                runs[-1] = (runs[-1][0], last)
            else:
                runs.append((begun, last))
        return runs
