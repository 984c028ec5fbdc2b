"""``TransactionAdmin``: list, describe and end transactions, as Kafka's own admin client does.

Coordinators know transactional ids (ListTransactions on every broker, DescribeTransactions on the coordinator of each id);
partitions know producers (DescribeProducers on the leader of each partition). There are two ways to end a transaction: to ask its
coordinator in the name of the producer that has it open (EndTxn), or to write an abort marker to one partition behind the
coordinator's back (WriteTxnMarkers on its leader).

Calls that change nothing are repeated until ``request_timeout_ms``, with fresh metadata each time (``Brokers.patiently``). A
marker is written again only if it certainly was not written: a second one could end a later transaction of the same producer.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from tidelog.client.wire.brokers import NO_LEADER, Brokers, ClusterMetadata, by_topic
from tidelog.client.wire.errors import BrokerError, ClientError, InvalidAnswer, UnknownPartition, check_code
from tidelog.client.wire.retries import is_worth_another_attempt, is_worth_another_broker, retried, retried_while_unknown
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 30_000
# Limits the work of one request: a partition may have thousands of producers.
BATCH_SIZE_MAX = 500
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
LONGEST_TIMEOUT = "transaction.max.timeout.ms"
DURATION_SINCE, PATTERN_SINCE = 1, 2
# After these errors no marker was written: ask another broker, or later.
_NOT_WRITTEN = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

# The states of a transaction, as coordinators spell them.
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)

_Item = TypeVar("_Item")


class TransactionListing(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int
    """The time when the transaction began; -1 when there is no transaction."""
    partitions: tuple[tuple[str, int], ...]
    """The partitions that wait for the end of the transaction."""

    @property
    def handle(self) -> "TransactionHandle":
        return TransactionHandle(self.transactional_id, self.producer_id, self.producer_epoch)


class TransactionHandle(NamedTuple):
    """The producer that has a transaction open, and its epoch. This is what a caller needs to end the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class ProducerDescription(NamedTuple):
    """The state that a partition keeps about one producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """-1 if the producer has no open transaction in this partition."""

    @property
    def has_open_transaction(self) -> bool:
        return self.transaction_start_offset >= 0


class DescribedProducers(NamedTuple):
    producers: dict[tuple[str, int], list[ProducerDescription]]
    failures: dict[tuple[str, int], ClientError]
    """Partitions that did not answer."""


class AbortSpecification(NamedTuple):
    """The transaction of one producer in one partition, which is to be aborted."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """The epoch in the last marker of the producer in the partition; -1 if there is no marker."""


class TransactionAdmin:
    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "tidelog-transactions",
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        brokers: Brokers | None = None,
    ) -> None:
        """Connects on the first call. With ``brokers`` it uses what these know, and their connections."""
        self._seconds_max = request_timeout_ms / 1000
        self._brokers = brokers or Brokers(bootstrap_servers, client_id, connect_timeout_ms / 1000, self._seconds_max)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._brokers.close()

    def greet(self) -> None:
        """Contact a broker. Raises BrokerUnreachable when none answers."""
        self._brokers.patiently(self._brokers.refresh)

    def metadata(self) -> ClusterMetadata:
        return self._brokers.patiently(self._brokers.metadata)

    def longest_timeout_ms(self) -> int:
        """How long a transaction may be open: the smallest transaction.max.timeout.ms of the brokers."""
        return min(self._brokers.patiently(partial(self._ask_longest_timeout, node_id)) for node_id in self.metadata().brokers)

    def topic_config(self, topic: str, name: str) -> str:
        """The value of a topic's setting. Waits for a topic that was just created; UnknownPartition if there is none."""
        return self._brokers.patiently(retried_while_unknown(partial(self._ask_topic_config, topic, name)))

    def _ask_topic_config(self, topic: str, name: str) -> str:
        try:
            return self._ask_config(None, TOPIC_RESOURCE, topic, name)
        except BrokerError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownPartition(topic) from error
            raise

    def _ask_longest_timeout(self, node_id: int) -> int:
        text = self._ask_config(node_id, BROKER_RESOURCE, str(node_id), LONGEST_TIMEOUT)
        if not text.isdigit():
            raise InvalidAnswer(f"broker {node_id} does not report {LONGEST_TIMEOUT}")
        return int(text)

    def _ask_config(self, node_id: int | None, resource_type: int, resource: str, name: str) -> str:
        """Ask this broker, or any."""
        wanted = {"resource_type": resource_type, "resource_name": resource, "configuration_keys": [name]}
        fields = {"resources": [wanted]}
        if node_id is None:
            answer = self._brokers.request_any(ApiKey.DESCRIBE_CONFIGS, fields)
        else:
            answer = self._brokers.request(node_id, ApiKey.DESCRIBE_CONFIGS, fields)
        (result,) = answer.results
        check_code(result.error_code, f"{name} of {resource}", result.error_message)
        found = [config.value for config in result.configs if config.name == name]
        if len(found) != 1 or found[0] is None:
            raise InvalidAnswer(f"{resource} does not report {name}")
        return str(found[0])

    # -- what coordinators know -----------------------------------------------------------------------------------------------

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Sorted by transactional id. Without arguments all are listed; ``duration_ms`` selects those that are older."""
        fields = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
            "duration_filter": duration_ms,
            "transactional_id_pattern": pattern,
        }
        version_min = PATTERN_SINCE if pattern is not None else DURATION_SINCE if duration_ms >= 0 else 0
        found: dict[str, TransactionListing] = {}
        # All brokers of this moment: one that was added may coordinate transactions.
        brokers = self._brokers.patiently(partial(self._brokers.ask_metadata, [])).brokers
        for node_id in sorted(broker.node_id for broker in brokers):
            answer = self._brokers.patiently(partial(self._list, node_id, fields, version_min))
            for each in answer.transaction_states:
                listing = TransactionListing(each.transactional_id, node_id, each.producer_id, each.transaction_state)
                found[each.transactional_id] = listing
        return [found[transactional_id] for transactional_id in sorted(found)]

    def _list(self, node_id: int, fields: dict[str, Any], version_min: int) -> DecodedMessage:
        answer = self._brokers.request(node_id, ApiKey.LIST_TRANSACTIONS, fields, version_min)
        check_code(answer.error_code, f"broker {node_id} does not list its transactions")
        if answer.unknown_state_filters:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"broker {node_id}", f"no states {list(answer.unknown_state_filters)}")
        return answer

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """The descriptions by id. An id that no coordinator knows is left out."""
        found: dict[str, TransactionDescription] = {}
        for ids in _batches(list(dict.fromkeys(transactional_ids))):
            left = set(ids)
            self._brokers.patiently(partial(self._describe, ids, left, found))
        return {transactional_id: found[transactional_id] for transactional_id in sorted(found)}

    def _describe(self, ids: Sequence[str], left: set[str], found: dict[str, TransactionDescription]) -> None:
        """Ask once for all ids in ``left``, and remove those that were answered."""
        waiting = [transactional_id for transactional_id in ids if transactional_id in left]
        by_node: dict[int, list[str]] = {}
        for transactional_id, node_id in self._brokers.transaction_coordinators(waiting).items():
            by_node.setdefault(node_id, []).append(transactional_id)
        for node_id, theirs in by_node.items():
            answer = self._brokers.request(node_id, ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": theirs})
            for each in answer.transaction_states:
                if each.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    self._check(each.error_code, f"transactional id {each.transactional_id}")
                    found[each.transactional_id] = _description(node_id, each)
                left.discard(each.transactional_id)
        if left:
            raise InvalidAnswer(f"the coordinators do not answer for {', '.join(sorted(left))}")

    def _check(self, code: int, subject: str) -> None:
        """An error may mean that the coordinator has moved, so the next attempt looks it up again."""
        try:
            check_code(code, subject)
        except ClientError:
            self._brokers.forget()
            raise

    # -- what partitions know -------------------------------------------------------------------------------------------------

    def describe_producers(self, partitions: Iterable[tuple[str, int]]) -> DescribedProducers:
        """The producers of each partition. A partition that does not answer by the deadline does not affect the others."""
        wanted = list(dict.fromkeys(partitions))
        result = DescribedProducers({}, {})
        if wanted:
            self.metadata()
            try:
                self._brokers.patiently(partial(self._describe_producers, wanted, result))
            except ClientError:
                if not result.failures:
                    raise  # The cluster itself did not answer.
        return result

    def _describe_producers(self, wanted: Sequence[tuple[str, int]], result: DescribedProducers) -> None:
        """Ask once for those that have not answered. Raises an error that the next attempt may not meet."""
        places = self._brokers.metadata().partitions
        by_leader: dict[int, list[tuple[str, int]]] = {}
        for partition in wanted:
            if partition in result.producers:
                continue
            if partition not in places:
                result.failures[partition] = UnknownPartition(*partition)
            elif places[partition].leader == NO_LEADER:
                result.failures[partition] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition[0]}-{partition[1]}")
            else:
                by_leader.setdefault(places[partition].leader, []).append(partition)
        for leader, theirs in by_leader.items():
            for batch in _batches(theirs):
                self._ask_leader(leader, batch, result)
        for error in result.failures.values():
            if is_worth_another_broker(error):
                raise error

    def _ask_leader(self, leader: int, partitions: Sequence[tuple[str, int]], result: DescribedProducers) -> None:
        topics = [{"name": topic, "partition_indexes": indexes} for topic, indexes in by_topic(partitions).items()]
        try:
            answer = self._brokers.request(leader, ApiKey.DESCRIBE_PRODUCERS, {"topics": topics})
        except ClientError as error:
            result.failures.update(dict.fromkeys(partitions, error))
            return
        for topic in answer.topics:
            for each in topic.partitions:
                partition = topic.name, each.partition_index
                if each.error_code == ErrorCode.NONE:
                    result.producers[partition] = [_producer(producer) for producer in each.active_producers]
                    result.failures.pop(partition, None)
                else:
                    subject = f"{topic.name}-{each.partition_index}"
                    result.failures[partition] = BrokerError(each.error_code, subject, each.error_message)

    # -- ending one -----------------------------------------------------------------------------------------------------------

    def end_transaction(self, transaction: TransactionHandle, *, is_commit: bool) -> None:
        """End a transaction that another process has open, and return when the decision is durable; the markers follow.

        Repeating the call with the same outcome does nothing, so a lost answer is harmless. Raises BrokerError: PRODUCER_FENCED
        if another producer has the id by now, INVALID_PRODUCER_ID_MAPPING if no coordinator knows the id or it has another
        producer id, INVALID_TXN_STATE if no transaction is open or it has ended the other way.
        """
        for error in self.end_transactions([transaction], is_commit=is_commit).values():
            raise error

    def end_transactions(
        self, transactions: Sequence[TransactionHandle], *, is_commit: bool
    ) -> dict[TransactionHandle, ClientError]:
        """End several transactions. Returns the error of each that was not ended; a failure does not affect the others."""
        failures: dict[TransactionHandle, ClientError] = {}
        for batch in _batches(list(dict.fromkeys(transactions))):
            left = list(batch)
            try:
                retried(partial(self._end, left, is_commit, failures), self._seconds_max, is_worth_another_attempt)
            except ClientError as error:
                failures.update(dict.fromkeys(left, error))
        return failures

    def _end(self, left: list[TransactionHandle], is_commit: bool, failures: dict[TransactionHandle, ClientError]) -> None:
        """One round; those that are done leave ``left``, whether they were ended or are not to be asked again."""
        problem: ClientError | None = None
        nodes = self._brokers.transaction_coordinators([each.transactional_id for each in left])
        asked = list(left)
        requests = [
            (
                nodes[each.transactional_id],
                ApiKey.END_TXN,
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "committed": is_commit,
                },
            )
            for each in asked
        ]
        # Each is a record that its coordinator replicates: at the same time they share what that takes.
        for transaction, answer in zip(asked, self._brokers.request_each(requests), strict=True):
            try:
                if isinstance(answer, ClientError):
                    raise answer
                self._check(answer.error_code, f"the transaction of {transaction.transactional_id} was not ended")
            except ClientError as error:
                if is_worth_another_attempt(error):
                    problem = error
                    continue
                failures[transaction] = error
            left.remove(transaction)
        if problem is not None:
            raise problem

    def abort_transaction(self, specification: AbortSpecification) -> None:
        """Write an abort marker, and return when it is replicated."""
        retried(partial(self._write_marker, specification), self._seconds_max, _was_not_written)

    def _write_marker(self, specification: AbortSpecification) -> None:
        topic, index, producer_id, producer_epoch, coordinator_epoch = specification
        subject = f"the transaction of producer {producer_id} in {topic}-{index} was not aborted"
        place = self.metadata().partitions.get((topic, index))
        if place is None:
            raise UnknownPartition(topic, index)
        if place.leader == NO_LEADER:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, subject)
        marker = {
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": [index]}],
            # A producer without a marker in the partition gets the lowest epoch of a coordinator.
            "coordinator_epoch": max(0, coordinator_epoch),
        }
        answer = self._brokers.request(place.leader, ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
        results = [
            (each.producer_id, answered.name, partition.partition_index, partition.error_code)
            for each in answer.markers
            for answered in each.topics
            for partition in answered.partitions
        ]
        if len(results) != 1 or results[0][:3] != (producer_id, topic, index):
            raise InvalidAnswer(f"broker {place.leader} answered for other markers than were sent: {results}")
        check_code(results[0][3], subject)


def _was_not_written(error: ClientError) -> bool:
    return isinstance(error, BrokerError) and error.code in _NOT_WRITTEN


def _batches(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), BATCH_SIZE_MAX):
        yield items[start : start + BATCH_SIZE_MAX]


def _description(node_id: int, state: DecodedMessage) -> TransactionDescription:
    return TransactionDescription(
        state.transactional_id,
        node_id,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms,
        tuple(sorted((topic.topic, index) for topic in state.topics for index in topic.partitions)),
    )


def _producer(state: DecodedMessage) -> ProducerDescription:
    return ProducerDescription(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        state.current_txn_start_offset,
    )
