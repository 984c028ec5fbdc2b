"""Is a partition part of a producer's ongoing transaction? Asked before the first records of a transaction are written to it.

Without this a produce request that comes late, after the end of its transaction, would begin one that nobody knows of and nobody
ends: read_committed would wait at it for ever. Clients of transactions v1 have added the partition before; for those of v2
(KIP-890) it is added here. Clients that do not know an error hear one that makes them try again.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.error_mapping import error_code_of
from tidelog.broker.settling import Settling
from tidelog.coordinator.errors import CoordinatorError
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.machine import TransactionMachine
from tidelog.transactions.transaction import TRANSACTION_VERSION_2
from tidelog.wire.errors import ErrorCode

# Trying again helps, but producers take these for the end, except in answers of a coordinator.
_COORDINATOR_ERRORS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

Verdicts = Mapping[TopicPartition, ErrorCode]
OnVerified = Callable[[Verdicts], None]


class ClientKind(Enum):
    """What whoever asks makes of the answer."""

    BROKER = "takes it as it is"
    INVALID_STATE = "knows INVALID_TXN_STATE only"
    ABORTABLE = "knows TRANSACTION_ABORTABLE"
    VERSION_2 = "leaves adding partitions to the broker"


class Question(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]
    client: ClientKind


class TransactionVerification:
    """Whatever has to be waited for, the last word is what the coordinator knows at the moment of the answer: a transaction that
    was ended meanwhile must not get records any more."""

    __slots__ = ("_settling", "_transactions")

    def __init__(self, transactions: CoordinatorService[TransactionMachine], settling: Settling) -> None:
        self._transactions = transactions
        self._settling = settling

    def verify(self, question: Question, on_verified: OnVerified) -> None:
        """``on_verified`` gets a code for each partition: at once when all that is known is durable."""
        if question.client is ClientKind.VERSION_2:
            self._add(question, on_verified)
        else:
            self._look(question, on_verified)

    def _look(self, question: Question, on_verified: OnVerified, has_waited: bool = False) -> None:
        """``has_waited``: what was loaded is committed, so that only later decisions about the id count."""
        try:
            shard = self._transactions.shard_of(question.transactional_id)
        except Exception as error:
            _answer_all(question, _code_of(error), on_verified)
            return
        machine = shard.machine
        transactional_id = question.transactional_id
        is_known = machine is not None and (
            not machine.is_pending(transactional_id) if has_waited else machine.is_committed(transactional_id)
        )
        if machine is not None and is_known:
            _answer(machine, question, on_verified)
        else:
            shard.read(lambda _: None, partial(self._waited, question, on_verified))

    def _waited(self, question: Question, on_verified: OnVerified, _: None, error: Exception | None) -> None:
        if error is not None:
            _answer_all(question, _code_of(error), on_verified)
        else:
            self._look(question, on_verified, has_waited=True)

    def _add(self, question: Question, on_verified: OnVerified) -> None:
        transactional_id, producer_id, producer_epoch, partitions, _ = question

        def added(code: ErrorCode | None, error: Exception | None) -> None:
            machine = self._machine(transactional_id)
            if code is None or machine is None:
                _answer_all(question, _code_of(error), on_verified)
            elif code is ErrorCode.NONE:
                _answer(machine, question, on_verified)
            else:
                _answer_all(question, code, on_verified)

        self._settling.write(
            transactional_id,
            lambda machine: machine.add_partitions(
                transactional_id, producer_id, producer_epoch, partitions, TRANSACTION_VERSION_2
            ),
            lambda code: code,
            added,
        )

    def _machine(self, transactional_id: str) -> TransactionMachine | None:
        try:
            return self._transactions.shard_of(transactional_id).machine
        except CoordinatorError:
            return None


def _answer(machine: TransactionMachine, question: Question, on_verified: OnVerified) -> None:
    transactional_id, producer_id, producer_epoch, partitions, client = question
    verdicts = machine.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)
    on_verified({partition: _for_client(code, client) for partition, code in verdicts.items()})


def _answer_all(question: Question, code: ErrorCode, on_verified: OnVerified) -> None:
    on_verified(dict.fromkeys(question.partitions, _for_client(code, question.client)))


def _code_of(error: Exception | None) -> ErrorCode:
    return ErrorCode.NOT_COORDINATOR if error is None else error_code_of(error)[0]


def _for_client(code: ErrorCode, client: ClientKind) -> ErrorCode:
    if client is ClientKind.BROKER:
        return code
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH  # As a log says it: the producer may abort, and go on.
    if code in _COORDINATOR_ERRORS or (code is ErrorCode.CONCURRENT_TRANSACTIONS and client is not ClientKind.VERSION_2):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.TRANSACTION_ABORTABLE and client is ClientKind.INVALID_STATE:
        return ErrorCode.INVALID_TXN_STATE
    return code
