import pytest

from tests.controller.cluster import DIRECTORY, RULES, STATIC, new_image, randomness, replay, set_configs, topic_id
from tidelog.controller.config_sources import ConfigSource
from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.errors import ApiError
from tidelog.controller.topics import (
    PARTITIONS_PER_REQUEST_MAX,
    NewPartitions,
    NewTopic,
    PartitionsCreation,
    TopicCreation,
    TopicDeletion,
    TopicRules,
    create_partitions,
    create_topics,
    delete_topics,
)
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import RemoveTopicRecord
from tidelog.metadata.topics import PartitionImage
from tidelog.wire.errors import ErrorCode


def create(
    image: ClusterImage, *topics: NewTopic, rules: TopicRules = RULES, validate_only: bool = False, is_internal: bool = False
) -> ControllerResult[list[TopicCreation]]:
    return create_topics(image, rules, STATIC, topics, randomness(), validate_only=validate_only, is_internal=is_internal)


def refusal(image: ClusterImage, topic: NewTopic, rules: TopicRules = RULES) -> tuple[ErrorCode, str]:
    result = create(image, topic, rules=rules)
    assert result.records == []
    (creation,) = result.response
    assert creation.topic_id == bytes(16)
    return creation.error, creation.message or ""


def test_a_topic_with_the_defaults_of_the_broker() -> None:
    image = new_image()
    result = create(image, NewTopic("orders"), rules=TopicRules(3, 1))
    (creation,) = result.response
    assert (creation.error, creation.message) == (ErrorCode.NONE, None)
    assert (creation.partitions, creation.replication_factor) == (3, 1)
    topic = replay(image, result.records).topic("orders")
    assert topic is not None
    assert topic.topic_id == creation.topic_id != bytes(16)
    expected = PartitionImage((1,), (1,), leader=1, leader_epoch=0, partition_epoch=0, directories=(DIRECTORY,))
    assert topic.partitions == {0: expected, 1: expected, 2: expected}


def test_settings_are_kept_and_described() -> None:
    image = new_image()
    result = create(image, NewTopic("orders", 1, 1, configs=(("retention.ms", "5"), ("cleanup.policy", "compact"))))
    configs = {config.name: (config.value, config.source) for config in result.response[0].configs}
    assert configs["retention.ms"] == ("5", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert configs["segment.bytes"] == ("1073741824", ConfigSource.DEFAULT_CONFIG)
    replay(image, result.records)
    assert image.configs_of(ResourceType.TOPIC, "orders") == {"retention.ms": "5", "cleanup.policy": "compact"}


def test_replicas_go_around_the_active_brokers() -> None:
    image = new_image((1, 2, 3, 4), fenced=(3,))
    result = create(image, NewTopic("orders", 6, 2))
    topic = replay(image, result.records).topic("orders")
    assert topic is not None
    leaders = [partition.leader for partition in topic.partitions.values()]
    assert sorted(leaders) == [1, 1, 2, 2, 4, 4]
    for partition in topic.partitions.values():
        assert len(set(partition.replicas)) == 2
        assert 3 not in partition.replicas
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]


def test_a_manual_assignment_is_kept_and_led_by_who_is_there() -> None:
    image = new_image((1, 2, 3), fenced=(3,))
    result = create(image, NewTopic("orders", assignments=((1, (2, 1)), (0, (3, 2)))))
    assert (result.response[0].partitions, result.response[0].replication_factor) == (2, 2)
    topic = replay(image, result.records).topic("orders")
    assert topic is not None
    assert [(part.replicas, part.isr, part.leader) for _, part in sorted(topic.partitions.items())] == [
        ((3, 2), (2,), 2),
        ((2, 1), (2, 1), 2),
    ]


