"""Coordinators' shards, and transactions."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.coordinator.shard import ShardState
from tidelog.metrics.registry import Description, Kind, Registry, Rest, Sample

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_COORDINATORS_MAX = 2

SHARDS = Description(
    "tidelog_coordinator_shards",
    Kind.GAUGE,
    "Partitions of a coordinator's topic that are led here, in each state.",
    ("coordinator", "state"),
    _COORDINATORS_MAX * (len(ShardState) + 1),
)
LOAD = Description(
    "tidelog_coordinator_shard_load_seconds_max",
    Kind.GAUGE,
    "How long the last load of a shard took, in the slowest.",
    ("coordinator",),
    _COORDINATORS_MAX,
    Rest.MAX,
)
DROPS = Description(
    "tidelog_coordinator_shard_drops_total",
    Kind.COUNTER,
    "How often a shard was dropped and loaded anew, because a write of it failed.",
    ("coordinator",),
    _COORDINATORS_MAX,
)
TRANSACTIONAL_IDS = Description("tidelog_transactional_ids", Kind.GAUGE, "Transactional ids that are kept.")
OPEN = Description("tidelog_transactions_open", Kind.GAUGE, "Transactions under way.")
ENDING = Description("tidelog_transactions_ending", Kind.GAUGE, "Transactions that are decided, whose markers are being written.")
OLDEST = Description(
    "tidelog_transaction_oldest_seconds", Kind.GAUGE, "How long the oldest transaction under way has been; 0 when there is none."
)


def add_coordinator_metrics(registry: Registry, broker: "Broker") -> None:
    registry.add([SHARDS, LOAD, DROPS], lambda: _collect_shards(broker))
    registry.add([TRANSACTIONAL_IDS, OPEN, ENDING, OLDEST], lambda: _collect_transactions(broker))
    registry.add_value(
        Kind.GAUGE,
        "tidelog_producer_ids_left",
        "Producer ids that can be given out before the next block of them is asked for.",
        lambda: broker.coordinators.producer_ids.left,
    )


def _collect_shards(broker: "Broker") -> Iterator[Sample]:
    coordinators = broker.coordinators
    yield from _of_coordinator("groups", coordinators.groups)
    yield from _of_coordinator("transactions", coordinators.transactions)


def _of_coordinator(name: str, service: CoordinatorService[Any]) -> Iterator[Sample]:
    shards = list(service.runtime)
    states = Counter(shard.state for shard in shards)
    for state in ShardState:
        yield SHARDS, (name, state.value), states[state]
    yield SHARDS, (name, "unavailable"), service.unavailable_count
    yield LOAD, (name,), max((shard.load_ms for shard in shards), default=0) / 1000
    yield DROPS, (name,), sum(shard.drops for shard in shards)


def _collect_transactions(broker: "Broker") -> Iterator[Sample]:
    now_ms = broker.clock.now_ms()
    ids = under_way = ending = 0
    oldest_ms = now_ms
    for shard in broker.coordinators.transactions.runtime:
        if shard.machine is None:
            continue
        table = shard.machine.table
        ids += len(table)
        under_way += len(table.ongoing)
        ending += len(table.prepared)
        # Ids come into this dictionary when their transaction begins: the first is the oldest.
        first = table.find(next(iter(table.ongoing), ""))
        if first is not None:
            oldest_ms = min(oldest_ms, first.value.start_timestamp_ms)
    yield TRANSACTIONAL_IDS, (), ids
    yield OPEN, (), under_way
    yield ENDING, (), ending
    yield OLDEST, (), (now_ms - oldest_ms) / 1000
