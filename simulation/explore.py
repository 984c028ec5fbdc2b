"""Walks every order of events of a small quorum: the production core, breadth first, each state once.

    python -m simulation.explore --elections 1 --timeouts 1 --entries 1 --losses 1
    python -m simulation.explore --elections 2 --timeouts 2 --entries 2 --crashes 1 --losses 1 --changes 1      for long

A state is three voters with their disks, the messages in transit, and what is left of each bound. From a state, every message can
arrive next, every armed timer can run out, a node can crash at any point of its disk work and lose what was not synced, a message
can be lost or arrive twice, a decision can be proposed, a voter can be removed or added. Time does not exist: a timer may run out
at any moment, which covers every clock. Two states that differ only in the names of the nodes are one state.

Everything that the random simulation checks at every step is checked in every state. A violation prints the shortest way to it.

What is not walked: a request that nobody will answer any more fails at once instead of some time later. Answers that have no
effect on a disk (to a pre-vote, and to the news that an epoch began or ended) arrive at once. Followers do not tell their high
watermark, as in older versions of Fetch. There are no observers and no snapshots. And, except with ``--slow-disk``, disk work
ends before the next event unless the node crashes in the middle of it.
"""

import argparse
import hashlib
import marshal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any, NamedTuple

from simulation.quorum_checker import QuorumChecker, QuorumViolation
from simulation.quorum_host import (
    Origin,
    QuorumHost,
    SimulatedRaftLog,
    SnapshotStore,
    directory_id,
    endpoint,
    make_voters,
    replica,
)
from tidelog.raft.messages import (
    UNKNOWN_HIGH_WATERMARK,
    AddVoter,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    QuorumFetch,
    QuorumReply,
    RemoveVoter,
    Vote,
    VoteReply,
)
from tidelog.raft.quorum import (
    InFlight,
    Leadership,
    ParkedFetch,
    QuorumTimer,
    RaftConfig,
    RaftNode,
    RaftPeer,
    RaftState,
    Replica,
    Reply,
    Request,
    RequestFailure,
)
from tidelog.raft.quorum_state import NOBODY, QuorumState
from tidelog.raft.voters import LeaderChange, ReplicaKey, VoterHistory, VoterSet

NODE_IDS = (1, 2, 3)


class Bounds(NamedTuple):
    """How often each thing may happen on a way from the beginning."""

    elections: int = 2
    timeouts: int = 3
    """Timers that run out, of which each election needs one."""
    entries: int = 1
    crashes: int = 1
    losses: int = 0
    duplicates: int = 0
    changes: int = 0


class InTransit(NamedTuple):
    """A request to a node, or (``reply`` is not None) the reply to the node that asked."""

    origin: Origin
    to: int
    reply: QuorumReply | None


class FixedRandomness:
    """The explorer lets every timer run out at any moment, so it does not matter what is drawn."""

    def integer(self, low: int, high: int) -> int:  # noqa: ARG002 - the port's signature
        return low

    def fraction(self) -> float:
        return 0.0

    def token(self, length: int) -> bytes:
        return bytes(length)


_RANDOMNESS = FixedRandomness()
_ADMINISTRATOR = Origin(NOBODY, Request(RaftPeer(NOBODY, "admin", 0), RemoveVoter(replica(0)), 0), 0)


class World(NamedTuple):
    hosts: tuple[QuorumHost, ...]
    transit: tuple[InTransit, ...]
    checker: QuorumChecker
    left: Bounds


# -- copying --------------------------------------------------------------------------------------------------------------------


def _copy_slots(value: Any, slots: tuple[str, ...]) -> Any:
    copy = object.__new__(type(value))
    for slot in slots:
        field = getattr(value, slot)
        if type(field) in (dict, list, set, deque):
            field = field.copy()
        setattr(copy, slot, field)
    return copy


def copy_host(host: QuorumHost) -> QuorumHost:
    copied: QuorumHost = _copy_slots(host, QuorumHost.__slots__)
    copied.log = _copy_slots(host.log, SimulatedRaftLog.__slots__)
    if host.node is not None:
        copied.node = _copy_slots(host.node, RaftNode.__slots__)
        leadership = getattr(host.node, "_leadership")  # noqa: B009 - a copy has to reach the private fields
        setattr(copied.node, "_log", copied.log)  # noqa: B010 - as above
        setattr(copied.node, "_history", _copy_slots(getattr(host.node, "_history"), VoterHistory.__slots__))  # noqa: B009, B010 - as above
        if leadership is not None:
            setattr(copied.node, "_leadership", _copy_slots(leadership, Leadership.__slots__))  # noqa: B010 - as above
    return copied


