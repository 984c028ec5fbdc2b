"""The leader's view of its followers: who counts for the high watermark, who is proposed, and what an unknown outcome means."""

from dataclasses import replace

import pytest

from tests.log.harness import Store, batch
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.replication.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotReplica,
    OffsetNotAvailable,
    StaleBrokerEpoch,
)
from tidelog.replication.in_sync_replicas import InSyncProposal, InSyncReplicas
from tidelog.replication.partition import AppendTracker, Partition

ID = b"i" * 16
OWN_EPOCH = 10


def image(isr: tuple[int, ...], partition_epoch: int = 0, replicas: tuple[int, ...] = (1, 2, 3)) -> PartitionImage:
    return PartitionImage(replicas, isr, leader=1, leader_epoch=3, partition_epoch=partition_epoch)


def leader(isr: tuple[int, ...] = (1, 2, 3), start: int = 0) -> InSyncReplicas:
    return InSyncReplicas(image(isr), start, now_ms=0)


def fetch(replicas: InSyncReplicas, broker: int, offset: int, *, epoch: int = 20, end: int = 100, now_ms: int = 0) -> None:
    replicas.note_fetch(broker, epoch, offset, 0, end, now_ms)


def propose(replicas: InSyncReplicas, joining: tuple[int, ...] = (), leaving: tuple[int, ...] = ()) -> InSyncProposal | None:
    return replicas.propose(ID, 0, joining=joining, leaving=leaving, own_epoch=OWN_EPOCH)


def sent(replicas: InSyncReplicas, joining: tuple[int, ...] = (), leaving: tuple[int, ...] = ()) -> InSyncProposal:
    proposal = propose(replicas, joining, leaving)
    assert proposal is not None
    return proposal


def test_the_slowest_in_sync_follower_decides() -> None:
    replicas = leader()
    assert replicas.lowest_durable_end(50) == -1, "nobody has fetched yet"
    fetch(replicas, 2, 40)
    fetch(replicas, 3, 30)
    assert replicas.lowest_durable_end(50) == 30
    assert replicas.lowest_durable_end(20) == 20
    replicas.follow(image((1, 2), partition_epoch=1), 0)
    assert replicas.lowest_durable_end(50) == 40


def test_an_addition_counts_from_its_proposal_and_a_removal_from_its_commit() -> None:
    replicas = leader((1, 2))
    fetch(replicas, 2, 50)
    fetch(replicas, 3, 30)
    assert replicas.lowest_durable_end(50) == 50
    sent(replicas, joining=(3,))
    assert replicas.lowest_durable_end(50) == 30
    replicas.follow(image((1, 2, 3), partition_epoch=1), 0)
    sent(replicas, leaving=(3,))
    assert replicas.lowest_durable_end(50) == 30
    replicas.follow(image((1, 2), partition_epoch=2), 0)
    assert replicas.lowest_durable_end(50) == 50


def test_a_proposal_names_the_epochs_that_were_seen() -> None:
    replicas = leader((1, 2))
    fetch(replicas, 3, 30, epoch=33)
    assert sent(replicas, joining=(3,)) == InSyncProposal(ID, 0, 3, 0, ((1, OWN_EPOCH), (2, -1), (3, 33)))
    assert propose(replicas, leaving=(2,)) is None, "one at a time"


def test_after_an_answer_the_metadata_is_waited_for() -> None:
    replicas = leader((1, 2))
    proposal = sent(replicas, joining=(3,))
    replicas.proposal_answered(proposal)
    assert propose(replicas, leaving=(2,)) is None
    replicas.follow(image((1, 2), partition_epoch=0), 0)
    assert propose(replicas, leaving=(2,)) is None, "the same partition epoch says nothing new"
    replicas.follow(image((1, 2, 3), partition_epoch=1), 0)
    assert propose(replicas, leaving=(2,)) is not None


