"""Copies under load: a follower that was away, a broker that comes back with an empty disk, and partitions that move.

The load is a producer of 1 KB messages that sends as much as it can. A follower's rate counts all that it had to copy, what was
written meanwhile as well, from the start of its process until all replicas are in sync.
"""

from time import monotonic, sleep

from bench.clusters.experiment import Experiment, Line, Run
from bench.clusters.subjects import NODES
from bench.clusters.traffic import (
    LARGE,
    create,
    fill,
    wait_until,
    wait_until_in_sync,
    writing,
    writing_greedily,
)
from bench.measure import Target
from tidelog.client.admin import Admin
from tidelog.client.reassignment import ReassignmentAdmin
from tidelog.client.throttle import remove_throttles, throttle

SECTION = "Copies"
BULK, PACED, MOVING = "bulk", "paced", "moving"
QUIET_SECONDS = 15.0
MOVING_PARTITIONS = 20
MOVING_SHARE = 0.2
THROTTLE_BYTES = 20_000_000

CAUGHT_UP = "a follower that was away catches up under load"
CAUGHT_UP_RATE = "the producer's rate meanwhile, of the rate before"
REPLACED = "a broker comes back with an empty disk under load: time until all is in sync"
REPLACED_RATE = "the producer's rate meanwhile, of the rate with three brokers"
MOVED = "moving 20 partitions at 20 MB/s: producer's p99, of the quiet cluster's"
MOVED_MS = "the producer's p99 meanwhile"


def catch_up(run: Run) -> None:
    create(run.subject, BULK)
    size = run.scale.mebibytes << 20
    run.subject.stop(NODES)
    fill(run.subject, BULK, NODES, size)
    with writing_greedily(run.subject, BULK) as writer:
        rate_before = writer.rate(run.scale.seconds(QUIET_SECONDS))
        began, before = monotonic(), writer.count
        written = size + before * len(LARGE)
        run.subject.start(NODES)
        wait_until_in_sync(run.subject)
        passed, count = monotonic() - began, writer.count - before
    run.add(CAUGHT_UP, (written + count * len(LARGE)) / passed / 1e6)
    run.add(CAUGHT_UP_RATE, count / passed / rate_before)
    run.note(f"{run.subject.label}: {passed:.0f} s, and the producer sent {rate_before:,.0f} msg/s before")


def lost_disk(run: Run) -> None:
    create(run.subject, BULK)
    fill(run.subject, BULK, NODES, run.scale.mebibytes << 20)
    with writing_greedily(run.subject, BULK) as writer:
        rate_before = writer.rate(run.scale.seconds(QUIET_SECONDS))
        run.subject.kill(NODES)
        run.subject.lose_topic(NODES, BULK)
        began, before = monotonic(), writer.count
        run.subject.start(NODES)
        wait_until_in_sync(run.subject)
        passed, count = monotonic() - began, writer.count - before
    run.add(REPLACED, passed)
    run.add(REPLACED_RATE, count / passed / rate_before)
    run.note(f"{run.subject.label}: the producer sent {rate_before:,.0f} msg/s before")


def throttled_moves(run: Run) -> None:
    # Each partition goes from two brokers to one of them and the third.
    before = {(MOVING, index): (index % NODES + 1, (index + 1) % NODES + 1) for index in range(MOVING_PARTITIONS)}
    after = {key: (replicas[0], 6 - sum(replicas)) for key, replicas in before.items()}
    create(run.subject, PACED)
    create(run.subject, MOVING, assignment=[list(replicas) for replicas in before.values()])
    fill(run.subject, MOVING, MOVING_PARTITIONS, int(run.scale.mebibytes * MOVING_SHARE) << 20)
    with (
        writing(run.subject, PACED, NODES) as writer,
        Admin(run.subject.bootstrap_servers) as admin,
        ReassignmentAdmin(run.subject.bootstrap_servers) as reassignments,
    ):
        sleep(run.scale.seconds(2.0))
        since = monotonic()
        sleep(run.scale.seconds(QUIET_SECONDS))
        quiet = writer.percentile(99, since)
        brokers = range(1, NODES + 1)
        throttle(admin, brokers, {key: (before[key], after[key][1:]) for key in before}, THROTTLE_BYTES)
        since = monotonic()
        reassignments.alter(after)
        wait_until(lambda: not reassignments.ongoing(), "the partitions have moved")
        passed = monotonic() - since
        moved = writer.percentile(99, since)
        remove_throttles(admin, brokers, [MOVING], ())
    run.add(MOVED, moved / quiet)
    run.add(MOVED_MS, moved * 1000)
    run.note(f"{run.subject.label}: {passed:.0f} s")


EXPERIMENTS = (
    Experiment(
        "catch-up",
        SECTION,
        "a follower that is --mebibytes behind, under full load",
        (Line(CAUGHT_UP, "MB/s", Target(">=", 60)), Line(CAUGHT_UP_RATE, "", Target(">=", 0.7))),
        catch_up,
    ),
    Experiment(
        "lost-disk",
        SECTION,
        "a dead broker that held --mebibytes comes back with an empty disk, under full load",
        (Line(REPLACED, "s", Target("<=", 1.2), "ratio"), Line(REPLACED_RATE, "", Target(">=", 0.7))),
        lost_disk,
    ),
    Experiment(
        "moves",
        SECTION,
        "20 partitions with a fifth of --mebibytes move with a throttle",
        (Line(MOVED, "", Target("<=", 1.2)), Line(MOVED_MS, "ms")),
        throttled_moves,
    ),
)
