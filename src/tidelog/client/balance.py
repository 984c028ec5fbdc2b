"""Plans which brokers hold which partitions: pure functions from one assignment to another, with few moves.

A plan first brings replicas of a partition that share a rack to racks that hold none of it, as far as there are any, then evens
out the number of replicas per broker, one replica at a time from the broker with most to the one with fewest, then the bytes, by
exchanging a large partition for a small one, and at last the preferred leaders, by changing the order of replicas, which copies
nothing. No step brings a partition to fewer racks than it was on. A plan stops when brokers differ by one replica and by a
tenth of their bytes, or when no single step helps. The same input gives the same plan.
"""

import bisect
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from tidelog.records.topic_partition import TopicPartition

Assignment = Mapping[TopicPartition, tuple[int, ...]]
"""The replicas of each partition in order of preference."""

# Brokers whose bytes differ by less than both of these are even: copying costs more than it brings.
BYTES_GAP_SHARE = 0.1
BYTES_GAP_MIN = 64 << 20
# The exchanges of one plan. That many copy for long, and the next plan goes on from there.
EXCHANGES_MAX = 200


class PlanImpossible(Exception):
    """No assignment of these brokers does what is asked."""


class BrokerPlaces(NamedTuple):
    """The brokers that may hold replicas, and what is known about where they are and what partitions weigh."""

    brokers: Collection[int]
    racks: Mapping[int, str | None] = {}
    """A broker without a rack is a rack of its own."""
    sizes: Mapping[TopicPartition, int] = {}
    """The bytes of one replica of each partition; none if they are not known."""

    def rack(self, broker: int) -> str | int:
        return self.racks.get(broker) or broker

    def rack_count(self, replicas: Collection[int]) -> int:
        return len({self.rack(replica) for replica in replicas})


def balanced(assignment: Assignment, places: BrokerPlaces) -> dict[TopicPartition, tuple[int, ...]]:
    """An even assignment to the brokers. A replica on a broker that is not among them stays."""
    plan = _Plan(assignment, places)
    plan.spread_over_racks()
    plan.even_replicas()
    # An exchange may free a replica that could go nowhere before, because of the racks.
    while plan.even_bytes() and plan.even_replicas():
        pass
    plan.even_leaders(plan.replicas)
    return plan.replicas


def drained(assignment: Assignment, places: BrokerPlaces, leaving: int) -> dict[TopicPartition, tuple[int, ...]]:
    """Give the replicas of a broker to the others. Nothing else moves."""
    plan = _Plan(assignment, places._replace(brokers=sorted(set(places.brokers) - {leaving})))
    held = [key for key, replicas in sorted(assignment.items()) if leaving in replicas]
    for key in sorted(held, key=lambda key: -places.sizes.get(key, 0)):
        plan.replace(key, leaving)
    plan.even_leaders(held)
    return plan.replicas


def with_replication_factor(
    assignment: Assignment, topics: Collection[str], factor: int, places: BrokerPlaces
) -> dict[TopicPartition, tuple[int, ...]]:
    """Add replicas to the partitions of these topics until each has ``factor`` of them. Nothing is removed."""
    if factor > len(places.brokers):
        raise PlanImpossible(f"{factor} replicas need {factor} brokers, and there are {len(places.brokers)}")
    plan = _Plan(assignment, places)
    for key in sorted(assignment):
        while key[0] in topics and len(plan.replicas[key]) < factor:
            plan.add(key)
    return plan.replicas


