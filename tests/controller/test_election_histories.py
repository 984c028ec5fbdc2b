"""Random histories of one partition, decided by the real functions: a clean election never elects a replica that lacks what was
acknowledged by acks=all.

Beside the image the test keeps what each replica has on its disk, and does what brokers do: a leader acknowledges when its
in-sync set is large enough, and everybody in that set then has the record; followers copy, and ask to join.
"""

import random
from collections.abc import Callable, Sequence

import pytest

from tests.controller.cluster import DIRECTORY, new_image, replay, topic_id
from tests.controller.test_election import Rules
from tidelog.controller.brokers import fence_broker
from tidelog.controller.election import (
    DataCondition,
    ElectionOutcome,
    broker_registered,
    broker_returned,
    effective_min_insync,
    replica_lost,
    settings_changed,
)
from tidelog.controller.errors import ApiError
from tidelog.controller.in_sync_set import InSyncChange, alter_partitions
from tidelog.metadata.records import NO_LEADER, BrokerRegistrationChangeRecord, MetadataRecord
from tidelog.metadata.topics import PartitionImage, TopicImage

HISTORIES = 150
EVENTS = 120
ID = topic_id("orders")


class PartitionHistory:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.brokers = tuple(range(1, self.random.choice((2, 3, 3, 4)) + 1))
        self.image = new_image(self.brokers, orders=1)
        self.rules = Rules(minimum=self.random.choice((1, 2, 3)))
        self.disks: dict[int, list[int]] = {broker: [] for broker in self.brokers}
        self.copies: dict[int, list[int]] = {}
        """What an operator might restore."""
        self.acknowledged: set[int] = set()
        self.written = 0
        self.story: list[str] = []

    @property
    def topic(self) -> TopicImage:
        topic = self.image.topic("orders")
        assert topic is not None
        return topic

    @property
    def partition(self) -> PartitionImage:
        return self.topic.partitions[0]

    @property
    def minimum(self) -> int:
        return effective_min_insync(self.rules.minimum, self.partition.replicas)

    def is_active(self, broker: int) -> bool:
        return self.image.brokers.is_active(broker)

    # -- what happens --------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """The leader appends, its in-sync set copies and syncs, and the leader acknowledges if they are enough."""
        partition = self.partition
        if partition.leader == NO_LEADER:
            return
        self.written += 1
        log = self.disks[partition.leader]
        log.append(self.written)
        if len(partition.isr) >= self.minimum and all(self.is_active(member) for member in partition.isr):
            for member in partition.isr:
                self.disks[member] = list(log)
            self.acknowledged.update(log)
            self.story.append(f"  acknowledged {self.written}")

    def join(self) -> None:
        """A follower has copied what its leader has, and the leader asks for it."""
        partition = self.partition
        followers = [each for each in partition.replicas if self.is_active(each) and each not in partition.isr]
        if partition.leader != NO_LEADER and followers:
            follower = self.random.choice(followers)
            self.disks[follower] = list(self.disks[partition.leader])
            self.alter((*partition.isr, follower))

    def lag(self) -> None:
        partition = self.partition
        followers = [each for each in partition.isr if each != partition.leader]
        if partition.leader != NO_LEADER and followers:
            slow = self.random.choice(followers)
            self.alter(tuple(each for each in partition.isr if each != slow))

    def alter(self, isr: tuple[int, ...]) -> None:
        state = self.partition
        members = tuple((each, -1) for each in isr)
        change = InSyncChange(ID, 0, state.leader_epoch, state.partition_epoch, members)
        try:
            result = alter_partitions(self.image, self.rules, state.leader, self._epoch(state.leader), [change])
        except ApiError:
            return
        self.take(result.records, f"the leader asks for {isr}")

    def _epoch(self, broker: int) -> int:
        found = self.image.brokers.find(broker)
        assert found is not None
        return found.broker_epoch

    def die(self) -> None:
        broker = self.random.choice(self.brokers)
        self.take(fence_broker(self.image, self.rules, broker).records, f"broker {broker} dies")

    def start(self) -> None:
        """A broker comes back, after a crash, after a clean stop, or with an older copy of its data."""
        broker = self.random.choice(self.brokers)
        if self.is_active(broker):
            return
        condition = self.random.choice(list(DataCondition))
        if condition is DataCondition.OLDER_COPY:
            self.disks[broker] = list(self.copies.get(broker, ()))
        registered = broker_registered(self.image, self.rules, broker, (DIRECTORY,), condition)
        self.take_outcome(registered, f"broker {broker} registers: {condition.name}")
        returned = broker_returned(self.image, self.rules, broker)
        unfenced = BrokerRegistrationChangeRecord(broker, self._epoch(broker), fenced=-1)
        self.take([unfenced, *returned.records], f"broker {broker} is back", returned)

    def back_up(self) -> None:
        broker = self.random.choice(self.brokers)
        self.copies[broker] = list(self.disks[broker])

    def damage(self) -> None:
        """A replica turns out to be damaged, is let go, and is discarded."""
        broker = self.random.choice(self.brokers)
        outcome = replica_lost(self.image, self.rules, broker, [(self.topic, 0)])
        if outcome.records:
            self.disks[broker] = []
            self.take_outcome(outcome, f"the replica of broker {broker} is damaged")

    def change_minimum(self) -> None:
        self.rules = Rules(minimum=self.random.choice((1, 2, 3)))
        self.take_outcome(settings_changed(self.image, self.rules, [self.topic]), f"minimum {self.rules.minimum}")

    # -- what must hold ------------------------------------------------------------------------------------------------------

    def take_outcome(self, outcome: ElectionOutcome, what: str) -> None:
        self.take(outcome.records, what, outcome)

    def take(self, records: Sequence[MetadataRecord], what: str, outcome: ElectionOutcome | None = None) -> None:
        before = self.partition
        replay(self.image, records)
        after = self.partition
        self.story.append(
            f"{what}: leader {after.leader}, ISR {after.isr}, ELR {after.eligible_leader_replicas}, minimum {self.minimum}"
        )
        told = "\n".join(self.story)
        if len(after.isr) >= self.minimum:
            assert not after.eligible_leader_replicas, f"what is acknowledged from now on, they lack\n{told}"
        if after.leader == NO_LEADER or after.leader == before.leader:
            return
        if after.leader_recovery_state:
            self.acknowledged &= set(self.disks[after.leader])
        missing = self.acknowledged - set(self.disks[after.leader])
        assert not missing, f"broker {after.leader} was elected without {sorted(missing)}\n{told}"
        assert outcome is None or [each.is_unclean for each in outcome.elections] == [bool(after.leader_recovery_state)]


@pytest.mark.parametrize("first", range(0, HISTORIES, 50))
def test_no_clean_election_loses_what_was_acknowledged(first: int) -> None:
    acknowledged = by_eligible = 0
    for seed in range(first, first + 50):
        history = PartitionHistory(seed)
        chances: list[tuple[Callable[[], None], int]] = [
            (history.write, 6),
            (history.join, 4),
            (history.lag, 2),
            (history.die, 4),
            (history.start, 5),
            (history.back_up, 1),
            (history.damage, 1),
            (history.change_minimum, 2),
        ]
        events = [event for event, _ in chances]
        weights = [weight for _, weight in chances]
        history.story.append(f"seed {seed}")
        for _ in range(EVENTS):
            before = history.partition
            history.random.choices(events, weights)[0]()
            after = history.partition
            by_eligible += before.leader != after.leader and after.leader in before.eligible_leader_replicas
        acknowledged += len(history.acknowledged)
    assert acknowledged > 100, "histories in which nothing is acknowledged prove nothing"
    assert by_eligible > 10, "eligible replicas have to be elected"
