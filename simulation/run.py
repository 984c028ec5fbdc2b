"""Runs the simulation of one broker (with producers and consumers, with groups, or with transactions), of a quorum or a cluster.

    python -m simulation.run --seed 7                one seed
    python -m simulation.run --seed 7 --trace        one seed, and the end of its trace
    python -m simulation.run --seeds 1-100           many seeds; fails too when a kind of fault is too rare
    python -m simulation.run --world groups ...      another world than that of producers and consumers

A failure prints the one command that replays it. The same seed gives the same trace, as the hash in each line shows.
"""

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from simulation import (
    cluster_nemesis,
    cluster_world,
    group_world,
    moving_world,
    quorum_nemesis,
    quorum_world,
    replica_world,
    transaction_world,
    world,
)
from simulation.checker import Violation, noticed_problems
from simulation.history import History
from simulation.nemesis import FAULTS, count_faults
from simulation.scheduler import Scheduler
from simulation.stage import NoProgress

VIOLATIONS_SHOWN_MAX = 10
TRACEBACK_FRAMES_MAX = 6
FAULT_SHARE_MIN = 0.05
# With fewer seeds than this a share of them means nothing.
SEEDS_FOR_SHARES_MIN = 50


class CountedFaults(Protocol):
    @property
    def counts(self) -> dict[str, int]: ...


class SimulatedWorld(Protocol):
    """``Stage`` for the worlds of one broker, ``QuorumWorld`` and ``ClusterWorld`` for several nodes."""

    scheduler: Scheduler
    history: History

    @property
    def nemesis(self) -> CountedFaults: ...

    @property
    def operations(self) -> int: ...

    @property
    def fault_count(self) -> int: ...

    def run(self) -> None: ...

    def check(self) -> list[Violation]: ...


class WorldKind(NamedTuple):
    make: Callable[[int], SimulatedWorld]
    faults: Mapping[str, Callable[..., bool]]
    operations_min: int
    faults_min: int
    events: tuple[str, ...] = ()
    """What must occur in enough of the seeds, beside every kind of fault."""


WORLDS = {
    "broker": WorldKind(world.World, FAULTS, world.OPERATIONS_MIN, world.FAULTS_MIN),
    "groups": WorldKind(group_world.GroupWorld, group_world.GROUP_FAULTS, group_world.COMMITS_MIN, group_world.FAULTS_MIN),
    "transactions": WorldKind(
        transaction_world.TransactionWorld,
        transaction_world.TRANSACTION_FAULTS,
        transaction_world.COMMITS_MIN,
        transaction_world.FAULTS_MIN,
    ),
    "quorum": WorldKind(
        quorum_world.QuorumWorld, quorum_nemesis.QUORUM_FAULTS, quorum_world.DECISIONS_MIN, quorum_world.FAULTS_MIN
    ),
    "cluster": WorldKind(
        cluster_world.ClusterWorld, cluster_nemesis.CLUSTER_FAULTS, cluster_world.DECISIONS_MIN, cluster_world.FAULTS_MIN
    ),
    "replicas": WorldKind(
        replica_world.ReplicaWorld,
        replica_world.REPLICA_FAULTS,
        replica_world.SENDS_MIN,
        replica_world.FAULTS_MIN,
        replica_world.EVENTS,
    ),
    "pipelined": WorldKind(
        replica_world.PipelinedReplicaWorld,
        replica_world.REPLICA_FAULTS,
        replica_world.SENDS_MIN,
        replica_world.FAULTS_MIN,
        replica_world.EVENTS,
    ),
    "moves": WorldKind(
        moving_world.MovingWorld,
        replica_world.REPLICA_FAULTS,
        replica_world.SENDS_MIN,
        replica_world.FAULTS_MIN,
        (*replica_world.EVENTS, *moving_world.MOVE_EVENTS),
    ),
}
DEFAULT_WORLD = "broker"


class SeedResult(NamedTuple):
    seed: int
    operations: int
    faults: dict[str, int]
    violations: list[Violation]
    trace_hash: str
    trace: list[str]
    world: str = DEFAULT_WORLD
    events: Mapping[str, int] = {}


def run_seed(seed: int, world_name: str = DEFAULT_WORLD) -> SeedResult:
    kind = WORLDS[world_name]
    world = kind.make(seed)
    try:
        world.run()
    except NoProgress as error:
        violations = [Violation("no progress", str(error)), *noticed_problems(world.history)]
    except Exception as error:
        # Whether it comes from the broker or the simulation, the message must name the seed that reproduces it.
        lines = "".join(traceback.format_exception(error)[-TRACEBACK_FRAMES_MAX:])
        violations = [Violation("exception", f"{error!r}\n{lines}"), *noticed_problems(world.history)]
    else:
        violations = world.check()
        if world.operations < kind.operations_min or world.fault_count < kind.faults_min:
            violations.append(Violation("too little", f"{world.operations} operations, {world.fault_count} faults"))
    scheduler = world.scheduler
    faults = dict(world.nemesis.counts)
    events = dict(world.events) if isinstance(world, cluster_world.ClusterWorld) else {}
    trace_hash, trace = scheduler.trace_hash(), list(scheduler.trace)
    return SeedResult(seed, world.operations, faults, violations, trace_hash, trace, world_name, events)


def rare_faults(results: Iterable[SeedResult]) -> list[str]:
    """Kinds of fault and awaited events that occurred in too few of the seeds, which are of one world."""
    seeds = list(results)
    counts = Counter(name for result in seeds for name in (*result.faults, *result.events))
    kind = WORLDS[seeds[0].world]
    return [name for name in (*kind.faults, *kind.events) if counts[name] < FAULT_SHARE_MIN * len(seeds)]


def describe(result: SeedResult) -> str:
    lines = [
        f"seed {result.seed}: {'FAILED' if result.violations else 'ok'}, {result.operations} operations, "
        f"{count_faults(result.faults)} faults of {len(result.faults)} kinds, trace {result.trace_hash[:16]}"
    ]
    lines += [f"    {kind}: {text}" for kind, text in result.violations[:VIOLATIONS_SHOWN_MAX]]
    if len(result.violations) > VIOLATIONS_SHOWN_MAX:
        lines.append(f"    and {len(result.violations) - VIOLATIONS_SHOWN_MAX} more")
    if result.violations:
        option = "" if result.world == DEFAULT_WORLD else f"--world {result.world} "
        lines.append(f"    replay: python -m simulation.run {option}--seed {result.seed} --trace")
    return "\n".join(lines)


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m simulation.run", description="Simulate a broker, a quorum or a cluster under faults."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=_seeds, dest="seeds", help="one seed")
    which.add_argument("--seeds", type=_seeds, dest="seeds", help="a range, as 1-100")
    parser.add_argument("--world", choices=WORLDS, default=DEFAULT_WORLD, help="what is simulated")
    parser.add_argument("--trace", action="store_true", help="print the end of the trace of each seed")
    parser.add_argument("--stop", action="store_true", help="stop at the first seed that fails")
    options = parser.parse_args(arguments)
    results = []
    for seed in options.seeds:
        result = run_seed(seed, options.world)
        if options.trace:
            print("\n".join(result.trace))
        print(describe(result), flush=True)
        results.append(result._replace(trace=[]))
        if result.violations and options.stop:
            return 1
    is_failed = any(result.violations for result in results)
    if len(results) >= SEEDS_FOR_SHARES_MIN and (rare := rare_faults(results)):
        print(f"in fewer than {FAULT_SHARE_MIN:.0%} of the seeds: {', '.join(rare)}")
        is_failed = True
    return 1 if is_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
