"""The calls on a broker that answers as it is told: what is tried again, what is not, and what is not believed."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.wire.fake_broker import HANG_UP, FakeBroker
from tidelog.client.transactions import admin as admin_module
from tidelog.client.transactions.admin import AbortSpecification, TransactionAdmin
from tidelog.client.wire.errors import (
    BrokerError,
    ClientError,
    ConnectionLost,
    InvalidAnswer,
    SecurityRequired,
    UnknownPartition,
    UnsupportedByBroker,
)
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

ABORT = AbortSpecification("t", 1, 5, 2, -1)


@pytest.fixture
def admin(fake: FakeBroker) -> Iterator[TransactionAdmin]:
    with TransactionAdmin(fake.bootstrap_servers, request_timeout_ms=5_000) as admin:
        yield admin


def listing(code: ErrorCode = ErrorCode.NONE, *ids: str) -> dict[str, Any]:
    states = [{"transactional_id": each, "producer_id": 1, "transaction_state": "Empty"} for each in ids]
    return {"error_code": code, "unknown_state_filters": [], "transaction_states": states}


def coordinators(code: ErrorCode, *ids: str) -> dict[str, Any]:
    return {"coordinators": [{"key": each, "node_id": 1, "host": "x", "port": 1, "error_code": code} for each in ids]}


def described(**codes: ErrorCode) -> dict[str, Any]:
    states = [
        {"error_code": code, "transactional_id": each, "transaction_state": "Empty", "producer_id": 1, "topics": []}
        for each, code in codes.items()
    ]
    return {"transaction_states": states}


def producers(code: ErrorCode, *indexes: int) -> dict[str, Any]:
    return {
        "topics": [{"name": "t", "partitions": [{"partition_index": each, "error_code": code} for each in indexes]}],
    }


def marked(code: ErrorCode, producer_id: int = 5, index: int = 1) -> dict[str, Any]:
    topics = [{"name": "t", "partitions": [{"partition_index": index, "error_code": code}]}]
    return {"markers": [{"producer_id": producer_id, "topics": topics}]}


def test_a_coordinator_that_loads_is_asked_again(fake: FakeBroker, admin: TransactionAdmin) -> None:
    fake.answer(ApiKey.LIST_TRANSACTIONS, listing(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), listing(ErrorCode.NONE, "b", "a"))
    assert [each.transactional_id for each in admin.list_transactions()] == ["a", "b"]


def test_a_list_that_cannot_be_had_is_no_list(fake: FakeBroker, admin: TransactionAdmin) -> None:
    fake.answer(ApiKey.LIST_TRANSACTIONS, listing(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="broker 1 does not list its transactions: Not authorized"):
        admin.list_transactions()


def test_filters_that_a_broker_does_not_have_are_refused(fake: FakeBroker, admin: TransactionAdmin) -> None:
    fake.versions[ApiKey.LIST_TRANSACTIONS] = (0, 0)
    fake.answer(ApiKey.LIST_TRANSACTIONS, listing())
    assert admin.list_transactions(producer_ids=[1], states=["Empty"]) == []
    with pytest.raises(UnsupportedByBroker):
        admin.list_transactions(duration_ms=0)
    fake.versions[ApiKey.LIST_TRANSACTIONS] = (0, 1)
    assert admin.list_transactions(duration_ms=0) == []
    with pytest.raises(UnsupportedByBroker):
        admin.list_transactions(pattern="a")


def test_who_has_not_answered_is_asked_again_and_who_has_is_not(fake: FakeBroker, admin: TransactionAdmin) -> None:
    fake.answer(
        ApiKey.FIND_COORDINATOR,
        coordinators(ErrorCode.COORDINATOR_NOT_AVAILABLE, "a", "b", "c"),
        coordinators(ErrorCode.NONE, "a", "b", "c"),
        coordinators(ErrorCode.NONE, "c"),
    )
    not_found, moved = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR
    fake.answer(ApiKey.DESCRIBE_TRANSACTIONS, described(a=ErrorCode.NONE, b=not_found, c=moved), described(c=ErrorCode.NONE))
    assert list(admin.describe_transactions(["a", "b", "c"])) == ["a", "c"]
    assert [each.transactional_ids for each in fake.asked(ApiKey.DESCRIBE_TRANSACTIONS)] == [("a", "b", "c"), ("c",)]
    assert {each.key_type for each in fake.asked(ApiKey.FIND_COORDINATOR)} == {1}


def test_what_is_known_is_not_asked_again_until_something_fails(fake: FakeBroker, admin: TransactionAdmin) -> None:
    fake.answer(ApiKey.FIND_COORDINATOR, coordinators(ErrorCode.NONE, "a"))
    fake.answer(
        ApiKey.DESCRIBE_TRANSACTIONS,
        described(a=ErrorCode.NONE),
        described(a=ErrorCode.NONE),
        described(a=ErrorCode.NOT_COORDINATOR),
        described(a=ErrorCode.NONE),
    )

    def lookups() -> list[int]:
        admin.describe_transactions(["a"])
        return [len(fake.asked(api)) for api in (ApiKey.FIND_COORDINATOR, ApiKey.METADATA)]

    first, second, third = lookups(), lookups(), lookups()
    assert second == first
    assert third == [each + 1 for each in first]
    assert [each.topics for each in fake.asked(ApiKey.METADATA)] == [()] * third[1], "of topics nobody wants to know"


def test_an_id_that_nobody_answers_for(fake: FakeBroker, admin: TransactionAdmin) -> None:
    fake.answer(ApiKey.FIND_COORDINATOR, coordinators(ErrorCode.NONE, "a"))
    fake.answer(ApiKey.DESCRIBE_TRANSACTIONS, described())
    with pytest.raises(InvalidAnswer, match="do not answer for a"):
        admin.describe_transactions(["a"])


def test_many_are_asked_for_in_several_requests(
    fake: FakeBroker, admin: TransactionAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_module, "BATCH_SIZE_MAX", 2)
    fake.answer(ApiKey.METADATA, fake.metadata(1, {"t": 3}))
    fake.answer(ApiKey.DESCRIBE_PRODUCERS, producers(ErrorCode.NONE, 0, 1), producers(ErrorCode.NONE, 2))
    assert sorted(admin.describe_producers([("t", 0), ("t", 1), ("t", 2)]).producers) == [("t", 0), ("t", 1), ("t", 2)]
    asked = [each.topics[0].partition_indexes for each in fake.asked(ApiKey.DESCRIBE_PRODUCERS)]
    assert asked == [(0, 1), (2,)]


def test_a_leader_that_moved_is_looked_for(fake: FakeBroker, admin: TransactionAdmin) -> None:
    fake.answer(ApiKey.DESCRIBE_PRODUCERS, producers(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0), HANG_UP, producers(ErrorCode.NONE, 0))
    assert admin.describe_producers([("t", 0)]) == ({("t", 0): []}, {})
    assert len(fake.asked(ApiKey.METADATA)) >= 3


def test_a_partition_that_has_answered_is_not_asked_again(fake: FakeBroker, admin: TransactionAdmin) -> None:
    mixed = producers(ErrorCode.NONE, 0)
    mixed["topics"] += producers(ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)["topics"]
    fake.answer(ApiKey.DESCRIBE_PRODUCERS, mixed, producers(ErrorCode.NONE, 1))
    assert sorted(admin.describe_producers([("t", 0), ("t", 1)]).producers) == [("t", 0), ("t", 1)]
    assert [each.topics[0].partition_indexes for each in fake.asked(ApiKey.DESCRIBE_PRODUCERS)] == [(0, 1), (1,)]


def test_partitions_without_a_leader_do_not_keep_others_from_answering(fake: FakeBroker) -> None:
    fake.answer(ApiKey.METADATA, fake.metadata(1, {"t": 1}, leader=-1))
    with TransactionAdmin(fake.bootstrap_servers, request_timeout_ms=300) as admin:
        result = admin.describe_producers([("t", 0), ("u", 0)])
    assert result.producers == {}
    assert isinstance(result.failures["u", 0], UnknownPartition)
    error = result.failures["t", 0]
    assert isinstance(error, BrokerError)
    assert error.code is ErrorCode.LEADER_NOT_AVAILABLE


def test_an_abort_is_sent_again_where_it_was_not_written(fake: FakeBroker, admin: TransactionAdmin) -> None:
    fake.answer(ApiKey.WRITE_TXN_MARKERS, marked(ErrorCode.NOT_LEADER_OR_FOLLOWER), marked(ErrorCode.NONE))
    admin.abort_transaction(ABORT)
    sent = fake.asked(ApiKey.WRITE_TXN_MARKERS)
    assert len(sent) == 2
    (marker,) = sent[1].markers
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (5, 2, False)
    # There is no marker of the producer yet: -1 would be refused.
    assert marker.coordinator_epoch == 0
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", (1,))]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (HANG_UP, ConnectionLost),
        (marked(ErrorCode.REQUEST_TIMED_OUT), BrokerError),
        (marked(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND), BrokerError),
        (marked(ErrorCode.INVALID_PRODUCER_EPOCH), BrokerError),
        (marked(ErrorCode.NONE, producer_id=6), InvalidAnswer),
        (marked(ErrorCode.NONE, index=0), InvalidAnswer),
        ({"markers": []}, InvalidAnswer),
    ],
)
def test_an_abort_that_may_have_been_written_is_not_sent_again(
    fake: FakeBroker, admin: TransactionAdmin, answer: object, kind: type[ClientError]
) -> None:
    fake.answer(ApiKey.WRITE_TXN_MARKERS, answer, marked(ErrorCode.NONE))
    with pytest.raises(kind):
        admin.abort_transaction(ABORT)
    assert len(fake.asked(ApiKey.WRITE_TXN_MARKERS)) == 1


def test_a_listener_that_wants_sasl_is_named_as_such(fake: FakeBroker, admin: TransactionAdmin) -> None:
    fake.answer(ApiKey.METADATA, HANG_UP)
    with pytest.raises(SecurityRequired):
        admin.list_transactions()