def test_an_addition_of_unknown_outcome_counts_until_the_partition_epoch_moves() -> None:
    replicas = leader((1, 2))
    fetch(replicas, 2, 50)
    fetch(replicas, 3, 30)
    replicas.proposal_lost(sent(replicas, joining=(3,)))
    again = sent(replicas, joining=(3,))
    replicas.proposal_lost(again)
    assert replicas.lowest_durable_end(50) == 30, "each attempt may be decided yet"
    withdrawal = sent(replicas)
    assert [broker for broker, _ in withdrawal.isr] == [1, 2]
    assert replicas.lowest_durable_end(50) == 30
    replicas.proposal_answered(withdrawal)
    replicas.follow(image((1, 2), partition_epoch=1), 0)
    assert replicas.lowest_durable_end(50) == 50
    assert propose(replicas) is None


def test_answers_to_settled_proposals_change_nothing() -> None:
    replicas = leader((1, 2))
    for answer in (replicas.proposal_answered, replicas.proposal_lost):
        proposal = sent(replicas, joining=(3,))
        epoch = proposal.partition_epoch + 1
        replicas.follow(image((1, 2), partition_epoch=epoch), 0)
        answer(proposal)
        assert propose(replicas) is None
    assert propose(replicas, joining=(3,)) is not None


def test_fetches_of_an_earlier_process_are_refused() -> None:
    replicas = leader()
    fetch(replicas, 2, 40, epoch=21)
    with pytest.raises(StaleBrokerEpoch):
        fetch(replicas, 2, 50, epoch=20)
    fetch(replicas, 2, 30, epoch=22)
    assert [follower.fetch_offset for follower in replicas.maximal_followers] == [30, -1]
    with pytest.raises(NotReplica):
        fetch(replicas, 4, 0)


@pytest.mark.parametrize(
    ("fetches", "now_ms", "lags"),
    [
        ([], 10_000, False),
        ([], 10_001, True),
        ([(5_000, 100, 100)], 15_000, False),
        ([(5_000, 100, 100)], 15_001, False),  # It has everything: nothing was appended since.
        ([(5_000, 99, 100)], 10_001, True),
        # It has at each fetch what the leader had at the last one.
        ([(5_000, 90, 100), (9_000, 100, 110), (13_000, 110, 120)], 19_000, False),
        ([(5_000, 90, 100), (9_000, 100, 110), (13_000, 110, 120)], 19_001, True),
        ([(5_000, 90, 100), (9_000, 99, 110), (13_000, 109, 120)], 10_001, True),
    ],
)
def test_who_lags(fetches: list[tuple[int, int, int]], now_ms: int, lags: bool) -> None:
    replicas = leader((1, 2))
    end = 100
    for at_ms, offset, end in fetches:
        fetch(replicas, 2, offset, end=end, now_ms=at_ms)
    assert replicas.lagging(end, now_ms, 10_000) == ((2,) if lags else ())


@pytest.mark.parametrize(("offset", "joins"), [(29, False), (30, False), (39, False), (40, True)])
def test_who_may_join(offset: int, joins: bool) -> None:
    replicas = leader((1, 2), start=40)
    follower = replicas.note_fetch(3, 20, offset, 0, 100, 0)
    assert replicas.may_join(follower, high_watermark=30) is joins
    assert not replicas.may_join(replicas.note_fetch(2, 20, 100, 0, 100, 0), high_watermark=30)


# -- the partition --------------------------------------------------------------------------------------------------------------


def led(store: Store, isr: tuple[int, ...] = (1, 2, 3), minimum: int = 2) -> Partition:
    topic = TopicImage("orders", ID)
    topic.partitions[0] = image(isr)
    return Partition(topic, 0, store.create(), minimum, AppendTracker())


def sync(store: Store) -> None:
    store.directory.kick()
    store.scheduler.run_until(lambda: store.directory.commit.is_idle)