class _Plan:
    """An assignment that changes step by step, and what each broker has of it."""

    def __init__(self, assignment: Assignment, places: BrokerPlaces) -> None:
        self.replicas = dict(assignment)
        self._places = places
        self._brokers = sorted(places.brokers)
        self._keys = sorted(assignment)
        self._count = Counter(dict.fromkeys(self._brokers, 0))
        self._bytes = Counter(dict.fromkeys(self._brokers, 0))
        for key, replicas in assignment.items():
            for replica in replicas:
                self._count[replica] += 1
                self._bytes[replica] += self._size(key)

    def add(self, key: TopicPartition) -> None:
        added = self._best_place(self.replicas[key], self._brokers)
        self._place(key, (*self.replicas[key], added))

    def replace(self, key: TopicPartition, leaving: int) -> None:
        before = self.replicas[key]
        others = [replica for replica in before if replica != leaving]
        if set(self._brokers) <= set(others):
            count = len(self._brokers)
            raise PlanImpossible(
                f"{key[0]}-{key[1]} has {len(before)} replica(s), and only {count} other broker(s) could hold them"
            )
        self._move(key, leaving, self._best_place(others, self._brokers))

    def spread_over_racks(self) -> None:
        racks = {self._places.rack(broker) for broker in self._brokers}
        for key in self._keys:
            for replica in reversed(self.replicas[key]):
                others = [other for other in self.replicas[key] if other != replica]
                used = {self._places.rack(other) for other in others}
                if self._places.rack(replica) in used and racks - used:
                    free = [broker for broker in self._brokers if self._places.rack(broker) not in used]
                    self._move(key, replica, self._best_place(others, free))

    def even_replicas(self) -> bool:
        """Return whether anything was moved."""

        def steps() -> Iterator[tuple[TopicPartition, int, int]]:
            by_count = sorted(self._brokers, key=lambda broker: (self._count[broker], broker))
            for full, free in itertools.product(reversed(by_count), by_count):
                movable = self._movable(full, free) if self._count[full] - self._count[free] > 1 else []
                if movable:
                    # Of all that may go, what brings the bytes of both closest together.
                    gap = self._bytes[full] - self._bytes[free]
                    yield min(movable, key=lambda key: (abs(gap - 2 * self._size(key)), key)), full, free

        has_moved = False
        while (step := next(steps(), None)) is not None:
            self._move(*step)
            has_moved = True
        return has_moved

    def even_bytes(self) -> bool:
        """Return whether anything was exchanged."""
        mean = sum(self._bytes[broker] for broker in self._brokers) / max(1, len(self._brokers))
        gap_max = max(BYTES_GAP_MIN, BYTES_GAP_SHARE * mean)

        def steps() -> Iterator[tuple[TopicPartition, TopicPartition | None, int, int]]:
            by_bytes = sorted(self._brokers, key=lambda broker: (self._bytes[broker], broker))
            pairs = [(self._bytes[full] - self._bytes[free], full, free) for full, free in itertools.permutations(by_bytes, 2)]
            for gap, full, free in sorted(pairs, key=lambda pair: -pair[0]):
                found = self._exchange(full, free, gap) if gap > gap_max else None
                if found is not None:
                    yield (*found, full, free)

        for number in range(EXCHANGES_MAX):
            step = next(steps(), None)
            if step is None:
                return number > 0
            large, small, full, free = step
            self._move(large, full, free)
            if small is not None:
                self._move(small, free, full)
        return True

    def even_leaders(self, keys: Collection[TopicPartition]) -> None:
        """Change the order of replicas of these partitions until their leaders are even among all."""
        led = Counter(replicas[0] for replicas in self.replicas.values())
        ordered = sorted(keys)
        while True:
            step = next(
                (
                    (key, other)
                    for key in ordered
                    for other in sorted(self.replicas[key][1:], key=lambda broker: (led[broker], broker))
                    if other in self._brokers and led[self.replicas[key][0]] - led[other] > 1
                ),
                None,
            )
            if step is None:
                return
            key, other = step
            first = self.replicas[key][0]
            self.replicas[key] = (other, *(first if replica == other else replica for replica in self.replicas[key][1:]))
            led[first] -= 1
            led[other] += 1

    def _exchange(self, full: int, free: int, gap: int) -> tuple[TopicPartition, TopicPartition | None] | None:
        """A partition that goes from one broker to the other, and one that comes back unless the counts allow that none does.

        What that evens out is at least half of what it copies."""
        small: list[tuple[int, TopicPartition | None]] = [(self._size(key), key) for key in self._movable(free, full)]
        if self._count[full] > self._count[free]:
            small.append((0, None))
        small.sort(key=lambda each: each[0])
        best: tuple[int, TopicPartition, TopicPartition | None] | None = None
        for large in self._movable(full, free):
            size = self._size(large)
            at = bisect.bisect_left(small, size - gap / 2, key=lambda each: each[0])
            for other_size, other in small[max(0, at - 1) : at + 1]:
                difference = size - other_size
                rest = abs(gap - 2 * difference)
                is_worth_it = 0 < difference < gap and 4 * difference >= size + other_size
                if is_worth_it and (best is None or rest < best[0]):
                    best = rest, large, other
        return best[1:] if best is not None else None

    def _movable(self, source: int, target: int) -> list[TopicPartition]:
        """Return the partitions that could move from the source to the target and stay on as many racks."""
        is_same_rack = self._places.rack(source) == self._places.rack(target)
        return [
            key
            for key in self._keys
            if source in self.replicas[key]
            and target not in self.replicas[key]
            and (is_same_rack or self._keeps_racks(self.replicas[key], source, target))
        ]

    def _keeps_racks(self, replicas: tuple[int, ...], source: int, target: int) -> bool:
        moved = [target if replica == source else replica for replica in replicas]
        return self._places.rack_count(moved) >= self._places.rack_count(replicas)

    def _best_place(self, others: Collection[int], brokers: Collection[int]) -> int:
        """A rack without a replica comes first, then the broker with the fewest replicas, then the one with the fewest bytes."""
        used = {self._places.rack(other) for other in others}
        return min(
            (self._places.rack(broker) in used, self._count[broker], self._bytes[broker], broker)
            for broker in brokers
            if broker not in others
        )[3]

    def _move(self, key: TopicPartition, source: int, target: int) -> None:
        self._place(key, tuple(target if replica == source else replica for replica in self.replicas[key]))

    def _place(self, key: TopicPartition, replicas: tuple[int, ...]) -> None:
        for placed, sign in ((self.replicas[key], -1), (replicas, 1)):
            for replica in placed:
                self._count[replica] += sign
                self._bytes[replica] += sign * self._size(key)
        self.replicas[key] = replicas

    def _size(self, key: TopicPartition) -> int:
        return self._places.sizes.get(key, 0)
