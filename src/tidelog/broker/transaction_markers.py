"""Markers that end a transaction, on their way to its partitions.

Asynchronously and one by one, though this broker leads every partition: so half-marked transactions exist, and are brought to
their end, on one broker as in a cluster. A partition that cannot take its marker now is tried again until it can, or until the
coordinator that sent it is gone; one that no longer exists needs none.

A marker for ``__consumer_offsets`` goes through the group coordinator's shard, which alone writes there.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.partitions import Partitions
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import OnCommitted, Scheduler
from tidelog.coordinator.shard import Producer
from tidelog.groups.machine import GroupMachine
from tidelog.log.append_check import AppendOrigin
from tidelog.log.errors import InvalidProducerEpoch, TransactionCoordinatorFenced
from tidelog.metadata.topics import GROUPS_TOPIC
from tidelog.ports.clock import Clock
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.transactions.environment import MarkersToSend, OnPartitionMarked
from tidelog.transactions.transaction import TopicPartition
from tidelog.wire.errors import ErrorCode

# About a millisecond of appends.
MARKERS_PER_SLICE = 32
RETRY_MS_MIN = 50
RETRY_MS_MAX = 5_000


class _Sending:
    """All markers of one decision."""

    __slots__ = ("is_cancelled", "marker", "on_marked", "producer")

    def __init__(self, markers: MarkersToSend, on_marked: OnPartitionMarked) -> None:
        control_type = ControlType.COMMIT if markers.is_commit else ControlType.ABORT
        self.marker = EndTransactionMarker(control_type, markers.coordinator_epoch)
        self.producer = markers.producer_id, markers.producer_epoch
        self.on_marked = on_marked
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class _Delivery:
    """One marker for one partition."""

    __slots__ = ("partition", "retry_ms", "sending", "topic")

    def __init__(self, sending: _Sending, topic: str, partition: int) -> None:
        self.sending = sending
        self.topic = topic
        self.partition = partition
        self.retry_ms = RETRY_MS_MIN


class TransactionMarkerSender:
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
        self._queue: deque[_Delivery] = deque()
        self._is_scheduled = False
        self.retries = 0

    def __len__(self) -> int:
        return len(self._queue)

    def send(self, markers: MarkersToSend, on_marked: OnPartitionMarked) -> _Sending:
        sending = _Sending(markers, on_marked)
        for topic, partitions in markers.partitions:
            self._queue.extend(_Delivery(sending, topic, partition) for partition in partitions)
        self._schedule()
        return sending

    def _schedule(self) -> None:
        if self._queue and not self._is_scheduled:
            self._is_scheduled = True
            self._scheduler.schedule(0, self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        for _ in range(min(MARKERS_PER_SLICE, len(self._queue))):
            self._deliver(self._queue.popleft())
        self._schedule()

    def _deliver(self, delivery: _Delivery) -> None:
        if delivery.sending.is_cancelled:
            return
        sending = delivery.sending
        done = partial(self._delivered, delivery)
        try:
            if delivery.topic == GROUPS_TOPIC:
                self.to_group_coordinator(delivery.partition, sending.producer, sending.marker, done)
            else:
                self.to_partition((delivery.topic, delivery.partition), sending.producer, sending.marker, done)
        except Exception as error:
            self._delivered(delivery, error)

    def to_group_coordinator(self, index: int, producer: Producer, marker: EndTransactionMarker, on_done: OnCommitted) -> None:
        self._groups.shard(index).end_transaction(producer, marker, on_done)

    def to_partition(self, place: TopicPartition, producer: Producer, marker: EndTransactionMarker, on_done: OnCommitted) -> None:
        producer_id, producer_epoch = producer
        partition = self._partitions.find(place[0], None, place[1])
        batch = build_end_transaction_marker(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=self._clock.now_ms()
        )
        result = partition.append(batch, True, AppendOrigin.COORDINATOR)
        if partition.log.settings.is_relaxed:
            self._partitions.note_relaxed(partition)
        partition.wait_replicated(result.last_offset + 1, on_done)

    def _delivered(self, delivery: _Delivery, error: Exception | None) -> None:
        sending = delivery.sending
        if sending.is_cancelled:
            return
        if error is not None and not _ends_it(error):
            self._retry(delivery, error)
            return
        if isinstance(error, InvalidProducerEpoch | TransactionCoordinatorFenced):
            facts = {"partition": f"{delivery.topic}-{delivery.partition}", "producer_id": sending.producer[0]}
            self._report("transaction_marker_refused", {**facts, "error": str(error)})
        sending.on_marked(delivery.topic, delivery.partition)

    def _retry(self, delivery: _Delivery, error: Exception) -> None:
        self.retries += 1
        if delivery.retry_ms == RETRY_MS_MIN:
            facts = {"partition": f"{delivery.topic}-{delivery.partition}", "producer_id": delivery.sending.producer[0]}
            self._report("transaction_marker_delayed", {**facts, "error": str(error) or repr(error)})
        delay_ms = delivery.retry_ms
        delivery.retry_ms = min(delay_ms * 2, RETRY_MS_MAX)

        def again() -> None:
            if not delivery.sending.is_cancelled:
                self._queue.append(delivery)
                self._schedule()

        self._scheduler.schedule(delay_ms, again)


def _ends_it(error: Exception) -> bool:
    """The partition is gone; or it has heard of a later epoch, so that the transaction that this would end is not open there."""
    if isinstance(error, ApiError):
        return error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    return isinstance(error, InvalidProducerEpoch | TransactionCoordinatorFenced)
