"""AddPartitionsToTxn: the partitions that a transaction writes to, all or none of them.

Up to version 3 it is one producer's request; from version 4 on it is what brokers ask each other, several transactions at once,
some only to be verified.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.transaction_verification import ClientKind, Question
from tidelog.metadata.topics import GROUPS_TOPIC, INTERNAL_TOPICS
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.results import FENCED_SINCE_ADD_PARTITIONS, error_for_version
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
from tidelog.wire.protocol import ApiKey, RequestHeader

BATCHED_SINCE = CLIENT_VERSIONS[1] + 1

Codes = Mapping[TopicPartition, ErrorCode]


def decode(header: RequestHeader, frame: memoryview) -> AddPartitionsToTxnRequest | DecodedMessage:
    if header.api_version >= BATCHED_SINCE:
        return decode_request(header, frame)
    return decode_add_partitions_to_txn_request(header, frame)


def handle(context: RequestContext, request: AddPartitionsToTxnRequest | DecodedMessage) -> None:
    if isinstance(request, AddPartitionsToTxnRequest):
        transactional_id, producer_id, producer_epoch, topics = request
        _Asked(context, transactional_id, producer_id, producer_epoch, topics, partial(_reply, context, topics)).ask()
    elif request.transactions:
        _Batch(context, request).ask()
    else:
        context.reply({"error_code": ErrorCode.NONE, "results_by_transaction": []})


class _Batch:
    """What another broker asks: the last transaction to be answered answers the request."""

    __slots__ = ("_answers", "_context", "_request")

    def __init__(self, context: RequestContext, request: DecodedMessage) -> None:
        self._context = context
        self._request = request
        self._answers: dict[int, Codes] = {}

    def ask(self) -> None:
        for position, each in enumerate(self._request.transactions):
            _Asked(
                self._context,
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.topics,
                partial(self._answered, position),
                is_verified_only=each.verify_only,
            ).ask()

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
            self._context.reply({"error_code": ErrorCode.NONE, "results_by_transaction": by_transaction})


class _Asked:
    """One transaction of a request."""

    __slots__ = ("_context", "_is_verified_only", "_on_answer", "_partitions", "_producer", "_transactional_id")

    def __init__(
        self,
        context: RequestContext,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topics: Sequence[AddPartitionsToTxnTopic],
        on_answer: Callable[[Codes], None],
        is_verified_only: bool = False,
    ) -> None:
        self._context = context
        self._transactional_id = transactional_id
        self._producer = producer_id, producer_epoch
        self._partitions = [(topic.name, partition) for topic in topics for partition in topic.partitions]
        self._on_answer = on_answer
        self._is_verified_only = is_verified_only

    def ask(self) -> None:
        transactional_id, (producer_id, producer_epoch), partitions = self._transactional_id, self._producer, self._partitions
        broker = self._context.broker
        refused = {partition: code for partition in partitions if (code := self._check(partition)) is not ErrorCode.NONE}
        if refused:
            self._answered({**dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED), **refused})
        elif self._is_verified_only:
            question = Question(transactional_id, producer_id, producer_epoch, partitions, ClientKind.BROKER)
            broker.transaction_verification.verify(question, self._answered)
        else:
            broker.settling.write(
                transactional_id,
                lambda machine: machine.add_partitions(transactional_id, producer_id, producer_epoch, partitions),
                _code_itself,
                self._added,
            )

    def _check(self, partition: TopicPartition) -> ErrorCode:
        name, index = partition
        if name in INTERNAL_TOPICS and not (name == GROUPS_TOPIC and self._context.header.api_version >= BATCHED_SINCE):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED  # The broker's own; only a group's coordinator adds its partition.
        topic = self._context.broker.image.topic(name)
        return ErrorCode.NONE if topic is not None and index in topic.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _added(self, code: ErrorCode | None, error: Exception | None) -> None:
        if error is not None:
            code, _ = self._context.code_of(error)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if code is None else code
        shown = error_for_version(code, self._context.header.api_version, FENCED_SINCE_ADD_PARTITIONS)
        self._answered(dict.fromkeys(self._partitions, shown))

    def _answered(self, codes: Codes) -> None:
        try:
            self._on_answer(codes)
        except Exception as error:
            self._context.fail(error)  # This may be a callback, and then nobody else hears of it.


def _code_itself(code: ErrorCode) -> ErrorCode:
    return code


def _reply(context: RequestContext, topics: Sequence[AddPartitionsToTxnTopic], codes: Codes) -> None:
    """To a client."""
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


API = Api(
    key=ApiKey.ADD_PARTITIONS_TO_TXN,
    name="AddPartitionsToTxn",
    versions=(0, 5),
    handle=handle,
    failure=_failure,
    decode=decode,
)
