"""Large batches: validated in slices and in threads, in order, before anything is written or acknowledged."""

from collections import deque
from collections.abc import Iterator

import pytest

from tests.broker.harness import FakeClient, Machine, produce_request
from tests.broker.transactional import ORDERS, TransactionalProducer, transactional_machine
from tests.log.harness import START_MS, batch
from tidelog.broker import validation_queue
from tidelog.log.append_check import BatchValidation, WorkBudget
from tidelog.metadata.records import PartitionChangeRecord
from tidelog.records.batch import build_batch, rebuild_batch
from tidelog.records.compression import CompressionType
from tidelog.records.header import HEADER_SIZE, read_header
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import ProducePartition, ProduceRequest, ProduceResult, decode_produce_response, encode_produce_request
from tidelog.wire.protocol import ApiKey

# More records than are validated while a request is handled. Their sizes differ, so there are no runs.
COUNT = 6_000
RECORDS = [Record(number, START_MS, None, b"v" * (number % 64)) for number in range(COUNT)]
LARGE = build_batch(RECORDS)
COMPRESSED = build_batch(RECORDS, compression=CompressionType.ZSTD)
# Few compressed bytes, but too many when they are decompressed.
BLOWN_UP = build_batch([Record(0, START_MS, None, bytes(1 << 20))], compression=CompressionType.ZSTD)


