"""Produce requests of transactions: verified before their records are written, in the order in which they came.

Most are written at once: the transaction is open in all their partitions, or its coordinator can say at once that it may be. One
that has to wait is copied, since its frame is gone by then, and so is everything that its producer sends after it.
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
from tidelog.replication.errors import ReplicationError
from tidelog.transactions.transaction import TopicPartition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import ProducePartition, ProduceRequest

ABORTABLE_SINCE = 11
VERSION_2_SINCE = 12

Append = Callable[[ProduceRequest, Verdicts], None]


class _Held(NamedTuple):
    request: ProduceRequest
    api_version: int
    append: Append


class _Unverified(NamedTuple):
    """What a request has to be asked for. All its transactional batches are of one producer, or it is refused."""

    producer_id: int
    producer_epoch: int
    partitions: list[TopicPartition]
    refused: dict[TopicPartition, ErrorCode]


class TransactionalProduce:
    __slots__ = ("_image", "_is_enabled", "_partitions", "_queues", "_verification")

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

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def submit(self, request: ProduceRequest, api_version: int, append: Append) -> None:
        """``append`` gets the request, or a copy, and a code for each partition that was asked about."""
        held = _Held(request, api_version, append)
        unverified = self._unverified(request, api_version)
        queue = self._queues.get(unverified.producer_id)
        if queue is not None:
            queue.append(_copied(held))
            return
        if not unverified.partitions:
            append(request, unverified.refused)
            return
        self._ask(held, unverified)

    def _ask(self, held: _Held, unverified: _Unverified) -> None:
        producer_id = unverified.producer_id
        queue: deque[_Held] | None = None
        is_answered = False

        def verified(verdicts: Verdicts) -> None:
            nonlocal is_answered
            is_answered = True
            refusals = {**unverified.refused, **verdicts}
            if queue is None:
                held.append(held.request, refusals)
                return
            first = queue.popleft()
            first.append(first.request, refusals)
            self._go_on(producer_id, queue)

        question = Question(
            held.request.transactional_id or "",
            producer_id,
            unverified.producer_epoch,
            unverified.partitions,
            _client_kind(held.api_version),
        )
        self._verification.verify(question, verified)
        if not is_answered:
            queue = self._queues[producer_id] = deque((_copied(held),))

    def _go_on(self, producer_id: int, queue: deque[_Held]) -> None:
        """The next one, which may find the transaction open now; until one has to wait again."""
        del self._queues[producer_id]
        while queue:
            held = queue.popleft()
            self.submit(*held)
            again = self._queues.get(producer_id)
            if again is not None:
                again.extend(queue)
                return

    def _unverified(self, request: ProduceRequest, api_version: int) -> _Unverified:
        partitions: list[TopicPartition] = []
        refused: dict[TopicPartition, ErrorCode] = {}
        producer = NO_PRODUCER_ID, -1
        is_asked = self._is_enabled or api_version >= VERSION_2_SINCE
        for partition, header in self._transactional_batches(request):
            if producer[0] == NO_PRODUCER_ID:
                producer = header.producer_id, header.producer_epoch
            if (header.producer_id, header.producer_epoch) != producer:
                refused[partition] = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            elif is_asked and not self._is_open(partition, header):
                partitions.append(partition)
        return _Unverified(*producer, partitions, refused)

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
        try:
            log = self._partitions.find(partition[0], None, partition[1]).log
            entry = log.producers.entry(header.producer_id)
            if entry is None:
                return False
            if entry.epoch == header.producer_epoch and entry.current_transaction_first_offset >= 0:
                return True
            return log.producers.check(header) is not None
        except (ApiError, LogError, ReplicationError, OSError):
            return True


def _client_kind(api_version: int) -> ClientKind:
    if api_version >= VERSION_2_SINCE:
        return ClientKind.VERSION_2
    return ClientKind.ABORTABLE if api_version >= ABORTABLE_SINCE else ClientKind.INVALID_STATE


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
