"""AddPartitionsToTxn: adds partitions to a transaction before it writes to them, all of them or none.

Up to version 3 a producer sends it; from version 4 on brokers send it to each other, for several transactions at once, some of
them only to be verified.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext, count_topics_and_partitions
from tidelog.broker.transactions.client_errors import ClientKind, coordinator_error
from tidelog.metadata.topics import GROUPS_TOPIC, INTERNAL_TOPICS
from tidelog.ports.steps import Steps
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.coordinator import TransactionPartitions
from tidelog.wire.add_partitions_to_txn import (
    CLIENT_VERSIONS,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    TopicResult,
    decode_add_partitions_to_txn_request,
    encode_add_partitions_to_txn_response,
)
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, decode_request
from tidelog.wire.primitives import ELEMENTS_AT_ONCE_MAX
from tidelog.wire.protocol import ApiKey, RequestHeader

FENCED_SINCE = 2
BATCHED_SINCE = CLIENT_VERSIONS[1] + 1
# Another broker adds the partition for a client of transactions v2.
VERSION_2_SINCE = 5

Codes = Mapping[TopicPartition, ErrorCode]


def decode(header: RequestHeader, frame: memoryview) -> AddPartitionsToTxnRequest | DecodedMessage:
    if header.api_version >= BATCHED_SINCE:
        return decode_request(header, frame)
    return decode_add_partitions_to_txn_request(header, frame)


def handle(context: RequestContext, request: AddPartitionsToTxnRequest | DecodedMessage) -> Steps[None] | None:
    if isinstance(request, AddPartitionsToTxnRequest):
        _Addition(context, request, partial(_reply, context, request.topics)).start()
    elif request.transactions:
        return _BrokerRequest(context, request).start()
    else:
        context.reply({"error_code": ErrorCode.NONE, "results_by_transaction": []})
    return None


class _BrokerRequest:
    """Several transactions, sent by another broker. The request is answered when the last of them has its result."""

    __slots__ = ("_answers", "_context", "_request")

    def __init__(self, context: RequestContext, request: DecodedMessage) -> None:
        self._context = context
        self._request = request
        self._answers: dict[int, Codes] = {}

    def start(self) -> Steps[None]:
        pace = Pace()
        for position, transaction in enumerate(self._request.transactions):
            on_answer = partial(self._answered, position)
            _Addition(self._context, transaction, on_answer, is_verified_only=transaction.verify_only).start()
            if pace.is_pause_due():
                yield

    def _answered(self, position: int, codes: Codes) -> None:
        self._answers[position] = codes
        if len(self._answers) == len(self._request.transactions):
            by_transaction = [
                {
                    "transactional_id": each.transactional_id,
                    "topic_results": _fields(_results(self._context, each.topics, self._answers[position])),
                }
                for position, each in enumerate(self._request.transactions)
            ]
            fields = {"error_code": ErrorCode.NONE, "results_by_transaction": by_transaction}
            self._context.continue_in_slices(self._context.reply_in_slices(fields))


class _Addition:
    """One transaction of a request."""

    __slots__ = ("_context", "_is_verified_only", "_on_answer", "_request")

    def __init__(
        self,
        context: RequestContext,
        transaction: AddPartitionsToTxnRequest | DecodedMessage,
        on_answer: Callable[[Codes], None],
        is_verified_only: bool = False,
    ) -> None:
        self._context = context
        self._request = TransactionPartitions(
            transaction.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            [(topic.name, partition) for topic in transaction.topics for partition in topic.partitions],
        )
        self._on_answer = on_answer
        self._is_verified_only = is_verified_only

    def start(self) -> None:
        request, broker = self._request, self._context.broker
        partitions = request.partitions
        refused = {partition: code for partition in partitions if (code := self._check(partition)) is not ErrorCode.NONE}
        if refused:
            self._answered({**dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED), **refused})
        elif self._is_verified_only:
            broker.transaction_verification.verify_here(request, ClientKind.BROKER, self._answered)
        elif self._context.header.api_version >= VERSION_2_SINCE:
            broker.transaction_verification.add_here(request, ClientKind.BROKER, self._answered)
        else:
            broker.concurrent_transactions.write(
                request.transactional_id,
                lambda coordinator: coordinator.add_partitions(request),
                lambda code: code,
                self._added,
            )

    def _check(self, partition: TopicPartition) -> ErrorCode:
        name, index = partition
        if name in INTERNAL_TOPICS and not (name == GROUPS_TOPIC and self._context.header.api_version >= BATCHED_SINCE):
            # Internal topics are refused: only a group's coordinator adds its own partition.
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topic = self._context.broker.image.topic(name)
        return ErrorCode.NONE if topic is not None and index in topic.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _added(self, code: ErrorCode | None, error: Exception | None) -> None:
        if error is not None:
            code, _ = self._context.code_of(error)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if code is None else code
        shown = coordinator_error(code, self._context.header.api_version, FENCED_SINCE)
        self._answered(dict.fromkeys(self._request.partitions, shown))

    def _answered(self, codes: Codes) -> None:
        try:
            self._on_answer(codes)
        except Exception as error:
            self._context.fail(error)  # This may run as a callback, and an exception would reach nobody.


def _reply(context: RequestContext, topics: Sequence[AddPartitionsToTxnTopic], codes: Codes) -> None:
    """Answer a client, which sends one transaction per request."""
    version = context.header.api_version
    results = _results(context, topics, codes)
    context.reply_parts([encode_add_partitions_to_txn_response(version, results, context.throttle_time_ms())])


def _results(context: RequestContext, topics: Sequence[AddPartitionsToTxnTopic], codes: Codes) -> list[TopicResult]:
    for code in codes.values():
        if code is not ErrorCode.NONE:
            context.count_error(code)
    return [(topic.name, [(index, codes[topic.name, index]) for index in topic.partitions]) for topic in topics]


def _fields(topics: Sequence[TopicResult]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "results_by_partition": [{"partition_index": index, "partition_error_code": code} for index, code in results],
        }
        for name, results in topics
    ]


def _failure(request: AddPartitionsToTxnRequest | DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    topics = request.topics if isinstance(request, AddPartitionsToTxnRequest) else ()
    results = [(topic.name, [(index, code) for index in topic.partitions]) for topic in topics]
    return {"error_code": code, "results_by_topic_v3_and_below": _fields(results)}


def _count_elements(request: AddPartitionsToTxnRequest | DecodedMessage) -> int:
    if isinstance(request, AddPartitionsToTxnRequest):
        return count_topics_and_partitions(request)
    return sum([1 + count_topics_and_partitions(transaction) for transaction in request.transactions])


API = Api(
    key=ApiKey.ADD_PARTITIONS_TO_TXN,
    name="AddPartitionsToTxn",
    versions=(0, 5),
    handle=handle,
    failure=_failure,
    decode=decode,
    count_elements=_count_elements,
    elements_max=ELEMENTS_AT_ONCE_MAX,
)
