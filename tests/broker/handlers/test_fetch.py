import gc
from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.harness import FakeClient, Machine, fetch_request, offsets_in
from tests.log.harness import batch, end_transaction
from tidelog.broker.handlers import fetch
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import LogRead, read
from tidelog.records.control import ControlType
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import (
    DEBUGGING_REPLICA_ID,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.wire.protocol import ApiKey

UNKNOWN_ID = b"0123456789abcdef"


def only(client: FakeClient, request: FetchRequest, version: int = 12) -> FetchedPartition:
    ((result,),) = [topic.partitions for topic in client.fetch(request, version).topics]
    return result


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads(client: FakeClient, version: int) -> None:
    topic_id = client.create_topic()
    client.append(count=2)
    request = fetch_request(None, topic_id=topic_id) if version >= 13 else fetch_request()
    result = only(client, request, version)
    assert (result.error, result.high_watermark, offsets_in(result.records)) == (ErrorCode.NONE, 2, [0, 1])


def test_gotcha_8_an_offset_inside_a_batch_returns_the_whole_batch(client: FakeClient) -> None:
    client.create_topic()
    client.append(count=5)
    assert offsets_in(client.read(offset=3).records) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("offset", "code"), [(-1, ErrorCode.OFFSET_OUT_OF_RANGE), (1, ErrorCode.NONE), (2, ErrorCode.OFFSET_OUT_OF_RANGE)]
)
def test_the_ends_of_the_log(client: FakeClient, offset: int, code: ErrorCode) -> None:
    client.create_topic()
    client.append()
    assert client.read(offset=offset).error is code


def test_what_is_not_durable_is_not_seen(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    machine.executor.run_delay_us = (10**9, 10**9)
    client.append(acks=1)
    result = client.read()
    assert (result.error, result.high_watermark, bytes(result.records or b"")) == (ErrorCode.NONE, 0, b"")


def test_each_partition_stands_for_itself(client: FakeClient) -> None:
    client.create_topic()
    client.append()
    topics = [
        FetchTopic("orders", None, [FetchPartition(0, 0, 1 << 20), FetchPartition(4, 0, 1 << 20)]),
        FetchTopic("missing", None, [FetchPartition(0, 0, 1 << 20)]),
    ]
    response = client.fetch(FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, topics, [], ""))
    assert [[result.error for result in topic.partitions] for topic in response.topics] == [
        [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]


def test_an_unknown_topic_id(client: FakeClient) -> None:
    assert only(client, fetch_request(None, topic_id=UNKNOWN_ID), 13).error is ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [12, 16])
def test_replicas_are_refused_on_the_client_listener(client: FakeClient, version: int) -> None:
    topic_id = client.create_topic()
    request = fetch_request("orders", topic_id=topic_id, replica_id=1)
    assert client.fetch(request, version).error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [12, 16])
def test_the_debugging_replica_reads_like_a_consumer(client: FakeClient, machine: Machine, version: int) -> None:
    topic_id = client.create_topic()
    client.append(count=2)
    request = fetch_request("orders" if version < 13 else None, topic_id=topic_id, replica_id=DEBUGGING_REPLICA_ID)
    assert offsets_in(only(client, request, version).records) == [0, 1]
    machine.executor.run_delay_us = (10**9, 10**9)
    client.append(acks=1)
    assert offsets_in(only(client, request, version).records) == [0, 1], "nobody reads what is not durable"


