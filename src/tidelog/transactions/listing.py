"""ListTransactions and DescribeTransactions: what an operator sees."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from tidelog.transactions.markers import TransactionMarkers
from tidelog.transactions.records import TopicPartitions
from tidelog.transactions.state import STATE_NAMES, STATES_BY_NAME
from tidelog.transactions.table import TransactionTable


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class DescribedTransaction(NamedTuple):
    transactional_id: str
    state: str
    timeout_ms: int
    start_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartitions, ...]
    """Of a transaction that is being ended: those that still wait for their marker."""


class TransactionFilter(NamedTuple):
    """Empty collections and a duration below 0 let everything through."""

    producer_ids: Collection[int] = ()
    states: Collection[str] = ()
    duration_ms: int = -1
    """Only those that began longer ago than this."""
    matches: Callable[[str], bool] | None = None
    """Whether the transactional id fits the pattern."""


def unknown_states(states: Collection[str]) -> list[str]:
    return [name for name in states if name not in STATES_BY_NAME]


def list_transactions(table: TransactionTable, wanted: TransactionFilter, now_ms: int) -> list[ListedTransaction]:
    """In the order in which the ids first came."""
    states = {STATES_BY_NAME[name] for name in wanted.states if name in STATES_BY_NAME}
    producer_ids = set(wanted.producer_ids)
    found = []
    for transactional_id, metadata in table.items():
        value = metadata.value
        if producer_ids and value.producer_id not in producer_ids:
            continue
        if wanted.states and value.state not in states:
            continue
        if wanted.duration_ms >= 0 and now_ms - value.start_timestamp_ms <= wanted.duration_ms:
            continue
        if wanted.matches is not None and not wanted.matches(transactional_id):
            continue
        found.append(ListedTransaction(transactional_id, value.producer_id, STATE_NAMES[value.state]))
    return found


def describe_transaction(
    table: TransactionTable, markers: TransactionMarkers, transactional_id: str
) -> DescribedTransaction | None:
    """None: TRANSACTIONAL_ID_NOT_FOUND."""
    metadata = table.find(transactional_id)
    if metadata is None:
        return None
    value = metadata.value
    remaining = markers.remaining(transactional_id)
    return DescribedTransaction(
        transactional_id,
        STATE_NAMES[value.state],
        value.timeout_ms,
        value.start_timestamp_ms,
        value.producer_id,
        value.producer_epoch,
        value.partitions if remaining is None else remaining,
    )