class OrderlyClient(FakeClient):
    """A connection that the broker reads from only while it wants to, like the server's."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._unread: deque[bytes] = deque()
        self.session = machine.broker.session("127.0.0.1", self._sent, self._closed, self._read)

    def send_bytes(self, frame: bytes) -> None:
        self._unread.append(frame)
        self._read()

    def _read(self) -> None:
        while self._unread and self.session.wants_reading:
            super().send_bytes(self._unread.popleft())

    def send_batch(self, records: bytes, *, acks: int = 1, partition: int = 0) -> None:
        request = produce_request("orders", records, partition=partition, acks=acks)
        self.send(ApiKey.PRODUCE, 9, encode_produce_request(9, request))

    def results(self) -> list[ProduceResult]:
        return [
            result
            for reply in self.replies
            for topic in decode_produce_response(9, memoryview(reply), 5).topics
            for result in topic.partitions
        ]


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.client().create_topic("orders", 2)
    return machine


def log_end(machine: Machine, partition: int = 0) -> int:
    return machine.broker.partitions.find("orders", None, partition).log.log_end_offset


def answered(machine: Machine, client: OrderlyClient, count: int) -> list[ProduceResult]:
    machine.run_until(lambda: len(client.replies) == count)
    return client.results()


def with_last_byte_changed(data: bytes) -> bytes:
    """The CRC is right, but the last record has a header count that is not true."""
    return rebuild_batch(read_header(data), data[HEADER_SIZE:-1] + b"\x02")


@pytest.mark.parametrize("large", [LARGE, COMPRESSED, BLOWN_UP], ids=["uncompressed", "compressed", "blown up"])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_later_batch_does_not_overtake(machine: Machine, large: bytes, acks: int) -> None:
    client = OrderlyClient(machine)
    client.send_batch(large, acks=acks)
    client.send_batch(batch(3), acks=acks)
    assert (client.replies, log_end(machine)) == ([], 0), "nothing is written or acknowledged before it is validated"
    first, second = answered(machine, client, 2)
    count = read_header(large).record_count
    assert (first.error, first.base_offset) == (ErrorCode.NONE, 0)
    assert (second.error, second.base_offset) == (ErrorCode.NONE, count)
    assert log_end(machine) == count + 3


def test_an_idempotent_producer_keeps_its_sequence(machine: Machine) -> None:
    client = OrderlyClient(machine)
    large = build_batch(RECORDS, producer_id=5, producer_epoch=0, base_sequence=0)
    client.send_batch(large)
    client.send_batch(batch(producer_id=5, sequence=COUNT))
    client.send_batch(large)
    assert [result.base_offset for result in answered(machine, client, 3)] == [0, COUNT, 0], "the last is a duplicate"


def test_what_is_refused_in_the_end_leaves_nothing(machine: Machine) -> None:
    client = OrderlyClient(machine)
    bad = with_last_byte_changed(LARGE)
    for records in (bad, rebuild_batch(read_header(COMPRESSED), b"not zstd" * 10_000), batch(1)):
        client.send_batch(records)
    assert log_end(machine) == 0
    results = answered(machine, client, 3)
    assert [result.error for result in results] == [ErrorCode.INVALID_RECORD, ErrorCode.INVALID_RECORD, ErrorCode.NONE]
    assert (results[2].base_offset, log_end(machine)) == (0, 1)


def test_other_clients_do_not_wait(machine: Machine) -> None:
    slow, quick = OrderlyClient(machine), OrderlyClient(machine)
    machine.executor.run_delay_us = (500_000, 500_000)
    slow.send_batch(BLOWN_UP)
    quick.send_batch(batch())
    assert len(answered(machine, quick, 1)) == 1
    assert (slow.replies, log_end(machine)) == ([], 1)
    assert answered(machine, slow, 1)[0].base_offset == 1


@pytest.mark.parametrize("large", [LARGE, BLOWN_UP], ids=["in slices", "in a thread"])
def test_a_client_that_leaves_takes_its_batch_along(machine: Machine, large: bytes) -> None:
    clients = [OrderlyClient(machine) for _ in range(4)]
    for client in clients:
        client.send_batch(large)
    assert machine.broker.validations.job_count == 4
    if large is BLOWN_UP:
        machine.run_until(lambda: machine.executor.pending >= validation_queue.OPEN_JOBS_MAX)
    for client in clients[::2]:
        client.session.closed()
    for client in clients[1::2]:
        assert answered(machine, client, 1)[0].error is ErrorCode.NONE
    machine.run_until(lambda: not machine.broker.validations.job_count)
    assert log_end(machine) == 2 * read_header(large).record_count
    assert not clients[0].replies


def test_acks_0(machine: Machine) -> None:
    client = OrderlyClient(machine)
    client.send_batch(LARGE, acks=0)
    client.send_batch(batch(), acks=1)
    assert answered(machine, client, 1)[0].base_offset == COUNT
    client.send_batch(with_last_byte_changed(LARGE), acks=0)
    machine.run_until(lambda: client.closed is not None)


def begin_slowly(machine: Machine, client: OrderlyClient) -> None:
    """Send a batch whose decompression takes half a second; everything after it is quick."""
    machine.run_until(lambda: not machine.executor.pending)
    machine.executor.run_delay_us = (500_000, 500_000)
    client.send_batch(BLOWN_UP)
    machine.run_until(lambda: machine.executor.pending > 0)
    machine.executor.run_delay_us = (0, 100)


def test_the_partition_may_be_gone_afterwards(machine: Machine) -> None:
    client, admin = OrderlyClient(machine), machine.client()
    begin_slowly(machine, client)
    admin.send(ApiKey.DELETE_TOPICS, 1, b"\0\0\0\x01\0\x06orders\0\0\x13\x88")
    assert answered(machine, client, 1)[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_partition_may_have_another_leader_afterwards(machine: Machine) -> None:
    client = OrderlyClient(machine)
    topic = machine.broker.image.topic("orders")
    assert topic is not None
    begin_slowly(machine, client)
    moved = PartitionChangeRecord(0, topic.topic_id, isr=(2,), leader=2, replicas=(2,))
    machine.broker.controller.propose([moved], lambda error: None)
    assert answered(machine, client, 1)[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_topic_may_have_other_settings_afterwards(machine: Machine) -> None:
    """A batch without keys was fine when it came, and the topic is compacted when it could be written."""
    client, admin = OrderlyClient(machine), machine.client()
    begin_slowly(machine, client)
    setting = {"name": "cleanup.policy", "config_operation": 0, "value": "compact"}
    resource = {"resource_type": 2, "resource_name": "orders", "configs": [setting]}
    admin.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    (result,) = answered(machine, client, 1)
    assert (result.error, [index for index, _ in result.record_errors]) == (ErrorCode.INVALID_RECORD, [0])
    assert log_end(machine) == 0


def test_each_partition_of_a_request_stands_for_itself(machine: Machine) -> None:
    machine.client().create_topic("many", 5)
    parts = [(0, LARGE), (1, with_last_byte_changed(LARGE)), (7, LARGE), (2, batch(2)), (3, batch(1)), (4, COMPRESSED)]
    request = produce_request("many", b"", acks=-1)
    topic = request.topics[0]._replace(partitions=[ProducePartition(index, memoryview(data)) for index, data in parts])
    response = machine.client().produce(ProduceRequest(None, -1, 1000, [topic]))
    results = response.topics[0].partitions
    assert [(result.partition, result.error) for result in results] == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.INVALID_RECORD),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, ErrorCode.NONE),
        (3, ErrorCode.NONE),
        (4, ErrorCode.NONE),
    ]
    assert [result.base_offset for result in results] == [0, -1, -1, 0, 0, 0]


@pytest.fixture
def steps(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The records that were walked in each turn of the loop."""
    turns = [0]
    advance, tick = BatchValidation.advance, machine.broker.tick

    def advance_and_count(validation: BatchValidation, budget: WorkBudget) -> None:
        before = budget.records
        advance(validation, budget)
        turns[-1] += before - budget.records

    def next_turn() -> None:
        turns.append(0)
        tick()

    monkeypatch.setattr(BatchValidation, "advance", advance_and_count)
    monkeypatch.setattr(machine.broker, "tick", next_turn)
    return iter([turns])


