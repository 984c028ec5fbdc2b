import pytest

from tests.controller.cluster import RULES, new_image, randomness, replay
from tidelog.controller.partitions import NewPartitions, PartitionsCreation, create_partitions
from tidelog.controller.topics import PARTITIONS_PER_REQUEST_MAX, TopicRules
from tidelog.wire.errors import ErrorCode


def test_a_topic_grows_with_its_own_replication_factor() -> None:
    image = new_image((1, 2), orders=2)
    result = create_partitions(image, RULES, [NewPartitions("orders", 4)], randomness())
    assert result.response == [PartitionsCreation("orders")]
    topic = replay(image, result.records).topic("orders")
    assert topic is not None
    assert list(topic.partitions) == [0, 1, 2, 3]
    assert [sorted(topic.partitions[index].replicas) for index in (2, 3)] == [[1, 2], [1, 2]]


def test_a_manual_assignment() -> None:
    image = new_image((1, 2), orders=1)
    result = create_partitions(image, RULES, [NewPartitions("orders", 3, ((2, 1), (1, 2)))], randomness())
    topic = replay(image, result.records).topic("orders")
    assert topic is not None
    assert [topic.partitions[index].leader for index in (1, 2)] == [2, 1]


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (NewPartitions("nothing", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nothing"),
        (NewPartitions("orders", 3), ErrorCode.INVALID_PARTITIONS, "already has 3"),
        (NewPartitions("orders", 2), ErrorCode.INVALID_PARTITIONS, "fewer"),
        (NewPartitions("orders", 0), ErrorCode.INVALID_PARTITIONS, "fewer"),
        (NewPartitions("orders", 5, ((1,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "2 partition(s) are added"),
        (NewPartitions("orders", 4, ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "0 assignment"),
        (NewPartitions("orders", 4, ((9,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
        (NewPartitions("orders", 4, ((),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker"),
        (NewPartitions("__consumer_offsets", 4), ErrorCode.INVALID_REQUEST, "internal"),
        (NewPartitions("orders", 3 + PARTITIONS_PER_REQUEST_MAX + 1), ErrorCode.POLICY_VIOLATION, "one request"),
        (NewPartitions("orders", 10), ErrorCode.POLICY_VIOLATION, "max.partitions=10"),
    ],
)
def test_what_is_refused_and_why(request_: NewPartitions, code: ErrorCode, words: str) -> None:
    image = new_image(orders=3, __consumer_offsets=1)
    result = create_partitions(image, TopicRules(partitions_max=10), [request_], randomness())
    assert result.records == []
    assert [creation.error for creation in result.response] == [code]
    assert words in (result.response[0].message or "")


def test_duplicates_and_validate_only() -> None:
    image = new_image(a=1, b=1)
    requests = [NewPartitions("a", 2), NewPartitions("a", 3), NewPartitions("b", 2)]
    result = create_partitions(image, RULES, requests, randomness())
    assert [(creation.topic, creation.error) for creation in result.response] == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.NONE),
    ]
    assert len(result.records) == 1
    only = create_partitions(image, RULES, requests, randomness(), validate_only=True)
    assert (only.records, only.response) == ([], result.response)


def test_topics_of_one_request_share_what_is_left() -> None:
    image = new_image(a=1, b=1)
    rules = TopicRules(partitions_max=5)
    result = create_partitions(image, rules, [NewPartitions("a", 3), NewPartitions("b", 3)], randomness())
    assert [creation.error for creation in result.response] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