def test_nothing_is_acknowledged_before_every_in_sync_replica_has_it() -> None:
    store = Store()
    partition = led(store)
    told: list[Exception | None] = []
    partition.append(batch(), acks_all=True)
    partition.wait_replicated(1, told.append)
    partition.note_follower_fetch(2, 20, 1, 0)
    partition.note_follower_fetch(3, 30, 1, 0)
    assert (partition.log.high_watermark, told) == (0, []), "the leader itself has not synced it"
    sync(store)
    assert (partition.log.high_watermark, told) == (1, [None])
    partition.append(batch(), acks_all=True)
    sync(store)
    partition.note_follower_fetch(2, 20, 2, 0)
    assert partition.log.high_watermark == 1
    partition.note_follower_fetch(3, 30, 2, 0)
    assert partition.log.high_watermark == 2


def test_below_the_minimum_waiting_producers_are_told_so() -> None:
    store = Store()
    partition = led(store)
    told: list[Exception | None] = []
    partition.append(batch(), acks_all=True)
    partition.wait_replicated(1, told.append)
    partition.follow(image((1,), partition_epoch=1))
    assert [type(error) for error in told] == [NotEnoughReplicasAfterAppend]
    with pytest.raises(NotEnoughReplicas):
        partition.append(batch(), acks_all=True)
    sync(store)
    assert partition.log.high_watermark == 0
    # Additions in flight do not make up for what is missing.
    partition.note_follower_fetch(2, 20, 1, 0)
    sent(partition.in_sync, joining=(2,))
    partition.advance()
    assert partition.log.high_watermark == 0
    partition.follow(image((1, 2), partition_epoch=2))
    assert partition.log.high_watermark == 1


def test_while_others_are_eligible_nothing_is_acknowledged_whatever_the_minimum_is_here() -> None:
    store = Store()
    partition = led(store, minimum=1)
    partition.append(batch(), acks_all=True)
    sync(store)
    partition.follow(replace(image((1,), partition_epoch=1), eligible_leader_replicas=(2,)))
    assert partition.log.high_watermark == 0, "broker 2 has not fetched it, and may be elected"
    with pytest.raises(NotEnoughReplicas, match="1 of 3 replicas in sync, which is too few for the controller"):
        partition.append(batch(), acks_all=True)
    partition.follow(image((1,), partition_epoch=2))
    assert partition.log.high_watermark == 1


def test_the_effective_minimum_is_not_above_the_number_of_replicas() -> None:
    partition = led(Store(), minimum=7)
    assert partition.min_insync_replicas == 3
    partition.change_min_insync_replicas(2)
    assert partition.min_insync_replicas == 2


def test_the_latest_offset_is_not_known_until_the_epoch_has_begun_to_be_committed() -> None:
    store = Store()
    log = store.create()
    log.append_as_leader(batch(2), 1)
    store.wait_durable(log)
    topic = TopicImage("orders", ID)
    topic.partitions[0] = image((1, 2))
    partition = Partition(topic, 0, log, 2, AppendTracker())
    with pytest.raises(OffsetNotAvailable):
        partition.latest_offset(is_read_committed=False)
    partition.note_follower_fetch(2, 20, 1, 0)
    with pytest.raises(OffsetNotAvailable):
        partition.latest_offset(is_read_committed=True)
    partition.note_follower_fetch(2, 20, 2, 0)
    assert partition.latest_offset(is_read_committed=False) == 2


class WaitingFollower:
    def __init__(self) -> None:
        self.told = 0

    def on_data(self, partition: Partition) -> None:
        assert partition.follower_waiters
        self.told += 1


def test_followers_are_woken_at_the_end_of_a_burst() -> None:
    topic = TopicImage("orders", ID)
    topic.partitions[0] = image((1, 2))
    appends = AppendTracker()
    partition = Partition(topic, 0, Store().create(), 2, appends)
    waiter = WaitingFollower()
    partition.append(batch(), acks_all=True)
    appends.wake_followers()
    partition.add_follower_waiter(waiter)
    appends.wake_followers()
    assert waiter.told == 0
    partition.append(batch(), acks_all=True)
    partition.append(batch(), acks_all=True)
    assert waiter.told == 0
    appends.wake_followers()
    appends.wake_followers()
    assert waiter.told == 1
    partition.close(RuntimeError("gone"))
    assert waiter.told == 2
