from typing import Any

import pytest

from tests.broker.harness import CLUSTER_ID, HOST, NODE_ID, PORT, FakeClient, Machine
from tidelog.broker.handlers import metadata as metadata_handler
from tidelog.broker.handlers.metadata import BYTES_MAX, ENTRIES_MAX, MetadataCache
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import TopicRecord
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, encode_request
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey

NOT_ASKED = -(2**31)
UNKNOWN_ID = b"0123456789abcdef"


def ask(client: FakeClient, version: int, *names: str, **fields: Any) -> DecodedMessage:
    return client.call(ApiKey.METADATA, version, topics=[{"name": name} for name in names], **fields)


def names_of(response: DecodedMessage) -> list[str]:
    return [topic.name for topic in response.topics]


@pytest.mark.parametrize("version", range(14))
def test_brokers_topics_and_partitions_are_told(client: FakeClient, version: int) -> None:
    topic_id = client.create_topic("orders", 2)
    response = ask(client, version, "orders")
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (NODE_ID, HOST, PORT)
    (topic,) = response.topics
    assert (topic.error_code, topic.name) == (0, "orders")
    assert [(part.partition_index, part.leader_id, part.replica_nodes, part.isr_nodes) for part in topic.partitions] == [
        (0, NODE_ID, (NODE_ID,), (NODE_ID,)),
        (1, NODE_ID, (NODE_ID,), (NODE_ID,)),
    ]
    assert response.controller_id == (NODE_ID if version >= 1 else -1)
    assert response.cluster_id == (CLUSTER_ID if version >= 2 else None)
    assert topic.topic_id == (topic_id if version >= 10 else ZERO_UUID)
    assert topic.partitions[0].leader_epoch == (0 if version >= 7 else -1)


def test_version_0_asks_for_all_with_an_empty_list_and_later_ones_with_null(client: FakeClient) -> None:
    client.create_topic("a")
    client.create_topic("b")
    assert names_of(ask(client, 0)) == ["a", "b"]
    assert names_of(ask(client, 1)) == []
    assert names_of(client.call(ApiKey.METADATA, 1, topics=None)) == ["a", "b"]


def test_a_topic_that_is_named_again_and_again_is_told_once(client: FakeClient) -> None:
    client.create_topic("orders", 50)
    once = len(client.ask(ApiKey.METADATA, 12, encode_request(ApiKey.METADATA, 12, {"topics": [{"name": "orders"}]}))[0])
    many = {"topics": [{"name": "orders"}, {"name": "new"}, {"name": "orders"}] * 100}
    response = client.call(ApiKey.METADATA, 12, **many)
    assert names_of(response) == ["orders", "new"]
    assert len(client.replies[-1]) < 2 * once


# -- auto-create -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 3, 4, 13])
def test_gotcha_12_an_unknown_topic_is_created_and_the_answer_waits_for_it(client: FakeClient, version: int) -> None:
    (topic,) = ask(client, version, "new").topics
    assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "new", 1)
    assert topic.partitions[0].leader_id == NODE_ID


def test_created_topics_have_the_brokers_default_of_partitions() -> None:
    client = Machine({"num.partitions": "3"}).client()
    assert [len(topic.partitions) for topic in ask(client, 9, "a", "b").topics] == [3, 3]


def test_a_client_that_does_not_want_it_gets_an_error(client: FakeClient) -> None:
    (topic,) = ask(client, 4, "new", allow_auto_topic_creation=False).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert names_of(client.call(ApiKey.METADATA, 4, topics=None)) == []


def test_a_broker_that_does_not_want_it_creates_nothing() -> None:
    client = Machine({"auto.create.topics.enable": "false"}).client()
    (topic,) = ask(client, 9, "new").topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_two_clients_that_ask_at_once_both_get_the_topic(machine: Machine) -> None:
    first, second = machine.client(), machine.client()
    body = b"\0\0\0\x01\0\x03new\x01"  # One name, creation allowed.
    for client in (first, second):
        client.send(ApiKey.METADATA, 4, body)
    machine.run_until(lambda: bool(first.replies and second.replies))
    assert first.replies == second.replies
    assert b"\0\x03new" in first.replies[0]


def test_one_bad_name_does_not_spoil_the_others(client: FakeClient) -> None:
    response = ask(client, 9, "good", "bad name", "x" * 250)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("good", 0),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]


def test_a_name_that_collides_is_refused(client: FakeClient) -> None:
    client.create_topic("a.b")
    (topic,) = ask(client, 9, "a_b").topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__cluster_metadata"])
def test_internal_topics_are_not_created_by_asking(client: FakeClient, name: str) -> None:
    (topic,) = ask(client, 9, name).topics
    assert (topic.error_code, topic.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)


def test_a_creation_that_takes_too_long_is_answered_with_an_error_that_clients_retry(
    client: FakeClient, machine: Machine
) -> None:
    machine.executor.run_delay_us = (60_000_000, 60_000_000)
    (topic,) = ask(client, 9, "slow").topics
    assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert machine.clock.monotonic_ms() < 10_000
    machine.executor.run_delay_us = (0, 0)
    machine.run_for(120_000)
    (topic,) = ask(client, 9, "slow").topics
    assert topic.error_code == 0


