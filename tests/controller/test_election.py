from dataclasses import dataclass

import pytest

from tests.controller.cluster import DIRECTORY, new_image, replay, topic_id
from tidelog.controller.election import (
    DataCondition,
    ElectionOutcome,
    ElectionResult,
    ElectionType,
    broker_left,
    broker_registered,
    broker_returned,
    elect_leaders,
    rebalance_leaders,
    replica_lost,
    settings_changed,
)
from tidelog.controller.errors import ApiError
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage
from tidelog.wire.errors import ErrorCode

ID = topic_id("orders")
PREFERRED, UNCLEAN, _ = ElectionType


@dataclass
class Rules:
    minimum: int = 2
    unclean: bool = False
    relaxed: bool = False

    def min_insync_replicas(self, topic: str) -> int:
        assert topic
        return self.minimum

    def allows_unclean_election(self, topic: str) -> bool:
        assert topic
        return self.unclean

    def is_relaxed(self, topic: str) -> bool:
        assert topic
        return self.relaxed


RULES = Rules()


def with_change(**change: object) -> ClusterImage:
    """orders-0 on brokers 1, 2 and 3, of which 3 is fenced."""
    image = new_image((1, 2, 3), fenced=(3,), orders=2)
    return replay(image, [PartitionChangeRecord(0, ID, **change)])  # type: ignore[arg-type]  # names and values of its fields


def partition(image: ClusterImage, index: int = 0) -> PartitionImage:
    topic = image.topic("orders")
    assert topic is not None
    return topic.partitions[index]


def outcome(image: ClusterImage, kind: ElectionType, index: int = 0) -> ErrorCode:
    result = elect_leaders(image, RULES, kind, [("orders", index)])
    (election,) = result.response
    assert bool(result.records) == (election.error is ErrorCode.NONE)
    replay(image, result.records)
    return election.error


def test_the_preferred_leader_is_elected_when_it_is_in_sync() -> None:
    image = with_change(leader=2)
    assert outcome(image, PREFERRED) is ErrorCode.NONE
    assert (partition(image).leader, partition(image).leader_epoch) == (1, 2)
    assert outcome(image, PREFERRED) is ErrorCode.ELECTION_NOT_NEEDED


def test_a_preferred_leader_out_of_sync_or_away_is_not_elected() -> None:
    assert outcome(with_change(leader=2, isr=(2,)), PREFERRED) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert outcome(with_change(leader=2, replicas=(3, 2)), PREFERRED) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_an_unclean_election_is_for_partitions_without_a_leader() -> None:
    assert outcome(with_change(leader=2), UNCLEAN) is ErrorCode.ELECTION_NOT_NEEDED


def test_an_unclean_election_takes_who_is_in_sync_first() -> None:
    image = with_change(leader=-1, isr=(2, 3))
    assert outcome(image, UNCLEAN) is ErrorCode.NONE
    assert (partition(image).leader, partition(image).isr, partition(image).leader_recovery_state) == (2, (2, 3), 0)