def test_a_broker_that_is_not_a_replica_is_refused_between_brokers_too() -> None:
    machine = Machine(
        {
            "listeners": "A://127.0.0.1:1,B://127.0.0.1:2",
            "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
            "inter.broker.listener.name": "B",
        }
    )
    topic_id = machine.client(0).create_topic()
    request = fetch_request(None, topic_id=topic_id, replica_id=2)
    assert machine.client(0).fetch(request, 16).error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    (topic,) = machine.client(1).fetch(request, 16).topics
    assert [result.error for result in topic.partitions] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_gotcha_10_epochs_are_checked_and_the_leader_is_told(client: FakeClient, machine: Machine) -> None:
    # With relaxed durability, a crash begins a new epoch.
    topic_id = client.create_topic(flush_messages="1000")
    assert machine.crash() is None
    client = machine.client()
    assert only(client, fetch_request(leader_epoch=0)).error is ErrorCode.FENCED_LEADER_EPOCH
    assert only(client, fetch_request(leader_epoch=1)).error is ErrorCode.NONE
    assert only(client, fetch_request(leader_epoch=2)).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    response = client.fetch(fetch_request(None, topic_id=topic_id, leader_epoch=0), 16)
    assert response.topics[0].partitions[0].current_leader == (1, 1)
    assert [(node.node_id, node.port) for node in response.node_endpoints] == [(1, 9092)]


# -- limits ------------------------------------------------------------------------------------------------------------------


def test_a_limit_cuts_and_the_first_batch_always_comes(client: FakeClient) -> None:
    client.create_topic("orders", 2)
    for partition in (0, 1):
        for _ in range(3):
            client.append(partition=partition, records=batch(size=100))
    wanted = [FetchPartition(0, 0, 1 << 20), FetchPartition(1, 0, 1 << 20)]
    lengths = {}
    for bytes_max in (1, 250, 450):
        request = FetchRequest(-1, 0, 1, bytes_max, 0, 0, -1, [FetchTopic("orders", None, wanted)], [], "")
        response = client.fetch(request)
        lengths[bytes_max] = [len(result.records or b"") for result in response.topics[0].partitions]
    assert lengths == {1: [100, 0], 250: [250, 0], 450: [300, 150]}


def test_the_broker_has_a_limit_too() -> None:
    client = Machine({"fetch.max.bytes": "1024"}).client()
    client.create_topic()
    for _ in range(20):
        client.append(records=batch(size=100))
    assert len(only(client, fetch_request()).records or b"") == 1024


# -- waiting -----------------------------------------------------------------------------------------------------------------


def waiting_fetch(machine: Machine, request: FetchRequest) -> tuple[FakeClient, int]:
    reader = machine.client()
    correlation_id = reader.send(ApiKey.FETCH, 12, encode_fetch_request(12, request))
    machine.run_for(50)
    assert reader.replies == []
    return reader, correlation_id


def answer(reader: FakeClient, correlation_id: int) -> FetchedPartition:
    reader.machine.run_until(lambda: bool(reader.replies))
    frame, position = reader.last_reply(ApiKey.FETCH, 12, correlation_id)
    ((result,),) = [topic.partitions for topic in decode_fetch_response(12, frame, position).topics]
    return result


