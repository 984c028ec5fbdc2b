"""The topics of failures are made like their source, once, whoever is first."""

import secrets
import threading

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, ResourceType

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.errors import UnknownTopic
from tidelog.deadletters.letter import HEADERS_BYTES_MAX
from tidelog.deadletters.topics import (
    FAILURE_CONFIG,
    RETENTION_MS,
    TopicNotCreated,
    ensure_failure_topics,
    ensure_topics,
)


@pytest.fixture(scope="module")
def admin(kafka: ToolkitBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})


@pytest.fixture
def source(kafka: ToolkitBroker) -> str:
    config = {"max.message.bytes": "5000", "min.insync.replicas": "1"}
    return create_topic(kafka.bootstrap, f"orders-{secrets.token_hex(4)}", partitions=3, config=config)


def partitions(admin: AdminClient, name: str) -> int:
    return len(admin.list_topics(timeout=10).topics[name].partitions)


def config(admin: AdminClient, name: str, setting: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, name)
    return str(admin.describe_configs([resource])[resource].result()[setting].value)


def test_topics_of_failures_are_like_their_source(kafka: ToolkitBroker, admin: AdminClient, source: str) -> None:
    names = ensure_failure_topics(admin, source, "email", levels=2, addresses=kafka.bootstrap)
    assert names == [f"{source}.email.retry.0", f"{source}.email.retry.1", f"{source}.email.dlq"]
    for name in names:
        assert partitions(admin, name) == 3
        assert config(admin, name, "retention.ms") == str(RETENTION_MS)
        assert config(admin, name, "max.message.bytes") == str(5000 + HEADERS_BYTES_MAX)


def test_again_and_from_several_at_once_is_fine(kafka: ToolkitBroker, admin: AdminClient, source: str) -> None:
    failures: list[BaseException] = []

    def ensure() -> None:
        try:
            ensure_failure_topics(admin, source, "email", levels=3, addresses=kafka.bootstrap)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ensure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ensure()
    assert failures == []


def test_partitions_that_were_added_to_the_source_are_added(kafka: ToolkitBroker, admin: AdminClient, source: str) -> None:
    (name,) = ensure_failure_topics(admin, source, "email", levels=0, addresses=kafka.bootstrap)
    admin.create_partitions([NewPartitions(source, 5)])[source].result()
    wait_until(lambda: partitions(admin, source) == 5, "the new partitions are seen")
    ensure_failure_topics(admin, source, "email", levels=0, addresses=kafka.bootstrap)
    assert partitions(admin, name) == 5


def test_a_source_that_is_not_there(kafka: ToolkitBroker, admin: AdminClient) -> None:
    with pytest.raises(UnknownTopic, match=f"there is no topic nowhere at {kafka.bootstrap}: create it first"):
        ensure_failure_topics(admin, "nowhere", "email", levels=1, addresses=kafka.bootstrap)


def test_a_topic_that_may_not_be_made_says_what_to_do(kafka: ToolkitBroker, admin: AdminClient, source: str) -> None:
    wanted = {f"{source}.email.dlq": {**FAILURE_CONFIG, "retention.ms": "for ever"}}
    with pytest.raises(TopicNotCreated, match=rf"create the topic {source}\.email\.dlq: .* Ask who runs the cluster"):
        ensure_topics(admin, source, wanted, addresses=kafka.bootstrap)
