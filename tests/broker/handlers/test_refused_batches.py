"""What follows a refused batch of an idempotent producer is refused for the same reason, and never out of order."""

import pytest

from tests.broker.harness import FakeClient, Machine
from tests.log.harness import batch
from tidelog.broker import refused_batches
from tidelog.broker.refused_batches import FOLLOWING_MAX, RefusedBatches
from tidelog.metadata.records import BrokerEndpoint, PartitionChangeRecord, RegisterBrokerRecord
from tidelog.records.compression import CompressionType
from tidelog.records.header import SEQUENCE_COUNT, BatchHeader, read_header
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import ELEMENTS_AT_ONCE_MAX, ProducePartition, ProduceRequest, ProduceTopic

NONE, OUT_OF_ORDER = ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
NOT_LEADER, FEW, FULL = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR
ORDERS = ("orders", 0)
MANY = ELEMENTS_AT_ONCE_MAX + 50


def header(sequence: int, *, producer_id: int = 5, epoch: int = 0) -> BatchHeader:
    return read_header(batch(producer_id=producer_id, producer_epoch=epoch, sequence=sequence))


# -- the memory of a connection ----------------------------------------------------------------------------------------------


def test_what_follows_a_refused_batch_gets_its_code() -> None:
    refused = RefusedBatches()
    assert refused.note_failed(ORDERS, header(4), FEW) is FEW
    assert refused.note_failed(ORDERS, header(5), OUT_OF_ORDER) is FEW
    assert refused.note_failed(ORDERS, header(6), NOT_LEADER) is NOT_LEADER, "it has a reason of its own"
    assert refused.note_failed(ORDERS, header(3), OUT_OF_ORDER) is OUT_OF_ORDER, "it comes before the refused one"


@pytest.mark.parametrize(
    ("partition", "other"),
    [
        (("orders", 1), header(5)),
        (("other", 0), header(5)),
        (ORDERS, header(5, producer_id=6)),
        (ORDERS, header(5, epoch=1)),
        (ORDERS, header(4)),
    ],
)
def test_others_get_their_own(partition: tuple[str, int], other: BatchHeader) -> None:
    refused = RefusedBatches()
    refused.note_failed(ORDERS, header(4), FEW)
    assert not refused.follows_refused(partition, other)
    assert refused.note_failed(partition, other, OUT_OF_ORDER) is OUT_OF_ORDER


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_RECORD, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT, OUT_OF_ORDER],
)
def test_only_what_the_client_sends_again_and_the_log_does_not_have_is_remembered(code: ErrorCode) -> None:
    refused = RefusedBatches()
    assert refused.note_failed(ORDERS, header(4), code) is code
    assert len(refused) == 0
    refused.note_failed(ORDERS, header(4), FEW)
    refused.note_failed(ORDERS, header(4), code)
    assert len(refused) == 0, "nobody waits for a batch that was refused for good"


@pytest.mark.parametrize("sequence", [3, 4, 9])
def test_it_ends_with_the_next_batch_that_the_log_has(sequence: int) -> None:
    refused = RefusedBatches()
    refused.note_failed(ORDERS, header(4), FEW)
    refused.note_appended(ORDERS, header(sequence))
    assert refused.note_failed(ORDERS, header(10), OUT_OF_ORDER) is OUT_OF_ORDER


def test_it_is_for_what_was_on_the_wire() -> None:
    refused = RefusedBatches()
    refused.note_failed(ORDERS, header(4), FEW)
    codes = [refused.note_failed(ORDERS, header(5 + number), OUT_OF_ORDER) for number in range(FOLLOWING_MAX + 1)]
    assert codes == [FEW] * FOLLOWING_MAX + [OUT_OF_ORDER]


def test_sequence_numbers_wrap_around() -> None:
    refused = RefusedBatches()
    refused.note_failed(ORDERS, header(SEQUENCE_COUNT - 1), FEW)
    assert refused.note_failed(ORDERS, header(0), OUT_OF_ORDER) is FEW


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_batches, "ENTRIES_MAX", 2)
    refused = RefusedBatches()
    for index in range(3):
        refused.note_failed(("orders", index), header(4), FEW)
    assert [refused.follows_refused(("orders", index), header(5)) for index in range(3)] == [False, True, True]