def test_a_metadata_log_that_cannot_be_written_is_told_with_the_brokers(client: FakeClient, machine: Machine) -> None:
    machine.disk.faults.fail("sync", lambda path: "__cluster_metadata" in path)
    response = ask(client, 9, "new")
    assert response.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(response.brokers) == 1
    # There is no controller any more, and clients wait for one.
    assert ask(client, 9, "other").topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


# -- topic ids ---------------------------------------------------------------------------------------------------------------


def test_a_topic_is_found_by_its_id(client: FakeClient) -> None:
    topic_id = client.create_topic()
    response = client.call(ApiKey.METADATA, 12, topics=[{"name": None, "topic_id": topic_id}])
    assert names_of(response) == ["orders"]


def test_an_unknown_id_is_said_to_be_unknown_and_creates_nothing(client: FakeClient) -> None:
    response = client.call(ApiKey.METADATA, 12, topics=[{"name": None, "topic_id": UNKNOWN_ID}])
    (topic,) = response.topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, UNKNOWN_ID)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_refused_before_version_12(client: FakeClient, version: int) -> None:
    topic_id = client.create_topic()
    response = client.call(ApiKey.METADATA, version, topics=[{"name": "orders", "topic_id": topic_id}])
    assert response.topics[0].error_code == ErrorCode.INVALID_REQUEST


def test_gotcha_4_topic_ids_are_never_zero_and_stay(client: FakeClient, machine: Machine) -> None:
    before = ask(client, 12, "orders").topics[0].topic_id
    assert before != ZERO_UUID
    assert machine.restart() is None
    assert ask(machine.client(), 12, "orders").topics[0].topic_id == before


# -- operations --------------------------------------------------------------------------------------------------------------


def test_operations_are_told_to_who_asks(client: FakeClient) -> None:
    client.create_topic()
    silent = ask(client, 8, "orders")
    assert (silent.cluster_authorized_operations, silent.topics[0].topic_authorized_operations) == (NOT_ASKED, NOT_ASKED)
    asked = ask(client, 8, "orders", include_cluster_authorized_operations=True, include_topic_authorized_operations=True)
    # Kafka's numbers where nobody is restricted.
    assert (asked.cluster_authorized_operations, asked.topics[0].topic_authorized_operations) == (8096, 3576)


# -- keeping -----------------------------------------------------------------------------------------------------------------


def test_the_same_question_is_answered_from_memory_until_something_changes(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    cache = machine.broker.metadata_cache
    ask(client, 9, "orders")
    assert len(cache) == 1
    ask(client, 9, "orders")
    client.call(ApiKey.METADATA, 9, topics=None)
    assert len(cache) == 2
    client.create_topic("other")
    assert names_of(client.call(ApiKey.METADATA, 9, topics=None)) == ["orders", "other"]


def test_questions_that_differ_are_not_mixed_up(client: FakeClient) -> None:
    client.create_topic("a")
    client.create_topic("b")
    for _ in range(2):
        assert names_of(ask(client, 9, "a")) == ["a"]
        assert names_of(ask(client, 9, "b")) == ["b"]
        assert ask(client, 9, "a").topics[0].topic_authorized_operations == NOT_ASKED
        assert ask(client, 9, "a", include_topic_authorized_operations=True).topics[0].topic_authorized_operations == 3576


def test_errors_are_not_kept(client: FakeClient, machine: Machine) -> None:
    ask(client, 9, "missing", allow_auto_topic_creation=False)
    assert len(machine.broker.metadata_cache) == 0


def test_a_deleted_topic_is_gone_at_once(client: FakeClient) -> None:
    client.create_topic()
    ask(client, 9, "orders")
    client.call(ApiKey.DELETE_TOPICS, 5, topic_names=["orders"], timeout_ms=1000)
    (topic,) = ask(client, 9, "orders", allow_auto_topic_creation=False).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_answer_is_kept_until_the_image_changes() -> None:
    image = ClusterImage()
    cache = MetadataCache(image)
    assert cache.find("q") is None
    cache.keep("q", b"answer")
    assert cache.find("q") == b"answer"
    image.replay([TopicRecord("a", b"0123456789abcdef")], 0)
    assert cache.find("q") is None
    assert len(cache) == 0


def test_many_questions_do_not_pile_up() -> None:
    cache = MetadataCache(ClusterImage())
    for number in range(3 * ENTRIES_MAX):
        cache.keep(number, b"x")
        assert cache.find(number) == b"x"
        assert len(cache) <= ENTRIES_MAX


def test_large_answers_do_not_pile_up() -> None:
    cache = MetadataCache(ClusterImage())
    cache.keep("too large", bytes(BYTES_MAX + 1))
    assert cache.find("too large") is None
    for number in range(5):
        cache.keep(number, bytes(BYTES_MAX // 2))
        assert len(cache) <= 2
    assert metadata_handler.BYTES_MAX == BYTES_MAX
