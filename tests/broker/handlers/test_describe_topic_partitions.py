from typing import Any

import pytest

from tests.broker.harness import NODE_ID, FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

Page = list[tuple[str, list[int]]]


def ask(client: FakeClient, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> DecodedMessage:
    fields: dict[str, Any] = {"topics": [{"name": name} for name in names], "response_partition_limit": limit}
    if cursor is not None:
        fields["cursor"] = {"topic_name": cursor[0], "partition_index": cursor[1]}
    return client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, **fields)


def page_of(response: DecodedMessage) -> tuple[Page, tuple[str, int] | None]:
    cursor = response.next_cursor
    page = [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in response.topics]
    return page, None if cursor is None else (cursor.topic_name, cursor.partition_index)


@pytest.fixture
def topics(client: FakeClient) -> FakeClient:
    client.create_topic("b", 3)
    client.create_topic("a", 2)
    client.create_topic("c", 1)
    return client


def test_all_topics_in_the_order_of_names(topics: FakeClient) -> None:
    response = ask(topics)
    assert page_of(response) == ([("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])], None)
    partition = response.topics[0].partitions[0]
    assert (partition.leader_id, partition.leader_epoch, partition.isr_nodes) == (NODE_ID, 0, (NODE_ID,))
    assert response.topics[0].topic_authorized_operations == 3576


def test_pages_follow_each_other_without_gap_and_without_repetition(topics: FakeClient) -> None:
    pages: list[Page] = []
    cursor: tuple[str, int] | None = None
    while True:
        page, cursor = page_of(ask(topics, limit=2, cursor=cursor))
        pages.append(page)
        if cursor is None:
            break
    assert pages == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2]), ("c", [0])]]


def test_the_broker_has_a_limit_too() -> None:
    client = Machine({"max.request.partition.size.limit": "2"}).client()
    client.create_topic("a", 3)
    assert page_of(ask(client)) == ([("a", [0, 1])], ("a", 2))


@pytest.mark.parametrize("limit", [0, -5])
def test_a_page_has_at_least_one_partition(topics: FakeClient, limit: int) -> None:
    assert page_of(ask(topics, limit=limit)) == ([("a", [0])], ("a", 1))


def test_named_topics_and_those_that_do_not_exist(topics: FakeClient) -> None:
    response = ask(topics, "c", "missing", "bad name", "a")
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("a", 0),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("c", 0),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_a_cursor_at_a_topic_that_is_gone_goes_on_with_the_next(topics: FakeClient) -> None:
    assert page_of(ask(topics, cursor=("aa", 5))) == ([("b", [0, 1, 2]), ("c", [0])], None)


def test_a_negative_cursor_is_refused(topics: FakeClient) -> None:
    response = ask(topics, "a", cursor=("a", -1))
    assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]
