"""Verifies the Produce requests of transactions before their records are written, in the order of their arrival.

Most are written at once: the transaction is open in all their partitions, or its coordinator can verify them at once. A request
may have to wait, and so does everything that its producer sends after it; the records of its request outlive its frame.

A transaction may end while a request waits, so everything about the request is checked again before its records are written. A
batch that was told to retry must not be overtaken by the next one: a log that does not know the producer would take that one for
its first.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidelog.broker.partitions import Partitions
from tidelog.broker.transactions.client_errors import client_kind
from tidelog.broker.transactions.verification import PartitionCodes, TransactionVerification
from tidelog.controller.errors import ApiError
from tidelog.log.errors import LogError
from tidelog.metadata.image import ClusterImage
from tidelog.records.header import HEADER_SIZE, NO_PRODUCER_ID, BatchHeader, read_header
from tidelog.records.topic_partition import TopicPartition
from tidelog.replication.errors import ReplicationError
from tidelog.transactions.coordinator import TransactionPartitions
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import ProduceRequest

ABORTABLE_SINCE = 11
VERSION_2_SINCE = 12
# The limit for all waiting requests together. Requests beyond it are told to retry.
WAITING_BYTES_MAX = 64 << 20
# The maximum number of remembered batches that were told to retry. Beyond it the oldest are forgotten, and their producers may
# have to abort.
POSTPONED_MAX = 10_000

RETRY_LATER = ErrorCode.NOT_ENOUGH_REPLICAS
_RETRIABLE = (RETRY_LATER, ErrorCode.CONCURRENT_TRANSACTIONS)

AppendVerified = Callable[[PartitionCodes], None]


class _ProduceCall(NamedTuple):
    request: ProduceRequest
    api_version: int
    append: AppendVerified


class _Unverified(NamedTuple):
    """The batches of a request that the coordinator must verify. All transactional batches must come from one producer; others
    are refused."""

    producer_id: int
    producer_epoch: int
    batches: dict[TopicPartition, BatchHeader]
    refused: dict[TopicPartition, ErrorCode]


class TransactionalProduce:
    __slots__ = ("_image", "_is_enabled", "_partitions", "_postponed", "_queues", "_verification", "waiting_bytes")

    def __init__(
        self, image: ClusterImage, partitions: Partitions, verification: TransactionVerification, is_enabled: bool
    ) -> None:
        """``is_enabled`` is the setting ``transaction.partition.verification.enable``. Partitions of v2 clients are added in any
        case."""
        self._image = image
        self._partitions = partitions
        self._verification = verification
        self._is_enabled = is_enabled
        # Maps a producer id to its waiting requests; the first one is being verified.
        self._queues: dict[int, deque[_ProduceCall]] = {}
        self.waiting_bytes = 0
        # Maps a producer id and partition to the epoch and the lowest sequence that was told to retry.
        self._postponed: dict[tuple[int, TopicPartition], tuple[int, int]] = {}

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def submit(self, request: ProduceRequest, api_version: int, append: AppendVerified) -> None:
        """``append`` gets a code for each partition that was verified. The request's records must stay as they are."""
        self._submit(_ProduceCall(request, api_version, append))

    def _submit(self, call: _ProduceCall) -> None:
        unverified = self._unverified(call)
        queue = self._queues.get(unverified.producer_id)
        if queue is not None:
            if self._has_room(call):
                self._wait(queue, call)
        elif unverified.batches:
            self._verify(call, unverified)
        else:
            call.append(unverified.refused)

    def _verify(self, call: _ProduceCall, unverified: _Unverified) -> None:
        producer_id = unverified.producer_id
        queue: deque[_ProduceCall] | None = None
        is_answered = False

        def verified(codes: PartitionCodes) -> None:
            nonlocal is_answered
            if queue is not None:
                first = queue.popleft()
                self.waiting_bytes -= _size(first.request)
                self._append(first, self._unverified(first), codes)
                self._submit_waiting(producer_id, queue)
            elif not is_answered:
                is_answered = True
                self._append(call, unverified, codes)

        partitions = TransactionPartitions(
            call.request.transactional_id or "", producer_id, unverified.producer_epoch, list(unverified.batches)
        )
        client = client_kind(call.api_version, abortable_since=ABORTABLE_SINCE, version_2_since=VERSION_2_SINCE)
        self._verification.verify(partitions, client, verified)
        if is_answered:
            return
        if self._has_room(call):
            queue = self._queues[producer_id] = deque()
            self._wait(queue, call)
        else:
            is_answered = True  # The client has been told to retry, so a later answer must not write the batch.

    def _append(self, call: _ProduceCall, unverified: _Unverified, verified: PartitionCodes) -> None:
        """Append the request. ``unverified`` is current. A partition in it without a code was open before and no longer is."""
        codes = {**verified, **unverified.refused}
        for partition, header in unverified.batches.items():
            code = self._in_order(partition, header, codes.get(partition, RETRY_LATER))
            # The epoch of a v2 client is bumped with every transaction, so its first batch anywhere has sequence 0.
            is_first = code is ErrorCode.NONE and self._is_unknown(partition, header.producer_id)
            if is_first and header.base_sequence != 0 and call.api_version >= VERSION_2_SINCE:
                code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            codes[partition] = code
        call.append(codes)

    def _has_room(self, call: _ProduceCall) -> bool:
        """Whether the request may wait. Otherwise the client is told to retry."""
        if not self.waiting_bytes or self.waiting_bytes + _size(call.request) <= WAITING_BYTES_MAX:
            return True
        batches = dict(self._transactional_batches(call.request))
        call.append({key: self._in_order(key, header, RETRY_LATER) for key, header in batches.items()})
        return False

    def _wait(self, queue: deque[_ProduceCall], call: _ProduceCall) -> None:
        self.waiting_bytes += _size(call.request)
        queue.append(call)

    def _submit_waiting(self, producer_id: int, queue: deque[_ProduceCall]) -> None:
        """Submit the next requests, which may find the transaction open now, until one has to wait again."""
        del self._queues[producer_id]
        while queue:
            call = queue.popleft()
            self.waiting_bytes -= _size(call.request)
            self._submit(call)
            again = self._queues.get(producer_id)
            if again is not None:
                again.extend(queue)
                return

    # -- what must be verified -----------------------------------------------------------------------------------------------

    def _unverified(self, call: _ProduceCall) -> _Unverified:
        batches: dict[TopicPartition, BatchHeader] = {}
        refused: dict[TopicPartition, ErrorCode] = {}
        producer = NO_PRODUCER_ID, -1
        must_verify = self._is_enabled or call.api_version >= VERSION_2_SINCE
        for partition, header in self._transactional_batches(call.request):
            if producer[0] == NO_PRODUCER_ID:
                producer = header.producer_id, header.producer_epoch
            if (header.producer_id, header.producer_epoch) != producer:
                refused[partition] = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            elif must_verify and partition not in batches and not self._is_open(partition, header):
                batches[partition] = header
        return _Unverified(*producer, batches, refused)

    def _transactional_batches(self, request: ProduceRequest) -> Iterator[tuple[TopicPartition, BatchHeader]]:
        for topic in request.topics:
            name = topic.name
            if name is None:
                found = self._image.topic_by_id(topic.topic_id or b"")
                name = "" if found is None else found.name
            for data in topic.partitions:
                records = data.records
                if records is not None and len(records) >= HEADER_SIZE:
                    header = read_header(records)
                    if header.is_transactional:
                        yield (name, data.partition), header

    def _is_open(self, partition: TopicPartition, header: BatchHeader) -> bool:
        """Whether the transaction has records here already, or this batch is a duplicate, or will be refused anyway."""
        if header.producer_id < 0:
            return True
        try:
            found = self._partitions.find(partition[0], None, partition[1])
            if found.is_internal:
                return True
            producers = found.log.producers
            entry = producers.entry(header.producer_id)
            if entry is None:
                return False
            if entry.epoch == header.producer_epoch and entry.current_transaction_first_offset >= 0:
                return True
            return producers.check(header) is not None
        except (ApiError, LogError, ReplicationError, OSError):
            return True

    # -- order ---------------------------------------------------------------------------------------------------------------

    def _in_order(self, partition: TopicPartition, header: BatchHeader, code: ErrorCode) -> ErrorCode:
        key = header.producer_id, partition
        epoch, sequence = header.producer_epoch, header.base_sequence
        postponed = self._postponed.get(key)
        is_behind = postponed is not None and postponed[0] == epoch and sequence > postponed[1]
        if code in _RETRIABLE:
            if not is_behind and self._is_unknown(partition, header.producer_id):
                self._postponed.pop(key, None)
                self._postponed[key] = epoch, sequence
                if len(self._postponed) > POSTPONED_MAX:
                    del self._postponed[next(iter(self._postponed))]
            return code
        if is_behind and code is ErrorCode.NONE and self._is_unknown(partition, header.producer_id):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if postponed is not None:
            del self._postponed[key]
        return code

    def _is_unknown(self, partition: TopicPartition, producer_id: int) -> bool:
        """Whether the log does not know the producer, and would accept any sequence as its first."""
        try:
            return self._partitions.find(partition[0], None, partition[1]).log.producers.entry(producer_id) is None
        except (ApiError, LogError, ReplicationError, OSError):
            return False


def _size(request: ProduceRequest) -> int:
    return sum([len(data.records) for topic in request.topics for data in topic.partitions if data.records is not None])
