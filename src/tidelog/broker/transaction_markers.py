"""Markers that end a transaction, on their way to its partitions.

One by one, though this broker leads every partition: so half-marked transactions exist, and are brought to their end, on one
broker as in a cluster. They are written at the end of the burst, and the pass of group commit that follows covers them. A
partition that cannot take its marker now is tried again until it can, or until the coordinator that sent it is gone; one that no
longer exists needs none. Decisions take turns, so that a transaction over thousands of partitions does not keep small ones
waiting.

A marker for ``__consumer_offsets`` goes through the group coordinator's shard, which alone writes there. In other internal topics
there are no transactions, and a marker from here would come between a shard and its log: it is refused.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.partitions import Partitions
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import OnCommitted, Scheduler
from tidelog.coordinator.shard import Producer
from tidelog.groups.machine import GroupMachine
from tidelog.log.append_check import AppendOrigin
from tidelog.log.errors import InvalidProducerEpoch, TransactionCoordinatorFenced
from tidelog.log.producer_state import ProducerState
from tidelog.log.slice import Slice
from tidelog.metadata.topics import GROUPS_TOPIC
from tidelog.ports.clock import Clock
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.topic_partition import TopicPartition
from tidelog.replication.partition import Partition
from tidelog.transactions.environment import MarkersToSend, OnPartitionMarked
from tidelog.transactions.transaction import TRANSACTION_VERSION_2, each_partition
from tidelog.wire.errors import ErrorCode

# About a millisecond of appends.
MARKERS_PER_SLICE = 32
RETRY_MS_MIN = 50
RETRY_MS_MAX = 5_000

OnWritten = Callable[[TopicPartition, Exception | None], None]
"""The marker is committed, or why it is not."""

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION)


class EndOfTransaction:
    """What a marker says, and of which producer."""

    __slots__ = ("marker", "producer", "transaction_version")

    def __init__(self, producer: Producer, is_commit: bool, coordinator_epoch: int, transaction_version: int) -> None:
        control_type = ControlType.COMMIT if is_commit else ControlType.ABORT
        self.marker = EndTransactionMarker(control_type, coordinator_epoch)
        self.producer = producer
        self.transaction_version = transaction_version

    def check(self, producers: ProducerState) -> None:
        """As the log does; and with transactions v2, where the decision raised the epoch, a transaction that is open in the
        marker's own epoch is a later one."""
        producer_id, producer_epoch = self.producer
        producers.check_marker(producer_id, producer_epoch, self.marker)
        entry = producers.entry(producer_id)
        if (
            self.transaction_version >= TRANSACTION_VERSION_2
            and entry is not None
            and entry.current_transaction_first_offset >= 0
            and entry.epoch == producer_epoch
        ):
            raise InvalidProducerEpoch(f"producer {producer_id} has begun another transaction, in epoch {producer_epoch}")


class _Sending:
    """One end of a transaction for many partitions."""

    __slots__ = ("_places", "again", "end", "is_cancelled", "is_queued", "is_retried", "on_written")

    def __init__(
        self, end: EndOfTransaction, places: Iterable[TopicPartition], on_written: OnWritten, *, is_retried: bool
    ) -> None:
        self.end = end
        self._places = iter(places)
        self.on_written = on_written
        self.is_retried = is_retried
        self.again: deque[_Delivery] = deque()
        self.is_queued = False
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def next(self) -> "_Delivery | None":
        if self.is_cancelled:
            return None
        if self.again:
            return self.again.popleft()
        place = next(self._places, None)
        return None if place is None else _Delivery(self, place)


class _Delivery:
    """One marker for one partition."""

    __slots__ = ("place", "retry_ms", "sending")

    def __init__(self, sending: _Sending, place: TopicPartition) -> None:
        self.sending = sending
        self.place = place
        self.retry_ms = RETRY_MS_MIN