def test_no_turn_of_the_loop_walks_many_records(machine: Machine, steps: Iterator[list[int]]) -> None:
    """Not even when several clients send batches of tens of thousands of keys to a compacted topic."""
    (turns,) = steps
    machine.client().create_topic("compacted", cleanup_policy="compact")
    records = [Record(number, START_MS, b"k" * (number % 30), b"") for number in range(20_000)]
    data = build_batch(records, compression=CompressionType.ZSTD)
    clients = [OrderlyClient(machine) for _ in range(3)]
    for client in clients:
        client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, produce_request("compacted", data)))
        turns.append(0)
    for client in clients:
        assert answered(machine, client, 1)[0].error is ErrorCode.NONE
    assert max(turns) <= validation_queue.STEPS_PER_SLICE * validation_queue.STEP_RECORDS * 1.3
    assert sum(turns) >= 50_000


def test_few_batches_are_decompressed_at_a_time(machine: Machine) -> None:
    clients = [OrderlyClient(machine) for _ in range(6)]
    machine.executor.run_delay_us = (1_000, 1_000)
    for client in clients:
        client.send_batch(BLOWN_UP)
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, machine.executor.pending)
        return all(client.replies for client in clients)

    machine.run_until(look)
    assert 1 <= most <= validation_queue.OPEN_JOBS_MAX + 1, "a commit pass may be under way too"


def test_the_codec_of_the_topic_is_applied_off_the_loop(machine: Machine) -> None:
    machine.client().create_topic("lz4", compression_type="lz4")
    client = OrderlyClient(machine)
    records = build_batch([Record(number, START_MS, None, b"v" * 1000) for number in range(500)])
    request = produce_request("lz4", records)
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, request))
    assert (client.replies, machine.broker.validations.job_count) == ([], 1)
    assert answered(machine, client, 1)[0].error is ErrorCode.NONE
    read = client.read("lz4").records
    assert read is not None
    assert read_header(read).compression is CompressionType.LZ4


def test_a_transaction_is_validated_before_it_is_verified() -> None:
    """It may end while its batch is validated, so the coordinator is asked afterwards."""
    machine = transactional_machine()
    producer = TransactionalProducer(machine, is_v2=True).started()
    producer.client = OrderlyClient(machine)
    producer_id, epoch = producer.producer_id, producer.epoch
    large = build_batch(RECORDS, base_sequence=0, transactional=True, producer_id=producer_id, producer_epoch=epoch)
    small = batch(2, sequence=COUNT, transactional=True, producer_id=producer_id, producer_epoch=epoch)
    for records in (large, small):
        request = producer.request(ORDERS)
        topic = request.topics[0]._replace(partitions=[ProducePartition(0, memoryview(records))])
        producer.client.send(ApiKey.PRODUCE, 12, encode_produce_request(12, request._replace(topics=[topic])))
    machine.run_until(lambda: len(producer.client.replies) == 2)
    assert log_end(machine) == COUNT + 2
    assert machine.broker.partitions.find("orders", None, 0).log.producers.open_transaction_count == 1


def test_a_batch_of_an_unknown_producer_of_version_2_starts_at_sequence_0() -> None:
    machine = transactional_machine()
    producer = TransactionalProducer(machine, is_v2=True).started()
    (refused,) = producer.produce(ORDERS, sequence=5)
    assert refused.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    (written,) = producer.produce(ORDERS, sequence=0)
    assert written.error is ErrorCode.NONE
    other = TransactionalProducer(machine, "other").started()
    other.add(ORDERS)
    (older,) = other.produce(ORDERS, sequence=5)
    assert older.error is ErrorCode.NONE, "the state of an older client's producer may have expired"
