"""Walks every order of events of one replicated partition: the production leader, follower and election, each state once.

    python -m simulation.explore_replication --appends 1 --leader-changes 2 --crashes 1 --changes 1
    python -m simulation.explore_replication --appends 2 --leader-changes 2 --crashes 1 --changes 1 --losses 1       for long

A state is three brokers with one replica each, the controller's metadata, the fetches and proposals in transit, and what is left
of each bound. From a state, a leader can append, a disk can sync, a fetch can arrive and be answered, a broker can hear of the
next metadata record, be fenced or unfenced, or crash, lose what was not synced and register again; a leader can propose another
in-sync set, and the controller can decide on it, at any time. Time does not exist: a follower may be found lagging at any moment.
A follower sends a fetch as soon as it can; it may arrive at any later time, also after its sender has restarted or moved on.

In every state: whoever leads has everything that was acknowledged with acks=all; and replicas are the same below their high
watermarks. A violation prints the shortest way to it.

The log is a list in memory, because a state is reached by repeating its events. The metadata quorum is one decision after the
other: ``simulation.explore`` walks that. There is one partition; ``min.insync.replicas`` is 2.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import tidelog.replication.partition as leading
from tidelog.controller.election import DataCondition, broker_left, broker_registered, broker_returned
from tidelog.controller.errors import ApiError
from tidelog.controller.in_sync_set import InSyncChange, alter_partitions
from tidelog.log.errors import OffsetOutOfRange
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.partition_log import AppendResult, PartitionLog
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.replication.errors import NotEnoughReplicas, NotLeader, ReplicationError
from tidelog.replication.fetcher import FetcherOptions, FetcherPorts, FollowedPartition, ReplicaFetcher
from tidelog.replication.in_sync_replicas import InSyncProposal
from tidelog.replication.partition import AppendTracker, Partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import FetchedPartition, FetchedTopic, FetchPartition, FetchResponse

NODES = (1, 2, 3)
ID = b"explored-topic.."
MIN_INSYNC = 2
STATES_MAX = 3_000_000

Event = tuple[Any, ...]


class ReplicationBounds(NamedTuple):
    """How often each thing may happen on a way from the beginning."""

    appends: int = 1
    leader_changes: int = 1
    crashes: int = 1
    changes: int = 1
    losses: int = 0
    """Answers of the controller that do not arrive, although it decides."""


class ReplicationViolation(Exception):
    pass


class NotPossibleNow(Exception):
    """The event cannot happen in this state after all."""


class ExploredRules:
    def min_insync_replicas(self, topic: str) -> int:  # noqa: ARG002 - the protocol's signature
        return MIN_INSYNC

    def allows_unclean_election(self, topic: str) -> bool:  # noqa: ARG002 - as above
        return False

    def is_relaxed(self, topic: str) -> bool:  # noqa: ARG002 - as above
        return False


_RULES = ExploredRules()


class _Fixed:
    """The clock, the disk reserve and the settings of a log, of which nothing is looked at but this."""

    is_relaxed = False
    is_released = False

    def monotonic_ms(self) -> int:
        return 0

    @property
    def clock(self) -> "_Fixed":
        return self

    @property
    def reserve(self) -> "_Fixed":
        return self


_FIXED = _Fixed()


class _Durable(NamedTuple):
    offset: int


class ListLog:
    """A log as a list of (epoch, value), with the part of ``PartitionLog`` that replication uses."""

    def __init__(self, entries: list[tuple[int, int]]) -> None:
        self.entries = entries
        self.durable = _Durable(len(entries))
        self.high_watermark = 0
        self.log_start_offset = 0
        self.offline_reason: str | None = None
        self.name = "orders-0"
        self.settings = self.environment = _FIXED
        self.listeners: list[Callable[[], None]] = []
        self.epochs = LeaderEpochs(cast(Any, None), "")
        for offset, (epoch, _) in enumerate(entries):
            if epoch > self.epochs.latest_epoch:
                self.epochs.assign(epoch, offset)

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    def check_online(self) -> None:
        if self.offline_reason is not None:
            raise ReplicationViolation(f"a log went offline: {self.offline_reason}")

    def go_offline(self, reason: str) -> None:
        raise ReplicationViolation(f"a log went offline: {reason}")

    def append_as_leader(self, records: bytes, epoch: int, origin: object) -> AppendResult:  # noqa: ARG002 - PartitionLog's signature
        self._append(epoch, records[0])
        return AppendResult(len(self.entries) - 1, len(self.entries) - 1, -1, False)

    def append_as_follower(self, records: memoryview) -> None:
        for place in range(0, len(records), 2):
            self._append(records[place], records[place + 1])

    def _append(self, epoch: int, value: int) -> None:
        if epoch > self.epochs.latest_epoch:
            self.epochs.assign(epoch, len(self.entries))
        self.entries.append((epoch, value))

    def advance_high_watermark(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, len(self.entries)))

    def cut_to(self, offset: int) -> None:
        del self.entries[offset:]
        self.epochs.truncate_from_end(offset)
        self.durable = _Durable(min(self.durable.offset, offset))
        self.high_watermark = min(self.high_watermark, offset)

    def sync(self) -> None:
        self.durable = _Durable(len(self.entries))
        for listener in list(self.listeners):
            listener()

    def add_durability_listener(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def remove_durability_listener(self, listener: Callable[[], None]) -> None:
        self.listeners = [each for each in self.listeners if each != listener]


class _Slice(NamedTuple):
    length: int
    data: bytes


class _Read(NamedTuple):
    records: _Slice | None


def read_list(log: ListLog, offset: int, *_: object) -> _Read:
    """``tidelog.log.reading.read`` for a ``ListLog``."""
    if offset > log.log_end_offset:
        raise OffsetOutOfRange(offset, 0, log.log_end_offset)
    data = bytes(number for entry in log.entries[offset:] for number in entry)
    return _Read(_Slice(len(data), data) if data else None)


class SentFetch(NamedTuple):
    follower: tuple[int, int]
    leader: int
    wanted: FetchPartition


@dataclass
class ReplicaNode:
    node_id: int
    broker_epoch: int
    log: ListLog = field(default_factory=lambda: ListLog([]))
    seen: int = 0
    """How many states of the partition this broker has heard of."""
    leader: Partition | None = None
    fetcher: ReplicaFetcher | None = None
    waiting: list[tuple[int, Callable[[BaseException | None], None]]] = field(default_factory=list)
    sent: SentFetch | None = None

    def wait_durable(self, _: object, offset: int, on_durable: Callable[[BaseException | None], None]) -> None:
        if self.log.durable.offset >= offset:
            on_durable(None)
        else:
            self.waiting.append((offset, on_durable))

    def sync(self) -> None:
        self.log.sync()
        waiting, self.waiting = self.waiting, []
        for _, on_durable in waiting:
            on_durable(None)


class ReplicatedPartition:
    """One world: made anew for each way through the events."""

    def __init__(self, bounds: ReplicationBounds) -> None:
        self.left = bounds._asdict()
        self.image = ClusterImage()
        self.states: list[PartitionImage] = []
        self.nodes = {node_id: ReplicaNode(node_id, 10 + node_id) for node_id in NODES}
        self.stale: list[SentFetch] = []
        self.proposals: list[InSyncProposal] = []
        self.proposers: dict[int, int] = {}
        self.lost: list[InSyncProposal] = []
        self.acknowledged: set[int] = set()
        self.next_value = 1
        self.next_epoch = 20
        records: list[MetadataRecord] = [RegisterBrokerRecord(n, broker_epoch=10 + n, fenced=False) for n in NODES]
        records += [TopicRecord("orders", ID), PartitionRecord(0, ID, NODES, NODES, leader=1, leader_epoch=0, partition_epoch=0)]
        self._commit(records)
        for node_id in NODES:
            self.learn(node_id)
        for node in self.nodes.values():
            self._poll(node)

    @property
    def topic(self) -> TopicImage:
        topic = self.image.topic("orders")
        assert topic is not None
        return topic

    def _commit(self, records: list[MetadataRecord]) -> None:
        self.image.replay(records, self.image.last_offset + len(records))
        state = self.topic.partitions[0]
        if not self.states or self.states[-1] != state:
            self.states.append(state)

    # -- brokers -------------------------------------------------------------------------------------------------------------

    def learn(self, node_id: int) -> None:
        node = self.nodes[node_id]
        state = self.states[node.seen]
        node.seen += 1
        if node.leader is not None:
            if state.leader == node_id and state.leader_epoch == node.leader.leader_epoch:
                node.leader.follow(state)
                return
            node.leader.close(NotLeader("led elsewhere"))
            node.leader = None
        followed = node.fetcher.find((ID, 0)) if node.fetcher is not None else None
        if followed is not None and followed.leader_epoch == state.leader_epoch:
            followed.follow(node_id, state)
            return
        self._stop_fetching(node)
        if state.leader == node_id:
            topic = TopicImage("orders", ID)
            topic.partitions[0] = state
            node.leader = Partition(topic, 0, cast(PartitionLog, node.log), MIN_INSYNC, AppendTracker())
        elif state.leader >= 0:
            node.fetcher = self._new_fetcher(node)
            node.fetcher.add(FollowedPartition(ID, 0, cast(PartitionLog, node.log), node_id, state))

    def _stop_fetching(self, node: ReplicaNode) -> None:
        if node.sent is not None:
            self.stale.append(node.sent)
        node.sent = node.fetcher = None
        node.waiting = []

    def _new_fetcher(self, node: ReplicaNode) -> ReplicaFetcher:
        def cut(log: PartitionLog, offset: int, on_done: Callable[[BaseException | None], None]) -> None:
            log.cut_to(offset)
            on_done(None)

        def ignore(*_: object) -> None:
            pass

        ports = FetcherPorts(
            clock=cast(Any, _FIXED),
            report=ignore,
            wait_durable=node.wait_durable,
            truncate=cut,
            start_over=cut,
            raise_start=ignore,
            on_ready=ignore,
            on_offline=ignore,
        )
        return ReplicaFetcher(FetcherOptions(node.node_id), ports)

    def append(self, node_id: int) -> None:
        leader = self.nodes[node_id].leader
        assert leader is not None
        value = self.next_value
        self.next_value += 1
        self.left["appends"] -= 1
        leader.append(bytes((value,)), True)
        leader.wait_replicated(leader.log.log_end_offset, partial(self._replicated, value))

    def _replicated(self, value: int, error: Exception | None) -> None:
        if error is None:
            self.acknowledged.add(value)

    def sync(self, node_id: int) -> None:
        self.nodes[node_id].sync()

    def _poll(self, node: ReplicaNode) -> None:
        if node.fetcher is None or node.sent is not None or node.waiting or node.fetcher.poll() is None:
            return
        followed = node.fetcher.find((ID, 0))
        assert followed is not None
        assert followed.requested is not None
        node.sent = SentFetch((node.node_id, node.broker_epoch), followed.leader, followed.requested)

    def exchange(self, node_id: int) -> None:
        """The request arrives at the leader, and the response at the follower."""
        node = self.nodes[node_id]
        sent, node.sent = node.sent, None
        assert sent is not None
        assert node.fetcher is not None
        node.fetcher.take_response(FetchResponse([FetchedTopic(None, ID, [self._serve(sent)])], ErrorCode.NONE, 0, 0, []))
        # A partition that got an error waits for a while; here it waits for nothing.
        for _ in range(2):
            deadline_ms = node.fetcher.next_deadline_ms()
            if deadline_ms is not None:
                followed = node.fetcher.find((ID, 0))
                assert followed is not None
                node.fetcher.add(followed)

    def serve_stale(self, place: int) -> None:
        self._serve(self.stale.pop(place))

    def _serve(self, sent: SentFetch) -> FetchedPartition:
        leader = self.nodes[sent.leader].leader
        answer = FetchedPartition(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, 0, None, None, None, None, -1)
        if leader is None:
            return answer
        try:
            found = leader.read_as_follower(sent.follower, sent.wanted, 1 << 20)
        except (ReplicationError, OffsetOutOfRange):
            return answer
        records = None if found.records is None else memoryview(cast(_Slice, found.records).data)
        return answer._replace(
            error=ErrorCode.NONE,
            high_watermark=leader.log.high_watermark,
            records=records,
            diverging_epoch=found.diverging_epoch,
        )

    def crash(self, node_id: int) -> None:
        """Power is cut, what was not synced is lost, and a new process registers. It serves only what it knows by then."""
        node = self.nodes[node_id]
        self.left["crashes"] -= 1
        self._stop_fetching(node)
        self.next_epoch += 1
        node.broker_epoch = self.next_epoch
        node.leader = None
        node.log = ListLog(node.log.entries[: node.log.durable.offset])
        outcome = broker_registered(self.image, _RULES, node_id, (), DataCondition.CRASHED)
        self._commit([*outcome.records, RegisterBrokerRecord(node_id, broker_epoch=node.broker_epoch, fenced=True)])
        node.seen = len(self.states) - 1
        self.learn(node_id)

    # -- the controller ------------------------------------------------------------------------------------------------------

    def fence(self, node_id: int) -> None:
        self.left["leader_changes"] -= 1
        self._change_broker(node_id, broker_left(self.image, _RULES, node_id).records, 1)

    def unfence(self, node_id: int) -> None:
        self._change_broker(node_id, broker_returned(self.image, _RULES, node_id).records, -1)

    def _change_broker(self, node_id: int, records: Any, fenced: int) -> None:
        broker = self.image.brokers.find(node_id)
        assert broker is not None
        self._commit([*records, BrokerRegistrationChangeRecord(node_id, broker.broker_epoch, fenced=fenced)])

    def propose(self, node_id: int, follower: int, is_joining: bool) -> None:
        node = self.nodes[node_id]
        assert node.leader is not None
        who = {"joining": (follower,)} if is_joining else {"leaving": (follower,)}
        proposal = node.leader.in_sync.propose(ID, 0, own_epoch=node.broker_epoch, **who)
        if proposal is None:
            raise NotPossibleNow
        self.left["changes"] -= 1
        self.proposers[proposal.leader_epoch] = node_id
        self.proposals.append(proposal)

    def decide(self, place: int) -> None:
        proposal = self.proposals.pop(place)
        leader_id = self._proposer(proposal)
        code = self._decide(leader_id, proposal)
        leader = self.nodes[leader_id].leader
        if proposal in self.lost or leader is None:
            return
        if code in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.STALE_BROKER_EPOCH):
            leader.in_sync.proposal_lost(proposal)
        else:
            leader.in_sync.proposal_answered(proposal)

    def _proposer(self, proposal: InSyncProposal) -> int:
        return self.proposers[proposal.leader_epoch]

    def _decide(self, leader_id: int, proposal: InSyncProposal) -> ErrorCode:
        epoch = dict(proposal.isr)[leader_id]
        change = InSyncChange(ID, 0, proposal.leader_epoch, proposal.partition_epoch, proposal.isr)
        try:
            result = alter_partitions(self.image, _RULES, leader_id, epoch, [change])
        except ApiError as error:
            return error.code
        self._commit(result.records)
        return result.response[0].error

    def lose_answer(self, place: int) -> None:
        proposal = self.proposals[place]
        self.left["losses"] -= 1
        self.lost.append(proposal)
        leader = self.nodes[self._proposer(proposal)].leader
        if leader is not None:
            leader.in_sync.proposal_lost(proposal)

    # -- what can happen, and what must hold -----------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        for node_id, node in self.nodes.items():
            if node.leader is not None:
                yield from self._leader_events(node_id, node.leader)
            if node.log.durable.offset < node.log.log_end_offset:
                yield "sync", node_id
            if node.sent is not None:
                yield "exchange", node_id
            if node.seen < len(self.states):
                yield "learn", node_id
            if self.left["crashes"]:
                yield "crash", node_id
            if not self.image.brokers.is_active(node_id):
                yield "unfence", node_id
            elif self.left["leader_changes"]:
                yield "fence", node_id
        for place in range(len(self.stale)):
            yield "serve_stale", place
        for place, proposal in enumerate(self.proposals):
            yield "decide", place
            if self.left["losses"] and proposal not in self.lost:
                yield "lose_answer", place

    def _leader_events(self, node_id: int, leader: Partition) -> Iterator[Event]:
        in_sync = leader.in_sync
        if self.left["appends"] and not leader.is_under_min_isr:
            yield "append", node_id
        if self.left["changes"] and not in_sync.has_proposal_in_flight:
            for follower in in_sync.followers:
                if in_sync.may_join(follower, leader.log.high_watermark):
                    yield "propose", node_id, follower.broker_id, True
                elif follower.broker_id in in_sync.isr:
                    yield "propose", node_id, follower.broker_id, False

    def run(self, event: Event) -> bool:
        """Let it happen. Returns False if it turns out that it cannot."""
        try:
            getattr(self, event[0])(*event[1:])
        except (NotPossibleNow, NotEnoughReplicas):
            return False
        for node in self.nodes.values():
            self._poll(node)
        return True

    def check(self) -> None:
        state = self.states[-1]
        if state.leader >= 0:
            has = {value for _, value in self.nodes[state.leader].log.entries}
            if not self.acknowledged <= has:
                raise ReplicationViolation(f"broker {state.leader} leads without {sorted(self.acknowledged - has)}, acknowledged")
        for one in self.nodes.values():
            for other in self.nodes.values():
                both = min(one.log.high_watermark, other.log.high_watermark)
                if one.log.entries[:both] != other.log.entries[:both]:
                    raise ReplicationViolation(f"brokers {one.node_id} and {other.node_id} differ below their high watermarks")

    def key(self) -> Any:
        brokers = tuple((broker.broker_id, broker.broker_epoch, broker.fenced) for broker in self.image.brokers)
        nodes = tuple((_node_key(node), len(self.states) - node.seen) for node in self.nodes.values())
        pending = tuple(self.stale), tuple(self.proposals), tuple(self.lost), tuple(self.acknowledged), tuple(self.left.values())
        unheard = self.states[min(node.seen for node in self.nodes.values()) - 1 :]
        return hash((brokers, nodes, pending, tuple(unheard)))


_HIDDEN = ("_additions", "_in_flight", "_has_unknown_outcome", "_waits_for_metadata")


def _node_key(node: ReplicaNode) -> Any:
    log = node.log
    leader: Any = None
    if node.leader is not None:
        in_sync = node.leader.in_sync
        followers = tuple((each.broker_id, each.broker_epoch, each.fetch_offset) for each in in_sync.followers)
        hidden = tuple(
            getattr(in_sync, name) for name in ("_additions", "_in_flight", "_has_unknown_outcome", "_waits_for_metadata")
        )
        leader = followers, hidden, in_sync.epoch_start_offset
    followed = node.fetcher.find((ID, 0)) if node.fetcher is not None else None
    copying = (followed.phase, followed.requested, followed.is_trusted) if followed is not None else None
    ends = log.durable.offset, log.high_watermark, node.broker_epoch, len(node.waiting)
    return tuple(log.entries), ends, leader, copying, node.sent


class Walk(NamedTuple):
    states: int
    depth: int
    violation: str | None
    way: tuple[Event, ...]


def explore(bounds: ReplicationBounds, states_max: int = STATES_MAX) -> Walk:
    """Walk breadth first until every state was seen, or there are ``states_max``."""
    read = vars(leading)["read"]
    vars(leading)["read"] = read_list
    try:
        return _explore(bounds, states_max)
    finally:
        vars(leading)["read"] = read


def _explore(bounds: ReplicationBounds, states_max: int) -> Walk:
    first = ReplicatedPartition(bounds)
    seen = {first.key()}
    frontier: list[tuple[Event, ...]] = [()]
    depth = 0
    while frontier:
        following: list[tuple[Event, ...]] = []
        for way in frontier:
            for event in list(_at(bounds, way).events()):
                world = _at(bounds, way)
                try:
                    if not world.run(event):
                        continue
                    world.check()
                except ReplicationViolation as violation:
                    return Walk(len(seen), depth, str(violation), (*way, event))
                key = world.key()
                if key not in seen:
                    seen.add(key)
                    following.append((*way, event))
            if len(seen) >= states_max:
                return Walk(len(seen), depth, None, ())
        frontier = following
        depth += 1
    return Walk(len(seen), depth, None, ())


def _at(bounds: ReplicationBounds, way: tuple[Event, ...]) -> ReplicatedPartition:
    world = ReplicatedPartition(bounds)
    for event in way:
        world.run(event)
    return world


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Walk every order of events of one replicated partition.")
    for name, default in ReplicationBounds()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--states", type=int, default=STATES_MAX, help="stop after so many states")
    options = vars(parser.parse_args(arguments))
    states_max = options.pop("states")
    walk = explore(ReplicationBounds(**options), states_max)
    print(f"{walk.states} states, depth {walk.depth}")
    if walk.violation is None:
        return 0
    for event in walk.way:
        print("   ", *event)
    print(walk.violation)
    return 1


if __name__ == "__main__":
    sys.exit(main())