class TransactionMarkerSender:
    __slots__ = ("_clock", "_groups", "_is_scheduled", "_partitions", "_queue", "_report", "_scheduler", "retries")

    def __init__(
        self,
        partitions: Partitions,
        groups: CoordinatorService[GroupMachine],
        clock: Clock,
        scheduler: Scheduler,
        report: Callable[[str, dict[str, object]], None],
    ) -> None:
        self._partitions = partitions
        self._groups = groups
        self._clock = clock
        self._scheduler = scheduler
        self._report = report
        # Each is here once, as long as it has markers to write.
        self._queue: deque[_Sending] = deque()
        self._is_scheduled = False
        self.retries = 0

    def send(self, markers: MarkersToSend, on_marked: OnPartitionMarked) -> _Sending:
        """For a coordinator; see ``SendMarkers``."""
        end = EndOfTransaction(
            (markers.producer_id, markers.producer_epoch),
            markers.is_commit,
            markers.coordinator_epoch,
            markers.transaction_version,
        )
        sending = _Sending(
            end, each_partition(markers.partitions), lambda place, _: on_marked(place[0], place[1]), is_retried=True
        )
        self._enqueue(sending)
        return sending

    def write(self, end: EndOfTransaction, places: Iterable[TopicPartition], on_written: OnWritten) -> None:
        """Once, as far as it can be done."""
        self._enqueue(_Sending(end, places, on_written, is_retried=False))

    def _enqueue(self, sending: _Sending) -> None:
        if not sending.is_queued:
            sending.is_queued = True
            self._queue.append(sending)

    def flush(self) -> None:
        """The end of a burst: a slice of what is to be written. What is left waits for ticks, which others share."""
        if self._queue and not self._is_scheduled:
            self._run()

    def _run(self) -> None:
        self._is_scheduled = False
        work = Slice(self._clock, MARKERS_PER_SLICE)
        while self._queue and not work.is_over:
            sending = self._queue.popleft()
            delivery = sending.next()
            if delivery is None:
                sending.is_queued = False
            else:
                work.left -= 1
                self._queue.append(sending)
                self._deliver(delivery)
        if self._queue:
            self._is_scheduled = True
            self._scheduler.schedule(0, self._run)

    def _deliver(self, delivery: _Delivery) -> None:
        (topic, index), end = delivery.place, delivery.sending.end
        done = partial(self._delivered, delivery)
        try:
            if topic == GROUPS_TOPIC:
                self._to_group_coordinator(index, end, done)
            else:
                self._to_partition(topic, index, end, done)
        except Exception as error:
            self._delivered(delivery, error)

    def _to_group_coordinator(self, index: int, end: EndOfTransaction, on_done: OnCommitted) -> None:
        partition = self._partitions.find(GROUPS_TOPIC, None, index)
        shard = self._groups.shard(index)
        # Looked at first, with all that the shard has decided in the log: an append that is refused costs the shard its state.
        shard.flush()
        end.check(partition.log.producers)
        shard.end_transaction(end.producer, end.marker, self._once_durable(partition, on_done))

    def _to_partition(self, topic: str, index: int, end: EndOfTransaction, on_done: OnCommitted) -> None:
        producer_id, producer_epoch = end.producer
        partition = self._partitions.find(topic, None, index)
        if partition.is_internal:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"there are no transactions in {topic}")
        end.check(partition.log.producers)
        batch = build_end_transaction_marker(
            end.marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=self._clock.now_ms()
        )
        result = partition.append(batch, True, AppendOrigin.COORDINATOR)
        if partition.log.settings.is_relaxed:
            self._partitions.note_relaxed(partition)
        partition.wait_replicated(result.last_offset + 1, self._once_durable(partition, on_done))

    def _once_durable(self, partition: Partition, on_done: OnCommitted) -> OnCommitted:
        """On a topic with relaxed durability a power cut could take the marker and leave the records, when no coordinator knows
        of the transaction any more."""
        return partial(self._written, partition, on_done)

    def _written(self, partition: Partition, on_done: OnCommitted, error: Exception | None) -> None:
        if error is None and partition.log.settings.is_relaxed:
            self._partitions.wait_durable(partition, on_done)
        else:
            on_done(error)

    def _delivered(self, delivery: _Delivery, error: Exception | None) -> None:
        sending = delivery.sending
        if sending.is_cancelled:
            return
        if error is None or not sending.is_retried:
            sending.on_written(delivery.place, error)
        elif self._ends_it(delivery, error):
            if not isinstance(error, ApiError):
                self._tell("transaction_marker_refused", delivery, error)
            sending.on_written(delivery.place, None)
        else:
            self._retry(delivery, error)

    def _ends_it(self, delivery: _Delivery, error: Exception) -> bool:
        """The partition is gone; or the transaction that this would end is not open there."""
        if isinstance(error, ApiError):
            return error.code in _GONE
        if isinstance(error, TransactionCoordinatorFenced):
            # Of a later coordinator: if it left the transaction open, only a marker in its epoch can end that.
            return not self._is_open(delivery)
        return isinstance(error, InvalidProducerEpoch)

    def _is_open(self, delivery: _Delivery) -> bool:
        topic, index = delivery.place
        entry = self._partitions.find(topic, None, index).log.producers.entry(delivery.sending.end.producer[0])
        return entry is not None and entry.current_transaction_first_offset >= 0

    def _retry(self, delivery: _Delivery, error: Exception) -> None:
        self.retries += 1
        if delivery.retry_ms == RETRY_MS_MIN:
            self._tell("transaction_marker_delayed", delivery, error)
        delay_ms = delivery.retry_ms
        delivery.retry_ms = min(delay_ms * 2, RETRY_MS_MAX)

        def again() -> None:
            delivery.sending.again.append(delivery)
            self._enqueue(delivery.sending)

        self._scheduler.schedule(delay_ms, again)

    def _tell(self, event: str, delivery: _Delivery, error: Exception) -> None:
        (topic, index), (producer_id, _) = delivery.place, delivery.sending.end.producer
        self._report(event, {"partition": f"{topic}-{index}", "producer_id": producer_id, "error": str(error) or repr(error)})