def test_an_unclean_election_takes_who_is_there() -> None:
    image = with_change(leader=-1, isr=(3,))
    assert outcome(image, UNCLEAN) is ErrorCode.NONE
    assert (partition(image).leader, partition(image).isr, partition(image).leader_recovery_state) == (1, (1,), 1)
    assert outcome(with_change(leader=-1, replicas=(3,)), UNCLEAN) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_partitions_that_are_not_there() -> None:
    result = elect_leaders(new_image(orders=1), RULES, PREFERRED, [("orders", 1), ("nothing", 0), ("orders", 1)])
    assert [(election.topic, election.partition, election.error) for election in result.response] == [
        ("orders", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nothing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_all_partitions_are_answered_without_those_that_need_none() -> None:
    result = elect_leaders(with_change(leader=2), RULES, PREFERRED, None)
    assert result.response == [ElectionResult("orders", 0)]
    result = elect_leaders(with_change(leader=2, isr=(2,)), RULES, PREFERRED, None)
    assert [election.error for election in result.response] == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]


def test_there_are_two_types() -> None:
    with pytest.raises(ApiError) as refused:
        elect_leaders(new_image(), RULES, 3, None)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


# -- brokers come and go: tables of cases. A partition is on brokers 1, 2 and 3. --------------------------------------------

State = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""(leader, ISR, ELR, last known leader)"""


def state(leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = (), last: tuple[int, ...] = ()) -> State:
    return leader, isr, elr, last


def image_of(before: State, fenced: tuple[int, ...] = ()) -> ClusterImage:
    image = new_image((1, 2, 3), fenced=fenced, orders=1)
    leader, isr, elr, last = before
    change = PartitionChangeRecord(0, ID, isr=isr, leader=leader, eligible_leader_replicas=elr, last_known_elr=last)
    return replay(image, [change])


def after(image: ClusterImage, outcome: ElectionOutcome) -> State:
    before = partition(image)
    replay(image, outcome.records)
    found = partition(image)
    if found.leader != before.leader:
        (election,) = outcome.elections
        assert (election.leader_before, election.leader) == (before.leader, found.leader)
        assert election.is_unclean == (found.leader_recovery_state == 1)
        assert found.leader_epoch == before.leader_epoch + 1
    else:
        assert not outcome.elections
    assert found.partition_epoch == before.partition_epoch + bool(outcome.records)
    return found.leader, found.isr, found.eligible_leader_replicas, found.last_known_elr


@pytest.mark.parametrize(
    ("who", "minimum", "before", "expected"),
    [
        # A follower leaves: the leader stays.
        (2, 2, state(1, (1, 2, 3)), state(1, (1, 3))),
        # A leader leaves: the next in the order of the replicas.
        (1, 2, state(1, (1, 2, 3)), state(2, (2, 3))),
        (1, 2, state(1, (3, 1)), state(3, (3,), (1,))),
        # Below the minimum, who leaves stays eligible.
        (2, 2, state(1, (1, 2)), state(1, (1,), (2,))),
        (3, 3, state(1, (1, 2, 3)), state(1, (1, 2), (3,))),
        (2, 3, state(1, (1, 2), (3,)), state(1, (1,), (2, 3))),
        # The last one leaves: nobody leads, but who it was is known.
        (1, 2, state(1, (1,)), state(-1, (), (1,), (1,))),
        (1, 1, state(1, (1,)), state(-1, (), (1,), (1,))),
        # Another one is eligible.
        (1, 2, state(1, (1,), (3,)), state(3, (3,), (1,))),
        # Who is neither in sync nor leads changes nothing.
        (3, 2, state(1, (1, 2)), state(1, (1, 2))),
        (3, 2, state(1, (1,), (3,)), state(1, (1,), (3,))),
        # A minimum above the number of replicas is that number.
        (3, 7, state(1, (1, 2, 3)), state(1, (1, 2), (3,))),
    ],
)
def test_a_broker_leaves(who: int, minimum: int, before: State, expected: State) -> None:
    image = image_of(before)
    assert after(image, broker_left(image, Rules(minimum), who)) == expected


def test_fenced_replicas_are_not_elected() -> None:
    image = image_of(state(1, (1, 2, 3)), fenced=(2,))
    assert after(image, broker_left(image, RULES, 1)) == state(3, (2, 3))
    image = image_of(state(1, (1,), (2, 3)), fenced=(2,))
    assert after(image, broker_left(image, RULES, 1)) == state(3, (3,), (1, 2))
    image = image_of(state(1, (1,), (2,)), fenced=(2,))
    assert after(image, broker_left(image, RULES, 1)) == state(-1, (), (1, 2), (1,))


@pytest.mark.parametrize(
    ("who", "before", "expected"),
    [
        (2, state(-1, (), (1, 2), (1,)), state(2, (2,), (1,))),
        (3, state(-1, (), (1, 2), (1,)), state(-1, (), (1, 2), (1,))),
        (2, state(-1, (2, 3)), state(2, (2, 3))),
        (1, state(2, (2, 3)), state(2, (2, 3))),
        # Both sets are empty: the last known leader may lead, nobody else.
        (1, state(-1, (), (), (1,)), state(1, (1,))),
        (2, state(-1, (), (), (1,)), state(-1, (), (), (1,))),
        (2, state(-1, ()), state(-1, ())),
    ],
)
def test_a_broker_returns(who: int, before: State, expected: State) -> None:
    image = image_of(before, fenced=(1, 2, 3))
    assert after(image, broker_returned(image, RULES, who)) == expected


def test_a_topic_can_ask_for_unclean_elections() -> None:
    rules = Rules(unclean=True)
    image = image_of(state(-1, (), (1,), (1,)), fenced=(1, 2, 3))
    assert after(image, broker_returned(image, rules, 3)) == state(3, (3,))
    image = image_of(state(1, (1,)), fenced=(2,))
    assert after(image, broker_left(image, rules, 1)) == state(3, (3,))
    # Who is eligible goes first.
    image = image_of(state(1, (1,), (3,)))
    outcome = broker_left(image, rules, 1)
    assert [election.is_unclean for election in outcome.elections] == [False]
    assert after(image, outcome) == state(3, (3,), (1,))
    # The setting alone elects somebody, too.
    image = image_of(state(-1, (), (1,), (1,)), fenced=(1,))
    topic = image.topic("orders")
    assert topic is not None
    assert after(image, settings_changed(image, RULES, [topic])) == state(-1, (), (1,), (1,))
    assert after(image, settings_changed(image, rules, [topic])) == state(2, (2,))


def test_a_smaller_minimum_ends_eligibility() -> None:
    image = image_of(state(1, (1, 2), (3,)))
    topic = image.topic("orders")
    assert topic is not None
    assert after(image, settings_changed(image, Rules(3), [topic])) == state(1, (1, 2), (3,))
    assert after(image, settings_changed(image, Rules(2), [topic])) == state(1, (1, 2))


def test_who_is_eligible_is_decided_by_the_set_that_a_new_leader_begins_with() -> None:
    """The minimum was lowered while nobody was there. One replica is now enough, and acknowledges alone."""
    for elr in ((1, 2), (1, 2, 3)):
        image = image_of(state(-1, (), elr, (1,)), fenced=(1, 2, 3))
        assert after(image, broker_returned(image, Rules(1), 1)) == state(1, (1,))
    image = image_of(state(-1, (), (1, 2, 3), (1,)), fenced=(1, 2, 3))
    assert after(image, broker_returned(image, Rules(2), 1)) == state(1, (1,), (2, 3))


@pytest.mark.parametrize(
    ("condition", "relaxed", "before", "expected"),
    [
        # It is fenced when it registers, so others lead; what it has counts as before.
        (DataCondition.STOPPED_IN_ORDER, True, state(1, (1, 2)), state(2, (2,), (1,))),
        (DataCondition.CRASHED, False, state(1, (1, 2)), state(2, (2,), (1,))),
        (DataCondition.CRASHED, False, state(-1, (), (1,), (1,)), state(-1, (), (1,), (1,))),
        # On a relaxed topic a crash costs it both sets; the last known leader stays known.
        (DataCondition.CRASHED, True, state(1, (1, 2)), state(2, (2,))),
        (DataCondition.CRASHED, True, state(2, (2,), (1,)), state(2, (2,))),
        (DataCondition.CRASHED, True, state(1, (1,)), state(-1, (), (), (1,))),
        (DataCondition.CRASHED, True, state(-1, (), (1,), (1,)), state(-1, (), (), (1,))),
        # An older copy is trusted with nothing.
        (DataCondition.OLDER_COPY, False, state(1, (1, 2)), state(2, (2,))),
        (DataCondition.OLDER_COPY, False, state(-1, (), (1, 2), (1,)), state(-1, (), (2,))),
    ],
)
def test_a_broker_registers_again(condition: DataCondition, relaxed: bool, before: State, expected: State) -> None:
    others_fenced = (2, 3) if before[0] == -1 else ()
    image = image_of(before, fenced=others_fenced)
    assert after(image, broker_registered(image, Rules(relaxed=relaxed), 1, (DIRECTORY,), condition)) == expected


def test_the_only_replica_keeps_leading_unless_it_lost_something() -> None:
    image = new_image((1,), orders=1)
    replay(image, [PartitionChangeRecord(0, ID, directories=(DIRECTORY,))])
    for condition in (DataCondition.STOPPED_IN_ORDER, DataCondition.CRASHED):
        assert broker_registered(image, RULES, 1, (DIRECTORY,), condition).records == []
    crashed = broker_registered(image, Rules(relaxed=True), 1, (DIRECTORY,), DataCondition.CRASHED)
    # It may have lost records, and begins a new epoch; nobody else could lead.
    assert after(image, crashed) == state(1, (1,))
    assert partition(image).leader_epoch == 1
    assert after(image, broker_returned(image, RULES, 1)) == state(1, (1,))


def test_data_in_another_directory_is_gone() -> None:
    image = new_image((1,), orders=1)
    replay(image, [PartitionChangeRecord(0, ID, directories=(b"e" * 16,))])
    gone = broker_registered(image, RULES, 1, (DIRECTORY,), DataCondition.STOPPED_IN_ORDER)
    assert after(image, gone) == state(-1, ())
    assert broker_returned(image, RULES, 1).records == [], "only an operator may accept the loss"
    assert outcome(image, UNCLEAN) is ErrorCode.NONE


def test_a_damaged_replica_leaves_both_sets_unless_it_is_the_last() -> None:
    image = image_of(state(1, (1,), (2,)))
    topic = image.topic("orders")
    assert topic is not None
    assert after(image, replica_lost(image, RULES, 1, [(topic, 0)])) == state(2, (2,))
    assert replica_lost(image, RULES, 2, [(topic, 0)]).records == []


def test_leaders_are_rebalanced_where_the_preferred_one_is_in_sync() -> None:
    for before, fenced, leader in (
        (state(2, (1, 2)), (), 1),
        (state(2, (2, 3)), (), 2),
        (state(2, (1, 2)), (1,), 2),
        (state(-1, (1, 2)), (), -1),
    ):
        image = image_of(before, fenced=fenced)
        assert after(image, rebalance_leaders(image, RULES))[0] == leader


def test_leaders_are_rebalanced_only_where_others_lead_too_many() -> None:
    image = new_image((1, 2), orders=10)
    replay(image, [PartitionChangeRecord(0, ID, leader=2)])
    assert rebalance_leaders(image, RULES, 10).records == []
    replay(image, [PartitionChangeRecord(1, ID, leader=2)])
    replay(image, rebalance_leaders(image, RULES, 10).records)
    assert [partition(image, index).leader for index in range(10)] == [1] * 10


def test_an_unclean_election_on_request_takes_the_last_known_leader_first() -> None:
    image = image_of(state(-1, (), (1,), (3,)), fenced=(1,))
    assert outcome(image, UNCLEAN) is ErrorCode.NONE
    assert partition(image).leader == 3
