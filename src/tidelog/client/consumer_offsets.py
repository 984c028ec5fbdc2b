"""The part of a consumer that is about places: seek, pause, assign by hand, positions, committed offsets, lag.

A seek takes effect before the next message of its partition is handed out, whatever librdkafka is doing at that moment: where it
refuses (it is still starting with the partition), the seek is kept, what comes from the old place is dropped, and it
is tried again with every poll.
"""

import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tidelog.client.arrivals import Arrivals
from tidelog.client.assignment import Assignment
from tidelog.client.consumer_settings import Start
from tidelog.client.errors import Closed, GroupError, InvalidArgument, UnknownTopic, from_kafka_error
from tidelog.client.lag import lag
from tidelog.client.message import Message
from tidelog.client.rebalance import LOOKUP_TIMEOUT_SECONDS, Rebalance
from tidelog.client.start import OffsetLookup, start_offsets
from tidelog.client.topic_partition import Partition, milliseconds_of, partition_of, raw_partitions

_NOT_YET = frozenset((KafkaError._STATE, KafkaError._PREV_IN_PROGRESS))


def place_of(raw_message: Any) -> Partition:
    return Partition(raw_message.topic(), raw_message.partition())


def ends_of(raw_messages: list[Any]) -> dict[Partition, Any]:
    """The offsets (confluent_kafka.TopicPartition) after the last message of each partition; messages are in order."""
    lasts = {place_of(message): message.offset() + 1 for message in raw_messages}
    return {partition: TopicPartition(*partition, offset) for partition, offset in lasts.items()}


def offsets_wanted(what: Any) -> dict[Partition, Any]:
    """What a caller of ``commit`` means, as one offset (confluent_kafka.TopicPartition) per partition: the highest."""
    wanted: dict[Partition, Any] = {}
    for raw in _raw_offsets(what):
        partition = partition_of(raw)
        if partition not in wanted or wanted[partition].offset < raw.offset:
            wanted[partition] = raw
    return wanted


def _raw_offsets(what: Any) -> Iterable[Any]:
    if isinstance(what, Message):
        return [TopicPartition(what.topic, what.partition, what.offset + 1)]
    if isinstance(what, Mapping):
        return [TopicPartition(topic, partition, offset) for (topic, partition), offset in what.items()]
    if isinstance(what, TopicPartition) or not isinstance(what, Iterable) or isinstance(what, str):
        raise InvalidArgument(f"commit takes messages, a dict of offsets, or a list of TopicPartition: not {what!r}")
    return [_raw_offset(one) for one in what]


def _raw_offset(one: Any) -> Any:
    if isinstance(one, TopicPartition):
        return one
    raw = one.raw if isinstance(one, Message) else one
    return TopicPartition(raw.topic(), raw.partition(), raw.offset() + 1)


