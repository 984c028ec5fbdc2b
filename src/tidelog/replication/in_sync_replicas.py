"""What a leader knows about the replicas of its partition, and which of them are in sync.

A follower's fetch offset is also its *durable* end: it syncs what it appended before it fetches again (on topics with relaxed
durability both words mean "appended"). So a fetch says all that the leader needs.

The in-sync set (ISR) is changed by the controller only. The leader *proposes* changes and learns of the outcome from the
metadata, in order with everything else; the controller's answer alone changes nothing. Between a proposal and its outcome the
leader does not know which set the controller would elect from, so it works with the *maximal* set: the committed members plus
those whose addition was proposed. A removal counts once it is committed.

- The high watermark is the lowest durable end in the maximal set.
- It does not move while the *committed* set is smaller than the effective ``min.insync.replicas``. Additions in flight do not
  help: if they fail, the controller may elect an eligible replica that lacks what the larger set would have committed (KIP-966).
- For the same reason it does not move while the controller names eligible replicas, whatever the minimum is by this broker's own
  settings: brokers may have been started with different ones.

A follower is added when it has everything below the high watermark and everything that the leader had when its epoch began: the
leader's high watermark may be behind the previous leader's. A follower that has not had everything within
``replica.lag.time.max.ms`` is removed.

A proposal whose answer was lost may still be decided later. If the controller then refuses the next attempt, the first one may be
decided after it. So additions stay in the maximal set until the partition epoch has moved; if nothing else moves it, the leader
proposes the committed set again, which begins a partition epoch and thereby voids everything older.
"""

from typing import NamedTuple

from tidelog.metadata.topics import PartitionImage
from tidelog.replication.errors import NotReplica, StaleBrokerEpoch

UNKNOWN_OFFSET = -1
UNKNOWN_BROKER_EPOCH = -1


