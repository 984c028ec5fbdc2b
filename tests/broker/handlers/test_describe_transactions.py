import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import ID, TransactionalProducer, log_of, stop_markers, transactional_machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


@pytest.fixture
def machine() -> Machine:
    return transactional_machine(partitions=2)


def describe(machine: Machine, *transactional_ids: str) -> list[DecodedMessage]:
    return list(machine.client().call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=transactional_ids).transaction_states)


def partitions_of(described: DecodedMessage) -> list[tuple[str, tuple[int, ...]]]:
    return [(topic.topic, tuple(topic.partitions)) for topic in described.topics]


def test_a_transaction_from_its_begin_to_its_end(machine: Machine) -> None:
    producer = TransactionalProducer(machine, timeout_ms=7_000).started()
    (empty,) = describe(machine, ID)
    assert (empty.error_code, empty.transaction_state, partitions_of(empty)) == (0, "Empty", [])
    producer.write(("orders", 0), ("orders", 1))
    (ongoing,) = describe(machine, ID)
    assert ongoing.transaction_state == "Ongoing"
    assert (ongoing.producer_id, ongoing.producer_epoch) == (producer.producer_id, producer.epoch)
    assert ongoing.transaction_timeout_ms == 7_000
    assert 0 <= machine.clock.now_ms() - ongoing.transaction_start_time_ms < 1_000
    assert partitions_of(ongoing) == [("orders", (0, 1))]
    go_on = stop_markers(machine)
    producer.end()
    (prepared,) = describe(machine, ID)
    assert (prepared.transaction_state, partitions_of(prepared)) == ("PrepareCommit", [("orders", (0, 1))])
    go_on()
    producer.settle()
    (complete,) = describe(machine, ID)
    assert (complete.transaction_state, partitions_of(complete)) == ("CompleteCommit", [])


def test_which_partitions_still_wait_for_their_marker(machine: Machine) -> None:
    producer = TransactionalProducer(machine).started()
    producer.write(("orders", 0), ("orders", 1))
    log_of(machine, "orders", 1).go_offline("the disk is broken")
    producer.end(False)
    machine.run_for(100)
    (prepared,) = describe(machine, ID)
    assert (prepared.transaction_state, partitions_of(prepared)) == ("PrepareAbort", [("orders", (1,))])


def test_ids_that_cannot_be_described(machine: Machine) -> None:
    TransactionalProducer(machine).started()
    found = describe(machine, "unknown", "", ID, ID)
    assert [(each.transactional_id, each.error_code) for each in found] == [
        ("unknown", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        ("", ErrorCode.INVALID_REQUEST),
        (ID, ErrorCode.NONE),
    ]


def test_none_at_all(machine: Machine) -> None:
    assert describe(machine) == []


def test_while_the_shard_is_loaded(machine: Machine) -> None:
    machine.broker.coordinators.transactions.shard_of(ID).drop(OSError("a failed append"))
    (found,) = describe(machine, ID)
    assert found.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_without_a_topic_the_coordinator_has_to_be_looked_for() -> None:
    (found,) = describe(Machine(), ID)
    assert found.error_code == ErrorCode.NOT_COORDINATOR
