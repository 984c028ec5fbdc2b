"""The names of the topics of failures, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.errors import InvalidArgument
from tidelog.deadletters.names import (
    TOPIC_LENGTH_MAX,
    dead_letter_topic,
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
    with pytest.raises(InvalidArgument, match="no name of a topic"):
        dead_letter_topic(topic, "email")


@pytest.mark.parametrize("level", [-1, 1000])
def test_a_level_that_is_none(level: int) -> None:
    with pytest.raises(InvalidArgument, match="levels from 0 to 999"):
        retry_topic("orders", "email", level)
