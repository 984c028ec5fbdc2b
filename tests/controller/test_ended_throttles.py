"""When the move of a partition ends, however it ends, its throttle goes with it, and with the last throttle the rates go."""

from collections.abc import Sequence

import pytest

from tests.controller.cluster import new_image, replay, set_configs, topic_id
from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.ended_throttles import with_ended_throttles_removed
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ConfigRecord, MetadataRecord, PartitionChangeRecord, RemoveTopicRecord

LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"

ORDERS = topic_id("orders")
MOVED = PartitionChangeRecord(0, ORDERS, replicas=(1, 3), adding_replicas=(), removing_replicas=())
MOVING = PartitionChangeRecord(0, ORDERS, replicas=(1, 3, 2), adding_replicas=(3,), removing_replicas=(2,))


@pytest.fixture
def image() -> ClusterImage:
    """orders-0 and orders-11 move, and so does another topic."""
    image = new_image((1, 2, 3), orders=12, other=1)
    for topic, leaders, followers in (("orders", "0:1,0:2,11:1", "0:3,11:3"), ("other", "0:1", "0:2")):
        set_configs(image, ResourceType.TOPIC, topic, retention_ms="1")
        set_configs(image, ResourceType.TOPIC, topic, **{LEADERS: leaders, FOLLOWERS: followers})
    for broker in ("1", "2", ALL_BROKERS):
        set_configs(image, ResourceType.BROKER, broker, **{LEADER_RATE: "1000", FOLLOWER_RATE: "1000"})
    return image


def decided(image: ClusterImage, *records: MetadataRecord) -> Sequence[MetadataRecord]:
    """What a decision with these records adds to them."""
    result = with_ended_throttles_removed(image, ControllerResult([*records], None))
    assert result.records[: len(records)] == [*records]
    replay(image, result.records)
    return result.records[len(records) :]


def test_what_ended_is_taken_from_the_lists(image: ClusterImage) -> None:
    assert decided(image, MOVED) == [
        ConfigRecord(ResourceType.TOPIC, "orders", LEADERS, "11:1"),
        ConfigRecord(ResourceType.TOPIC, "orders", FOLLOWERS, "11:3"),
    ]
    assert image.configs_of(ResourceType.BROKER, "1") == {LEADER_RATE: "1000", FOLLOWER_RATE: "1000"}


def test_a_move_that_begins_or_goes_on_keeps_its_throttle(image: ClusterImage) -> None:
    assert decided(image, MOVING) == []
    assert decided(image, PartitionChangeRecord(0, ORDERS, isr=(1, 2))) == []
    assert decided(image, PartitionChangeRecord(0, ORDERS, leader=2)) == []


def test_with_the_last_throttle_the_rates_of_single_brokers_go(image: ClusterImage) -> None:
    decided(image, MOVED)
    decided(image, PartitionChangeRecord(0, topic_id("other"), replicas=(1, 2), adding_replicas=(), removing_replicas=()))
    last = decided(image, PartitionChangeRecord(11, ORDERS, replicas=(1, 3), adding_replicas=(), removing_replicas=()))
    assert ConfigRecord(ResourceType.TOPIC, "orders", LEADERS, None) in last
    assert image.configs_of(ResourceType.TOPIC, "orders") == {"retention.ms": "1"}
    assert image.configs_of(ResourceType.BROKER, "1") == image.configs_of(ResourceType.BROKER, "2") == {}
    assert image.configs_of(ResourceType.BROKER, ALL_BROKERS) == {LEADER_RATE: "1000", FOLLOWER_RATE: "1000"}


def test_all_moves_of_one_decision(image: ClusterImage) -> None:
    decided(
        image, *(PartitionChangeRecord(index, ORDERS, replicas=(1, 3)) for index in (0, 11)), RemoveTopicRecord(topic_id("other"))
    )
    assert image.configs_of(ResourceType.BROKER, "1") == {}


def test_a_list_of_all_replicas_is_the_operators(image: ClusterImage) -> None:
    set_configs(image, ResourceType.TOPIC, "other", **{LEADERS: "*", FOLLOWERS: "*"})
    set_configs(image, ResourceType.TOPIC, "orders", **{LEADERS: "0:1", FOLLOWERS: "0:3"})
    decided(image, MOVED, PartitionChangeRecord(0, topic_id("other"), replicas=(1, 2)))
    assert image.configs_of(ResourceType.TOPIC, "other")[LEADERS] == "*"
    assert image.configs_of(ResourceType.BROKER, "1") == {LEADER_RATE: "1000", FOLLOWER_RATE: "1000"}


def test_without_lists_rates_stay(image: ClusterImage) -> None:
    for topic in ("orders", "other"):
        replay(image, [ConfigRecord(ResourceType.TOPIC, topic, name, None) for name in (LEADERS, FOLLOWERS)])
    assert decided(image, MOVED) == []


def test_a_deleted_topic_takes_its_throttles_along(image: ClusterImage) -> None:
    assert decided(image, RemoveTopicRecord(ORDERS)) == [], "another topic is throttled still"
    assert len(decided(image, RemoveTopicRecord(topic_id("other")))) == 4


def test_what_the_same_decision_sets_counts(image: ClusterImage) -> None:
    added = decided(image, ConfigRecord(ResourceType.TOPIC, "orders", LEADERS, "0:1,5:1"), MOVED)
    assert ConfigRecord(ResourceType.TOPIC, "orders", LEADERS, "5:1") in added