# -- naming a state -------------------------------------------------------------------------------------------------------------

# Fields whose value decides nothing here: times, since any timer may run out at any moment, and what only sets a delay.
_LEFT_OUT = frozenset(
    {"_config", "_log", "_randomness", "_now_ms", "_bootstrap_index", "_election_attempts", "_preferred", "_backoff", "_events"}
    | {"_results", "_messages", "_requests", "_sync_asked_to", "_is_update_voter_due"}
)
_NODE_SLOTS = tuple(slot for slot in RaftNode.__slots__ if slot not in _LEFT_OUT)
_ID_FIELDS = frozenset({"node_id", "leader_id"})


class Naming:
    """Writes values as plain tuples in which the nodes are renamed. Immutable values are written once."""

    def __init__(self, names: tuple[int, ...]) -> None:
        """``names`` are the new names of nodes 1, 2 and 3."""
        renamed = dict(zip(NODE_IDS, names, strict=True))
        self._names = {**renamed, NOBODY: NOBODY, 0: 0}
        self._directories = {directory_id(old): directory_id(new) for old, new in renamed.items()}
        self._hosts = {f"n{old}": f"n{new}" for old, new in renamed.items()}
        self._written: dict[Any, Any] = {}

    def name(self, node_id: int) -> int:
        return self._names[node_id]

    def write(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is int or kind is bool:
            return value
        writer = _WRITERS.get(kind)
        if writer is not None:
            return writer(self, value)
        if isinstance(value, tuple):
            written = self._written.get(value)
            if written is None:
                written = self._written[value] = self._write_tuple(value)
            return written
        if kind is bytes:
            return self._directories.get(value, value)
        if kind is str:
            return self._hosts.get(value, value)
        return getattr(value, "value", None)

    def _write_tuple(self, value: tuple[Any, ...]) -> Any:
        fields = getattr(value, "_fields", None)
        if fields is None:
            return tuple(self.write(each) for each in value)
        written: tuple[Any, ...] = tuple(
            self.name(each) if field in _ID_FIELDS else self.write(each) for field, each in zip(fields, value, strict=True)
        )
        if isinstance(value, VoterSet):
            return tuple(sorted(written[0]))
        if isinstance(value, LeaderChange):
            return written[0], tuple(sorted(written[1])), tuple(sorted(written[2]))
        if isinstance(value, EndQuorumEpoch):
            # The order of the preferred candidates only sets how long each waits.
            return written[0], written[1], tuple(sorted(written[2]))
        return (type(value).__name__, *written)


def _write_state(naming: Naming, value: QuorumState) -> Any:
    voted = naming.write(value.voted_directory_id)
    return value.leader_epoch, naming.name(value.leader_id), naming.name(value.voted_id), voted


def _write_set(naming: Naming, value: set[int]) -> Any:
    return tuple(sorted(naming.name(each) for each in value))


def _write_dict(naming: Naming, value: dict[Any, Any]) -> Any:
    return tuple(sorted((naming.write(key), naming.write(each)) for key, each in value.items()))


def _write_list(naming: Naming, value: list[Any]) -> Any:
    return tuple(sorted((naming.write(each) for each in value), key=repr))


def _write_replica(naming: Naming, value: Replica) -> Any:
    return naming.write(value.key), value.fetch_offset, value.confirmed_offset, value.is_caught_up


def _write_leadership(naming: Naming, value: Leadership) -> Any:
    """Without ``fetched``, which only keeps a timer from running out."""
    return (
        value.is_begun,
        value.start_offset,
        _write_dict(naming, value.replicas),
        _write_set(naming, value.begin_pending),
        _write_dict(naming, value.parked),
        tuple(value.proposals),
        value.change is not None and value.change.offset,
    )


_WRITERS: dict[type, Callable[[Naming, Any], Any]] = {
    set: _write_set,
    dict: _write_dict,
    list: _write_list,
    QuorumState: _write_state,
    Replica: _write_replica,
    Leadership: _write_leadership,
    Request: lambda naming, value: (naming.write(value.peer), naming.write(value.request)),
    Reply: lambda naming, value: (naming.write(value.reply_to.sent), naming.write(value.reply)),
    InFlight: lambda naming, value: naming.write(value.sent),
    ParkedFetch: lambda naming, value: naming.write(value.request),
    VoterHistory: lambda naming, value: naming.write(tuple(value.records)),
}
_NAMINGS = {names: Naming(names) for names in permutations(NODE_IDS)}


def write_host(naming: Naming, host: QuorumHost) -> bytes:
    log = host.log
    parts: list[Any] = [
        naming.write(log.entries),
        len(log.durable),
        _write_state(naming, host.stored),
        naming.write(host.storing),
        host.syncing and (host.syncing[0], host.syncing[1] == log.cuts),
        host.cutting,
    ]
    node = host.running()
    for slot in _NODE_SLOTS:
        value = getattr(node, slot)
        parts.append(tuple(sorted(timer.value for timer in value)) if slot == "_timers" else naming.write(value))
    # Version 2 has no references, so equal values have equal bytes.
    return marshal.dumps(tuple(parts), 2)


def _signature(world: World, host: QuorumHost) -> tuple[Any, ...]:
    """What can be said of a node without any names."""
    node, log, node_id = host.running(), host.log, host.config.node_id
    state = node.quorum_state
    return (
        node.state.value,
        node.epoch,
        log.end_offset,
        log.last_epoch,
        len(log.durable),
        node.high_watermark,
        host.stored.leader_epoch,
        (state.voted_id == node_id, state.voted_id == NOBODY, state.leader_id == node_id, state.leader_id == NOBODY),
        node.voters.by_id(node_id) is None,
        sum(message.to == node_id for message in world.transit),
        sum(message.origin.node_id == node_id for message in world.transit),
    )


def _namings(world: World) -> list[Naming]:
    """The names that put the nodes in the order of their signatures: more than one where signatures are equal."""
    signatures = {host.config.node_id: _signature(world, host) for host in world.hosts}
    least = sorted(signatures.values())
    found = []
    for order in permutations(NODE_IDS):
        if [signatures[node_id] for node_id in order] == least:
            found.append(_NAMINGS[tuple(order.index(node_id) + 1 for node_id in NODE_IDS)])
    return found


def fingerprint(world: World, written_hosts: dict[tuple[int, int], bytes]) -> bytes:
    """The same bytes for two worlds exactly when they are the same but for the nodes' names."""
    least: bytes | None = None
    checker = world.checker
    current = _current_requests(world)
    for naming in _namings(world):
        hosts: dict[int, bytes] = {}
        for host in world.hosts:
            key = id(host), id(naming)
            written = written_hosts.get(key)
            if written is None:
                written = written_hosts[key] = write_host(naming, host)
            hosts[naming.name(host.config.node_id)] = written
        rest = (
            sorted(
                marshal.dumps(
                    (
                        naming.name(message.to),
                        naming.write(message.origin.sent),
                        naming.name(message.origin.node_id),
                        naming.write(message.reply),
                        message.origin in current,
                    ),
                    2,
                )
                for message in world.transit
            ),
            sorted(
                (naming.name(host.config.node_id), naming.name(key.node_id), parked.reply_to in current)
                for host in world.hosts
                for key, parked in _parked(host).items()
            ),
            sorted((epoch, naming.name(leader)) for epoch, leader in checker.leaders.items()),
            sorted((naming.name(key[0]), key[2], naming.write(vote)) for key, vote in checker.votes.items()),
            naming.write(checker.committed),
            sorted(map(str, checker.answered)),
            checker.announced,
            tuple(world.left),
        )
        written_world = marshal.dumps((sorted(hosts.items()), rest), 2)
        if least is None or written_world < least:
            least = written_world
    return hashlib.blake2b(least or b"", digest_size=16).digest()


def _parked(host: QuorumHost) -> dict[ReplicaKey, ParkedFetch]:
    leadership: Leadership | None = getattr(host.running(), "_leadership")  # noqa: B009 - the host would know its connections
    return leadership.parked if leadership is not None else {}


def _in_flight(host: QuorumHost) -> list[Request]:
    in_flight: dict[RaftPeer, InFlight] = getattr(host.running(), "_in_flight")  # noqa: B009 - as above
    return [each.sent for each in in_flight.values()]


def _current_requests(world: World) -> set[Origin]:
    """The requests for whose reply their sender still waits."""
    return {host.origin(sent) for host in world.hosts for sent in _in_flight(host)}


# -- steps ----------------------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    label: str
    world: World


class Explorer:
    def __init__(self, bounds: Bounds, has_slow_disk: bool = False) -> None:
        self.bounds = bounds
        self.states = 0
        self.depth = 0
        self._has_slow_disk = has_slow_disk
        self._ways: list[tuple[int, str]] = []

    def run(self, states_max: int | None = None) -> None:
        """Walk everything within the bounds. Raises QuorumViolation with the way to it."""
        first = self._first_world()
        seen = {fingerprint(first, {})}
        frontier: list[tuple[int, World]] = [(self._note(-1, "start"), first)]
        while frontier:
            following: list[tuple[int, World]] = []
            for number, world in frontier:
                written: dict[tuple[int, int], bytes] = {}
                try:
                    for label, successor in self._successors(world):
                        key = fingerprint(successor, written)
                        if key not in seen:
                            seen.add(key)
                            following.append((self._note(number, label), successor))
                except QuorumViolation as violation:
                    way = [*self._way(number), violation.args[1] if len(violation.args) > 1 else ""]
                    raise QuorumViolation(violation.kind, f"{violation.text}\n    " + "\n    ".join(way)) from violation
                if states_max is not None and len(seen) >= states_max:
                    self.states = len(seen)
                    return
            frontier = following
            self.depth += 1
        self.states = len(seen)

    def _note(self, parent: int, label: str) -> int:
        self._ways.append((parent, label))
        return len(self._ways) - 1

    def _way(self, number: int) -> list[str]:
        way: list[str] = []
        while number >= 0:
            number, label = self._ways[number]
            way.append(label)
        return way[::-1]

    def _first_world(self) -> World:
        store = SnapshotStore()
        hosts = []
        for node_id in NODE_IDS:
            log = SimulatedRaftLog(store)
            log.bootstrap(make_voters(NODE_IDS))
            config = RaftConfig(node_id, directory_id(node_id), endpoints=(endpoint(node_id),), retry_backoff_ms=0)
            hosts.append(QuorumHost(config, log, QuorumState()))
            hosts[-1].start(_RANDOMNESS, 0)
            hosts[-1].events.clear()
        return World(tuple(hosts), (), QuorumChecker(), self.bounds)

    # -- one step ----------------------------------------------------------------------------------------------------------

    def _successors(self, world: World) -> Iterator[Step]:
        yield from self._deliveries(world)
        yield from self._timeouts(world)
        yield from self._proposals(world)
        if world.left.crashes:
            for host in world.hosts:
                left = world.left._replace(crashes=world.left.crashes - 1)
                yield from self._crashes(f"crash {host.config.node_id}", world._replace(left=left), copy_host(host))
        if self._has_slow_disk:
            for host in world.hosts:
                yield from self._disk_steps(world, host)

    def _deliveries(self, world: World) -> Iterator[Step]:
        tried: set[InTransit] = set()
        for index, message in enumerate(world.transit):
            if message in tried:
                continue
            tried.add(message)
            rest = world.transit[:index] + world.transit[index + 1 :]
            origin, to, reply = message
            source = origin.node_id if reply is None else origin.sent.peer.node_id
            label = f"{source} -> {to}: {reply if reply is not None else origin.sent.request}"
            yield from self._act(label, world._replace(transit=rest), to, _delivery(message))
            left = world.left
            if left.duplicates:
                fewer = world._replace(left=left._replace(duplicates=left.duplicates - 1))
                yield from self._act(f"twice {label}", fewer, to, _delivery(message))
            if left.losses:
                fewer = world._replace(transit=rest, left=left._replace(losses=left.losses - 1))
                yield Step(f"lost {label}", self._fail_orphans(fewer))

    def _timeouts(self, world: World) -> Iterator[Step]:
        if not world.left.timeouts:
            return
        left = world.left._replace(timeouts=world.left.timeouts - 1)
        for host in world.hosts:
            node = host.running()
            for timer in (QuorumTimer.ELECTION, QuorumTimer.FETCH, QuorumTimer.CHECK_QUORUM, QuorumTimer.BEGIN_EPOCH):
                if timer in node.armed_timers:
                    label = f"{timer.value} timer of {host.config.node_id}"
                    yield from self._act(label, world._replace(left=left), host.config.node_id, _expiry(timer))

    def _proposals(self, world: World) -> Iterator[Step]:
        left = world.left
        for host in world.hosts:
            node, node_id = host.running(), host.config.node_id
            if not node.is_leading:
                continue
            if left.entries:
                value = f"decision-{left.entries}"
                yield from self._act(
                    f"propose {value} at {node_id}",
                    world._replace(left=left._replace(entries=left.entries - 1)),
                    node_id,
                    _proposal(value),
                )
            if left.changes:
                fewer = world._replace(left=left._replace(changes=left.changes - 1))
                for other in NODE_IDS:
                    request: RemoveVoter | AddVoter = RemoveVoter(replica(other))
                    if node.voters.by_id(other) is None:
                        request = AddVoter(replica(other), (endpoint(other),), 1_000)
                    yield from self._act(f"{request} at {node_id}", fewer, node_id, _change(request))

    def _disk_steps(self, world: World, host: QuorumHost) -> Iterator[Step]:
        node_id = host.config.node_id
        for name, is_waiting, finish in _DISK_WORK:
            if is_waiting(host):
                copy = copy_host(host)
                finish(copy)
                yield Step(f"{name} of {node_id} done", self._settle(world, copy))

    # -- what follows from a step --------------------------------------------------------------------------------------------

    def _act(self, label: str, world: World, node_id: int, action: Callable[[RaftNode], None]) -> Iterator[Step]:
        """Let a node do something; then its disk does its work, unless the node crashes at some point of it."""
        host = copy_host(world.hosts[NODE_IDS.index(node_id)])
        try:
            action(host.running())
            host.collect()
            if host.has_disk_work:
                # What leaves now must be true of the disk as it is now, not as it is after its work.
                probe = world.checker.copy()
                probe.look_at(host)
                for message in host.messages:
                    probe.sent(host, message)
            while host.has_disk_work and not self._has_slow_disk:
                if world.left.crashes:
                    fewer = self._emit(world._replace(left=world.left._replace(crashes=world.left.crashes - 1)), copy_host(host))
                    yield from self._crashes(f"{label}; crash {node_id} in its disk work", fewer, copy_host(host))
                next(finish for _, is_waiting, finish in _DISK_WORK if is_waiting(host))(host)
            successor = self._settle(world, host)
        except QuorumViolation as violation:
            violation.args = (*violation.args, label)
            raise
        if successor.hosts is not world.hosts and self._elections(successor) <= self.bounds.elections:
            yield Step(label, successor)

    def _elections(self, world: World) -> int:
        return max(host.running().epoch for host in world.hosts)

    def _crashes(self, label: str, world: World, host: QuorumHost) -> Iterator[Step]:
        """A crash keeps all that was not synced, or nothing of it."""
        unsynced = len(host.log.entries) - len(host.log.durable)
        for kept in {0, unsynced}:
            crashed = copy_host(host)
            crashed.crash(kept)
            crashed.start(_RANDOMNESS, 0)
            while crashed.has_disk_work and not self._has_slow_disk:
                crashed.finish_disk_work()
            try:
                yield Step(f"{label}, {kept} of {unsynced} kept", self._settle(world, crashed))
            except QuorumViolation as violation:
                violation.args = (*violation.args, label)
                raise

    def _emit(self, world: World, host: QuorumHost) -> World:
        """Put what the node sends in transit. An answer that only ends a repetition arrives at once."""
        checker = world.checker.copy()
        checker.look_at(host)
        index = NODE_IDS.index(host.config.node_id)
        hosts = (*world.hosts[:index], host, *world.hosts[index + 1 :])
        transit = list(world.transit)
        at_once: list[InTransit] = []
        for message in host.take_messages():
            checker.sent(host, message)
            if isinstance(message, Request):
                transit.append(InTransit(host.origin(message), message.peer.node_id, None))
            elif message.reply_to != _ADMINISTRATOR:
                origin = message.reply_to
                assert isinstance(origin, Origin)
                answer = InTransit(origin, origin.node_id, message.reply)
                (at_once if _is_formality(origin.sent.request) else transit).append(answer)
        host.results.clear()
        host.events.clear()
        world = World(hosts, tuple(transit), checker, world.left)
        for answer in at_once:
            asker = world.hosts[NODE_IDS.index(answer.to)]
            if answer.origin.incarnation == asker.incarnation:
                copy = copy_host(asker)
                _delivery(answer)(copy.running())
                copy.collect()
                if not self._has_slow_disk:
                    copy.finish_disk_work()
                world = self._emit(world, copy)
        return world

    def _settle(self, world: World, host: QuorumHost) -> World:
        world = self._fail_orphans(self._emit(world, host))
        return world._replace(transit=tuple(message for message in world.transit if not _is_void(world, message)))

    def _fail_orphans(self, world: World) -> World:
        """Requests that nobody will answer any more fail at once."""
        while True:
            alive: set[object] = {message.origin for message in world.transit}
            for host in world.hosts:
                alive.update(parked.reply_to for parked in _parked(host).values())
                for name in ("_held_for_store", "_held_for_next_store"):
                    for held in getattr(host.running(), name):
                        alive.add(host.origin(held) if isinstance(held, Request) else held.reply_to)
            orphan = next(
                ((host, sent) for host in world.hosts for sent in _in_flight(host) if host.origin(sent) not in alive), None
            )
            if orphan is None:
                return world
            host, sent = orphan
            copy = copy_host(host)
            copy.running().request_failed(sent, RequestFailure.LOST)
            copy.collect()
            if not self._has_slow_disk:
                copy.finish_disk_work()
            world = self._emit(world, copy)


def _expiry(timer: QuorumTimer) -> Callable[[RaftNode], None]:
    return lambda node: node.expire(timer)


def _proposal(value: str) -> Callable[[RaftNode], None]:
    return lambda node: node.propose(value, value)


def _change(request: AddVoter | RemoveVoter) -> Callable[[RaftNode], None]:
    return lambda node: node.step(request, _ADMINISTRATOR)


def _delivery(message: InTransit) -> Callable[[RaftNode], None]:
    origin, _, reply = message
    if reply is not None:
        return lambda node: node.receive(origin.sent, reply)
    request = origin.sent.request
    if isinstance(request, QuorumFetch):
        # As a replica of an older version asks: the leader does not answer only to tell its high watermark.
        request = request._replace(high_watermark=UNKNOWN_HIGH_WATERMARK)
    return lambda node: node.step(request, origin)


def _is_formality(request: object) -> bool:
    """Whether the answer has no effect on anybody's disk: that to a pre-vote, and those that only stop a repetition."""
    return isinstance(request, BeginQuorumEpoch | EndQuorumEpoch) or (isinstance(request, Vote) and request.pre_vote)


def _is_void(world: World, message: InTransit) -> bool:
    """Whether a reply changes nothing whenever it arrives: it is older than what the receiver has stored, its connection is gone,
    or it belongs to an election that is over."""
    reply = message.reply
    if reply is None:
        return False
    host = world.hosts[NODE_IDS.index(message.to)]
    news = getattr(reply, "news", None)
    if message.origin.incarnation != host.incarnation or news is None or news.epoch < host.stored.leader_epoch:
        return True
    is_decided = host.running().state is not RaftState.CANDIDATE and news.leader_id == NOBODY
    return isinstance(reply, VoteReply) and is_decided and news.epoch == host.stored.leader_epoch


_DISK_WORK: tuple[tuple[str, Callable[[QuorumHost], bool], Callable[[QuorumHost], None]], ...] = (
    ("store", lambda host: host.storing is not None, QuorumHost.finish_store),
    ("cut", lambda host: host.cutting is not None, QuorumHost.finish_cut),
    ("sync", lambda host: host.syncing is not None, QuorumHost.finish_sync),
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.explore", description="Walk every order of events of a quorum.")
    for name, default in Bounds()._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--slow-disk", action="store_true", help="other events may come before disk work ends")
    parser.add_argument("--states-max", type=int, default=None, help="stop after so many states")
    options = vars(parser.parse_args(arguments))
    bounds = Bounds(**{name: options[name] for name in Bounds._fields})
    explorer = Explorer(bounds, options["slow_disk"])
    try:
        explorer.run(options["states_max"])
    except QuorumViolation as violation:
        print(f"VIOLATION {violation.kind}: {violation.text}")
        return 1
    print(f"{explorer.states} states, {explorer.depth} steps deep: {bounds}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
