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
from tidelog.wire.errors import ErrorCode
from tidelog.wire.kio_adapter import Message
from tidelog.wire.protocol import ApiKey

BATCHED_SINCE = 4

Codes = Mapping[TopicPartition, ErrorCode]


class _Transaction(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_verified_only: bool
    topics: Sequence[Message]

    @property
    def partitions(self) -> list[TopicPartition]:
        return [(topic.name, partition) for topic in self.topics for partition in topic.partitions]


def handle(context: RequestContext, request: Message) -> None:
    transactions = _transactions(request, context.header.api_version)
    answers: list[Codes | None] = [None] * len(transactions)
    if not transactions:
        context.reply(_response(context, transactions, []))
    for position, transaction in enumerate(transactions):
        _Asked(context, transactions, answers, position, transaction).ask()


def _transactions(request: Message, version: int) -> list[_Transaction]:
    if version >= BATCHED_SINCE:
        return [
            _Transaction(each.transactional_id, each.producer_id, each.producer_epoch, each.verify_only, each.topics)
            for each in request.transactions
        ]
    return [
        _Transaction(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            False,
            request.v3_and_below_topics,
        )
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
            self._context.reply_later(lambda: _response(self._context, self._transactions, answers))


def _response(context: RequestContext, transactions: Sequence[_Transaction], answers: Sequence[Codes]) -> dict[str, Any]:
    results = [
        {"transactional_id": transaction.transactional_id, "topic_results": _topic_results(transaction.topics, codes)}
        for transaction, codes in zip(transactions, answers, strict=True)
    ]
    if context.header.api_version >= BATCHED_SINCE:
        return {"error_code": ErrorCode.NONE, "results_by_transaction": results}
    return {"results_by_topic_v3_and_below": results[0]["topic_results"]}


def _topic_results(topics: Sequence[Message], codes: Codes) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": partition, "partition_error_code": codes[topic.name, partition]}
                for partition in topic.partitions
            ],
        }
        for topic in topics
    ]


def _failure(request: Message, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    topics = request.v3_and_below_topics or ()
    codes = {(topic.name, partition): code for topic in topics for partition in topic.partitions}
    return {"error_code": code, "results_by_topic_v3_and_below": _topic_results(topics, codes)}


API = Api(key=ApiKey.ADD_PARTITIONS_TO_TXN, name="AddPartitionsToTxn", versions=(0, 5), handle=handle, failure=_failure)
