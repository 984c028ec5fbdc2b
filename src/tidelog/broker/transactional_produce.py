"""Produce requests of transactions: verified before their records are written, in the order in which they came.

Most are written at once: the transaction is open in all their partitions, or its coordinator can say at once that it may be. One
that has to wait is copied, since its frame is gone by then, and so is everything that its producer sends after it.

A transaction may end while a request waits, so everything about it is looked at anew before its records are written. A batch
that was told to come again must not be overtaken by the next one: where nothing is known of a producer, a log would take that
for the first.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidelog.broker.partitions import Partitions
from tidelog.broker.transaction_verification import ClientKind, Question, TransactionVerification, Verdicts
from tidelog.controller.errors import ApiError
from tidelog.log.errors import LogError
from tidelog.metadata.image import ClusterImage
from tidelog.records.header import HEADER_SIZE, NO_PRODUCER_ID, BatchHeader, read_header
from tidelog.records.topic_partition import TopicPartition
from tidelog.replication.errors import ReplicationError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import ProducePartition, ProduceRequest

ABORTABLE_SINCE = 11
VERSION_2_SINCE = 12
# Of all requests that wait. Those beyond it are told to come again.
WAITING_BYTES_MAX = 64 << 20
# Batches that were told to come again. Beyond it the oldest are forgotten: their producers may have to abort.
POSTPONED_MAX = 10_000

COME_AGAIN = ErrorCode.NOT_ENOUGH_REPLICAS
_RETRIABLE = (COME_AGAIN, ErrorCode.CONCURRENT_TRANSACTIONS)

Append = Callable[[ProduceRequest, Verdicts], None]


class _Held(NamedTuple):
    request: ProduceRequest
    api_version: int
    append: Append


class _Unverified(NamedTuple):
    """What a request has to be asked for. All its transactional batches are of one producer, or it is refused."""

    producer_id: int
    producer_epoch: int
    batches: dict[TopicPartition, BatchHeader]
    refused: dict[TopicPartition, ErrorCode]


class TransactionalProduce:
    __slots__ = ("_image", "_is_enabled", "_partitions", "_postponed", "_queues", "_verification", "waiting_bytes")

    def __init__(
        self, image: ClusterImage, partitions: Partitions, verification: TransactionVerification, is_enabled: bool
    ) -> None:
        """``is_enabled``: ``transaction.partition.verification.enable``. Partitions of v2 clients are added all the same."""
        self._image = image
        self._partitions = partitions
        self._verification = verification
        self._is_enabled = is_enabled
        # Producer id -> requests that wait; the first is the one being asked about.
        self._queues: dict[int, deque[_Held]] = {}
        self.waiting_bytes = 0
        # Producer id and partition -> epoch and least sequence that was told to come again.
        self._postponed: dict[tuple[int, TopicPartition], tuple[int, int]] = {}

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def submit(self, request: ProduceRequest, api_version: int, append: Append) -> None:
        """``append`` gets the request, or a copy, and a code for each partition that was asked about."""
        self._submit(_Held(request, api_version, append), is_copy=False)

    def _submit(self, held: _Held, *, is_copy: bool) -> None:
        unverified = self._unverified(held)
        queue = self._queues.get(unverified.producer_id)
        if queue is not None:
            if self._has_room(held):
                self._wait(queue, held, is_copy=is_copy)
        elif unverified.batches:
            self._ask(held, unverified, is_copy=is_copy)
        else:
            held.append(held.request, unverified.refused)

    def _ask(self, held: _Held, unverified: _Unverified, *, is_copy: bool) -> None:
        producer_id = unverified.producer_id
        queue: deque[_Held] | None = None
        is_answered = False

        def verified(verdicts: Verdicts) -> None:
            nonlocal is_answered
            if queue is not None:
                first = queue.popleft()
                self.waiting_bytes -= _size(first.request)
                self._append(first, self._unverified(first), verdicts)
                self._go_on(producer_id, queue)
            elif not is_answered:
                is_answered = True
                self._append(held, unverified, verdicts)

        question = Question(
            held.request.transactional_id or "",
            producer_id,
            unverified.producer_epoch,
            list(unverified.batches),
            _client_kind(held.api_version),
        )
        self._verification.verify(question, verified)
        if is_answered:
            return
        if self._has_room(held):
            queue = self._queues[producer_id] = deque()
            self._wait(queue, held, is_copy=is_copy)
        else:
            is_answered = True  # Whatever is said later: it has been told to come again.

    def _append(self, held: _Held, unverified: _Unverified, verdicts: Verdicts) -> None:
        """``unverified`` as it is now. A partition in it that was not asked about was open, and is not any more."""
        codes = {**verdicts, **unverified.refused}
        for partition, header in unverified.batches.items():
            codes[partition] = self._in_order(partition, header, codes.get(partition, COME_AGAIN))
        held.append(held.request, codes)

    def _has_room(self, held: _Held) -> bool:
        """May it wait? Otherwise it is told to come again."""
        if not self.waiting_bytes or self.waiting_bytes + _size(held.request) <= WAITING_BYTES_MAX:
            return True
        batches = dict(self._transactional_batches(held.request))
        held.append(held.request, {key: self._in_order(key, header, COME_AGAIN) for key, header in batches.items()})
        return False

    def _wait(self, queue: deque[_Held], held: _Held, *, is_copy: bool) -> None:
        self.waiting_bytes += _size(held.request)
        queue.append(held if is_copy else _copied(held))

    def _go_on(self, producer_id: int, queue: deque[_Held]) -> None:
        """The next one, which may find the transaction open now; until one has to wait again."""
        del self._queues[producer_id]
        while queue:
            held = queue.popleft()
            self.waiting_bytes -= _size(held.request)
            self._submit(held, is_copy=True)
            again = self._queues.get(producer_id)
            if again is not None:
                again.extend(queue)
                return

    # -- what is asked about -------------------------------------------------------------------------------------------------

    def _unverified(self, held: _Held) -> _Unverified:
        batches: dict[TopicPartition, BatchHeader] = {}
        refused: dict[TopicPartition, ErrorCode] = {}
        producer = NO_PRODUCER_ID, -1
        is_asked = self._is_enabled or held.api_version >= VERSION_2_SINCE
        for partition, header in self._transactional_batches(held.request):
            if producer[0] == NO_PRODUCER_ID:
                producer = header.producer_id, header.producer_epoch
            if (header.producer_id, header.producer_epoch) != producer:
                refused[partition] = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            elif is_asked and partition not in batches and not self._is_open(partition, header):
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
        """The transaction has records here already, or these have been written before; or they will be refused anyway."""
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
        """To the log, which then takes any sequence for the first."""
        try:
            return self._partitions.find(partition[0], None, partition[1]).log.producers.entry(producer_id) is None
        except (ApiError, LogError, ReplicationError, OSError):
            return False


def _client_kind(api_version: int) -> ClientKind:
    if api_version >= VERSION_2_SINCE:
        return ClientKind.VERSION_2
    return ClientKind.ABORTABLE if api_version >= ABORTABLE_SINCE else ClientKind.INVALID_STATE


def _size(request: ProduceRequest) -> int:
    return sum([len(data.records) for topic in request.topics for data in topic.partitions if data.records is not None])


def _copied(held: _Held) -> _Held:
    request = held.request
    topics = [
        topic._replace(
            partitions=[
                ProducePartition(data.partition, None if data.records is None else memoryview(bytes(data.records)))
                for data in topic.partitions
            ]
        )
        for topic in request.topics
    ]
    return held._replace(request=request._replace(topics=topics))
