"""Plans which brokers hold which partitions: pure functions from one assignment to another, with few moves.

A plan first replaces what has to go (the replicas of a broker that leaves), then evens out the number of replicas per broker, one
replica at a time from the broker with most to the one with fewest, and at last the preferred leaders, by changing the order of
replicas, which copies nothing. It stops when brokers differ by one, or when no single step helps. The same input gives the same
plan.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

PartitionKey = tuple[str, int]
Assignment = Mapping[PartitionKey, tuple[int, ...]]
"""The replicas of each partition in order of preference."""


class PlanImpossible(Exception):
    """No assignment of these brokers does what is asked."""


def balanced(
    assignment: Assignment, brokers: Collection[int], leaving: Collection[int] = ()
) -> dict[PartitionKey, tuple[int, ...]]:
    """An even assignment to ``brokers`` without those that are ``leaving``."""
    staying = sorted(set(brokers) - set(leaving))
    plan = (
        {key: _replaced(key, replicas, assignment, staying) for key, replicas in assignment.items()}
        if leaving
        else dict(assignment)
    )
    plan = _filled(plan, staying)
    _even_replicas(plan, staying)
    _even_leaders(plan, staying)
    return plan


def with_replication_factor(
    assignment: Assignment, topics: Collection[str], factor: int, brokers: Collection[int]
) -> dict[PartitionKey, tuple[int, ...]]:
    """Add replicas to the partitions of these topics until each has ``factor`` of them. Nothing is removed."""
    if factor > len(brokers):
        raise PlanImpossible(f"{factor} replicas need {factor} brokers, and there are {len(brokers)}")
    plan = dict(assignment)
    load = _load(plan.values(), brokers)
    for key in sorted(plan):
        while key[0] in topics and len(plan[key]) < factor:
            added = min((load[broker], broker) for broker in brokers if broker not in plan[key])[1]
            load[added] += 1
            plan[key] = (*plan[key], added)
    return plan


_VACANT = -1


def _replaced(key: PartitionKey, replicas: tuple[int, ...], assignment: Assignment, staying: list[int]) -> tuple[int, ...]:
    if len(replicas) > len(staying):
        others = f"only {len(staying)} other broker(s) could hold them"
        raise PlanImpossible(f"{key[0]}-{key[1]} has {len(assignment[key])} replica(s), and {others}")
    return tuple(replica if replica in staying else _VACANT for replica in replicas)


def _filled(plan: dict[PartitionKey, tuple[int, ...]], staying: list[int]) -> dict[PartitionKey, tuple[int, ...]]:
    """Give every vacant place to the broker with the fewest replicas that does not hold the partition."""
    load = _load(plan.values(), staying)
    filled = {}
    for key in sorted(plan):
        replicas = list(plan[key])
        for place, replica in enumerate(replicas):
            if replica == _VACANT:
                replicas[place] = min((load[broker], broker) for broker in staying if broker not in replicas)[1]
                load[replicas[place]] += 1
        filled[key] = tuple(replicas)
    return filled


def _even_replicas(plan: dict[PartitionKey, tuple[int, ...]], brokers: list[int]) -> None:
    load = _load(plan.values(), brokers)
    while True:
        by_load = sorted(brokers, key=lambda broker: (load[broker], broker))
        step = next(
            (
                (key, full, free)
                for full in reversed(by_load)
                for free in by_load
                if load[full] - load[free] > 1
                for key in sorted(plan)
                if full in plan[key] and free not in plan[key]
            ),
            None,
        )
        if step is None:
            return
        key, full, free = step
        plan[key] = tuple(free if replica == full else replica for replica in plan[key])
        load[full] -= 1
        load[free] += 1


def _even_leaders(plan: dict[PartitionKey, tuple[int, ...]], brokers: list[int]) -> None:
    led = Counter(replicas[0] for replicas in plan.values())
    while True:
        step = next(
            (
                (key, other)
                for key in sorted(plan)
                for other in sorted(plan[key][1:], key=lambda broker: (led[broker], broker))
                if other in brokers and led[plan[key][0]] - led[other] > 1
            ),
            None,
        )
        if step is None:
            return
        key, other = step
        first = plan[key][0]
        plan[key] = (other, *(first if replica == other else replica for replica in plan[key][1:]))
        led[first] -= 1
        led[other] += 1


def _load(assigned: Iterable[tuple[int, ...]], brokers: Collection[int]) -> Counter[int]:
    load = Counter(dict.fromkeys(brokers, 0))
    load.update(replica for replicas in assigned for replica in replicas if replica != _VACANT)
    return load
