"""The topics of failures: their names, there and back, and their creation like their source, once, whoever is first."""

import secrets
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.admin import Admin
from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.deadletters.letter import HEADERS_BYTES_MAX
from tidelog.deadletters.topics import (
    FAILURE_CONFIG,
    RETENTION_MS,
    TOPIC_LENGTH_MAX,
    TopicNotCreated,
    dead_letter_topic,
    ensure_failure_topics,
    ensure_topics,
    is_dead_letter_topic,
    ledger_topic,
    retry_level,
    retry_topic,
    source_topic,
)

NAMES = st.text("ab0._-", min_size=1, max_size=20)


def test_the_names() -> None:
    assert retry_topic("orders", "email", 3) == "orders.email.retry.3"
    assert dead_letter_topic("orders", "email") == "orders.email.dlq"
    assert ledger_topic("orders.email.dlq") == "orders.email.dlq.ledger"


@given(NAMES, NAMES, st.integers(0, 999))
def test_they_are_read_back_where_the_group_is_known(topic: str, group: str, level: int) -> None:
    assert source_topic(retry_topic(topic, group, level), group) == topic
    assert source_topic(dead_letter_topic(topic, group), group) == topic
    assert retry_level(retry_topic(topic, group, level), topic, group) == level


def test_what_is_no_such_topic_is_not_read() -> None:
    assert source_topic("orders", "email") is None
    assert source_topic(".email.dlq", "email") is None
    assert source_topic("orders.email.retry.01", "email") is None
    assert source_topic("orders.email.retry.x", "email") is None
    assert source_topic("orders.mail.dlq", "email") is None
    assert source_topic("ordersxemail.dlq", "email") is None
    assert retry_level("orders.email.retry.01", "orders", "email") is None
    assert retry_level("orders.email.retry.1", "orders", "mail") is None
    assert retry_level("orders.email.retry.9999", "orders", "email") is None


def test_dead_letter_topics_are_told_from_others() -> None:
    assert is_dead_letter_topic("orders.email.dlq")
    assert not is_dead_letter_topic("orders.email.dlq.ledger")
    assert not is_dead_letter_topic("orders.email.retry.0")
    assert not is_dead_letter_topic(".dlq")


def test_a_name_that_is_too_long_says_what_to_shorten() -> None:
    group = "g" * 100
    longest = TOPIC_LENGTH_MAX - len(".dlq.ledger") - len(group) - 1
    assert dead_letter_topic("t" * longest, group)
    with pytest.raises(InvalidArgument, match=r"shorten the topic \(138\) or the group \(100\) by 1"):
        dead_letter_topic("t" * (longest + 1), group)
    with pytest.raises(InvalidArgument, match="250 characters"):
        ledger_topic("t" * (TOPIC_LENGTH_MAX - len(".ledger") + 1))


@pytest.mark.parametrize("group", ["", "billing/eu", "größe"])
def test_a_group_whose_name_kafka_refuses_in_topics(group: str) -> None:
    with pytest.raises(InvalidArgument, match="give the group another name"):
        retry_topic("orders", group, 0)


@pytest.mark.parametrize("topic", ["", "a b"])
def test_a_topic_that_kafka_refuses(topic: str) -> None:
    with pytest.raises(InvalidArgument, match="not the name of a topic"):
        dead_letter_topic(topic, "email")


@pytest.mark.parametrize("level", [-1, 1000])
def test_a_level_that_is_none(level: int) -> None:
    with pytest.raises(InvalidArgument, match="levels are numbered from 0 to 999"):
        retry_topic("orders", "email", level)


@pytest.fixture(scope="module")
def admin(kafka: ToolkitBroker) -> Admin:
    return Admin(kafka.bootstrap)


@pytest.fixture
def source(kafka: ToolkitBroker) -> str:
    config = {"max.message.bytes": "5000", "min.insync.replicas": "1"}
    return create_topic(kafka.bootstrap, f"orders-{secrets.token_hex(4)}", partitions=3, config=config)


def partitions(admin: Admin, name: str) -> int:
    return len(admin.describe_cluster().topics[name])


def config(admin: Admin, name: str, setting: str) -> str:
    return str(admin.describe_configs("topic", name)[setting].value)


def test_topics_of_failures_are_like_their_source(admin: Admin, source: str) -> None:
    names = ensure_failure_topics(admin, source, "email", levels=2)
    assert names == [f"{source}.email.retry.0", f"{source}.email.retry.1", f"{source}.email.dlq"]
    for name in names:
        assert partitions(admin, name) == 3
        assert config(admin, name, "retention.ms") == str(RETENTION_MS)
        assert config(admin, name, "max.message.bytes") == str(5000 + HEADERS_BYTES_MAX)


def test_again_and_from_several_at_once_is_fine(admin: Admin, source: str) -> None:
    failures: list[BaseException] = []

    def ensure() -> None:
        try:
            ensure_failure_topics(admin, source, "email", levels=3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ensure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ensure()
    assert failures == []


def test_partitions_that_were_added_to_the_source_are_added(admin: Admin, source: str) -> None:
    (name,) = ensure_failure_topics(admin, source, "email", levels=0)
    admin.add_partitions(source, 5)
    wait_until(lambda: partitions(admin, source) == 5, "the new partitions are seen")
    ensure_failure_topics(admin, source, "email", levels=0)
    assert partitions(admin, name) == 5


def test_a_source_that_is_not_there(kafka: ToolkitBroker, admin: Admin) -> None:
    with pytest.raises(UnknownTopic, match=f"there is no topic nowhere at {kafka.bootstrap}: create it first"):
        ensure_failure_topics(admin, "nowhere", "email", levels=1)


def test_a_topic_that_may_not_be_made_says_what_to_do(admin: Admin, source: str) -> None:
    wanted = {f"{source}.email.dlq": {**FAILURE_CONFIG, "retention.ms": "for ever"}}
    with pytest.raises(TopicNotCreated, match=rf"create topic {source}\.email\.dlq: .* Ask the operators of the cluster"):
        ensure_topics(admin, source, wanted)
