from typing import Any

import pytest

from simulation.disk import Keep
from tests.broker.harness import FakeClient, Machine
from tests.broker.transactional import (
    ID,
    TransactionalProducer,
    committed_offsets,
    is_settled,
    stop_markers,
    transactional_machine,
    wait_loaded,
)
from tidelog.transactions.coordinator import TransactionCoordinator
from tidelog.transactions.transaction import EXHAUSTED_EPOCH_MIN
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

ORDERS = ("orders", 0)
VERSIONS = range(6)


@pytest.fixture
def machine() -> Machine:
    return transactional_machine(partitions=2)


def init(client: FakeClient, version: int = 4, transactional_id: str | None = ID, **fields: Any) -> DecodedMessage:
    fields = {"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1, **fields}
    return client.call(ApiKey.INIT_PRODUCER_ID, version, transactional_id=transactional_id, **fields)


def answer(response: DecodedMessage) -> tuple[ErrorCode, int, int]:
    return ErrorCode(response.error_code), response.producer_id, response.producer_epoch


def value_of(machine: Machine) -> Any:
    shard = machine.broker.coordinators.transactions.shard_of(ID)
    assert shard.machine is not None
    metadata = shard.machine.table.find(ID)
    assert metadata is not None
    return metadata.value


def exhaust_epochs(machine: Machine) -> None:
    """As if every epoch but the last had been given out."""

    def decide(transactions: TransactionCoordinator) -> Any:
        value = value_of(machine)._replace(producer_epoch=EXHAUSTED_EPOCH_MIN)
        return transactions.table.write(ID, value, None)

    done: list[Any] = []
    machine.broker.coordinators.transactions.write(ID, decide, lambda *said: done.append(said))
    machine.run_until(lambda: bool(done))


@pytest.mark.parametrize("version", VERSIONS)
def test_idempotent_producers_get_an_id_each(machine: Machine, version: int) -> None:
    client = machine.client()
    ids = [init(client, version, None).producer_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert init(client, version, None).producer_epoch == 0


def test_ids_are_never_given_out_again(machine: Machine) -> None:
    before = [init(machine.client(), 4, None).producer_id for _ in range(3)]
    keeps: list[Keep] = ["none", "all"]
    for keep in keeps:
        assert machine.crash(keep) is None
        before.append(init(machine.client(), 4, None).producer_id)
    assert len(set(before)) == len(before)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_next_one_of_a_transactional_id_has_the_next_epoch(machine: Machine, version: int) -> None:
    client = machine.client()
    error, producer_id, epoch = answer(init(client, version))
    assert (error, epoch) == (ErrorCode.NONE, 0)
    assert answer(init(client, version)) == (ErrorCode.NONE, producer_id, 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_what_is_refused(machine: Machine, version: int, fields: dict[str, Any], code: ErrorCode) -> None:
    assert answer(init(machine.client(), version, **fields)) == (code, -1, -1)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_zombie_hears_of_it_in_words_that_it_knows(machine: Machine, version: int) -> None:
    client = machine.client()
    _, producer_id, epoch = answer(init(client))
    init(client)
    init(client)
    code = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert answer(init(client, version, producer_id=producer_id, producer_epoch=epoch)) == (code, -1, -1)
    assert answer(init(client, version, producer_id=producer_id + 1, producer_epoch=0)) == (code, -1, -1)


def test_a_producer_that_names_its_epoch_goes_on_with_the_next(machine: Machine) -> None:
    client = machine.client()
    _, producer_id, epoch = answer(init(client))
    for _ in range(2):  # The answer may be lost: it asks again, and is not fenced by itself.
        again = init(client, producer_id=producer_id, producer_epoch=epoch)
        assert answer(again) == (ErrorCode.NONE, producer_id, epoch + 1)


def test_without_a_topic_the_coordinator_has_to_be_looked_for() -> None:
    assert answer(init(Machine().client()))[0] is ErrorCode.NOT_COORDINATOR


def test_while_the_shard_is_loaded(machine: Machine) -> None:
    machine.broker.coordinators.transactions.shard_of(ID).drop(OSError("a failed append"))
    assert answer(init(machine.client()))[0] in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    wait_loaded(machine)
    assert answer(init(machine.client()))[0] is ErrorCode.NONE


@pytest.mark.parametrize("is_v2", [False, True])
def test_an_open_transaction_is_aborted_and_its_producer_fenced(machine: Machine, is_v2: bool) -> None:
    zombie = TransactionalProducer(machine, is_v2=is_v2).started()
    zombie.write(ORDERS)
    producer = TransactionalProducer(machine, is_v2=is_v2)
    # The broker waits for the markers, and gives the epoch after the one that fenced.
    assert producer.init() is ErrorCode.NONE
    assert (producer.producer_id, producer.epoch) == (zombie.producer_id, 2)
    assert committed_offsets(machine.client()) == []
    (result,) = zombie.produce(ORDERS)
    assert result.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.end() is ErrorCode.PRODUCER_FENCED
    producer.write(ORDERS)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert committed_offsets(machine.client()) == [2]


def test_a_transaction_whose_end_takes_long(machine: Machine) -> None:
    producer = TransactionalProducer(machine).started()
    producer.write(ORDERS)
    go_on = stop_markers(machine)
    assert TransactionalProducer(machine).init() is ErrorCode.CONCURRENT_TRANSACTIONS
    go_on()
    machine.run_until(lambda: is_settled(machine))
    assert TransactionalProducer(machine).init() is ErrorCode.NONE


def test_used_up_epochs_go_on_with_another_id(machine: Machine) -> None:
    client = machine.client()
    _, producer_id, _ = answer(init(client))
    exhaust_epochs(machine)
    error, another, epoch = answer(init(client))
    assert (error, epoch) == (ErrorCode.NONE, 0)
    assert another != producer_id


@pytest.mark.parametrize("is_v2", [False, True])
def test_the_last_epoch_of_an_open_transaction(machine: Machine, is_v2: bool) -> None:
    """Whoever has the last but one can still be fenced, and the transaction is ended in all partitions."""
    producer = TransactionalProducer(machine, is_v2=is_v2).started()
    exhaust_epochs(machine)
    producer.epoch = EXHAUSTED_EPOCH_MIN
    producer.write(ORDERS)
    old_id = producer.producer_id
    if is_v2:
        assert producer.end() is ErrorCode.NONE
        producer.settle()
        assert committed_offsets(machine.client()) == [0]
    else:
        assert producer.init() is ErrorCode.NONE
        assert committed_offsets(machine.client()) == []
    # The new id's first epoch is the one that nobody is given when the producer was fenced.
    assert (producer.producer_id != old_id, producer.epoch) == (True, 0 if is_v2 else 1)
    producer.write(ORDERS)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert committed_offsets(machine.client())[-1:] == [2]
