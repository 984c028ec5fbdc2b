"""Two instances with one transactional id: the newer one wins, whatever the older one is about to do."""

from typing import Any

import pytest

from tests.compatibility.clients.conftest import MakeClient, MakeTopic
from tests.compatibility.clients.groups.admin import committed_offsets
from tests.compatibility.clients.groups.member import Partition
from tests.compatibility.clients.transactions.conftest import PRODUCERS, MakeProducer, MakeReader
from tests.compatibility.clients.transactions.producer import Fenced, TransactionalProducer
from tests.compatibility.clients.transactions.stable_offsets import wait_until_stable
from tests.compatibility.clients.waiting import wait_until


def send_in_a_transaction(producer: TransactionalProducer, topic: str, value: bytes) -> None:
    producer.begin()
    producer.send(topic, value)
    producer.commit()


@pytest.mark.parametrize("newer", list(PRODUCERS))
def test_second_instance_fences_the_first_and_aborts_its_transaction(
    name: str, newer: str, admin: Any, client_of: MakeClient, new_producer: MakeProducer, new_topic: MakeTopic
) -> None:
    topic = new_topic()
    first = new_producer(name)
    first.begin()
    first.send(topic, b"of the first")
    first.flush()

    second = new_producer(newer)
    # The last stable offset does not wait for the first instance to find out.
    wait_until_stable(admin, [Partition(topic, 0)])
    second.begin()
    second.send(topic, b"of the second")
    second.flush()
    with pytest.raises(Fenced):
        first.commit()
    second.commit()

    read = client_of(name).read(topic, 1, isolation="read_committed")
    assert [record.value for record in read] == [b"of the second"]
    assert [record.value for record in client_of(name).read(topic, 2)] == [b"of the first", b"of the second"]


def test_fenced_instance_writes_nothing(
    name: str, client_of: MakeClient, new_producer: MakeProducer, new_topic: MakeTopic
) -> None:
    """Its records are refused, those of the first as well as those of a later transaction."""
    topic = new_topic()
    first = new_producer(name)
    send_in_a_transaction(first, topic, b"of the first")

    second = new_producer(name)
    with pytest.raises(Fenced):
        send_in_a_transaction(first, topic, b"of a zombie")
    send_in_a_transaction(second, topic, b"of the second")

    assert [record.value for record in client_of(name).read(topic, 2)] == [b"of the first", b"of the second"]


def test_fenced_instance_commits_no_offsets(
    name: str,
    admin: Any,
    new_producer: MakeProducer,
    new_reader: MakeReader,
    new_topic: MakeTopic,
    transactional_id: str,
) -> None:
    source, group = Partition(new_topic(), 0), f"{transactional_id}-group"
    reader = new_reader(name, group, source.topic)
    first = new_producer(name)
    send_in_a_transaction(first, source.topic, b"for a member of the group only")
    # Until it has joined, the reader may have a member id without a generation, which the coordinator refuses.
    wait_until(reader.poll, "the reader is a member of its group")
    first.begin()
    first.send_offsets(reader, {source: 5})

    second = new_producer(name)
    with pytest.raises(Fenced):
        first.commit()
    second.begin()
    second.send_offsets(reader, {source: 3})
    second.commit()

    wait_until(lambda: committed_offsets(admin, group), "the committed offset")
    assert committed_offsets(admin, group) == {source: 3}
