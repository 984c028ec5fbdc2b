"""EndTxn of another process's transaction: on a broker of ours, and on one that answers as it is told."""

import secrets
from typing import Any

import pytest

from tests.client.transactions.wire_producer import WireProducer
from tests.client.wire.fake_broker import HANG_UP, FakeBroker
from tests.compatibility.apache_kafka import wait_until
from tests.compatibility.kafka_client import read_partition
from tidelog.client.transactions.admin import TransactionAdmin, TransactionHandle
from tidelog.client.wire.errors import BrokerError, InvalidAnswer
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


def open_transaction(broker: Broker, topic: str, value: bytes = b"x") -> TransactionHandle:
    """Left open by a process that is gone."""
    with WireProducer(broker.bootstrap_servers, f"id-{secrets.token_hex(4)}") as producer:
        producer.init()
        producer.add_partition(topic, 0)
        producer.produce(topic, 0, value)
        return TransactionHandle(producer.transactional_id, producer.producer_id, producer.producer_epoch)


def committed(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    """When there are that many: the markers follow the answer to an end."""

    def read() -> list[bytes | None]:
        return [record.value for record in read_partition(broker.bootstrap_servers, topic, 0, committed_only=True).records]

    wait_until(lambda: len(read()) >= count, "the markers are written", 30)
    return read()


def refusal(admin: TransactionAdmin, handle: TransactionHandle, *, is_commit: bool) -> ErrorCode:
    with pytest.raises(BrokerError) as raised:
        admin.end_transaction(handle, is_commit=is_commit)
    return raised.value.code


def test_a_commit_and_an_abort(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    kept, dropped = open_transaction(broker, topic, b"kept"), open_transaction(broker, topic, b"dropped")
    for _ in range(2):  # Asked again, it is as it was.
        admin.end_transaction(kept, is_commit=True)
        admin.end_transaction(dropped, is_commit=False)
    assert committed(broker, topic, 1) == [b"kept"]
    ids = [kept.transactional_id, dropped.transactional_id]
    wait_until(
        lambda: all(each.state.startswith("Complete") for each in admin.describe_transactions(ids).values()), "both are done", 30
    )
    described = admin.describe_transactions(ids)
    assert described[kept.transactional_id].state == "CompleteCommit"
    assert described[kept.transactional_id].handle == kept
    assert described[dropped.transactional_id].state == "CompleteAbort"


def test_what_has_ended_the_other_way_is_said(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    handle = open_transaction(broker, topic)
    admin.end_transaction(handle, is_commit=False)
    admin.end_transaction(handle, is_commit=False)
    assert refusal(admin, handle, is_commit=True) is ErrorCode.INVALID_TXN_STATE


def test_another_producer_and_another_epoch(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    handle = open_transaction(broker, topic)
    assert refusal(admin, handle._replace(producer_epoch=7), is_commit=True) is ErrorCode.PRODUCER_FENCED
    other = handle._replace(producer_id=handle.producer_id + 10_000)
    assert refusal(admin, other, is_commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    nobody = handle._replace(transactional_id="nobody")
    assert refusal(admin, nobody, is_commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    with WireProducer(broker.bootstrap_servers, handle.transactional_id) as successor:
        successor.init()
    assert refusal(admin, handle, is_commit=True) is ErrorCode.PRODUCER_FENCED


def test_one_that_cannot_be_ended_does_not_keep_the_others(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    first, last = open_transaction(broker, topic, b"first"), open_transaction(broker, topic, b"last")
    gone = first._replace(transactional_id="nobody")
    failures = admin.end_transactions([first, gone, last], is_commit=True)
    assert list(failures) == [gone]
    assert committed(broker, topic, 2) == [b"first", b"last"]
    assert admin.end_transactions([], is_commit=True) == {}


def test_the_longest_timeout(admin: TransactionAdmin) -> None:
    assert admin.longest_timeout_ms() == 900_000


# -- answers as wanted ----------------------------------------------------------------------------------------------------------


HANDLE = TransactionHandle("a", 5, 2)


@pytest.fixture
def fake_admin(fake: FakeBroker) -> TransactionAdmin:
    fake.versions |= {ApiKey.END_TXN: (0, 5), ApiKey.DESCRIBE_CONFIGS: (1, 4)}
    fake.answer(
        ApiKey.FIND_COORDINATOR,
        {"coordinators": [{"key": each, "node_id": 1, "host": "x", "port": 1, "error_code": 0} for each in "ab"]},
    )
    return TransactionAdmin(fake.bootstrap_servers, request_timeout_ms=2_000)


def test_asked_again_until_there_is_an_answer(fake: FakeBroker, fake_admin: TransactionAdmin) -> None:
    with fake_admin as admin:
        fake.answer(
            ApiKey.END_TXN,
            {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
            HANG_UP,
            {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS},
            {"error_code": ErrorCode.NOT_COORDINATOR},
            {"error_code": 0},
        )
        admin.end_transaction(HANDLE, is_commit=True)
    asked = fake.asked(ApiKey.END_TXN)
    assert [(each.transactional_id, each.producer_id, each.producer_epoch, each.committed) for each in asked] == [
        ("a", 5, 2, True)
    ] * 5
    # A version in which the epoch stays as it is, or the same request could not be told from one about the next transaction.
    assert {version for api, version, _ in fake.requests if api is ApiKey.END_TXN} == {4}


def test_several_are_ended_at_the_same_time(fake: FakeBroker, fake_admin: TransactionAdmin) -> None:
    with fake_admin as admin:
        fake.answer(ApiKey.END_TXN, {"error_code": 0})
        for _ in range(2):
            assert admin.end_transactions([HANDLE, HANDLE._replace(transactional_id="b")], is_commit=True) == {}
    # One for all that is not under way together, and one for each of the two; they are kept.
    assert fake.connections == 3


def test_those_that_are_done_are_not_asked_again(fake: FakeBroker, fake_admin: TransactionAdmin) -> None:
    with fake_admin as admin:
        fake.answer(ApiKey.END_TXN, {"error_code": 0}, {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS}, {"error_code": 0})
        assert admin.end_transactions([HANDLE, HANDLE._replace(transactional_id="b")], is_commit=False) == {}
    assert [each.transactional_id for each in fake.asked(ApiKey.END_TXN)] == ["a", "b", "b"]


def test_the_last_error_when_there_is_no_end(fake: FakeBroker, fake_admin: TransactionAdmin) -> None:
    with fake_admin as admin:
        fake.answer(ApiKey.END_TXN, {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS})
        assert refusal(admin, HANDLE, is_commit=True) is ErrorCode.CONCURRENT_TRANSACTIONS


def configs(code: int = 0, **values: str | None) -> dict[str, Any]:
    found = [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]
    return {"results": [{"error_code": code, "resource_type": 4, "resource_name": "1", "configs": found}]}


def test_a_longest_timeout_that_makes_no_sense(fake: FakeBroker, fake_admin: TransactionAdmin) -> None:
    with fake_admin as admin:
        fake.answer(ApiKey.DESCRIBE_CONFIGS, configs(transaction_max_timeout_ms="60000"))
        assert admin.longest_timeout_ms() == 60_000
        for answer in (configs(), configs(transaction_max_timeout_ms=None), configs(transaction_max_timeout_ms="x")):
            fake.answer(ApiKey.DESCRIBE_CONFIGS, answer)
            with pytest.raises(InvalidAnswer):
                admin.longest_timeout_ms()
        fake.answer(ApiKey.DESCRIBE_CONFIGS, configs(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        with pytest.raises(BrokerError, match="Not authorized"):
            admin.longest_timeout_ms()