class FollowerState:
    """One follower, as its fetches show it."""

    __slots__ = (
        "_last_fetch_leader_end",
        "_last_fetch_ms",
        "broker_epoch",
        "broker_id",
        "fetch_offset",
        "last_caught_up_ms",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, last_caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.fetch_offset = UNKNOWN_OFFSET
        """Everything below it is durable there."""
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms
        """When it last had everything that the leader had at that time."""
        self._last_fetch_ms = last_caught_up_ms
        self._last_fetch_leader_end = UNKNOWN_OFFSET

    def note_fetch(self, offset: int, broker_epoch: int, log_start_offset: int, leader_end: int, now_ms: int) -> None:
        """Take over what a fetch says. It may say less than the last one, because a later process of the broker may have less."""
        if broker_epoch < self.broker_epoch:
            raise StaleBrokerEpoch(
                f"broker {self.broker_id} has fetched in epoch {self.broker_epoch}; a request of epoch {broker_epoch} is too old"
            )
        if offset >= leader_end:
            self.last_caught_up_ms = now_ms
        elif self._last_fetch_leader_end != UNKNOWN_OFFSET and offset >= self._last_fetch_leader_end:
            # Under load a follower is always a little behind. It has now what the leader had at its last fetch.
            self.last_caught_up_ms = max(self.last_caught_up_ms, self._last_fetch_ms)
        self.broker_epoch = broker_epoch
        self.fetch_offset = offset
        self.log_start_offset = log_start_offset
        self._last_fetch_leader_end = leader_end
        self._last_fetch_ms = now_ms

    def lag_ms(self, leader_end: int, now_ms: int) -> int:
        return 0 if self.fetch_offset >= leader_end else now_ms - self.last_caught_up_ms


class InSyncProposal(NamedTuple):
    """What the leader asks the controller for (AlterPartition)."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """(broker id, broker epoch) pairs; epoch -1 where the leader does not know it."""


class InSyncReplicas:
    __slots__ = (
        "_additions",
        "_followers",
        "_has_unknown_outcome",
        "_in_flight",
        "_leader_epoch",
        "_node_id",
        "_partition_epoch",
        "_waits_for_metadata",
        "epoch_start_offset",
        "has_eligible",
        "is_moving",
        "isr",
        "maximal_followers",
        "replicas",
        "settled_count",
    )

    def __init__(self, state: PartitionImage, epoch_start_offset: int, now_ms: int) -> None:
        """``state`` names this broker as the leader. ``epoch_start_offset`` is the log end with which it began to lead."""
        self._node_id = state.leader
        self._leader_epoch = state.leader_epoch
        self.epoch_start_offset = epoch_start_offset
        self._followers: dict[int, FollowerState] = {}
        self._additions: tuple[int, ...] = ()
        self._in_flight: InSyncProposal | None = None
        self._has_unknown_outcome = False
        self._waits_for_metadata = False
        self._partition_epoch = -1
        self.replicas = state.replicas
        self.settled_count = len(state.replicas)
        """How many replicas there are without those that a move of the partition is adding."""
        self.is_moving = False
        self.isr = state.isr
        self.has_eligible = False
        """Whether replicas outside of the set may be elected, because they have everything below the high watermark."""
        self.maximal_followers: tuple[FollowerState, ...] = ()
        """The followers without which nothing is committed."""
        self.follow(state, now_ms)

    @property
    def followers(self) -> tuple[FollowerState, ...]:
        return tuple(self._followers.values())

    @property
    def has_proposal_in_flight(self) -> bool:
        return self._in_flight is not None

    def is_in_flight(self, proposal: InSyncProposal) -> bool:
        """Whether the proposal still counts: metadata that begin another partition epoch settle it, also before it is sent."""
        return proposal is self._in_flight

    def follow(self, state: PartitionImage, now_ms: int) -> None:
        """Take over the partition's committed state. It settles all proposals that were made for an earlier partition epoch."""
        if state.partition_epoch > self._partition_epoch:
            self._partition_epoch = state.partition_epoch
            self._additions = ()
            self._in_flight = None
            self._has_unknown_outcome = False
            self._waits_for_metadata = False
        self.replicas = state.replicas
        self.settled_count = len(state.replicas) - len(state.adding_replicas)
        self.is_moving = bool(state.adding_replicas or state.removing_replicas)
        self.isr = state.isr
        self.has_eligible = bool(state.eligible_leader_replicas)
        before = self._followers
        self._followers = {}
        for replica in state.replicas:
            if replica != self._node_id:
                # A member gets the full time to show that it is in sync with this leader, too.
                self._followers[replica] = before.get(replica) or FollowerState(replica, now_ms)
        self._find_maximal()

    def _find_maximal(self) -> None:
        members = {*self.isr, *self._additions}
        self.maximal_followers = tuple(follower for id_, follower in self._followers.items() if id_ in members)

    # -- fetches -------------------------------------------------------------------------------------------------------------

    def note_fetch(
        self, broker_id: int, broker_epoch: int, offset: int, log_start_offset: int, leader_end: int, now_ms: int
    ) -> FollowerState:
        follower = self._followers.get(broker_id)
        if follower is None:
            raise NotReplica(f"broker {broker_id} is not a follower; the replicas are {list(self.replicas)}")
        follower.note_fetch(offset, broker_epoch, log_start_offset, leader_end, now_ms)
        return follower

    def lowest_durable_end(self, own_end: int) -> int:
        """The high watermark that the maximal set allows."""
        for follower in self.maximal_followers:
            if follower.fetch_offset < own_end:
                own_end = follower.fetch_offset
        return own_end

    # -- proposals -----------------------------------------------------------------------------------------------------------

    def lagging(self, leader_end: int, now_ms: int, lag_ms_max: int) -> tuple[int, ...]:
        return tuple(
            id_
            for id_, follower in self._followers.items()
            if id_ in self.isr and follower.lag_ms(leader_end, now_ms) > lag_ms_max
        )

    def may_join(self, follower: FollowerState, high_watermark: int) -> bool:
        needed = max(high_watermark, self.epoch_start_offset)
        return follower.broker_id not in self.isr and follower.fetch_offset >= needed

    def propose(
        self, topic_id: bytes, partition: int, *, joining: tuple[int, ...] = (), leaving: tuple[int, ...] = (), own_epoch: int
    ) -> InSyncProposal | None:
        """Return the proposal to send, and treat it as sent. None while another one is in flight, or if nothing would change."""
        if self._in_flight is not None or self._waits_for_metadata:
            return None
        members = [id_ for id_ in self.replicas if (id_ in self.isr and id_ not in leaving) or id_ in joining]
        if set(members) == set(self.isr) and not self._has_unknown_outcome:
            return None
        epochs = {id_: follower.broker_epoch for id_, follower in self._followers.items()}
        epochs[self._node_id] = own_epoch
        isr = tuple((id_, epochs[id_]) for id_ in members)
        self._in_flight = InSyncProposal(topic_id, partition, self._leader_epoch, self._partition_epoch, isr)
        self._additions = (*self._additions, *(id_ for id_ in joining if id_ not in self._additions))
        self._find_maximal()
        return self._in_flight

    def proposal_answered(self, proposal: InSyncProposal) -> None:
        """The controller has decided as asked, or knows a later state of the partition. The metadata will say which; until then
        nothing more is proposed."""
        if proposal is self._in_flight:
            self._in_flight = None
            self._waits_for_metadata = True

    def proposal_lost(self, proposal: InSyncProposal) -> None:
        """No answer came: the proposal may have been decided, or may be decided yet. A refusal counts as lost too: it says
        nothing of an earlier attempt that is still on its way."""
        if proposal is self._in_flight:
            self._in_flight = None
            self._has_unknown_outcome = True
