"""Tracks which offsets of one partition are finished, and what may be committed: nothing above the first that is not. Pure.

It keeps the offsets that were begun, in order, from the first unfinished one on, and which of them are finished. Offsets may have
gaps (compaction, transaction markers), so "all below are finished" means all that were read, not all numbers.

Offsets that are finished above the committed one are written into the metadata of the commit, as run lengths:

    tidelog:1:<base64 of varints: gap, length, gap, length, ...>

The first gap counts from the committed offset, each further one from the end of the run before it. The broker limits the metadata
(``offset.metadata.max.bytes``). The highest runs are dropped first, which only costs a second handling of their messages.
Metadata that is damaged or not ours is ignored: everything above the offset is read again. A restart restores the runs: their
offsets are skipped when they are read again, and until then stay part of what is committed next.

Invariants: ``position`` never falls; no unfinished offset is below it; every run of ``finished_runs`` is above it.
"""

import base64
import binascii
from collections import deque
from collections.abc import Iterable, Sequence

PREFIX = "tidelog:1:"
# Offsets have 63 bits.
_VARINT_BYTES_MAX = 9
_OFFSET_MAX = (1 << 63) - 1

Run = tuple[int, int]
"""The first offset, and the offset after the last one."""


class PartitionOffsets:
    __slots__ = ("_committed", "_done", "_in_flight", "_next", "_restored")

    def __init__(self, committed: int | None = None, restored: Iterable[Run] = ()) -> None:
        """``committed``: the group's committed offset, if there is one. ``restored``: the runs that were finished above it."""
        self._committed = committed
        self._restored = deque(restored)
        self._in_flight: deque[int] = deque()
        self._done: set[int] = set()
        self._next = committed

    def __len__(self) -> int:
        """The number of offsets that are kept: begun, and not below ``position``."""
        return len(self._in_flight)

    @property
    def position(self) -> int | None:
        """The offset to commit: the first unfinished one, or the one after the last begun. None before anything was begun."""
        if self._in_flight:
            return self._in_flight[0]
        following = self._next
        if following is not None and self._restored and self._restored[0][0] <= following < self._restored[0][1]:
            return self._restored[0][1]
        return following

    @property
    def has_restored(self) -> bool:
        return bool(self._restored)

    def was_finished(self, offset: int) -> bool:
        """Whether an earlier worker had finished it. Call in ascending order, and before the offset is begun."""
        restored = self._restored
        if not restored:
            return False
        if self._committed is None or offset < self._committed:
            # The commit was about another log: the topic was created again, or its log was truncated.
            restored.clear()
            return False
        while restored and restored[0][1] <= offset:
            restored.popleft()
        return bool(restored) and restored[0][0] <= offset

    def begin(self, offsets: Sequence[int]) -> None:
        """Begin offsets, in ascending order, above all earlier ones."""
        self._in_flight.extend(offsets)
        self._next = offsets[-1] + 1

    def finish(self, offsets: Iterable[int]) -> None:
        """Finish offsets, in any order. Each was begun before and is finished once."""
        done, in_flight = self._done, self._in_flight
        done.update(offsets)
        if len(done) == len(in_flight):
            done.clear()
            in_flight.clear()
            return
        while in_flight and in_flight[0] in done:
            done.remove(in_flight.popleft())

    def finished_runs(self) -> list[Run]:
        """The offsets that are finished above ``position``, as ascending runs that do not touch. A gap after a finished offset
        counts as finished, because it contains nothing that could be read again."""
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


def encode_runs(committed: int, runs: Sequence[Run], bytes_max: int) -> str:
    """The metadata for ``runs``, which ascend, are above ``committed`` and do not touch. Empty without runs or without room."""
    room = (bytes_max - len(PREFIX)) // 4 * 3
    content = bytearray()
    end = committed
    for start, next_end in runs:
        run = _varint(start - end) + _varint(next_end - start)
        if len(content) + len(run) > room:
            break
        content += run
        end = next_end
    return PREFIX + base64.b64encode(content).decode("ascii") if content else ""


def decode_runs(committed: int, metadata: str | None) -> list[Run]:
    """The runs of metadata that ``encode_runs`` wrote; empty for any other."""
    if not metadata or not metadata.startswith(PREFIX):
        return []
    try:
        content = base64.b64decode(metadata[len(PREFIX) :].encode("ascii"), validate=True)
        numbers = _varints(content)
    except (binascii.Error, ValueError):
        return []
    if len(numbers) % 2:
        return []
    runs: list[Run] = []
    end = committed
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        start, end = end + gap, end + gap + length
        if not gap or not length or end > _OFFSET_MAX:
            return []
        runs.append((start, end))
    return runs


def _varint(number: int) -> bytes:
    """Seven bits per byte, lowest first."""
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)
    return bytes(content)


def _varints(content: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in content:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
        elif shift >= 7 * _VARINT_BYTES_MAX:
            raise ValueError("a varint is too long")
    if shift:
        raise ValueError("the last varint is cut")
    return numbers
