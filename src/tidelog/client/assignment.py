"""The partitions that a consumer has now, and how far it has read in each.

librdkafka keeps the position of what it has given out, and that is the truth here too, with two exceptions that this file is
about:

* messages that wait in ``Arrivals`` were not handed out yet, so the position is before the first of them;
* a partition that was just assigned, or sought in, is **unread** until its first message comes: librdkafka still has no
  position for it, or the one of an earlier time when it had the partition. Its position is then where it was told to start, if
  it was.

Every assignment of a partition has a new epoch, so that what was begun in one is not finished in another.
"""

from collections.abc import Iterable
from typing import Any

from tidelog.client.arrivals import Arrivals
from tidelog.client.topic_partition import Partition, partition_of, raw_partitions


class Assignment:
    """Not for several threads at once; the consumer's lock is around it."""

    __slots__ = ("_arrivals", "_handle", "_unread", "epochs", "generation", "paused", "unsought")

    def __init__(self, handle: Any, arrivals: Arrivals) -> None:
        self._handle = handle
        self._arrivals = arrivals
        self.generation = 0
        """Grows with every change of what is assigned."""
        self.epochs: dict[Partition, int] = {}
        """The partitions that are assigned, each with the generation that brought it."""
        self.paused: set[Partition] = set()
        self._unread: dict[Partition, int | None] = {}
        self.unsought: dict[Partition, int] = {}
        """Where to seek as soon as librdkafka takes it: it refuses while it is still starting with a partition."""

    def add(self, partitions: Iterable[Partition]) -> None:
        self.generation += 1
        for partition in partitions:
            self.epochs[partition] = self.generation
            self._unread[partition] = None

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Everything about them is forgotten, also what has arrived of them."""
        self.generation += 1
        gone = set(partitions)
        for partition in gone:
            self.epochs.pop(partition, None)
            self._unread.pop(partition, None)
            self.unsought.pop(partition, None)
        self.paused -= gone
        self._arrivals.drop(gone.__contains__)

    def start_at(self, partition: Partition, offset: int) -> None:
        """The next message of it is at ``offset`` or later; what has arrived of it is dropped."""
        self._unread[partition] = offset
        self._arrivals.drop(partition.__eq__)

    def positions(self) -> dict[Partition, int]:
        """By partition the offset of the next message to hand out. Those that nothing is known of yet are left out."""
        if not self.epochs:
            return {}
        known: dict[Partition, int] = {}
        for raw in self._handle.position(raw_partitions(self.epochs)):
            partition = partition_of(raw)
            offset = self._unread.get(partition, raw.offset)
            if offset is not None and offset >= 0:
                known[partition] = offset
        for partition, offset in self._arrivals.first_offsets().items():
            if partition in self.epochs:
                known[partition] = offset
        return known

    def is_barred(self, partition: Partition) -> bool:
        """Its messages must not be handed out: it is not assigned (librdkafka may have taken them from its queue just before
        it went), or a seek is still to be done in it."""
        return partition not in self.epochs or partition in self.unsought

    def note_arrivals(self) -> None:
        """Partitions that something has arrived of are unread no longer."""
        if self._unread:
            for partition in self._arrivals.partitions():
                self._unread.pop(partition, None)
