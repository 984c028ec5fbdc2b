"""Each client's transactions, as each client reads them: what was committed, nothing of what was aborted, nothing too early."""

from typing import Any

import pytest

from tests.compatibility.clients.batches import codecs_of
from tests.compatibility.clients.client import Codec
from tests.compatibility.clients.conftest import MakeClient, MakeTopic
from tests.compatibility.clients.groups.member import Partition
from tests.compatibility.clients.transactions.conftest import PRODUCERS, MakeProducer
from tests.compatibility.clients.transactions.stable_offsets import high_watermarks, last_stable_offsets, wait_until_stable
from tidelog.testing import Broker

READERS = [*PRODUCERS, "kcat"]
# More than one block of any codec.
LONG_VALUE = b"eight by eight, and so on: " * 10_000


@pytest.mark.parametrize("reader", READERS)
def test_committed_is_read_and_aborted_is_not(
    name: str, reader: str, client_of: MakeClient, new_producer: MakeProducer, new_topic: MakeTopic
) -> None:
    topic, producer = new_topic(), new_producer(name)
    for number in range(6):
        producer.begin()
        for part in "abc":
            producer.send(topic, f"{number}{part}".encode())
        producer.flush()
        producer.abort() if number % 3 == 1 else producer.commit()

    # The marker that ends a transaction has an offset too.
    committed = [f"{number}{part}".encode() for number in (0, 2, 3, 5) for part in "abc"]
    everything = [f"{number}{part}".encode() for number in range(6) for part in "abc"]
    client = client_of(reader)
    assert [record.value for record in client.read(topic, len(committed), isolation="read_committed")] == committed
    assert [record.value for record in client.read(topic, len(everything))] == everything
    assert [record.offset for record in client.read(topic, len(everything))][:6] == [0, 1, 2, 4, 5, 6]


def test_open_transaction_holds_back_read_committed_only(
    name: str, admin: Any, client_of: MakeClient, new_producer: MakeProducer, new_topic: MakeTopic, transactional_id: str
) -> None:
    topic = new_topic()
    partitions = [Partition(topic, 0)]
    first, second = new_producer(name), new_producer(name, f"{transactional_id}-second")
    for producer, value in ((first, b"first"), (second, b"second")):
        producer.begin()
        producer.send(topic, value)
        producer.flush()
    second.commit()

    # The second is over, but it stands behind the first.
    assert [record.value for record in client_of(name).read(topic, 2)] == [b"first", b"second"]
    assert last_stable_offsets(admin, partitions) == {partitions[0]: 0}

    first.commit()
    wait_until_stable(admin, partitions)
    assert high_watermarks(admin, partitions) == {partitions[0]: 4}
    assert [record.value for record in client_of(name).read(topic, 2, isolation="read_committed")] == [b"first", b"second"]


def test_transaction_over_120_partitions_of_several_topics(
    name: str, admin: Any, new_producer: MakeProducer, new_topic: MakeTopic
) -> None:
    """All of it or nothing, and nothing before its end."""
    partitions = [Partition(topic, number) for topic in (new_topic(40), new_topic(40), new_topic(40)) for number in range(40)]
    producer = new_producer(name)
    for end, is_commit in enumerate((True, False, True)):
        producer.begin()
        for partition in partitions:
            producer.send(partition.topic, b"value", partition.number)
        producer.flush()
        # A record and a marker for each transaction before.
        assert last_stable_offsets(admin, partitions) == dict.fromkeys(partitions, 2 * end)
        producer.commit() if is_commit else producer.abort()
        wait_until_stable(admin, partitions)
        assert last_stable_offsets(admin, partitions) == dict.fromkeys(partitions, 2 * end + 2)


def test_each_codec_in_transactions(
    name: str, broker: Broker, client_of: MakeClient, new_producer: MakeProducer, new_topic: MakeTopic, transactional_id: str
) -> None:
    topic, values = new_topic(), []
    for codec in Codec:
        producer = new_producer(name, f"{transactional_id}-{codec}", codec=codec)
        for is_commit in (False, True):
            batch = [f"{codec} {number} {is_commit}".encode() for number in range(20)] + [LONG_VALUE]
            producer.begin()
            for value in batch:
                producer.send(topic, value)
            producer.flush()
            if is_commit:
                producer.commit()
                values += batch
            else:
                producer.abort()

    assert [codec for codec in Codec if codec in codecs_of(broker.data_path, topic)] == list(Codec)
    for reader in PRODUCERS:
        assert [record.value for record in client_of(reader).read(topic, len(values), isolation="read_committed")] == values