class ConsumerOffsets:
    """What ``Consumer`` gets from here; it is not for use alone."""

    handle: Any
    """confluent-kafka's consumer, for what is not here. Polling it past us breaks the guarantees."""
    addresses: str
    group: str | None
    _lock: threading.RLock
    _arrivals: Arrivals
    _assignment: Assignment
    _rebalance: Rebalance
    _lookup: OffsetLookup
    _start: Start
    _subscription: list[str]
    _is_begun: bool
    _is_closed: bool
    _is_assigned_by_hand: bool
    _has_unsent_messages: bool

    # -- places --------------------------------------------------------------------------------------------------------------

    def seek(
        self, topic: str, partition: int | None = None, *, offset: int | None = None, timestamp: int | datetime | None = None
    ) -> None:
        """The next message of the partition (without one: of each partition of the topic that is assigned) is the one at
        ``offset``, or the first one of that ``timestamp`` or later. Nothing from before the seek is handed out after it.

        In ``on_assigned``, and before the first poll, it says where to start. GroupError when the partition is not this
        consumer's: it cannot move the group for others.
        """
        if (offset is None) == (timestamp is None):
            raise InvalidArgument("seek takes offset= or timestamp=")
        if offset is not None and (isinstance(offset, bool) or not isinstance(offset, int) or offset < 0):
            raise InvalidArgument(f"an offset is 0 or more: not {offset!r}; see seek_to_beginning and seek_to_end")
        with self._lock:
            partitions = self._partitions(topic, partition)
            if timestamp is not None:
                offsets = self._lookup.at(partitions, milliseconds_of(timestamp), LOOKUP_TIMEOUT_SECONDS)
            else:
                offsets = {one: int(offset or 0) for one in partitions}
            self._seek_all(offsets)

    def seek_to_beginning(self, topic: str, partition: int | None = None) -> None:
        """To the oldest message that is kept."""
        with self._lock:
            self._seek_all(self._lookup.beginnings(self._partitions(topic, partition), LOOKUP_TIMEOUT_SECONDS))

    def seek_to_end(self, topic: str, partition: int | None = None) -> None:
        """Behind the last message that there is now."""
        with self._lock:
            self._seek_all(self._lookup.ends(self._partitions(topic, partition), LOOKUP_TIMEOUT_SECONDS))

    def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Hand out nothing of these partitions (without any: of all that are assigned) until ``resume``. They stay this
        consumer's; a partition that goes and comes back is not paused any more."""
        with self._lock:
            chosen = self._chosen(partitions)
            self._assignment.paused.update(chosen)
            if self._rebalance.starting is None:
                self._call_with(self.handle.pause, chosen, "pause")

    def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Go on where ``pause`` stopped."""
        with self._lock:
            chosen = self._chosen(partitions)
            self._assignment.paused.difference_update(chosen)
            if self._rebalance.starting is None:
                self._call_with(self.handle.resume, chosen, "resume")

    def paused(self) -> list[Partition]:
        """The partitions that are paused."""
        with self._lock:
            return sorted(self._assignment.paused)

    def assign(self, partitions: Iterable[tuple[str, int] | tuple[str, int, int]]) -> None:
        """Read exactly these partitions, as (topic, partition) or (topic, partition, offset), with nobody else's say; with a
        ``group=`` only to commit. Without an offset they start at what is committed, else at ``start=``."""
        if self._subscription:
            raise InvalidArgument("assign is for a consumer without topics= and pattern=")
        wanted: dict[Partition, int | None] = {}
        for one in partitions:
            wanted[Partition(one[0], one[1])] = one[2] if len(one) == 3 else None
        with self._lock:
            self._check_open()
            self._assign_by_hand(wanted)

    def put_back(self, messages: Iterable[Message]) -> None:
        """Messages of the last poll that were not handled after all: they are next again, and a ``commit()`` does not cover
        them. Those of partitions that have gone are not this consumer's to hand out any more."""
        with self._lock:
            self._check_open()
            back = [message.raw for message in messages if not self._assignment.is_barred(place_of(message.raw))]
            self._arrivals.put_back(back)

    # -- in transactions -----------------------------------------------------------------------------------------------------

    def transaction_offsets(self) -> tuple[list[Any], Any]:
        """For ``tx.send_offsets``: the offsets of what was handed out (confluent_kafka.TopicPartition), and who this consumer
        is in its group.

        GroupError when partitions went to another member after messages of theirs were handed out: they are in the transaction,
        and their offsets cannot be. Abort it and ``rewind()``.
        """
        self._check_open()
        if self.group is None:
            raise InvalidArgument("offsets in a transaction need a group=")
        with self._lock:
            if self._rebalance.went_with_messages and self._has_unsent_messages:
                raise GroupError(
                    "partitions went to another member with messages of this transaction: abort it and rewind()",
                    retriable=True,
                )
            self._has_unsent_messages = False
            offsets = [TopicPartition(*partition, offset) for partition, offset in self._assignment.positions().items()]
            return offsets, self.handle.consumer_group_metadata()

    def group_metadata(self) -> Any:
        """Who this consumer is in its group, for confluent-kafka's ``send_offsets_to_transaction``; ``tx.send_offsets`` does
        more."""
        self._check_open()
        return self.handle.consumer_group_metadata()

    def rewind(self) -> None:
        """Back to what is committed, after an aborted transaction or a failed batch: what was handed out since comes again."""
        with self._lock:
            self._check_open()
            self._has_unsent_messages = False
            partitions = list(self._assignment.epochs)
            committed = self._lookup.committed(partitions, LOOKUP_TIMEOUT_SECONDS)
            fresh = [partition for partition in partitions if partition not in committed]
            committed.update(start_offsets(self._lookup, fresh, self._start, LOOKUP_TIMEOUT_SECONDS))
            for partition, offset in committed.items():
                self._seek(partition, offset)

    # -- what is known -------------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Grows with every change of what is assigned."""
        return self._assignment.generation

    def assignment(self) -> list[Partition]:
        """The partitions that this consumer reads now."""
        with self._lock:
            return sorted(self._assignment.epochs)

    def positions(self) -> dict[Partition, int]:
        """By partition the offset of the next message that will be handed out; those that nothing was read of yet are left
        out."""
        with self._lock:
            self._check_open()
            return self._assignment.positions()

    def position(self, topic: str, partition: int) -> int | None:
        """Of one partition; None when it is not assigned or nothing was read of it yet."""
        return self.positions().get(Partition(topic, partition))

    def committed(self, timeout: float = LOOKUP_TIMEOUT_SECONDS) -> dict[Partition, int]:
        """What the group has committed in the partitions that are assigned; those without a commit are left out."""
        self._check_open()
        if self.group is None:
            raise InvalidArgument("committed needs a group=")
        return self._lookup.committed(self.assignment(), timeout)

    def lag(self, timeout: float = LOOKUP_TIMEOUT_SECONDS) -> dict[Partition, int]:
        """By partition how many offsets this consumer's position is before the end, asked of the brokers now."""
        with self._lock:
            self._check_open()
            positions = self._assignment.positions()
            partitions = sorted(self._assignment.epochs)
        return lag(self._lookup, partitions, positions, self._start, has_group=self.group is not None, timeout=timeout)

    # -- details -------------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the consumer is closed")

    def _begin(self) -> None:
        raise NotImplementedError

    def _partitions(self, topic: str, partition: int | None) -> list[Partition]:
        self._check_open()
        if not self._is_begun and (self.group is None or self._is_assigned_by_hand):
            self._begin()
        if partition is not None:
            return [Partition(topic, partition)]
        found = [one for one in self._assignment.epochs if one.topic == topic]
        if not found:
            raise GroupError(f"no partition of {topic} is assigned to this consumer now", retriable=True)
        return found

    def _chosen(self, partitions: Iterable[tuple[str, int]] | None) -> list[Partition]:
        self._check_open()
        chosen = list(self._assignment.epochs) if partitions is None else [Partition(*one) for one in partitions]
        for one in chosen:
            if one not in self._assignment.epochs:
                raise GroupError(f"{one.topic}[{one.partition}] is not assigned to this consumer now", retriable=True)
        return chosen

    def _seek_all(self, offsets: Mapping[Partition, int]) -> None:
        for partition, offset in offsets.items():
            self._seek(partition, offset)

    def _seek(self, partition: Partition, offset: int) -> None:
        rebalance, assignment = self._rebalance, self._assignment
        if partition not in assignment.epochs:
            if rebalance.had_assignment or self._is_assigned_by_hand:
                raise GroupError(f"{partition.topic}[{partition.partition}] is not assigned to this consumer now", retriable=True)
            rebalance.waiting_seeks[partition] = offset
        elif rebalance.starting is not None:
            rebalance.starting[partition] = offset
        else:
            assignment.start_at(partition, offset)
            assignment.unsought[partition] = offset
            self._seek_again()

    def _seek_again(self) -> None:
        """The seeks that librdkafka has not taken yet."""
        assignment = self._assignment
        for partition, offset in list(assignment.unsought.items()):
            try:
                self.handle.seek(TopicPartition(*partition, offset))
            except KafkaException as error:
                if error.args[0].code() in _NOT_YET:
                    continue
                del assignment.unsought[partition]
                raise from_kafka_error(
                    error.args[0], f"seek in {partition.topic}[{partition.partition}]", self.addresses
                ) from error
            del assignment.unsought[partition]
            assignment.start_at(partition, offset)

    def _assign_by_hand(self, wanted: Mapping[Partition, int | None]) -> None:
        open_starts = [partition for partition, offset in wanted.items() if offset is None]
        offsets = {partition: offset for partition, offset in wanted.items() if offset is not None}
        if self.group is not None:
            offsets.update(self._lookup.committed(open_starts, LOOKUP_TIMEOUT_SECONDS))
            open_starts = [partition for partition in open_starts if partition not in offsets]
        offsets.update(start_offsets(self._lookup, open_starts, self._start, LOOKUP_TIMEOUT_SECONDS))
        raw = [TopicPartition(*partition, offsets[partition]) for partition in wanted]
        # librdkafka remembers what was paused, also of what it is told to read anew.
        self._call_with(self.handle.resume, sorted(self._assignment.paused), "resume")
        self._call_with_raw(self.handle.assign, raw, "assign")
        self._assignment.remove(list(self._assignment.epochs))
        self._assignment.add(wanted)
        for partition, offset in offsets.items():
            self._assignment.start_at(partition, offset)
        self._is_assigned_by_hand = True

    def _all_partitions(self, topics: list[str]) -> list[Partition]:
        found: list[Partition] = []
        for topic in topics:
            try:
                description = self.handle.list_topics(topic, timeout=LOOKUP_TIMEOUT_SECONDS).topics[topic]
            except KafkaException as error:
                raise from_kafka_error(error.args[0], f"partitions of {topic}", self.addresses) from error
            if description.error is not None:
                raise from_kafka_error(description.error, f"partitions of {topic}", self.addresses, otherwise=UnknownTopic)
            found += [Partition(topic, partition) for partition in sorted(description.partitions)]
        return found

    def _call_with(self, call: Any, partitions: list[Partition], what: str) -> None:
        if partitions:
            self._call_with_raw(call, raw_partitions(partitions), what)

    def _call_with_raw(self, call: Any, raw: list[Any], what: str) -> None:
        try:
            call(raw)
        except KafkaException as error:
            raise from_kafka_error(error.args[0], what, self.addresses) from error
