"""Records which letters of a dead-letter topic were replayed or discarded: marks in a compacted topic, and their sum in memory.

A letter cannot be removed from a log, so a mark says that it is done. A mark is one record of the ledger topic. Its key is the
letter's place as JSON, ``[topic, topic id, partition, offset]``; its value says what became of the letter. The mark of a replay
is written in the same transaction as the replayed message, so that both exist or neither, whatever is killed.

The topic id is part of the place because a topic that is deleted and created again starts at offset 0, where old marks must not
hide new letters. A mark is stale if it has another topic id or if its letter was deleted (it is below the log start offset).
Nobody asks for it any more, and the next replay or discard writes a tombstone for it. So compaction bounds the ledger by the
number of letters, not by the age of the topic.

``Ledger`` is the sum: per partition the offsets that are done, as intervals. Its memory grows with the gaps, not with the marks.
"""

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.deadletters.letter import cut_end

REPLAYED = "replayed"
DISCARDED = "discarded"
KINDS = (REPLAYED, DISCARDED)

REASON_BYTES_MAX = 1024
# Each one is a key in memory. The next run finds the rest.
STALE_MAX = 10_000


class OffsetIntervals:
    """A set of offsets of one partition, as intervals: the handled offsets are mostly one long run.

    Interval i holds the offsets from ``_starts[i]`` to before ``_ends[i]``. Intervals are sorted and never touch. Each takes 16
    bytes, so a million letters of which every second one was handled need 8 MB. ``add`` is fast in rising order and correct in
    any order.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")

    def add(self, offset: int) -> bool:
        """Returns False if it is there already."""
        starts, ends = self._starts, self._ends
        at = bisect_right(starts, offset)
        if at and offset < ends[at - 1]:
            return False
        joins_left = bool(at) and ends[at - 1] == offset
        joins_right = at < len(starts) and starts[at] == offset + 1
        if joins_left and joins_right:
            ends[at - 1] = ends[at]
            del starts[at], ends[at]
        elif joins_left:
            ends[at - 1] = offset + 1
        elif joins_right:
            starts[at] = offset
        else:
            starts.insert(at, offset)
            ends.insert(at, offset + 1)
        return True

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset)
        return bool(at) and offset < self._ends[at - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals: first offset, and the offset after the last one."""
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """The number of intervals, not of offsets."""
        return len(self._starts)

    def first_missing(self, offset: int) -> int:
        """The first offset at or after this one that is missing."""
        at = bisect_right(self._starts, offset)
        return max(offset, self._ends[at - 1]) if at else offset

    def count(self, start: int, end: int) -> int:
        """The number of offsets from ``start`` to before ``end`` that are there."""
        return sum(max(0, min(last, end) - max(first, start)) for first, last in self)


class Place(NamedTuple):
    """The position of a letter in a dead-letter topic."""

    topic: str
    topic_id: str
    partition: int
    offset: int

    def to_key(self) -> bytes:
        return json.dumps(list(self), separators=(",", ":")).encode()

    @classmethod
    def from_key(cls, key: bytes | None) -> "Place | None":
        """None if the key is not one of ours."""
        try:
            topic, topic_id, partition, offset = json.loads(key or b"")
        except (ValueError, TypeError):
            return None
        if not (isinstance(topic, str) and isinstance(topic_id, str) and _is_number(partition) and _is_number(offset)):
            return None
        return cls(topic, topic_id, partition, offset)


class LedgerMark(NamedTuple):
    """The mark of a letter that was replayed or discarded."""

    kind: str
    at_ms: int
    target: str | None = None
    """The topic to which it was replayed."""
    reason: str | None = None
    """Why it was discarded, if a reason was given."""

    def to_value(self) -> bytes:
        fields = {
            "as": self.kind,
            "at": self.at_ms,
            "to": self.target,
            "reason": self.reason and cut_end(self.reason, REASON_BYTES_MAX),
        }
        return json.dumps({name: value for name, value in fields.items() if value is not None}, separators=(",", ":")).encode()

    @classmethod
    def from_value(cls, value: bytes | None) -> "LedgerMark | None":
        """None for a tombstone, and for a value that is not a mark."""
        try:
            fields = json.loads(value or b"")
        except ValueError:
            return None
        if not isinstance(fields, dict) or fields.get("as") not in KINDS or not _is_number(fields.get("at")):
            return None
        target, reason = fields.get("to"), fields.get("reason")
        return cls(
            fields["as"], fields["at"], target if isinstance(target, str) else None, reason if isinstance(reason, str) else None
        )


class Ledger:
    """The sum of the marks of one dead-letter topic. ``log_starts`` has the log start offset of each partition."""

    __slots__ = ("_handled", "_log_starts", "_stale", "_topic", "_topic_id", "_watched", "counts", "watched_mark")

    def __init__(self, topic: str, topic_id: str, log_starts: dict[int, int], watched: Place | None = None) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._log_starts = log_starts
        self._handled: dict[int, OffsetIntervals] = {}
        # Keys of stale marks without a tombstone, in order.
        self._stale: dict[bytes, None] = {}
        self._watched = watched
        self.watched_mark: LedgerMark | None = None
        """The mark of the ``watched`` place."""
        self.counts = dict.fromkeys(KINDS, 0)
        """How many of the letters that still exist were replayed, and how many discarded."""

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record of the ledger topic; call it in the order of the log."""
        place = Place.from_key(key)
        if place is None or key is None:
            return
        mark = LedgerMark.from_value(value)
        if mark is None:
            self._stale.pop(key, None)
        elif place[:2] != (self._topic, self._topic_id) or place.offset < self._log_starts.get(place.partition, 0):
            if len(self._stale) < STALE_MAX:
                self._stale[key] = None
        else:
            if self.add(place.partition, place.offset):
                self.counts[mark.kind] += 1
            if place == self._watched:
                self.watched_mark = mark

    def add(self, partition: int, offset: int) -> bool:
        """Mark the letter as done. Returns False if it was done before."""
        return self.handled(partition).add(offset)

    def is_handled(self, partition: int, offset: int) -> bool:
        intervals = self._handled.get(partition)
        return intervals is not None and offset in intervals

    def handled(self, partition: int) -> OffsetIntervals:
        return self._handled.setdefault(partition, OffsetIntervals())

    def place(self, partition: int, offset: int) -> Place:
        return Place(self._topic, self._topic_id, partition, offset)

    def stale_keys(self) -> list[bytes]:
        """Keys of stale marks, at most STALE_MAX."""
        return list(self._stale)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