def test_a_fetch_waits_for_records(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    timers = len(machine.broker.timers)
    reader, correlation_id = waiting_fetch(machine, fetch_request(wait_ms=60_000))
    client.append()
    assert offsets_in(answer(reader, correlation_id).records) == [0]
    assert machine.clock.monotonic_ms() < 1000
    assert len(machine.broker.timers) == timers, "only housekeeping is left"


def test_a_fetch_waits_for_enough_bytes(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    reader, correlation_id = waiting_fetch(machine, fetch_request(wait_ms=60_000, bytes_min=250))
    for _ in range(2):
        client.append(records=batch(size=100))
    machine.run_for(100)
    assert reader.replies == []
    client.append(records=batch(size=100))
    assert offsets_in(answer(reader, correlation_id).records) == [0, 1, 2]


@pytest.mark.pure_python
def test_a_fetch_of_many_partitions_reads_only_those_that_move(
    client: FakeClient, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("orders", 100)
    wanted = [FetchPartition(index, 0, 1 << 20) for index in range(100)]
    request = FetchRequest(-1, 60_000, 1000, 1 << 20, 0, 0, -1, [FetchTopic("orders", None, wanted)], [], "")
    reader = machine.client()
    correlation_id = reader.send(ApiKey.FETCH, 12, encode_fetch_request(12, request))
    client.append(partition=50, records=batch(size=100))
    reads: list[int] = []

    def counted_read(*arguments: Any) -> LogRead:
        reads.append(1)
        return read(*arguments)

    monkeypatch.setattr("tidelog.broker.handlers.fetch.read", counted_read)
    for index in range(8):
        client.append(partition=10 * index, records=batch(size=100))
    assert (reader.replies, len(reads)) == ([], 8)
    client.append(partition=99, records=batch(size=100))
    assert len(reads) == 9 + 100
    frame, position = reader.last_reply(ApiKey.FETCH, 12, correlation_id)
    (topic,) = decode_fetch_response(12, frame, position).topics
    having = [result.partition for result in topic.partitions if result.records]
    assert having == [0, 10, 20, 30, 40, 50, 60, 70, 99]


def test_a_fetch_that_wants_more_than_it_takes_is_answered_when_that_is_there(client: FakeClient) -> None:
    client.create_topic()
    client.append(records=batch(size=100))
    result = only(client, fetch_request(wait_ms=60_000, bytes_min=1000, bytes_max=50))
    assert len(result.records or b"") == 100
    assert client.machine.clock.monotonic_ms() < 1000


def test_a_fetch_is_answered_when_its_time_is_up(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    client.append(records=batch(size=100))
    start_ms = machine.clock.monotonic_ms()
    result = only(client, fetch_request(wait_ms=700, bytes_min=1000))
    assert 700 <= machine.clock.monotonic_ms() - start_ms < 720
    assert offsets_in(result.records) == [0]


def test_a_fetch_does_not_wait_with_an_error(client: FakeClient, machine: Machine) -> None:
    assert only(client, fetch_request("missing", wait_ms=60_000)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert machine.clock.monotonic_ms() < 1000


def test_a_reader_that_is_gone_leaves_nothing_behind(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    timers = len(machine.broker.timers)
    reader, _ = waiting_fetch(machine, fetch_request(wait_ms=60_000))
    assert len(machine.broker.timers) == timers + 1
    reader.session.closed()
    assert len(machine.broker.timers) == timers, "only housekeeping is left"
    assert not machine.broker.partitions.find("orders", None, 0)._fetch_waiters
    client.append()
    machine.run_for(100)
    assert reader.replies == []


def test_a_partition_that_goes_offline_ends_the_wait(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    reader, correlation_id = waiting_fetch(machine, fetch_request(wait_ms=60_000))
    machine.disk.faults.fail("sync", lambda path: "orders-0" in path)
    client.append()
    assert answer(reader, correlation_id).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert machine.clock.monotonic_ms() < 1000


def test_a_deleted_topic_ends_the_wait(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    client.append()
    reader, correlation_id = waiting_fetch(machine, fetch_request(offset=1, wait_ms=60_000))
    client.call(ApiKey.DELETE_TOPICS, 1, topic_names=["orders"], timeout_ms=5000)
    assert answer(reader, correlation_id).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert machine.clock.monotonic_ms() < 1000


# -- transactions ------------------------------------------------------------------------------------------------------------


def test_gotcha_12_read_committed_stops_at_an_open_transaction_and_names_the_aborted(
    client: FakeClient, machine: Machine
) -> None:
    client.create_topic()
    partition = machine.broker.partitions.find("orders", None, 0)
    partition.append(batch(producer_id=7, transactional=True), False)
    client.append()
    assert offsets_in(only(client, fetch_request(isolation=0)).records) == [0, 1]
    committed = only(client, fetch_request(isolation=1))
    assert (bytes(committed.records or b""), committed.last_stable_offset) == (b"", 0)
    end_transaction(partition.log, 7, ControlType.ABORT)
    client.append()
    committed = only(client, fetch_request(isolation=1))
    assert committed.aborted == [(7, 0)]
    assert committed.last_stable_offset == 4


# -- sessions ----------------------------------------------------------------------------------------------------------------


def incremental(session_id: int, epoch: int, *topics: FetchTopic, forgotten: list[ForgottenTopic] | None = None) -> FetchRequest:
    return FetchRequest(-1, 0, 1, 1 << 20, 0, session_id, epoch, list(topics), forgotten or [], "")


def test_a_session_tells_only_what_changed(client: FakeClient) -> None:
    client.create_topic("orders", 2)
    wanted = [FetchPartition(0, 0, 1 << 20), FetchPartition(1, 0, 1 << 20)]
    first = client.fetch(incremental(0, 0, FetchTopic("orders", None, wanted)))
    assert first.session_id != 0
    assert [result.partition for result in first.topics[0].partitions] == [0, 1]
    assert client.fetch(incremental(first.session_id, 1)).topics == []
    client.append(partition=1)
    second = client.fetch(incremental(first.session_id, 2))
    assert [result.partition for result in second.topics[0].partitions] == [1]
    moved = FetchTopic("orders", None, [FetchPartition(1, 1, 1 << 20)])
    assert client.fetch(incremental(first.session_id, 3, moved)).topics == []
    client.append(partition=1)
    forgotten = client.fetch(incremental(first.session_id, 4, forgotten=[ForgottenTopic("orders", None, [1])]))
    assert forgotten.topics == []


def test_a_limit_does_not_starve_the_later_partitions_of_a_session(client: FakeClient) -> None:
    client.create_topic("orders", 2)
    for partition in (0, 1):
        client.append(partition=partition, records=batch(size=100))
    wanted = [FetchPartition(0, 0, 1 << 20), FetchPartition(1, 0, 1 << 20)]
    first = client.fetch(FetchRequest(-1, 0, 1, 100, 0, 0, 0, [FetchTopic("orders", None, wanted)], [], ""))
    assert [len(result.records or b"") for result in first.topics[0].partitions] == [100, 0]
    second = client.fetch(FetchRequest(-1, 0, 1, 100, 0, first.session_id, 1, [], [], ""))
    assert [(result.partition, len(result.records or b"")) for result in second.topics[0].partitions] == [(1, 100)]


def test_sessions_that_are_not_known(client: FakeClient) -> None:
    client.create_topic()
    first = client.fetch(fetch_request(session=(0, 0)))
    assert client.fetch(incremental(first.session_id, 2)).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert client.fetch(incremental(first.session_id + 1, 1)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert client.fetch(incremental(first.session_id, 1), 13).error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    client.fetch(incremental(first.session_id, -1))
    assert client.fetch(incremental(first.session_id, 1)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_an_empty_answer_that_is_kept_is_true_and_whole(version: int, isolation: int) -> None:
    """Asked twice, so that it is a kept one, and again when something has changed."""
    client = Machine().client()
    client.create_topic()
    for count in (0, 1):
        if count:
            client.append()
        for _ in range(2):
            (topic,) = client.fetch(fetch_request(offset=count, isolation=isolation), version).topics
            (result,) = topic.partitions
            assert (topic.name, result.error, result.high_watermark, result.last_stable_offset) == ("orders", 0, count, count)
            assert not result.records
            assert result.aborted == ([] if isolation else None)


def test_a_long_poll_that_nothing_happened_to_answers_with_what_there_was_and_one_that_something_did_reads_again() -> None:
    client = Machine().client()
    client.create_topic()
    request = encode_fetch_request(12, fetch_request(wait_ms=500, bytes_min=10_000))
    frame, position = client.ask(ApiKey.FETCH, 12, request)
    assert decode_fetch_response(12, frame, position).topics[0].partitions[0].high_watermark == 0
    correlation_id = client.send(ApiKey.FETCH, 12, request)
    client.machine.client().append()
    client.machine.run_until(lambda: not client.session.in_flight)
    frame, position = client.last_reply(ApiKey.FETCH, 12, correlation_id)
    result = decode_fetch_response(12, frame, position).topics[0].partitions[0]
    assert result.high_watermark == 1
    assert result.records


def test_a_long_poll_for_more_keeps_nothing_of_what_there_was(client: FakeClient, machine: Machine) -> None:
    """It would keep a segment of each of its partitions open, and answer with records that are deleted by then."""
    client.create_topic()
    client.append()
    reader, correlation_id = waiting_fetch(machine, fetch_request(wait_ms=60_000, bytes_min=10_000))
    partitions = [{"partition_index": 0, "offset": 1}]
    client.call(ApiKey.DELETE_RECORDS, 2, topics=[{"name": "orders", "partitions": partitions}], timeout_ms=1000)
    assert answer(reader, correlation_id).error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_long_polls_that_end_at_about_the_same_time_end_together() -> None:
    machine = Machine()
    machine.client().create_topic()
    body = encode_fetch_request(12, fetch_request(wait_ms=500))
    clients = []
    for _ in range(5):
        clients.append(machine.client())
        clients[-1].send(ApiKey.FETCH, 12, body)
        machine.run_for(1)
    began_ms = machine.clock.monotonic_ms()
    ended = set()
    for number in range(5):
        machine.run_until(lambda: sum(bool(client.replies) for client in clients) > number)  # noqa: B023 - called within the loop
        ended.add(machine.clock.monotonic_ms())
    assert len(ended) <= 2
    assert all(490 <= at_ms - began_ms <= 510 for at_ms in ended)


@pytest.mark.parametrize("has_records", [True, False])
def test_waiting_fetches_that_were_answered_leave_nothing_to_the_cycle_collector(machine: Machine, has_records: bool) -> None:
    writer, readers = machine.client(), [machine.client() for _ in range(50)]
    writer.create_topic()
    for reader in readers:
        reader.read()  # Whatever is cached by a first request is not garbage.
    gc.collect()
    gc.disable()
    try:
        for reader in readers:
            reader.send(ApiKey.FETCH, 12, encode_fetch_request(12, fetch_request(wait_ms=500, bytes_min=1)))
        assert all(reader.session.in_flight == 1 for reader in readers)
        if has_records:
            writer.append()
        machine.run_until(lambda: all(reader.session.in_flight == 0 for reader in readers))
        for reader in readers:
            reader.replies.clear()
        machine.run_for(1_000)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_response_holds_a_bounded_number_of_files(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that opens many and never reads would take the descriptors of the logs."""
    monkeypatch.setattr(fetch, "SLICES_MAX", 3)
    count = 150
    client.create_topic("orders", count)
    for partition in range(10):
        client.append(partition=partition)
    wanted = [FetchPartition(index, 0, 1 << 20) for index in range(count)]
    seen: list[int] = []
    while len(seen) < 10:
        request = FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, [FetchTopic("orders", None, wanted)], [], "")
        (topic,) = client.fetch(request).topics
        with_records = [each.partition for each in topic.partitions if each.records]
        assert 0 < len(with_records) <= 3
        seen += with_records
        wanted = [each._replace(fetch_offset=1) if each.partition in with_records else each for each in wanted]
    assert sorted(seen) == list(range(10))


@pytest.mark.pure_python
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("error", [None, OSError(5, "Input/output error")])
def test_where_to_read_is_found_in_a_helper_thread_if_it_is_not_in_the_page_cache(
    machine: Machine, client: FakeClient, monkeypatch: pytest.MonkeyPatch, is_large: bool, error: OSError | None
) -> None:
    client.create_topic("orders", 200)
    client.append(count=2)
    done: list[int] = []

    def read_some() -> None:
        done.append(len(done))
        if error is not None:
            raise error

    def cold(log: PartitionLog, offset: int) -> Callable[[], object] | None:
        assert offset == 0
        return read_some if log.name.endswith("-0") and len(done) < 2 else None

    monkeypatch.setattr(fetch, "cold_read", cold)
    wanted = [FetchPartition(index, 0, 1 << 20) for index in range(200 if is_large else 1)]
    request = FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, [FetchTopic("orders", None, wanted)], [], "")
    replies = len(client.replies)
    client.send(ApiKey.FETCH, 12, encode_fetch_request(12, request))
    assert not done
    machine.client().call(ApiKey.DESCRIBE_CLUSTER, 0)
    machine.run_until(lambda: len(client.replies) > replies)
    assert done == [0, 1]
    (topic,) = decode_fetch_response(12, memoryview(client.replies[-1]), 5).topics
    assert offsets_in(topic.partitions[0].records) == [0, 1]
