"""Sends columns to topics over our own connections, idempotently, in a transaction or without one.

A request has at most one batch for each partition, because brokers accept no more. Requests to a broker go one after the other:
the next chunk is encoded while the last one is under way, and whatever fails in a way that may pass is sent again, with the same
sequence numbers, before anything else, so that rows are neither doubled nor reordered. Leaders are looked up again after every
failure.

After an error that was raised the producer must not be used again: nobody knows what the brokers have taken.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.client.fetch.lookup import PartitionLookup
from tidelog.client.produce.encoding import BatchBody, ProducerIdentity, build
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.transactions.fenced_writer import ALL_IN_SYNC_REPLICAS, FENCED, FencedWriter, WriterFenced
from tidelog.client.wire.connection import BrokerConnection
from tidelog.client.wire.errors import BrokerError, ClientError, InvalidAnswer, check_code
from tidelog.client.wire.retries import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, is_worth_another_attempt
from tidelog.records.compression import CompressionType
from tidelog.records.header import SEQUENCE_COUNT
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    ProduceTopic,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.wire.protocol import ApiKey

DELIVERY_SECONDS_MAX = 120.0
# From version 12 on, a broker would add partitions to the transaction by itself; from 13 on, topics are named by id.
_VERSION_MAX = 11


class _SentBatch(NamedTuple):
    partition: TopicPartition
    data: bytes


class _Sent(NamedTuple):
    """A request that is under way."""

    node_id: int
    connection: BrokerConnection
    version: int
    batches: list[_SentBatch]


class ColumnProducer:
    """For one thread."""

    def __init__(self, lookup: PartitionLookup, compression: CompressionType, transaction: tuple[str, int] | None = None) -> None:
        """``transaction`` is a transactional id, which this takes over, and the time-out in milliseconds."""
        self._lookup = lookup
        self._brokers = lookup.brokers
        self._compression = compression
        self._transactional_id = transaction[0] if transaction is not None else None
        self._writer = FencedWriter(self._brokers, *transaction) if transaction is not None else None
        self._identity: ProducerIdentity | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._under_way: list[_Sent] = []
        self._failed: list[tuple[_SentBatch, ClientError]] = []

    @property
    def identity(self) -> ProducerIdentity:
        """The producer's id and epoch; looked up on the first use."""
        if self._identity is None:
            if self._writer is not None:
                self._writer.begin()
                self._identity = ProducerIdentity(self._writer.producer_id, self._writer.producer_epoch, True)
            else:
                self._identity = self._brokers.patiently(self._ask_identity, is_worth_another_attempt)
        return self._identity

    def _ask_identity(self) -> ProducerIdentity:
        fields = {"transactional_id": None, "transaction_timeout_ms": -1, "producer_id": -1, "producer_epoch": -1}
        answer = self._brokers.request_any(ApiKey.INIT_PRODUCER_ID, fields)
        check_code(answer.error_code, "no producer id")
        return ProducerIdentity(answer.producer_id, answer.producer_epoch, False)

    def send(self, bodies: Iterable[BatchBody], partitions: Sequence[TopicPartition]) -> None:
        """Send the batches; ``partitions`` has the destinations by their numbers. The last of them are still under way when this
        returns."""
        waiting: dict[TopicPartition, deque[BatchBody]] = {}
        for body in bodies:
            waiting.setdefault(partitions[body.place], deque()).append(body)
        new = [partition for partition in waiting if partition not in self._added]
        if new and self._writer is not None:
            self.identity  # noqa: B018 - a transaction begins with its producer's id
            self._writer.add_partitions(new)
            self._added.update(new)
        while waiting:
            batches = [self._built(partition, bodies.popleft()) for partition, bodies in waiting.items()]
            self.flush()
            self._post(batches)
            waiting = {partition: bodies for partition, bodies in waiting.items() if bodies}

    def flush(self) -> None:
        """Return when everything is written to all in-sync replicas."""
        deadline = time.monotonic() + DELIVERY_SECONDS_MAX
        pause_seconds = PAUSE_SECONDS_MIN
        self._receive()
        while self._failed:
            if time.monotonic() > deadline:
                raise self._failed[0][1]
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)
            again, self._failed = self._failed, []
            self._post([batch for batch, _ in again])
            self._receive()

    def abort(self) -> None:
        """End the transaction, if there is one, without its rows."""
        for sent in self._under_way:
            self._brokers.discard(sent.connection)
        self._under_way.clear()
        if self._writer is not None and self._identity is not None:
            self._writer.abort()

    def _built(self, partition: TopicPartition, body: BatchBody) -> _SentBatch:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + body.record_count) % SEQUENCE_COUNT
        return _SentBatch(partition, build(body, self.identity, sequence, self._compression))

    # -- requests -------------------------------------------------------------------------------------------------------------

    def _post(self, batches: Sequence[_SentBatch]) -> None:
        by_leader: dict[int, list[_SentBatch]] = {}
        for batch in batches:
            try:
                by_leader.setdefault(self._lookup.leader(batch.partition), []).append(batch)
            except ClientError as error:
                self._fail([batch], error)
        for node_id, theirs in by_leader.items():
            connection = None
            try:
                connection = self._brokers.borrow(node_id)
                version = min(connection.version_of(ApiKey.PRODUCE), _VERSION_MAX)
                request = encode_produce_request(version, self._request(theirs))
                connection.send(ApiKey.PRODUCE, version, request, self._brokers.request_seconds_max)
                self._under_way.append(_Sent(node_id, connection, version, theirs))
            except ClientError as error:
                if connection is not None:
                    self._brokers.discard(connection)
                self._fail(theirs, error)

    def _fail(self, batches: Iterable[_SentBatch], error: ClientError) -> None:
        """Keep the batches, to be sent again to whoever leads their partitions then. Raises an error that will not pass."""
        if not is_worth_another_attempt(error):
            raise error
        self._brokers.close_idle()
        for batch in batches:
            self._lookup.forget(batch.partition.topic)
            self._failed.append((batch, error))

    def _request(self, batches: Sequence[_SentBatch]) -> ProduceRequest:
        topics: dict[str, list[ProducePartition]] = {}
        for (topic, partition), data in batches:
            topics.setdefault(topic, []).append(ProducePartition(partition, memoryview(data)))
        return ProduceRequest(
            self._transactional_id,
            ALL_IN_SYNC_REPLICAS,
            int(self._brokers.request_seconds_max * 1000),
            [ProduceTopic(topic, None, partitions) for topic, partitions in topics.items()],
        )

    def _receive(self) -> None:
        """Wait for the answers to all that is under way."""
        while self._under_way:
            sent = self._under_way.pop()
            try:
                results = self._results(sent)
            except ClientError as error:
                self._brokers.discard(sent.connection)
                self._fail(sent.batches, error)
                continue
            self._brokers.give_back(sent.node_id, sent.connection)
            for batch in sent.batches:
                problem = _problem(batch.partition, results.get(batch.partition))
                if problem is not None:
                    self._fail([batch], problem)

    def _results(self, sent: _Sent) -> dict[TopicPartition, ProduceResult]:
        frame, position = sent.connection.receive(ApiKey.PRODUCE, sent.version, self._brokers.request_seconds_max)
        try:
            response = decode_produce_response(sent.version, frame, position)
        except MalformedRequest as error:
            raise InvalidAnswer(f"{sent.connection.address} sent an invalid response to PRODUCE: {error}") from error
        return {
            TopicPartition(topic.name or "", result.partition): result for topic in response.topics for result in topic.partitions
        }


def _problem(partition: TopicPartition, result: ProduceResult | None) -> ClientError | None:
    """None if the batch is written."""
    name = f"{partition.topic}[{partition.partition}]"
    if result is None:
        return InvalidAnswer(f"the answer to PRODUCE lacks {name}")
    # A batch that was sent again because its answer was lost.
    if result.error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return None
    if result.error in FENCED:
        return WriterFenced(f"{name}: {result.error.message}")
    return BrokerError(result.error, name, result.error_message)
