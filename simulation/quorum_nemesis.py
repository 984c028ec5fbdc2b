"""Decides what goes wrong in a simulated quorum, and when: a table of fault kinds, drawn from the seed.

Each seed enables a part of the kinds. A fault that lasts ends by itself; ``heal_majority`` ends everything among a majority and
leaves one-way partitions to the rest, and ``heal_all`` ends these too. An operator adds and removes voters in the middle of it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.quorum_host import endpoint
from tidelog.raft.messages import AddVoter, QuorumReply, QuorumRequest, RemoveVoter, UpgradeKRaftVersion
from tidelog.raft.voters import ReplicaKey
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from simulation.quorum_world import QuorumMember, QuorumWorld

# The longest pause between two faults, drawn for each seed: some see one fault at a time, others many at once.
INTERVAL_US_MAX = (100_000, 3_000_000)
LASTS_US = (50_000, 3_000_000)
DOWN_US = (1_000, 2_000_000)
ENABLED_LIKELIHOOD = 0.6
SLOW_LINK_US = (1_000, 300_000)
SLOW_DISK_US = (5_000, 400_000)


class QuorumNemesis:
    def __init__(self, world: "QuorumWorld") -> None:
        self.world = world
        self.counts: dict[str, int] = {}
        self._randomness = world.randomness.fork("nemesis")
        self._network = world.randomness.fork("network")
        self._is_over = False
        # Pairs (from, to) whose messages do not arrive; each partition that is going on adds its own.
        self._cut: dict[int, set[tuple[int, int]]] = {}
        self._partitions = 0
        self._loss = self._doubling = 0.0
        self._is_waiting_for_leader = False
        self._interval_us_max = self._draw(INTERVAL_US_MAX)
        names = [name for name in QUORUM_FAULTS if self._randomness.fraction() < ENABLED_LIKELIHOOD]
        self.enabled = names or list(QUORUM_FAULTS)

    # -- the network's side --------------------------------------------------------------------------------------------------

    def is_linked(self, source: int, to: int) -> bool:
        return not any((source, to) in pairs for pairs in self._cut.values())

    def copies(self, source: int, to: int) -> int:
        """How often a message that is sent now arrives."""
        if not self.is_linked(source, to) or self._network.fraction() < self._loss:
            return 0
        return 2 if self._network.fraction() < self._doubling else 1

    # -- striking ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.world.scheduler.schedule(self._draw((5_000, self._interval_us_max)), "nemesis", self._strike)

    def _strike(self) -> None:
        if self._is_over:
            return
        name = self.enabled[self._randomness.integer(0, len(self.enabled) - 1)]
        if QUORUM_FAULTS[name](self):
            self.counts[name] = self.counts.get(name, 0) + 1
            self.world.scheduler.record(f"fault {name}")
        self.start()

    def _draw(self, bounds: tuple[int, int]) -> int:
        return self._randomness.integer(*bounds)

    def _later(self, label: str, action: Callable[[], None], bounds: tuple[int, int] = LASTS_US) -> None:
        self.world.scheduler.schedule(self._draw(bounds), f"nemesis {label}", lambda: None if self._is_over else action())

    def _any_node(self) -> "QuorumMember":
        """Often the leader: that is where it hurts."""
        leader = self.world.leader()
        if leader is not None and self._randomness.fraction() < 0.4:
            return leader
        ids = self.world.node_ids
        return self.world.nodes[ids[self._randomness.integer(0, len(ids) - 1)]]

    # -- processes and disks -------------------------------------------------------------------------------------------------

    def crash(self) -> bool:
        node = self._any_node()
        if node.node is None:
            return False
        node_id = node.config.node_id
        self.world.crash(node_id)
        self._start_later(node_id)
        return True

    def crash_all(self) -> bool:
        """A power cut of the whole room."""
        for node_id, node in self.world.nodes.items():
            if node.node is not None:
                self.world.crash(node_id)
            self._start_later(node_id)
        return True

    def _start_later(self, node_id: int) -> None:
        self._later(f"start {node_id}", lambda: self.world.start(node_id), DOWN_US)

    def pause(self) -> bool:
        node = self._any_node()
        if node.node is None or node.is_paused:
            return False
        node.is_paused = True
        self._later(f"resume {node.config.node_id}", node.resume)
        return True

    def slow_disk(self) -> bool:
        node = self._any_node()
        node.disk_delay_us = SLOW_DISK_US
        self._later("disk fast again", node.use_fast_disk)
        return True

    def damage(self) -> bool:
        """A bit flips in a log. Its checksum tells, and the node refuses to start; later an operator replaces the disk."""
        node = self._any_node()
        key = ReplicaKey(node.config.node_id, node.config.directory_id)
        if node.is_broken or not self.world.is_survivable({key}):
            return False
        if node.node is not None:
            self.world.crash(node.config.node_id)
        node.is_broken = True
        if not self.world.is_static:
            self._later("disk replaced", lambda: self.world.replace(node.config.node_id))
        return True

    def snapshot(self) -> bool:
        """A node replaces the committed part of its log by a snapshot."""
        node = self._any_node()
        if node.node is None or node.is_paused:
            return False
        end_offset = self._randomness.integer(0, min(node.node.high_watermark, node.log.durable_end_offset))
        if end_offset <= node.log.start_offset or node.cutting is not None or node.installing is not None:
            return False
        node.log.take_snapshot(end_offset)
        return True

    # -- the network ---------------------------------------------------------------------------------------------------------

    def _partition(self, pairs: set[tuple[int, int]]) -> bool:
        self._partitions += 1
        number = self._partitions
        self._cut[number] = pairs

        def end() -> None:
            self._cut.pop(number, None)

        self._later("partition over", end)
        return bool(pairs)

    def isolate(self) -> bool:
        return self._isolate(self._any_node().config.node_id)

    def _isolate(self, one: int) -> bool:
        return self._partition({pair for each in self.world.node_ids if each != one for pair in ((one, each), (each, one))})

    def one_way(self) -> bool:
        one = self._any_node().config.node_id
        others = [each for each in self.world.node_ids if each != one and self._randomness.fraction() < 0.7]
        is_deaf = self._randomness.fraction() < 0.5
        return self._partition({(each, one) if is_deaf else (one, each) for each in others})

    def ring(self) -> bool:
        """Every node reaches only its neighbours."""
        ids = self.world.node_ids
        near = {(ids[index], ids[(index + step) % len(ids)]) for index in range(len(ids)) for step in (1, -1)}
        return self._partition({(one, other) for one in ids for other in ids if one != other and (one, other) not in near})

    def split(self) -> bool:
        side = {each for each in self.world.node_ids if self._randomness.fraction() < 0.5}
        ids = self.world.node_ids
        return self._partition({(one, other) for one in ids for other in ids if (one in side) != (other in side)})

    def lose(self) -> bool:
        self._loss = 0.05 + 0.3 * self._randomness.fraction()
        self._later("no more loss", self._lose_nothing)
        return True

    def _lose_nothing(self) -> None:
        self._loss = 0.0

    def double(self) -> bool:
        self._doubling = 0.3
        self._later("nothing twice", self._double_nothing)
        return True

    def _double_nothing(self) -> None:
        self._doubling = 0.0

    def slow_network(self) -> bool:
        """Long delays of very different length: messages overtake each other."""
        self.world.set_link_delay(SLOW_LINK_US)
        self._later("network fast again", lambda: self.world.set_link_delay(None))
        return True

    # -- the operator --------------------------------------------------------------------------------------------------------

    def change_voters(self) -> bool:
        world = self.world
        leader = world.any_leader()
        if leader is None:
            self._is_waiting_for_leader = True
            return False
        if world.is_static:
            # The voters move from the configuration into the log, once.
            return world.ask(leader, UpgradeKRaftVersion(1, 1_000, cluster_id="cluster"))
        return self._change_voters(leader)

    def leader_elected(self) -> None:
        """The operator who found no leader asks as soon as there is one: before it has committed anything."""
        if self._is_waiting_for_leader and not self._is_over:
            self._is_waiting_for_leader = False
            self.world.scheduler.schedule(0, "operator asks the new leader", self._ask_new_leader)

    def _ask_new_leader(self) -> None:
        self.change_voters()

    def cut_off_change(self) -> bool:
        """A change of the voters that nobody but the leader hears of, for a while."""
        leader = self.world.any_leader()
        if leader is None or self.world.is_static or not self._change_voters(leader):
            return False
        return self._isolate(leader.config.node_id)

    def _change_voters(self, leader: "QuorumMember") -> bool:
        world = self.world
        voters = leader.running().voters
        outside = [node for node in world.nodes.values() if voters.by_id(node.config.node_id) is None and node.node is not None]
        strangers = [voter for voter in voters.voters if not world.is_there(voter) and not world.nodes[voter.node_id].is_broken]
        if strangers:
            # The disk of this voter was replaced, so the voter is gone for good.
            return world.ask(leader, RemoveVoter(strangers[0].key, "cluster"))
        if outside and (len(voters.voters) < 3 or self._randomness.fraction() < 0.5):
            node = outside[self._randomness.integer(0, len(outside) - 1)]
            key = ReplicaKey(node.config.node_id, node.config.directory_id)
            return world.ask(leader, AddVoter(key, (endpoint(key.node_id),), 1_000, "cluster"))
        victim = voters.voters[self._randomness.integer(0, len(voters.voters) - 1)]
        left = voters.without(victim.node_id)
        if len(left.voters) < 2 or len([voter for voter in left.voters if world.is_there(voter)]) < left.majority:
            return False
        return world.ask(leader, RemoveVoter(victim.key, "cluster"))

    def operator_heard(self, request: QuorumRequest, reply: QuorumReply) -> None:
        self.world.scheduler.record(f"operator hears {ErrorCode(reply.error).name} for {type(request).__name__}")

    # -- healing -------------------------------------------------------------------------------------------------------------

    def heal_majority(self) -> None:
        """No more faults; but some of the rest still hear the majority and are not heard, or the reverse."""
        world = self.world
        self._is_over = True
        self._loss = self._doubling = 0.0
        world.set_link_delay(None)
        for node in world.nodes.values():
            node.use_fast_disk()
            node.resume()
        self._cut.clear()
        # Only now does every node say which voters its log names.
        for node_id in world.node_ids:
            world.start(node_id)
        rest: set[int] = set()
        for node_id in self._shuffled(world.node_ids):
            keys = {ReplicaKey(each, world.nodes[each].config.directory_id) for each in rest | {node_id}}
            if self._randomness.fraction() < 0.7 and world.is_survivable(keys):
                rest.add(node_id)
        pairs = set()
        for node_id in sorted(rest):
            is_deaf = self._randomness.fraction() < 0.5
            others = [each for each in world.node_ids if each not in rest]
            pairs |= {(each, node_id) if is_deaf else (node_id, each) for each in others}
        self._cut[0] = pairs
        world.scheduler.record(f"a majority is healed, the rest is {sorted(rest)}")

    def heal_all(self) -> None:
        self._cut.clear()
        self.world.scheduler.record("everything is healed")

    def _shuffled(self, values: list[int]) -> list[int]:
        return [value for _, value in sorted((self._randomness.fraction(), value) for value in values)]


# The faults by name. A fault returns whether it struck.
QUORUM_FAULTS: dict[str, Callable[[QuorumNemesis], bool]] = {
    "crash": QuorumNemesis.crash,
    "crash of all": QuorumNemesis.crash_all,
    "pause": QuorumNemesis.pause,
    "slow disk": QuorumNemesis.slow_disk,
    "damaged log": QuorumNemesis.damage,
    "snapshot": QuorumNemesis.snapshot,
    "isolated node": QuorumNemesis.isolate,
    "partition one way": QuorumNemesis.one_way,
    "partition to a ring": QuorumNemesis.ring,
    "partition in two": QuorumNemesis.split,
    "lost messages": QuorumNemesis.lose,
    "doubled messages": QuorumNemesis.double,
    "slow network": QuorumNemesis.slow_network,
    "voter change": QuorumNemesis.change_voters,
    "voter change cut off": QuorumNemesis.cut_off_change,
}
