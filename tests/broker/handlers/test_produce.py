"""Producers that do not wait for the disk, and a disk that is behind."""

import pytest

from tests.broker.harness import HOST, NODE_ID, PORT, FakeClient, Machine, offsets_in, produce_request
from tests.log.harness import START_MS, batch
from tidelog.broker.api import DECODED_ELEMENT_BYTES
from tidelog.metadata.records import BrokerEndpoint, PartitionChangeRecord, RegisterBrokerRecord
from tidelog.records.batch import build_batch, read_records, rebuild_batch
from tidelog.records.compression import CompressionType
from tidelog.records.header import HEADER_SIZE, crc_is_valid, read_header
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import (
    ELEMENTS_AT_ONCE_MAX,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.wire.protocol import ApiKey, request_header

UNKNOWN_ID = b"0123456789abcdef"


def by_id(topic_id: bytes) -> ProduceRequest:
    return ProduceRequest(None, -1, 1000, [ProduceTopic(None, topic_id, [ProducePartition(0, memoryview(batch()))])])


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_appends(client: FakeClient, version: int) -> None:
    topic_id = client.create_topic()
    request = by_id(topic_id) if version >= 13 else produce_request(records=batch(2))
    ((result,),) = [topic.partitions for topic in client.produce(request, version).topics]
    assert (result.error, result.base_offset) == (ErrorCode.NONE, 0)
    assert client.append().base_offset == (1 if version >= 13 else 2)


@pytest.mark.parametrize("codec", list(CompressionType))
def test_what_was_written_is_read(client: FakeClient, codec: CompressionType) -> None:
    client.create_topic()
    client.append(records=batch(3, compression=codec))
    assert offsets_in(client.read().records) == [0, 1, 2]


# -- acks --------------------------------------------------------------------------------------------------------------------


def test_acks_all_waits_until_it_is_durable(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    log = machine.broker.partitions.find("orders", None, 0).log
    assert client.append(acks=-1).error is ErrorCode.NONE
    assert log.durable.offset == log.high_watermark == 1


def test_what_was_acknowledged_outlives_a_power_cut(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    client.append(count=3)
    assert machine.crash("none") is None
    assert offsets_in(machine.client().read().records) == [0, 1, 2]


def test_acks_1_does_not_wait(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    machine.executor.run_delay_us = (10**9, 10**9)
    assert client.append(acks=1).base_offset == 0
    log = machine.broker.partitions.find("orders", None, 0).log
    assert (log.log_end_offset, log.high_watermark) == (1, 0)


def test_gotcha_7_acks_0_gets_no_response_and_the_next_request_does(client: FakeClient) -> None:
    client.create_topic()
    count = len(client.replies)
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, produce_request(records=batch(), acks=0)))
    assert client.append().base_offset == 1
    assert len(client.replies) == count + 1


def test_a_failed_acks_0_ends_the_connection(client: FakeClient) -> None:
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, produce_request("missing", batch(), acks=0)))
    assert client.closed is not None
    assert client.replies == []


@pytest.mark.parametrize("acks", [2, -2])
def test_other_acks_are_refused(client: FakeClient, acks: int) -> None:
    client.create_topic()
    assert client.append(acks=acks).error is ErrorCode.INVALID_REQUIRED_ACKS


