"""AddPartitionsToTxn: the partitions that a transaction writes to, all or none of them.

Up to version 3 it is one producer's request; from version 4 on it is what brokers ask each other, several transactions at once,
some only to be verified.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.transaction_verification import ClientKind, Question
from tidelog.metadata.topics import GROUPS_TOPIC, INTERNAL_TOPICS
from tidelog.transactions.results import FENCED_SINCE_ADD_PARTITIONS, error_for_version
from tidelog.transactions.transaction import TopicPartition
from tidelog.wire.add_partitions_to_txn import (
    CLIENT_VERSIONS,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    TopicResult,
    decode_add_partitions_to_txn_request,
    encode_add_partitions_to_txn_response,
)
from tidelog.wire.errors import ErrorCode
from tidelog.wire.kio_adapter import Message, decode_request
from tidelog.wire.protocol import ApiKey, RequestHeader

BATCHED_SINCE = CLIENT_VERSIONS[1] + 1

Codes = Mapping[TopicPartition, ErrorCode]


class _Transaction(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_verified_only: bool
    topics: Sequence[AddPartitionsToTxnTopic]

    @property
    def partitions(self) -> list[TopicPartition]:
        return [(topic.name, partition) for topic in self.topics for partition in topic.partitions]


def decode(header: RequestHeader, frame: memoryview) -> AddPartitionsToTxnRequest | Message:
    if header.api_version >= BATCHED_SINCE:
        return decode_request(header, frame)
    return decode_add_partitions_to_txn_request(header, frame)


def handle(context: RequestContext, request: AddPartitionsToTxnRequest | Message) -> None:
    transactions = _transactions(request)
    answers: list[Codes | None] = [None] * len(transactions)
    if not transactions:
        _reply(context, transactions, [])
    for position, transaction in enumerate(transactions):
        _Asked(context, transactions, answers, position, transaction).ask()


def _transactions(request: AddPartitionsToTxnRequest | Message) -> list[_Transaction]:
    if isinstance(request, AddPartitionsToTxnRequest):
        transactional_id, producer_id, producer_epoch, topics = request
        return [_Transaction(transactional_id, producer_id, producer_epoch, False, topics)]
    return [
        _Transaction(each.transactional_id, each.producer_id, each.producer_epoch, each.verify_only, each.topics)
        for each in request.transactions
    ]


class _Asked:
    """One transaction of a request; the last to be answered answers the request."""

    __slots__ = ("_answers", "_context", "_position", "_transaction", "_transactions")

    def __init__(
        self,
        context: RequestContext,
        transactions: list[_Transaction],
        answers: list[Codes | None],
        position: int,
        transaction: _Transaction,
    ) -> None:
        self._context = context
        self._transactions = transactions
        self._answers = answers
        self._position = position
        self._transaction = transaction

    def ask(self) -> None:
        transactional_id, producer_id, producer_epoch, is_verified_only, _ = self._transaction
        partitions = self._transaction.partitions
        broker = self._context.broker
        refused = {partition: code for partition in partitions if (code := self._check(partition)) is not ErrorCode.NONE}
        if refused:
            self._answered({**dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED), **refused})
        elif is_verified_only:
            question = Question(transactional_id, producer_id, producer_epoch, partitions, ClientKind.BROKER)
            broker.transaction_verification.verify(question, self._answered)
        else:
            broker.settling.write(
                transactional_id,
                lambda machine: machine.add_partitions(transactional_id, producer_id, producer_epoch, partitions),
                lambda code: code,
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
        self._answered(dict.fromkeys(self._transaction.partitions, shown))

    def _answered(self, codes: Codes) -> None:
        self._answers[self._position] = codes
        answers = [answer for answer in self._answers if answer is not None]
        if len(answers) == len(self._transactions):
            try:
                _reply(self._context, self._transactions, answers)
            except Exception as error:
                self._context.fail(error)  # This may be a callback, and then nobody else hears of it.


def _reply(context: RequestContext, transactions: Sequence[_Transaction], answers: Sequence[Codes]) -> None:
    results = [_topic_results(transaction.topics, codes) for transaction, codes in zip(transactions, answers, strict=True)]
    for topics in results:
        for _, partitions in topics:
            for _, code in partitions:
                if code is not ErrorCode.NONE:
                    context.count_error(code)
    version = context.header.api_version
    if version < BATCHED_SINCE:
        context.reply_parts([encode_add_partitions_to_txn_response(version, results[0], context.throttle_time_ms())])
        return
    by_transaction = [
        {"transactional_id": transaction.transactional_id, "topic_results": _fields(topics)}
        for transaction, topics in zip(transactions, results, strict=True)
    ]
    context.reply({"error_code": ErrorCode.NONE, "results_by_transaction": by_transaction})


def _topic_results(topics: Sequence[AddPartitionsToTxnTopic], codes: Codes) -> list[TopicResult]:
    return [(topic.name, [(index, codes[topic.name, index]) for index in topic.partitions]) for topic in topics]


def _fields(topics: Sequence[TopicResult]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "results_by_partition": [{"partition_index": index, "partition_error_code": code} for index, code in results],
        }
        for name, results in topics
    ]


def _failure(request: AddPartitionsToTxnRequest | Message, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
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
