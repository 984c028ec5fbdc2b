"""Checks whether a partition is part of a producer's ongoing transaction, before the first records of a transaction are written.

Without this check, a Produce request that arrives after the end of its transaction would begin one that no coordinator knows and
nobody ends, and read_committed readers would wait for it forever. Clients of transactions v1 have added the partition before; for
clients of v2 (KIP-890) it is added here.

However long a request has to wait, its answer reflects what the coordinator knows when it answers: a transaction that has ended
in the meantime must not get any more records.
"""

from collections.abc import Callable, Mapping
from functools import partial

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.error_mapping import error_code_of
from tidelog.broker.transactions.client_errors import ClientKind, verification_error
from tidelog.broker.transactions.concurrent_transactions import ConcurrentTransactions
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.coordinator import TransactionCoordinator, TransactionPartitions
from tidelog.transactions.transaction import TRANSACTION_VERSION_2
from tidelog.wire.errors import ErrorCode

PartitionCodes = Mapping[TopicPartition, ErrorCode]
OnVerified = Callable[[PartitionCodes], None]


class TransactionVerification:
    __slots__ = ("_concurrent", "_transactions")

    def __init__(
        self, transactions: CoordinatorService[TransactionCoordinator], concurrent_transactions: ConcurrentTransactions
    ) -> None:
        self._transactions = transactions
        self._concurrent = concurrent_transactions

    def verify(self, request: TransactionPartitions, client: ClientKind, on_verified: OnVerified) -> None:
        """``on_verified`` gets a code for each partition, at once if everything that is known is durable."""
        if client is ClientKind.VERSION_2:
            self._add(request, on_verified)
        else:
            self._look(request, client, on_verified)

    def _look(
        self, request: TransactionPartitions, client: ClientKind, on_verified: OnVerified, has_waited: bool = False
    ) -> None:
        """``has_waited``: everything that was loaded is committed, so only later decisions about the id matter."""
        transactional_id = request.transactional_id
        try:
            shard = self._transactions.shard_of(transactional_id)
        except Exception as error:
            _answer_all(request, client, _code_of(error), on_verified)
            return
        coordinator = shard.machine
        is_known = coordinator is not None and (
            not coordinator.is_pending(transactional_id) if has_waited else coordinator.is_committed(transactional_id)
        )
        if coordinator is not None and is_known:
            _answer(coordinator, request, client, on_verified)
        else:
            shard.read(lambda _: None, partial(self._waited, request, client, on_verified))

    def _waited(
        self,
        request: TransactionPartitions,
        client: ClientKind,
        on_verified: OnVerified,
        _: None,
        error: Exception | None,
    ) -> None:
        if error is not None:
            _answer_all(request, client, _code_of(error), on_verified)
        else:
            self._look(request, client, on_verified, has_waited=True)

    def _add(self, request: TransactionPartitions, on_verified: OnVerified) -> None:
        client = ClientKind.VERSION_2

        def added(code: ErrorCode | None, error: Exception | None) -> None:
            coordinator = self._concurrent.coordinator(request.transactional_id)
            if code is None or coordinator is None:
                _answer_all(request, client, _code_of(error), on_verified)
            elif code is ErrorCode.NONE:
                _answer(coordinator, request, client, on_verified)
            else:
                _answer_all(request, client, code, on_verified)

        self._concurrent.write(
            request.transactional_id,
            lambda coordinator: coordinator.add_partitions(request, TRANSACTION_VERSION_2),
            lambda code: code,
            added,
        )


def _answer(
    coordinator: TransactionCoordinator, request: TransactionPartitions, client: ClientKind, on_verified: OnVerified
) -> None:
    codes = coordinator.verify_partitions(request)
    on_verified({partition: verification_error(code, client) for partition, code in codes.items()})


def _answer_all(request: TransactionPartitions, client: ClientKind, code: ErrorCode, on_verified: OnVerified) -> None:
    on_verified(dict.fromkeys(request.partitions, verification_error(code, client)))


def _code_of(error: Exception | None) -> ErrorCode:
    return ErrorCode.NOT_COORDINATOR if error is None else error_code_of(error)[0]