def test_a_wait_that_takes_too_long_is_told(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    machine.executor.run_delay_us = (10**9, 10**9)
    start_ms = machine.clock.monotonic_ms()
    ((result,),) = [topic.partitions for topic in client.produce(produce_request(records=batch(), timeout_ms=250)).topics]
    assert result.error is ErrorCode.REQUEST_TIMED_OUT
    assert 250 <= machine.clock.monotonic_ms() - start_ms < 400


def test_a_minimum_above_the_number_of_replicas_asks_for_all_of_them(client: FakeClient) -> None:
    client.create_topic("orders", min_insync_replicas="2")
    assert client.append(acks=-1).error is ErrorCode.NONE


def test_a_relaxed_topic_acknowledges_and_shows_from_the_page_cache(client: FakeClient, machine: Machine) -> None:
    client.create_topic("orders", flush_messages="1000000")
    machine.executor.run_delay_us = (10**9, 10**9)
    assert client.append(acks=-1).error is ErrorCode.NONE
    assert offsets_in(client.read().records) == [0]
    assert client.append(acks=1).error is ErrorCode.NONE
    assert offsets_in(client.read(offset=1).records) == [1]


# -- refusals ----------------------------------------------------------------------------------------------------------------


def test_each_partition_stands_for_itself(client: FakeClient) -> None:
    client.create_topic("orders", 3)
    good = memoryview(batch())
    damaged = bytearray(good)
    damaged[-1] ^= 1
    data = [
        ProducePartition(0, good),
        ProducePartition(1, memoryview(damaged)),
        ProducePartition(3, good),
        ProducePartition(2, None),
    ]
    request = ProduceRequest(None, -1, 1000, [ProduceTopic("orders", None, data), ProduceTopic("missing", None, data[:1])])
    orders, missing = client.produce(request).topics
    assert [result.error for result in orders.partitions] == [
        ErrorCode.NONE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_RECORD,
    ]
    assert [result.error for result in missing.partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_nothing_is_written_to_a_partition_that_is_named_twice(client: FakeClient, machine: Machine) -> None:
    topic_id = client.create_topic("orders", 2)
    data = [ProducePartition(index, memoryview(batch())) for index in (0, 1, 0)]
    by_name = [ProduceTopic("orders", None, data)]
    by_id = [ProduceTopic(None, topic_id, [each]) for each in data]
    for version, topics in ((9, by_name), (13, by_id)):
        answered = client.produce(ProduceRequest(None, -1, 1000, topics), version).topics
        results = [result for topic in answered for result in topic.partitions]
        assert [(result.partition, result.error) for result in results] == [
            (0, ErrorCode.INVALID_REQUEST),
            (1, ErrorCode.NONE),
            (0, ErrorCode.INVALID_REQUEST),
        ]
    ends = [machine.broker.partitions.find("orders", None, index).log.log_end_offset for index in (0, 1)]
    assert ends == [0, 2]


# -- many partitions ---------------------------------------------------------------------------------------------------------

MANY = ELEMENTS_AT_ONCE_MAX + 50


def many(count: int = MANY, *, acks: int = -1, topics: tuple[str, ...] = ("orders",)) -> ProduceRequest:
    data = [ProducePartition(index, memoryview(batch())) for index in range(count // len(topics))]
    return ProduceRequest(None, acks, 1000, [ProduceTopic(name, None, data[:]) for name in topics])


@pytest.fixture(scope="module")
def many_machine() -> Machine:
    machine = Machine()
    for name in ("orders", "other"):
        machine.client().create_topic(name, MANY)
    return machine


def ends_of(machine: Machine, name: str = "orders", count: int = MANY) -> list[int]:
    return [machine.broker.partitions.find(name, None, index).log.log_end_offset for index in range(count)]


@pytest.mark.parametrize("version", [8, 9, 12])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_request_with_many_partitions_is_answered_for_each(many_machine: Machine, version: int, acks: int) -> None:
    client = many_machine.client()
    before = ends_of(many_machine)
    orders, other = client.produce(many(2 * MANY, acks=acks, topics=("orders", "other")), version).topics
    assert (orders.name, other.name) == ("orders", "other")
    assert [(result.partition, result.error, result.base_offset) for result in orders.partitions] == [
        (index, ErrorCode.NONE, end) for index, end in enumerate(before)
    ]
    assert len(other.partitions) == MANY
    assert ends_of(many_machine) == [end + 1 for end in before]
    many_machine.run_until(lambda: client.session.wants_reading)
    assert many_machine.broker.work_slices.admitted_bytes == 0


def test_a_later_request_does_not_overtake_one_with_many_partitions(many_machine: Machine) -> None:
    client, other = many_machine.client(), many_machine.client()
    before = ends_of(many_machine)
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, many(acks=0)))
    assert not client.session.wants_reading, "the records of its last partition are not appended yet"
    assert other.read().error is ErrorCode.NONE, "others are served"
    assert ends_of(many_machine)[-1] == before[-1]
    many_machine.run_until(lambda: client.session.wants_reading)
    assert ends_of(many_machine) == [end + 1 for end in before]
    assert (client.replies, client.closed) == ([], None)


def test_the_faults_of_single_partitions_among_many(many_machine: Machine) -> None:
    client = many_machine.client()
    before = ends_of(many_machine)
    request = many()
    data = request.topics[0].partitions
    data[1] = data[1]._replace(partition=7)
    data[2] = data[2]._replace(records=None)
    data[3] = data[3]._replace(partition=MANY)
    data[4] = data[4]._replace(records=memoryview(batch(5, compression=CompressionType.ZSTD, size=2_000_000)))
    results = client.produce(request).topics[0].partitions
    twice, unknown = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [result.error for result in results[:9]] == [0, twice, ErrorCode.INVALID_RECORD, unknown, 0, 0, 0, twice, 0]
    grown = [end - start for start, end in zip(before, ends_of(many_machine), strict=True)]
    assert grown[:9] == [1, 0, 0, 0, 5, 1, 1, 0, 1]
    # The rest was appended although a batch had to be decompressed elsewhere.
    assert grown[9:] == [1] * (MANY - 9)


def test_many_partitions_with_unknown_acks_are_refused(many_machine: Machine) -> None:
    before = ends_of(many_machine)
    results = many_machine.client().produce(many(acks=5)).topics[0].partitions
    assert [result.error for result in results] == [ErrorCode.INVALID_REQUIRED_ACKS] * MANY
    assert ends_of(many_machine) == before


def test_many_partitions_that_are_not_replicated_in_time(many_machine: Machine) -> None:
    client = many_machine.client()
    delay = many_machine.executor.run_delay_us
    many_machine.executor.run_delay_us = (10**8, 10**8)
    try:
        results = client.produce(many()).topics[0].partitions
    finally:
        many_machine.executor.run_delay_us = delay
    assert [result.error for result in results] == [ErrorCode.REQUEST_TIMED_OUT] * MANY
    log = many_machine.broker.partitions.find("orders", None, MANY - 1).log
    many_machine.run_until(lambda: log.high_watermark == log.log_end_offset)
    assert client.append().error is ErrorCode.NONE


def test_a_connection_that_ends_leaves_nothing_of_many_partitions(many_machine: Machine) -> None:
    client = many_machine.client()
    before = ends_of(many_machine)
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, many()))
    client.session.closed()
    many_machine.run_for(100)
    assert ends_of(many_machine)[-1] == before[-1]
    assert (many_machine.broker.work_slices.admitted_bytes, len(many_machine.broker.work_slices)) == (0, 0)


