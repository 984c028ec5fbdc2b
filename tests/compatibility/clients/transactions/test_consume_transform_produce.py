"""Read, transform, write, and commit the offsets with what was written: every record once, whatever is aborted in between."""

from collections.abc import Iterable
from typing import Any

from tests.compatibility.clients.client import Client
from tests.compatibility.clients.conftest import MakeClient, MakeTopic
from tests.compatibility.clients.groups.admin import committed_offsets
from tests.compatibility.clients.groups.member import Partition
from tests.compatibility.clients.test_round_trips import sent
from tests.compatibility.clients.transactions.conftest import MakeProducer, MakeReader
from tests.compatibility.clients.transactions.producer import GroupReader, Read, TransactionalProducer
from tests.compatibility.clients.transactions.stable_offsets import high_watermarks, wait_until_stable
from tests.compatibility.clients.waiting import wait_until

PARTITIONS = 3
RECORDS = 100


def fill(client: Client, topic: str) -> None:
    for partition in range(PARTITIONS):
        client.send(topic, [sent(f"{partition} {number}".encode()) for number in range(RECORDS)], partition=partition)


def transform(reads: Iterable[Read], producer: TransactionalProducer, target: str) -> None:
    for read in reads:
        producer.send(target, b"transformed " + read.value, read.partition.number)


def next_offsets(reads: Iterable[Read]) -> dict[Partition, int]:
    return {read.partition: read.offset + 1 for read in reads}


def run(reader: GroupReader, producer: TransactionalProducer, target: str, abort_every: int, records: int) -> int:
    """Until ``records`` were transformed; returns how many transactions were aborted on the way."""
    done = transactions = aborted = 0

    def step() -> bool:
        nonlocal done, transactions, aborted
        reads = reader.poll()
        if not reads:
            return done >= records
        transactions += 1
        producer.begin()
        transform(reads, producer, target)
        producer.send_offsets(reader, next_offsets(reads))
        if transactions % abort_every == 0:
            # What was aborted is there for everybody who reads everything.
            producer.flush()
            producer.abort()
            reader.rewind()
            aborted += 1
        else:
            producer.commit()
            done += len(reads)
        return done >= records

    wait_until(step, f"{records} records transformed", seconds_max=60)
    return aborted


def read_committed(client: Client, topic: str) -> list[list[bytes | None]]:
    return [
        [record.value for record in client.read(topic, RECORDS, partition=partition, isolation="read_committed")]
        for partition in range(PARTITIONS)
    ]


TRANSFORMED = [[f"transformed {partition} {number}".encode() for number in range(RECORDS)] for partition in range(PARTITIONS)]


def test_each_record_once_with_aborts_in_between(
    name: str,
    admin: Any,
    client_of: MakeClient,
    new_producer: MakeProducer,
    new_reader: MakeReader,
    new_topic: MakeTopic,
    transactional_id: str,
) -> None:
    source, target, group = new_topic(PARTITIONS), new_topic(PARTITIONS), f"{transactional_id}-group"
    fill(client_of(name), source)

    aborted = run(new_reader(name, group, source), new_producer(name), target, 3, PARTITIONS * RECORDS)

    partitions = [Partition(target, number) for number in range(PARTITIONS)]
    wait_until_stable(admin, partitions)
    assert read_committed(client_of(name), target) == TRANSFORMED
    assert aborted >= 3
    # The aborted ones are in the log as well.
    assert sum(high_watermarks(admin, partitions).values()) > PARTITIONS * RECORDS + aborted
    expected = {(source, number): RECORDS for number in range(PARTITIONS)}
    wait_until(lambda: committed_offsets(admin, group) == expected, "the committed offsets")


def test_second_instance_goes_on_where_the_first_committed(
    name: str,
    admin: Any,
    client_of: MakeClient,
    new_producer: MakeProducer,
    new_reader: MakeReader,
    new_topic: MakeTopic,
    transactional_id: str,
) -> None:
    """The first is left in the middle of a transaction; its offsets do not count."""
    source, target, group = new_topic(PARTITIONS), new_topic(PARTITIONS), f"{transactional_id}-group"
    fill(client_of(name), source)
    reader, first = new_reader(name, group, source), new_producer(name)
    half = PARTITIONS * RECORDS // 2
    run(reader, first, target, abort_every=1_000, records=half)
    reads = list[Read]()

    def has_read() -> bool:
        reads.extend(reader.poll())
        return bool(reads)

    wait_until(has_read, "records for the transaction that is left open")
    first.begin()
    transform(reads, first, target)
    first.send_offsets(reader, next_offsets(reads))
    first.flush()

    second = new_producer(name)
    partitions = [Partition(target, number) for number in range(PARTITIONS)]
    wait_until_stable(admin, partitions)
    done = sum(committed_offsets(admin, group).values())
    assert half <= done < PARTITIONS * RECORDS
    reader.rewind()
    run(reader, second, target, abort_every=1_000, records=PARTITIONS * RECORDS - done)

    wait_until_stable(admin, partitions)
    assert read_committed(client_of(name), target) == TRANSFORMED
