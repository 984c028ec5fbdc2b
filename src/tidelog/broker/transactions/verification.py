"""Checks whether a partition is part of a producer's ongoing transaction, before the first records of a transaction are written.

Without this check, a Produce request that arrives after the end of its transaction would begin one that no coordinator knows and
nobody ends, and read_committed readers would wait for it forever. Clients of transactions v1 have added the partition before; for
clients of v2 (KIP-890) it is added here.

However long a request has to wait, its answer reflects what the coordinator knows when it answers: a transaction that has ended
in the meantime must not get any more records.
"""

from collections.abc import Callable, Mapping
from functools import partial

from tidelog.broker.broker_channels import BrokerChannels
from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.error_mapping import error_code_of
from tidelog.broker.peer_channel import PeerError
from tidelog.broker.transactions.client_errors import ClientKind, verification_error
from tidelog.broker.transactions.concurrent_transactions import ConcurrentTransactions
from tidelog.metadata.records import NO_LEADER
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.coordinator import TransactionCoordinator, TransactionPartitions
from tidelog.transactions.transaction import TRANSACTION_VERSION_2
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

ADD_PARTITIONS_TO_TXN = ApiKey.ADD_PARTITIONS_TO_TXN, 5

PartitionCodes = Mapping[TopicPartition, ErrorCode]
OnVerified = Callable[[PartitionCodes], None]


class TransactionVerification:
    __slots__ = ("_concurrent", "_node_id", "_peers", "_transactions")

    def __init__(
        self,
        transactions: CoordinatorService[TransactionCoordinator],
        concurrent_transactions: ConcurrentTransactions,
        node_id: int,
        peers: BrokerChannels,
    ) -> None:
        self._transactions = transactions
        self._concurrent = concurrent_transactions
        self._node_id = node_id
        self._peers = peers

    def verify(self, request: TransactionPartitions, client: ClientKind, on_verified: OnVerified) -> None:
        """``on_verified`` gets a code for each partition, at once if the coordinator is on this broker and everything that is
        known is durable."""
        coordinator_id = self._other_coordinator(request.transactional_id)
        if coordinator_id is not None:
            self._ask(coordinator_id, request, client, on_verified)
        elif client is ClientKind.VERSION_2:
            self.add_here(request, client, on_verified)
        else:
            self.verify_here(request, client, on_verified)

    def verify_here(self, request: TransactionPartitions, client: ClientKind, on_verified: OnVerified) -> None:
        """Ask the coordinator of this broker, which says so if it is not the right one."""
        self._look(request, client, on_verified)

    def _other_coordinator(self, transactional_id: str) -> int | None:
        topic = self._transactions.topic
        leader = self._transactions.locate(topic, transactional_id).leader if topic is not None else NO_LEADER
        return leader if leader not in (self._node_id, NO_LEADER) else None

    def _ask(self, coordinator_id: int, request: TransactionPartitions, client: ClientKind, on_verified: OnVerified) -> None:
        by_topic: dict[str, list[int]] = {}
        for name, index in request.partitions:
            by_topic.setdefault(name, []).append(index)
        transaction = {
            "transactional_id": request.transactional_id,
            "producer_id": request.producer_id,
            "producer_epoch": request.producer_epoch,
            "verify_only": client is not ClientKind.VERSION_2,
            "topics": [{"name": name, "partitions": indexes} for name, indexes in by_topic.items()],
        }

        def replied(response: DecodedMessage) -> None:
            codes = {
                (topic.name, part.partition_index): ErrorCode(part.partition_error_code)
                for each in response.results_by_transaction
                for topic in each.topic_results
                for part in topic.results_by_partition
            }
            if response.error_code != ErrorCode.NONE or codes.keys() != set(request.partitions):
                code = ErrorCode(response.error_code) or ErrorCode.COORDINATOR_NOT_AVAILABLE
                _answer_all(request, client, code, on_verified)
            else:
                on_verified({partition: verification_error(code, client) for partition, code in codes.items()})

        def failed(_: PeerError) -> None:
            _answer_all(request, client, ErrorCode.COORDINATOR_NOT_AVAILABLE, on_verified)

        self._peers.request(coordinator_id, ADD_PARTITIONS_TO_TXN, {"transactions": [transaction]}, replied, failed)

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

    def add_here(self, request: TransactionPartitions, client: ClientKind, on_verified: OnVerified) -> None:
        """Add the partitions for a client of transactions v2."""

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
