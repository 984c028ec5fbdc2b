from typing import Any

import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import TransactionalProducer, transactional_machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


@pytest.fixture
def machine() -> Machine:
    return transactional_machine(partitions=2)


def listing(machine: Machine, version: int = 2, **fields: Any) -> DecodedMessage:
    fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, "transactional_id_pattern": None, **fields}
    return machine.client().call(ApiKey.LIST_TRANSACTIONS, version, **fields)


def states(response: DecodedMessage) -> dict[str, str]:
    assert response.error_code == 0
    return {each.transactional_id: each.transaction_state for each in response.transaction_states}


@pytest.mark.parametrize("version", range(3))
def test_of_all_shards(machine: Machine, version: int) -> None:
    producers = [TransactionalProducer(machine, f"tx{number}").started() for number in range(5)]
    producers[3].write(("orders", 0))
    assert states(listing(machine, version)) == {f"tx{number}": "Ongoing" if number == 3 else "Empty" for number in range(5)}
    (found,) = listing(machine, version, producer_id_filters=[producers[2].producer_id]).transaction_states
    assert found.transactional_id == "tx2"
    assert states(listing(machine, version, state_filters=["Ongoing"])) == {"tx3": "Ongoing"}


def test_unknown_states(machine: Machine) -> None:
    TransactionalProducer(machine).started()
    some = listing(machine, state_filters=["Empty", "Nonsense"])
    assert (states(some), list(some.unknown_state_filters)) == ({"tx": "Empty"}, ["Nonsense"])
    none = listing(machine, state_filters=["Nonsense"])
    assert (states(none), list(none.unknown_state_filters)) == ({}, ["Nonsense"])


@pytest.mark.parametrize("version", [1, 2])
def test_by_age(machine: Machine, version: int) -> None:
    TransactionalProducer(machine).started().write(("orders", 0))
    machine.run_for(5_000)
    assert states(listing(machine, version, duration_filter=4_000)) == {"tx": "Ongoing"}
    assert states(listing(machine, version, duration_filter=6_000)) == {}


def test_by_name(machine: Machine) -> None:
    for name in ("pay-1", "pay-2", "ship-1"):
        TransactionalProducer(machine, name).started()
    assert states(listing(machine, transactional_id_pattern="pay-.*")) == {"pay-1": "Empty", "pay-2": "Empty"}
    assert states(listing(machine, transactional_id_pattern="pay")) == {}
    assert len(states(listing(machine, transactional_id_pattern=""))) == 3
    assert listing(machine, transactional_id_pattern="(").error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_not_without_the_transactions_of_a_shard_that_is_loaded(machine: Machine) -> None:
    machine.broker.coordinators.transactions.shard(0).drop(OSError("a failed append"))
    assert listing(machine).error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_without_a_topic_there_is_none() -> None:
    assert states(listing(Machine())) == {}