# -- in a broker -------------------------------------------------------------------------------------------------------------


def lead(machine: Machine, topic_id: bytes, broker_id: int, partition: int = 0) -> None:
    """Let another broker lead the partition, or this one."""
    other = RegisterBrokerRecord(broker_id=2, end_points=(BrokerEndpoint("PLAINTEXT", "other", 7, 0),), fenced=False)
    moved = PartitionChangeRecord(partition, topic_id, isr=(broker_id,), leader=broker_id, replicas=(1, 2))
    assert machine.wait(lambda done: machine.broker.controller.propose([other, moved], done)) is None


def error_of(client: FakeClient, sequence: int, producer_id: int = 5) -> ErrorCode:
    return client.append(records=batch(producer_id=producer_id, sequence=sequence)).error


@pytest.mark.parametrize("is_known", [True, False])
def test_the_next_batch_is_not_out_of_order_behind_one_that_was_refused(
    client: FakeClient, machine: Machine, is_known: bool
) -> None:
    """The partition is led here again when the second of two batches on the wire is handled."""
    topic_id = client.create_topic()
    first = 0
    if is_known:
        assert error_of(client, 0) is NONE
        first = 1
    assert client.session.refused_batches is None, "an ordinary produce leaves nothing"
    lead(machine, topic_id, 2)
    assert error_of(client, first) is NOT_LEADER
    lead(machine, topic_id, 1)
    assert [error_of(client, sequence) for sequence in (first + 1, first + 2)] == [NOT_LEADER] * 2
    assert error_of(client, first + 7, producer_id=6) is NONE, "a producer that was not refused may begin anywhere"
    assert [error_of(client, sequence) for sequence in (first, first + 1, first + 2)] == [NONE] * 3
    assert error_of(client, first + 9) is OUT_OF_ORDER
    assert machine.broker.partitions.find("orders", None, 0).log.log_end_offset == first + 4


def test_another_connection_has_another_memory(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    assert error_of(client, 0) is NONE
    machine.disk.set_free_bytes(10)
    assert error_of(client, 1) is FULL
    machine.disk.set_free_bytes(None)
    assert error_of(machine.client(), 2) is OUT_OF_ORDER
    assert error_of(client, 2) is FULL
    assert error_of(client, 1) is NONE
    session = client.session
    session.closed()
    assert session.refused_batches is None


def test_a_refusal_is_remembered_although_another_batch_of_the_request_is_validated_later(
    client: FakeClient, machine: Machine
) -> None:
    """The refused records lie in a frame that has been overwritten when the request is answered."""
    topic_id = client.create_topic("orders", 2)
    assert error_of(client, 0) is NONE
    large = batch(5, compression=CompressionType.ZSTD, size=2_000_000)
    lead(machine, topic_id, 2)
    data = [
        ProducePartition(0, memoryview(batch(producer_id=5, sequence=1))),
        ProducePartition(1, memoryview(large)),
    ]
    ((refused, later),) = [
        topic.partitions
        for topic in client.produce(ProduceRequest(None, -1, 30_000, [ProduceTopic("orders", None, data)])).topics
    ]
    assert (refused.error, later.error) == (NOT_LEADER, NONE)
    lead(machine, topic_id, 1)
    assert [error_of(client, sequence) for sequence in (2, 1, 2)] == [NOT_LEADER, NONE, NONE]


def test_a_refusal_in_a_request_with_many_partitions_is_remembered(client: FakeClient, machine: Machine) -> None:
    topic_id = client.create_topic("orders", MANY)
    lead(machine, topic_id, 2, MANY - 1)
    data = [ProducePartition(index, memoryview(batch(producer_id=5, sequence=0))) for index in range(MANY)]
    (topic,) = client.produce(ProduceRequest(None, -1, 30_000, [ProduceTopic("orders", None, data)])).topics
    assert [result.error for result in topic.partitions] == [NONE] * (MANY - 1) + [NOT_LEADER]
    lead(machine, topic_id, 1, MANY - 1)
    codes = [client.append(partition=MANY - 1, records=batch(producer_id=5, sequence=sequence)).error for sequence in (1, 0, 1)]
    assert codes == [NOT_LEADER, NONE, NONE]
