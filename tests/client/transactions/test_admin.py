"""The calls on a broker of ours: what it knows of real transactions."""

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.client.transactions.wire_producer import TIMEOUT_MS, WireProducer
from tests.compatibility.kafka_client import admin_client, create_topic, read_partition
from tidelog.client.transactions.admin import AbortSpecification, TransactionAdmin
from tidelog.client.wire.errors import BrokerError, BrokerUnreachable, UnknownPartition
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode


@pytest.fixture
def producer(broker: Broker) -> Iterator[WireProducer]:
    with WireProducer(broker.bootstrap_servers, f"id-{secrets.token_hex(4)}") as producer:
        yield producer


def open_at(admin: TransactionAdmin, topic: str, partition: int) -> list[int]:
    described = admin.describe_producers([(topic, partition)])
    return [each.transaction_start_offset for each in described.producers[topic, partition] if each.has_open_transaction]


def test_a_transaction_from_its_begin_to_its_end(admin: TransactionAdmin, producer: WireProducer, topic: str) -> None:
    name = producer.transactional_id
    assert name not in [each.transactional_id for each in admin.list_transactions()]
    assert admin.describe_transactions([name]) == {}
    producer.init()
    (empty,) = admin.describe_transactions([name]).values()
    assert (empty.state, empty.partitions, empty.start_time_ms) == ("Empty", (), -1)
    producer.add_partition(topic, 1)
    producer.add_partition(topic, 0)
    before_ms = int(time.time() * 1000)
    producer.produce(topic, 0, b"x", timestamp_ms=before_ms)
    (ongoing,) = admin.describe_transactions([name, name]).values()
    assert ongoing == empty._replace(
        state="Ongoing", partitions=((topic, 0), (topic, 1)), start_time_ms=ongoing.start_time_ms, timeout_ms=TIMEOUT_MS
    )
    assert 0 <= before_ms - ongoing.start_time_ms < 60_000
    (state,) = admin.describe_producers([(topic, 0)]).producers[topic, 0]
    assert state == (producer.producer_id, producer.producer_epoch, 0, before_ms, -1, 0)
    producer.end(is_commit=True)
    (done,) = [each for each in admin.list_transactions() if each.transactional_id == name]
    assert done.producer_id == producer.producer_id
    assert done.state in ("PrepareCommit", "CompleteCommit")
    assert open_at(admin, topic, 0) == [] or done.state == "PrepareCommit"


def test_filters(admin: TransactionAdmin, producer: WireProducer, topic: str) -> None:
    producer.init()
    producer.add_partition(topic, 0)
    name = producer.transactional_id

    def listed(**filters: object) -> bool:
        return name in [each.transactional_id for each in admin.list_transactions(**filters)]  # type: ignore[arg-type]  # by name

    assert listed(states=["Ongoing"])
    assert listed(states=["Empty", "Ongoing"])
    assert not listed(states=["Empty"])
    assert listed(producer_ids=[producer.producer_id])
    assert not listed(producer_ids=[producer.producer_id + 12345])
    assert not listed(duration_ms=600_000)
    assert listed(pattern="id-.*")
    assert not listed(pattern="id")
    with pytest.raises(BrokerError) as raised:
        admin.list_transactions(pattern="(")
    assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    with pytest.raises(BrokerError, match="no states"):
        admin.list_transactions(states=["Bored"])


def test_the_ids_come_in_order(admin: TransactionAdmin, broker: Broker) -> None:
    names = [f"{letter}-{secrets.token_hex(4)}" for letter in "cab"]
    for name in names:
        with WireProducer(broker.bootstrap_servers, name) as producer:
            producer.init()
    listed = [each.transactional_id for each in admin.list_transactions() if each.transactional_id in names]
    assert listed == sorted(names)
    assert list(admin.describe_transactions(names)) == sorted(names)


def test_partitions_that_are_not_there_do_not_keep_others_from_answering(admin: TransactionAdmin, topic: str) -> None:
    described = admin.describe_producers([(topic, 0), (topic, 5), ("no-such-topic", 0)])
    assert described.producers == {(topic, 0): []}
    assert {place: type(error) for place, error in described.failures.items()} == {
        (topic, 5): UnknownPartition,
        ("no-such-topic", 0): UnknownPartition,
    }
    assert admin.describe_producers([]) == ({}, {})


def test_an_abort_lets_readers_go_on(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    with WireProducer(broker.bootstrap_servers, "ghost", producer_id=700_001, producer_epoch=3) as ghost:
        ghost.produce(topic, 0, b"hanging")
    assert open_at(admin, topic, 0) == [0]
    assert read_partition(broker.bootstrap_servers, topic, 0, committed_only=True).end_offset == 0
    admin.abort_transaction(AbortSpecification(topic, 0, 700_001, 3, -1))
    assert open_at(admin, topic, 0) == []
    committed = read_partition(broker.bootstrap_servers, topic, 0, committed_only=True)
    assert (committed.end_offset, committed.records) == (2, [])


def test_an_abort_with_an_old_epoch_is_refused(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    with WireProducer(broker.bootstrap_servers, "ghost", producer_id=700_002, producer_epoch=3) as ghost:
        ghost.produce(topic, 0, b"hanging")
    with pytest.raises(BrokerError, match=f"producer 700002 in {topic}-0 was not aborted") as raised:
        admin.abort_transaction(AbortSpecification(topic, 0, 700_002, 2, 0))
    assert raised.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert open_at(admin, topic, 0) == [0]


def test_an_abort_of_an_older_coordinator_is_refused(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    with WireProducer(broker.bootstrap_servers, "ghost", producer_id=700_003) as ghost:
        ghost.produce(topic, 0, b"first")
        admin.abort_transaction(AbortSpecification(topic, 0, 700_003, 0, 9))
        ghost.produce(topic, 0, b"second")
    with pytest.raises(BrokerError) as raised:
        admin.abort_transaction(AbortSpecification(topic, 0, 700_003, 0, 8))
    assert raised.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_an_abort_where_there_is_no_partition(admin: TransactionAdmin, topic: str) -> None:
    with pytest.raises(UnknownPartition, match=f"there is no partition {topic}-9"):
        admin.abort_transaction(AbortSpecification(topic, 9, 1, 0, 0))


def test_a_broker_that_restarts_is_waited_for_once_it_has_answered() -> None:
    calls: list[Callable[[TransactionAdmin], object]] = [
        lambda admin: admin.metadata().partitions_of("t"),
        TransactionAdmin.longest_timeout_ms,
        TransactionAdmin.list_transactions,
        lambda admin: admin.describe_transactions(["x"]),
        lambda admin: admin.topic_config("t", "cleanup.policy"),
    ]
    with Broker() as broker, ExitStack() as stack, ThreadPoolExecutor(len(calls)) as threads:
        create_topic(admin_client(broker.bootstrap_servers), "t")
        admins = [stack.enter_context(TransactionAdmin(broker.bootstrap_servers)) for _ in calls]
        before = [call(admin) for call, admin in zip(calls, admins, strict=True)]
        broker.kill()
        after = [threads.submit(call, admin) for call, admin in zip(calls, admins, strict=True)]
        broker.start()
        assert [each.result() for each in after] == before


def test_when_nobody_answers_that_is_said_at_once() -> None:
    with TransactionAdmin("127.0.0.1:1") as admin:
        for call in (
            admin.list_transactions,
            lambda: admin.describe_transactions(["id"]),
            lambda: admin.describe_producers([("t", 0)]),
            lambda: admin.abort_transaction(AbortSpecification("t", 0, 1, 0, 0)),
        ):
            with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1: connection refused"):
                call()