def test_waiting_for_replicas_holds_no_memory_that_their_fetches_need(many_machine: Machine) -> None:
    client = many_machine.client()
    delay = many_machine.executor.run_delay_us
    many_machine.executor.run_delay_us = (10**5, 10**5)
    try:
        client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, many()))
        assert many_machine.broker.work_slices.admitted_bytes
        many_machine.run_until(lambda: client.session.wants_reading)
        assert not client.replies
        assert many_machine.broker.work_slices.admitted_bytes == 0
    finally:
        many_machine.executor.run_delay_us = delay
    many_machine.run_until(lambda: bool(client.replies))


def test_what_waits_is_counted_with_its_decoded_partitions(many_machine: Machine) -> None:
    client = many_machine.client()
    frame = request_header(ApiKey.PRODUCE, 9, 1, "test") + encode_produce_request(9, many(100))
    held_bytes = client.session.receive(memoryview(frame))
    assert held_bytes == len(frame) + 101 * DECODED_ELEMENT_BYTES
    many_machine.run_until(lambda: bool(client.replies))


def test_gotcha_12_max_message_bytes_is_enforced(client: FakeClient) -> None:
    client.create_topic("orders", max_message_bytes="200")
    assert client.append(records=batch(size=200)).error is ErrorCode.NONE
    assert client.append(records=batch(size=201)).error is ErrorCode.MESSAGE_TOO_LARGE


def test_gotcha_12_records_without_keys_are_refused_by_compacted_topics(client: FakeClient) -> None:
    client.create_topic("orders", cleanup_policy="compact")
    assert client.append(records=batch(key=None)).error is ErrorCode.INVALID_RECORD
    assert client.append(records=batch(key=b"k")).error is ErrorCode.NONE


def test_the_producer_is_told_which_records_were_refused(client: FakeClient) -> None:
    client.create_topic("orders", cleanup_policy="compact")
    keys = [b"a", None, b"c", None]
    result = client.append(records=build_batch([Record(offset, START_MS, key, b"v") for offset, key in enumerate(keys)]))
    assert result.error is ErrorCode.INVALID_RECORD
    assert [(index, message is not None) for index, message in result.record_errors] == [(1, True), (3, True)]


def test_refused_records_of_a_whole_request_are_named_within_one_bound(client: FakeClient) -> None:
    """Each of a hundred small batches could have ten thousand: seconds of the loop, and a hundred times the request in memory."""
    client.create_topic("orders", 51)
    refused = memoryview(batch(200, timestamps=[START_MS + 10**9] * 200, compression=CompressionType.ZSTD))
    for count, named in (1, 200), (50, 200), (51, 0):
        request = ProduceRequest(
            None, 1, 1000, [ProduceTopic("orders", None, [ProducePartition(index, refused)]) for index in range(count)]
        )
        results = [result for topic in client.produce(request).topics for result in topic.partitions]
        assert [result.error for result in results] == [ErrorCode.INVALID_TIMESTAMP] * count
        assert {len(result.record_errors) for result in results} == {named}


