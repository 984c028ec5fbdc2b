"""A transaction that is open for longer than its producer said is aborted by the broker, and nobody waits for it any more."""

from contextlib import closing
from typing import Any

import pytest

from tests.compatibility.clients.conftest import MakeClient, MakeTopic
from tests.compatibility.clients.groups.member import Partition
from tests.compatibility.clients.test_round_trips import sent
from tests.compatibility.clients.transactions.conftest import PRODUCERS, MakeProducer
from tests.compatibility.clients.transactions.producer import Fenced
from tests.compatibility.clients.transactions.stable_offsets import last_stable_offsets, wait_until_stable
from tidelog.testing import Broker

# Long enough for a busy machine to get records into the transaction.
TIMEOUT_MS = 2_000


def test_timed_out_transaction_is_aborted_and_its_producer_fenced(
    name: str,
    admin: Any,
    broker: Broker,
    client_of: MakeClient,
    new_producer: MakeProducer,
    new_topic: MakeTopic,
    transactional_id: str,
) -> None:
    topic = new_topic()
    partitions = [Partition(topic, 0)]
    producer = new_producer(name, timeout_ms=TIMEOUT_MS)
    producer.begin()
    producer.send(topic, b"too late")
    producer.flush()
    # It is stuck behind the transaction until that is given up.
    client_of(name).send(topic, [sent(b"in no transaction")])

    wait_until_stable(admin, partitions)
    assert [record.value for record in client_of(name).read(topic, 1, isolation="read_committed")] == [b"in no transaction"]
    with pytest.raises(Fenced):
        producer.commit()
    timed_out = [event["first"] for event in broker.events if event["event"] == "transactions_timed_out"]
    assert transactional_id in timed_out

    # A new instance goes on as if nothing had happened.
    again = new_producer(name, timeout_ms=TIMEOUT_MS)
    again.begin()
    again.send(topic, b"in time")
    again.commit()
    wait_until_stable(admin, partitions)
    read = client_of(name).read(topic, 2, isolation="read_committed")
    assert [record.value for record in read] == [b"in no transaction", b"in time"]


def test_producer_that_ends_without_a_word(
    name: str, admin: Any, broker: Broker, new_topic: MakeTopic, transactional_id: str
) -> None:
    """Nobody comes back for its transaction."""
    topic = new_topic()
    with closing(PRODUCERS[name](broker.bootstrap_servers, transactional_id, timeout_ms=TIMEOUT_MS)) as producer:
        producer.begin()
        producer.send(topic, b"lost")
        producer.flush()

    wait_until_stable(admin, [Partition(topic, 0)])
    assert last_stable_offsets(admin, [Partition(topic, 0)]) == {Partition(topic, 0): 2}