@pytest.mark.parametrize(
    ("topic", "code", "words"),
    [
        (NewTopic("old"), ErrorCode.TOPIC_ALREADY_EXISTS, "old"),
        (NewTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, ""),
        (NewTopic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, ""),
        (NewTopic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, ""),
        (NewTopic("a" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "249"),
        (NewTopic("a.b.c"), ErrorCode.INVALID_TOPIC_EXCEPTION, "a_b_c"),
        (NewTopic("__consumer_offsets"), ErrorCode.INVALID_REQUEST, "internal"),
        (NewTopic("__transaction_state"), ErrorCode.INVALID_REQUEST, "internal"),
        (NewTopic("__cluster_metadata"), ErrorCode.INVALID_REQUEST, "internal"),
        (NewTopic("new", 0), ErrorCode.INVALID_PARTITIONS, "0 partitions"),
        (NewTopic("new", -2), ErrorCode.INVALID_PARTITIONS, "-2 partitions"),
        (NewTopic("new", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "factor of 0"),
        (NewTopic("new", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR, "factor of -2"),
        (NewTopic("new", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR, "only 3 broker(s) are registered"),
        (NewTopic("new", 1, -1, ((0, (1,)),)), ErrorCode.INVALID_REQUEST, "partitions must be -1"),
        (NewTopic("new", -1, 1, ((0, (1,)),)), ErrorCode.INVALID_REQUEST, "replication factor must be -1"),
        (NewTopic("new", assignments=((1, (1,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "gap"),
        (NewTopic("new", assignments=((0, (1,)), (0, (1,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "gap"),
        (NewTopic("new", assignments=((0, ()),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker"),
        (NewTopic("new", assignments=((0, (1, 1)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "twice"),
        (NewTopic("new", assignments=((0, (9,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
        (NewTopic("new", assignments=((0, (3,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "fenced"),
        (NewTopic("new", assignments=((0, (1,)), (1, (1, 2)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "2 replica"),
        (NewTopic("new", configs=(("retention.mss", "1"),)), ErrorCode.INVALID_CONFIG, "did you mean retention.ms"),
        (NewTopic("new", configs=(("retention.ms", "-2"),)), ErrorCode.INVALID_CONFIG, "at least -1"),
        (NewTopic("new", configs=(("retention.ms", None),)), ErrorCode.INVALID_CONFIG, "null"),
        (NewTopic("new", configs=(("retention.ms", "1"),) * 2), ErrorCode.INVALID_REQUEST, "twice"),
        (NewTopic("new", 11), ErrorCode.POLICY_VIOLATION, "max.partitions=12"),
    ],
)
def test_what_is_refused_and_why(topic: NewTopic, code: ErrorCode, words: str) -> None:
    image = new_image((1, 2, 3), fenced=(3,), old=1, a_b_c=1)
    refused, message = refusal(image, topic, TopicRules(partitions_max=12))
    assert (refused, words in message) == (code, True), message


def test_one_refused_topic_does_not_stop_the_others() -> None:
    image = new_image()
    result = create(image, NewTopic("good"), NewTopic("bad", 0), NewTopic("also.good"), NewTopic("also_good"))
    assert [(creation.name, creation.error) for creation in result.response] == [
        ("good", ErrorCode.NONE),
        ("bad", ErrorCode.INVALID_PARTITIONS),
        ("also.good", ErrorCode.NONE),
        ("also_good", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert sorted(topic.name for topic in replay(image, result.records).topics) == ["also.good", "good"]


def test_a_name_given_twice_is_refused_once() -> None:
    result = create(new_image(), NewTopic("orders"), NewTopic("orders", 2), NewTopic("other"))
    assert [(creation.name, creation.error) for creation in result.response] == [
        ("orders", ErrorCode.INVALID_REQUEST),
        ("other", ErrorCode.NONE),
    ]


def test_validate_only_answers_the_same_and_writes_nothing() -> None:
    result = create(new_image(), NewTopic("orders", 2), NewTopic("bad", 0), validate_only=True)
    assert result.records == []
    assert [(creation.error, creation.partitions) for creation in result.response] == [
        (ErrorCode.NONE, 2),
        (ErrorCode.INVALID_PARTITIONS, -1),
    ]


def test_the_broker_itself_may_create_internal_topics_but_never_the_metadata_log() -> None:
    result = create(new_image(), NewTopic("__consumer_offsets"), NewTopic("__cluster_metadata"), is_internal=True)
    assert [creation.error for creation in result.response] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_the_partitions_of_one_request_are_bounded() -> None:
    many = NewTopic("many", PARTITIONS_PER_REQUEST_MAX)
    assert create(new_image(), many).response[0].error is ErrorCode.NONE
    with pytest.raises(ApiError, match=f"{PARTITIONS_PER_REQUEST_MAX + 1} partitions") as refused:
        create(new_image(), many, NewTopic("one"))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


def test_topics_of_one_request_share_what_is_left() -> None:
    result = create(new_image(old=1), NewTopic("a", 2), NewTopic("b", 2), NewTopic("c", 1), rules=TopicRules(partitions_max=4))
    assert [creation.error for creation in result.response] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]


def test_settings_are_checked_together_with_what_the_brokers_give() -> None:
    image = set_configs(new_image(), ResourceType.BROKER, ALL_BROKERS, log_cleaner_max_compaction_lag_ms="10")
    code, message = refusal(image, NewTopic("new", configs=(("min.compaction.lag.ms", "11"),)))
    assert code is ErrorCode.INVALID_CONFIG
    assert "which is 10" in message


def test_ids_differ_and_none_is_reserved() -> None:
    class Tokens:
        def __init__(self) -> None:
            self.tokens = [bytes(16), bytes(15) + b"\1", b"\xf8" + b"x" * 15, topic_id("old"), b"\x07" * 16]

        def token(self, length: int) -> bytes:
            return self.tokens.pop(0)

        def integer(self, low: int, high: int) -> int:
            return low

        def fraction(self) -> float:
            return 0.0

    result = create_topics(new_image(old=1), RULES, STATIC, [NewTopic("new")], Tokens())
    assert result.response[0].topic_id == b"\x07" * 16


def test_topics_are_deleted_by_name_and_by_id() -> None:
    image = new_image(a=1, b=2, c=1)
    result = delete_topics(image, ["a"], [topic_id("b")])
    assert result.records == [RemoveTopicRecord(topic_id("a")), RemoveTopicRecord(topic_id("b"))]
    assert result.response == [TopicDeletion("a", topic_id("a")), TopicDeletion("b", topic_id("b"))]
    assert [topic.name for topic in replay(image, result.records).topics] == ["c"]


def test_what_cannot_be_deleted() -> None:
    image = new_image(a=1, b=1, __consumer_offsets=1)
    result = delete_topics(
        image, ["x", "a", "a", "__consumer_offsets", "b"], [b"?" * 16, topic_id("b"), topic_id("__consumer_offsets")]
    )
    assert result.records == [RemoveTopicRecord(topic_id("b"))]
    assert [(deletion.name, deletion.error) for deletion in result.response] == [
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", ErrorCode.INVALID_REQUEST),
        ("__consumer_offsets", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.NONE),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        (None, ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.INVALID_REQUEST),
    ]


def test_a_topic_grows_with_its_own_replication_factor() -> None:
    image = new_image((1, 2), orders=2)
    result = create_partitions(image, RULES, [NewPartitions("orders", 4)], randomness())
    assert result.response == [PartitionsCreation("orders")]
    topic = replay(image, result.records).topic("orders")
    assert topic is not None
    assert list(topic.partitions) == [0, 1, 2, 3]
    assert [sorted(topic.partitions[index].replicas) for index in (2, 3)] == [[1, 2], [1, 2]]


def test_a_manual_assignment_of_new_partitions() -> None:
    image = new_image((1, 2), orders=1)
    result = create_partitions(image, RULES, [NewPartitions("orders", 3, ((2, 1), (1, 2)))], randomness())
    topic = replay(image, result.records).topic("orders")
    assert topic is not None
    assert [topic.partitions[index].leader for index in (1, 2)] == [2, 1]


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (NewPartitions("nothing", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nothing"),
        (NewPartitions("orders", 3), ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partition(s)."),
        (NewPartitions("orders", 2), ErrorCode.INVALID_PARTITIONS, "currently has 3 partition(s);"),
        (NewPartitions("orders", 0), ErrorCode.INVALID_PARTITIONS, "currently has 3 partition(s);"),
        (NewPartitions("orders", 5, ((1,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "2 partition(s) are added"),
        (NewPartitions("orders", 4, ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "0 assignment"),
        (NewPartitions("orders", 4, ((9,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
        (NewPartitions("orders", 4, ((),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker"),
        (NewPartitions("__consumer_offsets", 4), ErrorCode.INVALID_REQUEST, "internal"),
        (NewPartitions("orders", 3 + PARTITIONS_PER_REQUEST_MAX + 1), ErrorCode.POLICY_VIOLATION, "one request"),
        (NewPartitions("orders", 10), ErrorCode.POLICY_VIOLATION, "max.partitions=10"),
    ],
)
def test_new_partitions_that_are_refused_and_why(request_: NewPartitions, code: ErrorCode, words: str) -> None:
    image = new_image(orders=3, __consumer_offsets=1)
    result = create_partitions(image, TopicRules(partitions_max=10), [request_], randomness())
    assert result.records == []
    assert [creation.error for creation in result.response] == [code]
    assert words in (result.response[0].message or "")


def test_new_partitions_that_are_duplicates_or_only_validated() -> None:
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


def test_new_partitions_of_one_request_share_what_is_left() -> None:
    image = new_image(a=1, b=1)
    rules = TopicRules(partitions_max=5)
    result = create_partitions(image, rules, [NewPartitions("a", 3), NewPartitions("b", 3)], randomness())
    assert [creation.error for creation in result.response] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
