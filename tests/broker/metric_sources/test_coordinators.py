import pytest

from tests.broker.harness import Machine
from tests.broker.metric_sources.shown import Shown
from tests.broker.transactional import TransactionalProducer, transactional_machine
from tidelog.coordinator.shard import ShardState
from tidelog.wire.errors import ErrorCode


def test_shards_by_their_state() -> None:
    machine = transactional_machine()
    shown = Shown(machine)
    for coordinator in ("groups", "transactions"):
        assert shown.value("tidelog_coordinator_shards", coordinator, "active") == 2
        assert shown.value("tidelog_coordinator_shards", coordinator, "failed") == 0
        assert shown.value("tidelog_coordinator_shards", coordinator, "unavailable") == 0
    shard = next(iter(machine.broker.coordinators.groups.runtime))
    shard.drop(RuntimeError("told to"))
    shown = Shown(machine)
    assert shown.value("tidelog_coordinator_shards", "groups", "failed") == 1
    assert shown.value("tidelog_coordinator_shard_drops_total", "groups") == 1
    assert shown.value("tidelog_coordinator_shard_drops_total", "transactions") == 0
    machine.run_until(lambda: shard.state is ShardState.ACTIVE)
    shard.load_ms = 1500
    assert Shown(machine).value("tidelog_coordinator_shard_load_seconds_max", "groups") == 1.5


def test_transactions_under_way() -> None:
    machine = transactional_machine()
    assert Shown(machine).value("tidelog_transaction_oldest_seconds") == 0
    # In both shards, and the older one is the one that counts.
    for transactional_id in ("first", "second", "third"):
        TransactionalProducer(machine, transactional_id).started().write(("orders", 0))
        machine.run_for(3_000)
    shown = Shown(machine)
    assert shown.value("tidelog_transactional_ids") == 3
    assert shown.value("tidelog_transactions_open") == 3
    assert shown.value("tidelog_transactions_ending") == 0
    assert shown.value("tidelog_transaction_oldest_seconds") == pytest.approx(9, abs=0.2)
    assert shown.value("tidelog_producer_ids_left") > 0


def test_one_that_goes_on_stays_the_oldest() -> None:
    machine = transactional_machine(partitions=2)
    oldest = TransactionalProducer(machine, "oldest").started()
    oldest.write(("orders", 0))
    machine.run_for(4_000)
    younger = TransactionalProducer(machine, "younger").started()
    younger.write(("orders", 0))
    oldest.write(("orders", 1))
    assert Shown(machine).value("tidelog_transaction_oldest_seconds") == pytest.approx(4, abs=0.2)
    assert oldest.end() is ErrorCode.NONE
    oldest.settle()
    assert Shown(machine).value("tidelog_transaction_oldest_seconds") < 1


def test_a_broker_without_coordinators_shows_none() -> None:
    shown = Shown(Machine())
    assert shown.value("tidelog_coordinator_shards", "groups", "active") == 0
    assert shown.value("tidelog_transactions_open") == 0
    assert shown.value("tidelog_ready") == 1
    assert shown.labels("tidelog_broker_info") == [("cluster", "1")]