@pytest.mark.parametrize(("version", "is_taken"), [(3, False), (6, False), (7, True), (13, True)])
def test_zstd_is_for_clients_that_know_it(client: FakeClient, version: int, is_taken: bool) -> None:
    topic_id = client.create_topic()
    request = produce_request(records=batch(compression=CompressionType.ZSTD))
    if version >= 13:
        request = request._replace(topics=[request.topics[0]._replace(name=None, topic_id=topic_id)])
    ((result,),) = [topic.partitions for topic in client.produce(request, version).topics]
    assert result.error is (ErrorCode.NONE if is_taken else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def test_a_request_has_one_batch_per_partition(client: FakeClient) -> None:
    client.create_topic()
    assert client.append(records=batch() + batch()).error is ErrorCode.INVALID_RECORD


def test_billions_of_claimed_records_make_no_segments(client: FakeClient, machine: Machine) -> None:
    """200 requests of 109 bytes would use up 200 times 2^31 offsets, and each would need a segment of its own."""
    client.create_topic()
    header = read_header(batch(compression=CompressionType.GZIP))
    claims = header._replace(record_count=2**31 - 1, last_offset_delta=2**31 - 2)
    for body in (batch(compression=CompressionType.GZIP)[HEADER_SIZE:], b"x" * 48):
        result = client.append(records=rebuild_batch(claims, body))
        assert result.error is ErrorCode.INVALID_RECORD
    log = machine.broker.partitions.find("orders", None, 0).log
    assert (log.log_end_offset, len(log.segments)) == (0, 1)


def test_timestamps_out_of_bounds(client: FakeClient) -> None:
    client.create_topic("orders", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    assert client.append(records=batch(timestamps=[START_MS - 100_000])).error is ErrorCode.INVALID_TIMESTAMP
    result = client.append(records=batch(timestamps=[START_MS, START_MS + 100_000]))
    assert result.error is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in result.record_errors] == [1]


def test_internal_topics_cannot_be_written_to(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    partition = machine.broker.partitions.find("orders", None, 0)
    partition.is_internal = True
    assert client.append().error is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_an_unknown_topic_id(client: FakeClient) -> None:
    ((result,),) = [topic.partitions for topic in client.produce(by_id(UNKNOWN_ID), 13).topics]
    assert result.error is ErrorCode.UNKNOWN_TOPIC_ID


def test_records_of_a_transaction_need_its_id(client: FakeClient) -> None:
    client.create_topic()
    records = batch(producer_id=1, transactional=True)
    assert client.append(records=records).error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("length", [0, 1, 22, 60])
def test_a_piece_of_a_batch_is_refused(client: FakeClient, length: int) -> None:
    client.create_topic()
    assert client.append(records=batch()[:length]).error in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def test_gotcha_10_who_leads_is_told_with_the_error(client: FakeClient, machine: Machine) -> None:
    topic_id = client.create_topic()
    other = RegisterBrokerRecord(broker_id=2, end_points=(BrokerEndpoint("PLAINTEXT", "other", 7, 0),), fenced=False)
    moved = PartitionChangeRecord(0, topic_id, isr=(2,), leader=2, replicas=(2,))
    assert machine.wait(lambda done: machine.broker.controller.propose([other, moved], done)) is None
    response = client.produce(produce_request(records=batch()), 10)
    ((result,),) = [topic.partitions for topic in response.topics]
    assert (result.error, result.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, (2, 1))
    assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == [(2, "other", 7)]
    assert (NODE_ID, HOST, PORT) != (2, "other", 7)


# -- idempotence -------------------------------------------------------------------------------------------------------------


def test_a_repeated_batch_is_acknowledged_with_its_first_offset(client: FakeClient) -> None:
    client.create_topic()
    client.append()
    records = batch(2, producer_id=5, sequence=0)
    assert [client.append(records=records).base_offset for _ in range(3)] == [1, 1, 1]
    assert client.append(records=batch(producer_id=5, sequence=2)).base_offset == 3
    assert client.append(records=batch(producer_id=5, sequence=9)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# -- disks that fail ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_told_and_passes(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    client.append()
    machine.disk.set_free_bytes(10)
    assert client.append(acks=1).error is ErrorCode.KAFKA_STORAGE_ERROR
    machine.disk.set_free_bytes(None)
    assert client.append().error is ErrorCode.NONE


def test_a_failed_sync_fails_who_waits_and_the_partition_stays_offline(client: FakeClient, machine: Machine) -> None:
    client.create_topic("orders", 2)
    client.append()
    machine.disk.faults.fail("sync", lambda path: "orders-0" in path)
    assert client.append().error is ErrorCode.KAFKA_STORAGE_ERROR
    assert client.append().error is ErrorCode.KAFKA_STORAGE_ERROR
    assert client.append(partition=1).error is ErrorCode.NONE


def test_a_deleted_topic_fails_who_waits(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    writer = machine.client()
    machine.executor.run_delay_us = (100_000, 100_000)
    correlation_id = writer.send(ApiKey.PRODUCE, 9, encode_produce_request(9, produce_request(records=batch())))
    client.send(ApiKey.DELETE_TOPICS, 1, b"\0\0\0\x01\0\x06orders\0\0\x13\x88")
    machine.run_until(lambda: bool(writer.replies))
    frame, position = writer.last_reply(ApiKey.PRODUCE, 9, correlation_id)
    ((result,),) = [topic.partitions for topic in decode_produce_response(9, frame, position).topics]
    assert result.error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_batches_are_stored_in_the_codec_of_the_topic(client: FakeClient) -> None:
    client.create_topic(compression_type="gzip", compression_gzip_level="9")
    sent = batch(3)
    client.append(records=sent)
    read = bytes(client.read().records or b"")
    header = read_header(read)
    assert header.compression is CompressionType.GZIP
    assert crc_is_valid(read, 0, header)
    records = read_records(read, 0, header, size_max=1000, count_max=3)
    assert list(records) == list(read_records(sent, 0, read_header(sent), size_max=1000, count_max=3))


@pytest.fixture
def backlogged() -> Machine:
    machine = Machine()
    machine.client().create_topic()
    machine.run_for(1_000)
    machine.broker.backlog.bytes_max = 100
    return machine


def send(client: FakeClient, acks: int, topic: str = "orders", timeout_ms: int = 30_000) -> None:
    request = produce_request(topic, batch(10), acks=acks, timeout_ms=timeout_ms)
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, request))


@pytest.mark.parametrize("acks", [0, 1])
def test_they_are_answered_when_the_disk_has_caught_up(backlogged: Machine, acks: int) -> None:
    client, resumed = backlogged.client(), []
    client.session._resume = lambda: resumed.append(True)
    partition = backlogged.broker.partitions.find("orders", None, 0)
    send(client, acks)
    assert client.session.in_flight == 1
    assert client.replies == []
    backlogged.run_until(lambda: client.session.in_flight == 0)
    assert partition.log.durable.offset == 10
    assert len(client.replies) == acks
    assert resumed == [True]
    assert backlogged.broker.backlog.held == 1


def test_a_disk_that_keeps_up_lets_nobody_wait(backlogged: Machine) -> None:
    backlogged.broker.backlog.bytes_max = 1 << 20
    client = backlogged.client()
    for _ in range(20):
        send(client, 1)
    assert len(client.replies) == 20
    assert 0 < backlogged.broker.partitions.appends.unsynced_bytes < 1 << 20
    # Two passes later nothing is left of it.
    for _ in range(2):
        client.append()
    assert backlogged.broker.partitions.appends.unsynced_bytes < 200


def test_what_is_written_while_a_pass_runs_is_not_covered_by_it(backlogged: Machine) -> None:
    backlogged.broker.backlog.bytes_max = 1 << 20
    appends, partition = backlogged.broker.partitions.appends, backlogged.broker.partitions.find("orders", None, 0)
    appends.pass_ended()
    appends.pass_ended()
    appends.appended(partition, 1_000)
    appends.pass_ended()
    assert appends.unsynced_bytes == 1_000
    appends.appended(partition, 10)
    assert appends.unsynced_bytes == 1_010
    appends.pass_ended()
    assert appends.unsynced_bytes == 10


def test_nobody_waits_longer_than_it_said(backlogged: Machine) -> None:
    """It asked for the page cache only, and has that."""
    client = backlogged.client()
    backlogged.broker.directory.commit._in_flight = True  # A pass that does not end.
    send(client, 1, timeout_ms=500)
    began_ms = backlogged.clock.monotonic_ms()
    backlogged.run_until(lambda: bool(client.replies))
    assert backlogged.clock.monotonic_ms() - began_ms == 500


def test_relaxed_topics_neither_count_nor_wait(backlogged: Machine) -> None:
    client = backlogged.client()
    client.create_topic("relaxed", flush_messages="1000")
    client.replies.clear()
    send(client, 1, "relaxed")
    assert len(client.replies) == 1
    assert backlogged.broker.backlog.held == 0


def test_acks_all_waits_by_itself(backlogged: Machine) -> None:
    client = backlogged.client()
    send(client, -1)
    backlogged.run_until(lambda: bool(client.replies))
    assert backlogged.broker.backlog.held == 0
