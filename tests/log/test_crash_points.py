"""A crash at every disk operation: what was acknowledged is there, and nothing else than what was appended.

Each seed is a script of appends, transactions, commits, rolls, retention, compaction, truncation, deletions, restarts and
crashes; see storage_workload.py. A failure prints the seed, the operation's number and the command that shows it again.
"""

import os

import pytest

from tests.log.storage_workload import CrashPoints

SEEDS = range(12)
POINTS_PER_SEED = 600
POINTS_MIN = 2_000

ONLY_SEED = os.environ.get("TIDELOG_SEED")
ONLY_POINT = os.environ.get("TIDELOG_CRASH_POINT")


@pytest.mark.skipif(ONLY_SEED is not None, reason="one crash point is being looked at")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_at_every_disk_operation_loses_nothing(seed: int) -> None:
    count = CrashPoints(seed).run(POINTS_PER_SEED)
    assert count.points >= POINTS_PER_SEED
    assert count.points_in_recovery > 0
    assert count.lives > 0


def test_there_are_enough_crash_points() -> None:
    assert len(SEEDS) * POINTS_PER_SEED >= POINTS_MIN


def test_the_crash_points_reach_everything() -> None:
    """The operations of one seed's script name every kind of file, so that no part of the engine is out of their sight."""
    crash_points = CrashPoints(SEEDS[0], only_point=0)
    seen: set[str] = set()
    count = crash_points.world.disk.on_operation
    assert count is not None

    def note(operation: str, path: str) -> None:
        seen.add(f"{operation} {path.rpartition('/')[2].lstrip('0123456789')}")
        count(operation, path)

    crash_points.world.disk.on_operation = note
    crash_points.run(6_000)
    expected = {
        "write .log",
        "sync .log",
        "truncate .log",
        "write .index",
        "write .timeindex",
        "write .txnindex",
        "write .snapshot",
        "sync .snapshot",
        "rename durable-marks.tmp",
        "rename leader-epoch-checkpoint.tmp",
        "rename recovery-point-offset-checkpoint.tmp",
        "rename log-start-offset-checkpoint.tmp",
        "rename replication-offset-checkpoint.tmp",
        "rename cleaner-offset-checkpoint.tmp",
        "create .kafka_cleanshutdown.tmp",
        "remove .kafka_cleanshutdown",
        "write .log.cleaned",
        "sync .log.cleaned",
        "rename .log.cleaned",
        "rename .log.swap",
        "remove .log.deleted",
        "sync_filesystem data",
        "remove partition.metadata",
    }
    assert expected <= seen, sorted(expected - seen)


@pytest.mark.skipif(ONLY_SEED is None, reason="TIDELOG_SEED and TIDELOG_CRASH_POINT name a crash point to look at again")
def test_one_crash_point_again() -> None:
    assert ONLY_SEED is not None
    points_min = int(os.environ.get("TIDELOG_CRASH_POINTS", POINTS_PER_SEED))
    CrashPoints(int(ONLY_SEED), None if ONLY_POINT is None else int(ONLY_POINT)).run(points_min)
