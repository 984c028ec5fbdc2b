"""The partitions that a consumer has now, and how far it has read in each.

librdkafka keeps the position of what it has handed over, and that is the position here too, with two exceptions:

* messages that wait in ``Arrivals`` were not handed to the caller yet, so the position is before the first of them;
* a partition that was just assigned, or in which a seek was made, is *unread* until its first message arrives: librdkafka has no
  position for it yet, or still the one of an earlier assignment. Its position is then the offset where it was told to start.

Every assignment of a partition gets a new epoch, so that a commit begun in one is never finished in another.
"""

from collections.abc import Iterable, Mapping

from tidelog.client.arrivals import Arrivals
from tidelog.client.raw_consumer import RawConsumer
from tidelog.client.topic_partition import TopicPartition, partition_of, raw_partitions


class Assignment:
    """It is not thread-safe: the consumer's lock protects it."""

    __slots__ = ("_arrivals", "_epochs", "_paused", "_pending_seeks", "_raw", "_unread", "generation")

    def __init__(self, raw: RawConsumer, arrivals: Arrivals) -> None:
        self._raw = raw
        self._arrivals = arrivals
        self.generation = 0
        """A number that grows with every change of the assignment."""
        self._epochs: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._unread: dict[TopicPartition, int | None] = {}
        self._pending_seeks: dict[TopicPartition, int] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._epochs

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._epochs)

    def epoch(self, partition: TopicPartition) -> int | None:
        """The generation that brought the partition; None if it is not assigned."""
        return self._epochs.get(partition)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        self.generation += 1
        for partition in partitions:
            self._epochs[partition] = self.generation
            self._unread[partition] = None

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget everything about them, including their messages that have arrived."""
        self.generation += 1
        gone = set(partitions)
        for partition in gone:
            self._epochs.pop(partition, None)
            self._unread.pop(partition, None)
            self._pending_seeks.pop(partition, None)
        self._paused -= gone
        self._arrivals.drop(gone.__contains__)

    # -- paused partitions ---------------------------------------------------------------------------------------------------

    @property
    def paused(self) -> set[TopicPartition]:
        """Partitions whose messages are not handed out. Read only."""
        return self._paused

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    # -- positions -----------------------------------------------------------------------------------------------------------

    @property
    def pending_seeks(self) -> Mapping[TopicPartition, int]:
        """Seeks to repeat until librdkafka accepts them: it refuses while it is still starting with a partition."""
        return self._pending_seeks

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Begin a seek: nothing of the partition is handed out until ``sought``."""
        self.start_at(partition, offset)
        self._pending_seeks[partition] = offset

    def sought(self, partition: TopicPartition) -> None:
        """Called when librdkafka has accepted the seek."""
        self.start_at(partition, self._pending_seeks.pop(partition))

    def cancel_seek(self, partition: TopicPartition) -> None:
        del self._pending_seeks[partition]

    def start_at(self, partition: TopicPartition, offset: int) -> None:
        """Note that the partition's next message is at ``offset`` or later. Messages of it that have arrived are dropped."""
        self._unread[partition] = offset
        self._arrivals.drop(partition.__eq__)

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next message to hand out, by partition. Partitions without a known position are left out."""
        if not self._epochs:
            return {}
        known: dict[TopicPartition, int] = {}
        for raw in self._raw.handle.position(raw_partitions(self._epochs)):
            partition = partition_of(raw)
            offset = self._unread.get(partition, raw.offset)
            if offset is not None and offset >= 0:
                known[partition] = offset
        for partition, offset in self._arrivals.first_offsets().items():
            if partition in self._epochs:
                known[partition] = offset
        return known

    def is_barred(self, partition: TopicPartition) -> bool:
        """Whether its messages must not be handed out: it is not assigned (librdkafka may have taken them from its queue just
        before it left), or a seek in it is pending."""
        return partition not in self._epochs or partition in self._pending_seeks

    def note_arrivals(self) -> None:
        """Note that messages have arrived: their partitions are no longer unread."""
        if self._unread:
            for partition in self._arrivals.partitions():
                self._unread.pop(partition, None)
