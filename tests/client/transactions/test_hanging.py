"""Which open transactions are hanging."""

import secrets
import time
from typing import cast

import pytest

from tests.client.transactions.wire_producer import WireProducer
from tidelog.client.transactions.admin import (
    DescribedProducers,
    ProducerDescription,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from tidelog.client.transactions.hanging import HangingSearch, find_hanging, judge, open_transactions
from tidelog.client.wire.errors import BrokerError, ClientError, UnknownPartition
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode

HOUR_MS = 3_600_000
LONGEST_MS = 900_000


def search(admin: TransactionAdmin, topic: str) -> HangingSearch:
    return find_hanging(admin, [(topic, 0), (topic, 1)], longest_timeout_ms=LONGEST_MS, now_ms=int(time.time() * 1000))


def hour_ago() -> int:
    return int(time.time() * 1000) - HOUR_MS


def test_a_producer_that_no_coordinator_knows(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    with WireProducer(broker.bootstrap_servers, "ghost", producer_id=800_001) as ghost:
        ghost.produce(topic, 1, b"old", timestamp_ms=hour_ago())
    found = search(admin, topic)
    (verdict,) = found.hanging
    assert verdict.transaction.identity == (topic, 1, 800_001, 0)
    assert (verdict.description, verdict.reason) == (None, "no coordinator knows the producer")
    assert (found.partitions, found.open_transactions, found.failures) == (2, 1, {})
    admin.abort_transaction(verdict.transaction.abort)
    assert search(admin, topic) == ([], 2, 0, {})


def test_a_batch_that_came_after_the_end_of_its_transaction(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    with WireProducer(broker.bootstrap_servers, f"id-{secrets.token_hex(4)}") as producer:
        producer.init()
        producer.add_partition(topic, 0)
        producer.produce(topic, 0, b"in time")
        producer.end(is_commit=True)
        deadline = time.monotonic() + 30
        while admin.describe_transactions([producer.transactional_id])[producer.transactional_id].state != "CompleteCommit":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        producer.produce(topic, 0, b"late", timestamp_ms=hour_ago())
        (verdict,) = search(admin, topic).hanging
        assert verdict.transaction.producer.transaction_start_offset == 2
        assert verdict.transaction.producer.coordinator_epoch >= 0
        assert verdict.reason == f"{producer.transactional_id} is CompleteCommit, without this partition"
        admin.abort_transaction(verdict.transaction.abort)
        assert search(admin, topic).hanging == []


def test_a_transaction_that_its_coordinator_has_is_not(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    with WireProducer(broker.bootstrap_servers, f"id-{secrets.token_hex(4)}") as producer:
        producer.init()
        producer.add_partition(topic, 0)
        producer.produce(topic, 0, b"old", timestamp_ms=hour_ago())
        found = search(admin, topic)
        assert (found.hanging, found.open_transactions) == ([], 1)
        # The other partition was never added.
        producer.produce(topic, 1, b"old", timestamp_ms=hour_ago())
        (verdict,) = search(admin, topic).hanging
        assert (verdict.transaction.partition, verdict.reason) == (
            1,
            f"{producer.transactional_id} is Ongoing, without this partition",
        )


def test_one_that_was_written_to_lately_is_not(admin: TransactionAdmin, broker: Broker, topic: str) -> None:
    with WireProducer(broker.bootstrap_servers, "ghost", producer_id=800_002) as ghost:
        ghost.produce(topic, 0, b"young")
    found = search(admin, topic)
    assert (found.hanging, found.open_transactions) == ([], 1)


class ScriptedAdmin:
    """Answers of partitions in turn; coordinators that know what they are told."""

    def __init__(self, *described: DescribedProducers, known: tuple[TransactionDescription, ...] = ()) -> None:
        self.described = list(described)
        self.known = known

    def describe_producers(self, partitions: object) -> DescribedProducers:
        return self.described.pop(0)

    def list_transactions(self, producer_ids: list[int]) -> list[TransactionListing]:
        return [
            TransactionListing(each.transactional_id, 1, producer_id, each.state)
            for each in self.known
            for producer_id in producer_ids
        ]

    def describe_transactions(self, ids: list[str]) -> dict[str, TransactionDescription]:
        return {each.transactional_id: each for each in self.known if each.transactional_id in ids}

    def find(self) -> HangingSearch:
        return find_hanging(cast(TransactionAdmin, self), [("t", 0)], longest_timeout_ms=100, now_ms=1000)


def open_in(timestamp_ms: int, start_offset: int = 7, producer_id: int = 5) -> DescribedProducers:
    return DescribedProducers({("t", 0): [ProducerDescription(producer_id, 0, 0, timestamp_ms, -1, start_offset)]}, {})


def transaction(producer_id: int = 5) -> TransactionDescription:
    return TransactionDescription("id", 1, producer_id, 0, "Ongoing", 100, 1, (("t", 0),))


@pytest.mark.parametrize(("timestamp_ms", "count"), [(899, 1), (900, 0), (1000, 0), (5000, 0)])
def test_only_what_is_older_than_the_longest_time_out(timestamp_ms: int, count: int) -> None:
    assert len(ScriptedAdmin(open_in(timestamp_ms), open_in(timestamp_ms)).find().hanging) == count


@pytest.mark.parametrize("again", [DescribedProducers({}, {}), open_in(1, start_offset=-1), open_in(1, start_offset=9)])
def test_one_that_ended_while_we_asked_is_not(again: DescribedProducers) -> None:
    assert ScriptedAdmin(open_in(1), again).find().hanging == []


def test_an_id_that_has_another_producer_by_now_says_nothing(admin: TransactionAdmin) -> None:
    (verdict,) = ScriptedAdmin(open_in(1), open_in(1), known=(transaction(producer_id=6),)).find().hanging
    assert verdict.description is None
    assert ScriptedAdmin(open_in(1), open_in(1), known=(transaction(producer_id=5),)).find().hanging == []


def test_what_could_not_be_asked_is_told_but_not_deleted_topics() -> None:
    offline: ClientError = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "t-1")
    failures = {("t", 1): offline, ("u", 0): UnknownPartition("u", 0)}
    assert ScriptedAdmin(DescribedProducers({}, failures)).find() == ([], 0, 0, {("t", 1): offline})


def test_they_come_by_partition_and_offset() -> None:
    states = [ProducerDescription(each, 0, 0, 1, -1, offset) for each, offset in ((1, 9), (2, 3), (3, -1))]
    found = open_transactions(DescribedProducers({("b", 0): states, ("a", 1): states}, {}))
    assert [(each.topic, each.producer.producer_id) for each in found] == [("a", 2), ("a", 1), ("b", 2), ("b", 1)]
    assert judge(cast(TransactionAdmin, ScriptedAdmin()), []) == []
