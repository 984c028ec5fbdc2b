import pytest

from tests.broker.harness import FakeClient, Machine
from tests.log.harness import START_MS, batch
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NONE = (-1, -1, -1)


def ask(
    client: FakeClient,
    timestamp: int,
    *,
    version: int = 11,
    topic: str = "orders",
    partition: int = 0,
    epoch: int = -1,
    isolation: int = 0,
    replica_id: int = -1,
) -> DecodedMessage:
    wanted = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
    response = client.call(
        ApiKey.LIST_OFFSETS,
        version,
        replica_id=replica_id,
        isolation_level=isolation,
        topics=[{"name": topic, "partitions": [wanted]}],
        timeout_ms=1000,
    )
    ((answer,),) = [found.partitions for found in response.topics]
    assert isinstance(answer, DecodedMessage)
    return answer


def found(answer: DecodedMessage) -> tuple[int, int, int]:
    assert answer.error_code == 0
    return answer.timestamp, answer.offset, answer.leader_epoch


@pytest.fixture
def filled(client: FakeClient) -> FakeClient:
    """Records stamped 100, 300, 200 ms after the start, in three batches."""
    client.create_topic()
    for delay_ms in (100, 300, 200):
        client.append(records=batch(timestamps=[START_MS + delay_ms]))
    return client


def test_an_empty_partition(client: FakeClient) -> None:
    client.create_topic()
    assert found(ask(client, LATEST)) == (-1, 0, 0)
    assert found(ask(client, EARLIEST)) == (-1, 0, 0)
    assert found(ask(client, MAX_TIMESTAMP)) == NONE
    assert found(ask(client, START_MS)) == NONE


@pytest.mark.parametrize("version", range(1, 12))
def test_begin_and_end(filled: FakeClient, version: int) -> None:
    epoch = 0 if version >= 4 else -1
    assert found(ask(filled, LATEST, version=version)) == (-1, 3, epoch)
    assert found(ask(filled, EARLIEST, version=version)) == (-1, 0, epoch)


@pytest.mark.parametrize(
    ("delay_ms", "offset", "found_delay_ms"), [(0, 0, 100), (100, 0, 100), (101, 1, 300), (250, 1, 300), (300, 1, 300)]
)
def test_gotcha_12_the_first_record_at_or_after_a_time(
    filled: FakeClient, delay_ms: int, offset: int, found_delay_ms: int
) -> None:
    assert found(ask(filled, START_MS + delay_ms)) == (START_MS + found_delay_ms, offset, 0)


def test_no_match_is_minus_one(filled: FakeClient) -> None:
    assert found(ask(filled, START_MS + 301)) == NONE


def test_the_newest_timestamp(filled: FakeClient) -> None:
    assert found(ask(filled, MAX_TIMESTAMP)) == (START_MS + 300, 1, 0)


def test_everything_is_local_and_nothing_is_tiered(filled: FakeClient) -> None:
    assert found(ask(filled, EARLIEST_LOCAL)) == (-1, 0, 0)
    assert found(ask(filled, LATEST_TIERED)) == NONE
    assert found(ask(filled, EARLIEST_PENDING_UPLOAD)) == NONE


@pytest.mark.parametrize(
    ("timestamp", "since"), [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11)]
)
def test_a_question_that_the_version_does_not_have_is_refused(filled: FakeClient, timestamp: int, since: int) -> None:
    assert ask(filled, timestamp, version=since - 1).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert ask(filled, timestamp, version=since).error_code == 0


def test_other_negative_timestamps_are_refused(filled: FakeClient) -> None:
    assert ask(filled, -7).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_the_start_moves_with_deleted_records(filled: FakeClient) -> None:
    filled.call(
        ApiKey.DELETE_RECORDS,
        2,
        topics=[{"name": "orders", "partitions": [{"partition_index": 0, "offset": 2}]}],
        timeout_ms=1000,
    )
    assert found(ask(filled, EARLIEST)) == (-1, 2, 0)
    assert found(ask(filled, START_MS)) == (START_MS + 200, 2, 0)


def test_what_is_not_durable_is_not_told(filled: FakeClient, machine: Machine) -> None:
    machine.executor.run_delay_us = (10**9, 10**9)
    filled.append(records=batch(timestamps=[START_MS + 900]), acks=1)
    assert found(ask(filled, LATEST)) == (-1, 3, 0)
    assert found(ask(filled, START_MS + 800)) == NONE
    assert found(ask(filled, MAX_TIMESTAMP)) == NONE


def test_read_committed_ends_at_the_last_stable_offset(filled: FakeClient, machine: Machine) -> None:
    partition = machine.broker.partitions.find("orders", None, 0)
    partition.append(batch(producer_id=7, transactional=True, timestamps=[START_MS + 900]), False)
    filled.append()
    assert found(ask(filled, LATEST, isolation=0))[1] == 5
    assert found(ask(filled, LATEST, isolation=1))[1] == 3
    assert found(ask(filled, START_MS + 800, isolation=0))[1] == 3
    assert found(ask(filled, START_MS + 800, isolation=1)) == NONE


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("missing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_unknown_partitions(filled: FakeClient, topic: str, partition: int, code: ErrorCode) -> None:
    assert ask(filled, LATEST, topic=topic, partition=partition).error_code == code


def test_gotcha_10_epochs_are_checked(client: FakeClient, machine: Machine) -> None:
    client.create_topic(flush_messages="1000")  # With relaxed durability, a crash begins a new epoch.
    assert machine.crash() is None
    client = machine.client()
    assert ask(client, LATEST, epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(client, LATEST, epoch=1).error_code == 0
    assert ask(client, LATEST, epoch=2).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_replicas_are_refused(filled: FakeClient) -> None:
    assert ask(filled, LATEST, replica_id=2).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_partition_named_twice_is_refused_and_the_others_are_answered(client: FakeClient) -> None:
    client.create_topic("orders", 2)
    wanted = [{"partition_index": index, "timestamp": LATEST} for index in (0, 0, 1)]
    response = client.call(ApiKey.LIST_OFFSETS, 5, replica_id=-1, topics=[{"name": "orders", "partitions": wanted}])
    codes = [answer.error_code for answer in response.topics[0].partitions]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, 0]


def test_a_log_that_is_offline_says_so(filled: FakeClient, machine: Machine) -> None:
    machine.broker.partitions.find("orders", None, 0).log.go_offline("planted")
    assert ask(filled, LATEST).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_topic_that_was_just_created_again_is_not_a_failed_disk() -> None:
    """The files of the deleted one leave the disk first; meanwhile the answer is that of a broker without a replica yet."""
    machine = Machine()
    client = machine.client()
    client.create_topic("orders")
    client.append()
    for _ in range(5):
        client.call(ApiKey.DELETE_TOPICS, 4, topic_names=["orders"], timeout_ms=1000)
        client.create_topic("orders")
        answer = ask(client, LATEST)
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        machine.run_until(lambda: ask(client, LATEST).error_code == ErrorCode.NONE)
        assert found(ask(client, LATEST))[1] == 0
        client.append()
    assert machine.facts("unexpected_error") == []
