"""What was replayed or discarded of a dead-letter topic: marks in a compacted topic of its own, and their sum in memory.

A letter cannot be taken out of a log, so a mark says that it is done with. A mark is one record of the ledger topic: its key is
the letter's place, as JSON ``[topic, topic id, partition, offset]``, its value what became of it. The mark of a replay is
written in the same transaction as the replayed message: either both are there or neither, whatever was killed.

The topic id is part of the place because a topic that was deleted and made anew starts again at offset 0, and the old marks must
not hide its letters. A mark is stale when it has another id, or when its letter was deleted (it lies below the log start): then
nobody asks for it any more, and the next replay or discard writes a tombstone, so that compaction keeps the ledger as long as
the letters are, not as old as the topic is.

``Ledger`` is the sum: per partition the offsets that are done with, as intervals. Its memory follows the gaps, not the marks.
"""

import json
from typing import NamedTuple

from tidelog.deadletters.intervals import OffsetIntervals
from tidelog.deadletters.letter import cut_end

REPLAYED = "replayed"
DISCARDED = "discarded"
KINDS = (REPLAYED, DISCARDED)

REASON_BYTES_MAX = 1024
# Found in one run, each a key in memory; the next run finds the rest.
STALE_MAX = 10_000


class Place(NamedTuple):
    """Of a letter in a dead-letter topic."""

    topic: str
    topic_id: str
    partition: int
    offset: int

    def to_key(self) -> bytes:
        return json.dumps(list(self), separators=(",", ":")).encode()

    @classmethod
    def from_key(cls, key: bytes | None) -> "Place | None":
        """None for what is no key of ours."""
        try:
            topic, topic_id, partition, offset = json.loads(key or b"")
        except (ValueError, TypeError):
            return None
        if not (isinstance(topic, str) and isinstance(topic_id, str) and _is_number(partition) and _is_number(offset)):
            return None
        return cls(topic, topic_id, partition, offset)


class Mark(NamedTuple):
    """What became of a letter."""

    kind: str
    at_ms: int
    target: str | None = None
    """The topic that it was replayed to."""
    reason: str | None = None
    """Why it was discarded, where somebody said so."""

    def to_value(self) -> bytes:
        fields = {
            "as": self.kind,
            "at": self.at_ms,
            "to": self.target,
            "reason": self.reason and cut_end(self.reason, REASON_BYTES_MAX),
        }
        return json.dumps({name: value for name, value in fields.items() if value is not None}, separators=(",", ":")).encode()

    @classmethod
    def from_value(cls, value: bytes | None) -> "Mark | None":
        """None for a tombstone, and for what is no mark."""
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
    """The marks of one dead-letter topic, summed up. ``log_starts`` has the log start offset of each of its partitions."""

    __slots__ = ("_handled", "_log_starts", "_stale", "_topic", "_topic_id", "_watched", "counts", "watched_mark")

    def __init__(self, topic: str, topic_id: str, log_starts: dict[int, int], watched: Place | None = None) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._log_starts = log_starts
        self._handled: dict[int, OffsetIntervals] = {}
        # The keys of stale marks that no tombstone followed yet. A dictionary for its order.
        self._stale: dict[bytes, None] = {}
        self._watched = watched
        self.watched_mark: Mark | None = None
        """Of the one place that was asked for."""
        self.counts = dict.fromkeys(KINDS, 0)
        """How many letters that are still there were replayed, and discarded."""

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """One record of the ledger topic, in its order."""
        place = Place.from_key(key)
        if place is None or key is None:
            return
        mark = Mark.from_value(value)
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
        """A letter that is done with from now on; False when it was before."""
        return self.handled(partition).add(offset)

    def is_handled(self, partition: int, offset: int) -> bool:
        intervals = self._handled.get(partition)
        return intervals is not None and offset in intervals

    def handled(self, partition: int) -> OffsetIntervals:
        return self._handled.setdefault(partition, OffsetIntervals())

    def place(self, partition: int, offset: int) -> Place:
        return Place(self._topic, self._topic_id, partition, offset)

    def stale_keys(self) -> list[bytes]:
        """At most STALE_MAX keys of marks that nobody needs any more."""
        return list(self._stale)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
